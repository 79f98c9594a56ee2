//! The component `nodeloads`: its definition is the code's, and both programs have the setting and the rights.

use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use placement::policy::{LoadPolicy, PolicyError};
use serde_json::{Value, json};

use crate::manifests::{read, strings, yaml};

fn rights() -> Vec<Value> {
    serde_saphyr::from_multiple(&read("components/nodeloads/rights.yaml")).unwrap()
}

/// After a change of the types, change the file until this test passes.
#[test]
fn the_definition_is_what_the_types_say_and_what_kubernetes_knows() {
    let written = yaml("components/nodeloads/crd.yaml");
    assert_eq!(written, api::node_load::definition());
    let known: CustomResourceDefinition = serde_json::from_value(written.clone()).unwrap();
    let mut known = serde_json::to_value(known).unwrap();
    // A type of Kubernetes writes its empty status too.
    known.as_object_mut().unwrap().remove("status");
    assert_eq!(known, written);
}

/// The API server refuses a NodeLoad with more as a whole, and its node would have no reading at all.
#[test]
fn a_node_load_holds_every_metric_that_a_policy_may_have() {
    let definition = yaml("components/nodeloads/crd.yaml");
    let version = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    let most = version["properties"]["readings"]["maxProperties"].as_u64().unwrap();
    assert!(policy_of_metrics(most).is_ok() && policy_of_metrics(most + 1).is_err(), "{most}");
}

fn policy_of_metrics(count: u64) -> Result<LoadPolicy, PolicyError> {
    let metrics = (0..count).map(|n| format!("  - {{name: fs_{n}_usage_active, period: 1m}}\n"));
    let head = "apiVersion: plimsoll.dev/v1alpha1\nkind: SchedulingPolicy\nspec:\n  metrics:\n";
    LoadPolicy::from_yaml(&format!("{head}{}", metrics.collect::<String>()))
}

#[test]
fn both_programs_have_the_setting_and_the_rights_that_it_needs() {
    for (program, verbs) in
        [("annotator", "list watch patch create"), ("scheduler-extender", "list watch")]
    {
        let patch = yaml(&format!("components/nodeloads/{program}.yaml"));
        let env = &patch["spec"]["template"]["spec"]["containers"][0]["env"];
        assert_eq!(*env, json!([{"name": "PLIMSOLL_READINGS_IN", "value": "nodeloads"}]));
        let name = format!("plimsoll-{program}-nodeloads");
        let all = rights();
        let named: Vec<_> =
            all.iter().filter(|object| object["metadata"]["name"] == *name).collect();
        let role = named.iter().find(|object| object["kind"] == "ClusterRole").unwrap();
        let binding = named.iter().find(|object| object["kind"] == "ClusterRoleBinding").unwrap();
        let [rule] = &role["rules"].as_array().unwrap()[..] else { panic!("{role}") };
        assert_eq!(rule["apiGroups"], json!(["plimsoll.dev"]));
        assert_eq!(rule["resources"], json!(["nodeloads"]));
        assert_eq!(strings(&rule["verbs"]).join(" "), verbs);
        assert_eq!(binding["roleRef"]["name"], *name);
        let account = json!([{"kind": "ServiceAccount", "name": program, "namespace": "plimsoll"}]);
        assert_eq!(binding["subjects"], account);
        serde_json::from_value::<ClusterRole>(Value::clone(role)).unwrap();
        serde_json::from_value::<ClusterRoleBinding>(Value::clone(binding)).unwrap();
    }
    assert_eq!(rights().len(), 4);
}

/// Readings are the annotations without a domain.
#[test]
fn with_node_loads_the_annotators_token_writes_no_reading_on_a_node() {
    let patches = yaml("components/nodeloads/kustomization.yaml")["patches"].clone();
    let mut found = patches
        .as_array()
        .unwrap()
        .iter()
        .filter(|patch| patch["target"]["name"] == "plimsoll-annotator-nodes");
    let patch = found.next().unwrap()["patch"].as_str().unwrap();
    let operations: Value = serde_saphyr::from_str(patch).unwrap();
    let operation = &operations[0];
    assert_eq!(
        (&operation["op"], &operation["path"]),
        (&json!("add"), &json!("/spec/validations/-"))
    );
    let expression = operation["value"]["expression"].as_str().unwrap();
    assert!(expression.contains("variables.new.size() > 1000 ||"), "{expression}");
    assert!(expression.contains("variables.new.all(key, key.contains('/') ||"), "{expression}");
}

//! What ResourceClaims need of the cluster, and the sample and the document about them: names, rights and policies.

use std::collections::BTreeSet;

use placement::names::Names;
use serde_json::{Value, json};

use crate::manifests::{Manifests, read, strings};
use crate::repository;

fn rule(resource: &str, verbs: &[&str]) -> Value {
    json!({"apiGroups": ["resource.k8s.io"], "resources": [resource], "verbs": verbs})
}

fn sample(kind: &str) -> Value {
    Manifests::of_text(&read("samples/claims/share.yaml")).of_kind(kind).remove(0)
}

/// The expressions of a policy's validations.
fn validations(policy: &str) -> Vec<String> {
    let policy = Manifests::of_claims().object("ValidatingAdmissionPolicy", policy);
    let validations = policy["spec"]["validations"].as_array().expect("validations").clone();
    validations.iter().map(|it| it["expression"].as_str().expect("a text").to_owned()).collect()
}

/// The resources and the operations that a policy is about.
fn asked_about(policy: &str) -> (Vec<String>, Vec<String>) {
    let policy = Manifests::of_claims().object("ValidatingAdmissionPolicy", policy);
    let rule = &policy["spec"]["matchConstraints"]["resourceRules"][0];
    assert_eq!(strings(&rule["apiGroups"]), ["resource.k8s.io"]);
    (strings(&rule["resources"]), strings(&rule["operations"]))
}

const WRITES: [&str; 3] = ["CREATE", "UPDATE", "DELETE"];

/// Kubernetes lets no slice change its node or its driver.
#[test]
fn the_plugins_token_writes_the_drivers_slices_of_its_own_node_and_pool_alone() {
    let policy = "plimsoll-device-plugin-slices";
    let (resources, operations) = asked_about(policy);
    assert_eq!(resources, ["resourceslices"]);
    assert_eq!(operations, WRITES);
    let driver = Names::default().claims_driver();
    assert_eq!(
        validations(policy),
        [
            "variables.ownNode != '' && variables.slice.spec.?nodeName.orValue('') == variables.ownNode && \
             variables.slice.spec.pool.name == variables.ownNode"
                .to_owned(),
            format!("variables.slice.spec.driver == '{driver}'"),
        ]
    );
    let policy = Manifests::of_claims().object("ValidatingAdmissionPolicy", policy);
    let slice = &policy["spec"]["variables"][1];
    // Of a deletion there is the old object alone.
    let expression = "request.operation == 'DELETE' ? oldObject : object";
    assert_eq!(*slice, json!({"name": "slice", "expression": expression}));
}

#[test]
fn the_plugins_token_writes_no_resource_claim() {
    let policy = "plimsoll-device-plugin-resource-claims";
    let (resources, operations) = asked_about(policy);
    assert_eq!(resources, ["resourceclaims", "resourceclaims/status"]);
    assert_eq!(operations, WRITES);
    assert_eq!(validations(policy), ["false"]);
}

#[test]
fn claims_add_these_rights_alone() {
    let claims = Manifests::of_claims();
    for (program, rules) in [
        (
            "gpushare-device-plugin",
            vec![
                rule("resourceslices", &["create", "patch", "delete"]),
                rule("resourceclaims", &["get"]),
            ],
        ),
        ("scheduler-extender", vec![rule("resourceclaims", &["list", "watch"])]),
    ] {
        let name = format!("plimsoll-{program}-claims");
        assert_eq!(claims.object("ClusterRole", &name)["rules"], json!(rules), "{program}");
        let binding = claims.object("ClusterRoleBinding", &name);
        assert_eq!(binding["roleRef"]["name"], name);
        let account = json!({"kind": "ServiceAccount", "name": program, "namespace": "plimsoll"});
        assert_eq!(binding["subjects"], json!([account]));
    }
    assert_eq!(claims.of_kind("ClusterRole").len(), 2);
    assert!(claims.of_kind("Role").is_empty());
}

/// With a name of an extended resource a pod would ask for whole units on GPUs of its own.
#[test]
fn the_class_is_of_every_gpu_of_the_driver_and_of_no_extended_resource() {
    let names = Names::default();
    let class = Manifests::of_claims().object("DeviceClass", &names.claims_class());
    let expression = format!("device.driver == '{}'", names.claims_driver());
    assert_eq!(class["spec"], json!({"selectors": [{"cel": {"expression": expression}}]}));
}

#[test]
fn the_pods_of_the_sample_have_a_share_of_the_class_by_its_template() {
    let template = sample("ResourceClaimTemplate");
    let request = &template["spec"]["spec"]["devices"]["requests"][0];
    assert_eq!(request["exactly"]["deviceClassName"], Names::default().claims_class());
    let asked = request["exactly"]["capacity"]["requests"].as_object().expect("capacities");
    let asked: BTreeSet<&str> = asked.keys().map(String::as_str).collect();
    assert_eq!(asked, ["cores", "memory"].into());
    let pod = sample("Deployment")["spec"]["template"]["spec"].clone();
    let [claim] = &pod["resourceClaims"].as_array().expect("claims")[..] else { panic!("{pod}") };
    assert_eq!(claim["resourceClaimTemplateName"], template["metadata"]["name"]);
    let used = &pod["containers"][0]["resources"]["claims"];
    assert_eq!(*used, json!([{"name": claim["name"]}]));
}

#[test]
fn the_document_has_the_names_of_driver_class_label_and_sample() {
    let document = repository::read("docs/claims.md");
    let names = Names::default();
    let mode = format!("{}=claims", names.gpu_mode());
    let samples =
        ["share", "units-as-claims"].map(|it| format!("(../deploy/samples/claims/{it}.yaml)"));
    for name in [names.claims_driver(), names.claims_class(), mode].iter().chain(&samples) {
        assert!(document.contains(name), "{name}");
    }
}

/// Of the defaults: units of 1 GiB, and the names.
#[test]
fn units_become_the_claims_of_the_samples_template() {
    let sample = Manifests::of_text(&read("samples/claims/units-as-claims.yaml"));
    let [policy, binding, template] = sample.objects() else { panic!("not three objects") };
    let names = Names::default();
    let text = policy.to_string();
    assert!(text.contains(&format!("'{}' in container.resources.limits", names.gpu_resource())));
    assert_eq!(binding["spec"]["policyName"], policy["metadata"]["name"]);
    let labels = &binding["spec"]["matchResources"]["namespaceSelector"]["matchLabels"];
    assert_eq!(*labels, json!({names.gpu_mode(): "claims"}));
    let units = template["metadata"]["name"].as_str().and_then(|it| it.strip_prefix("gpu-mem-"));
    let exactly = &template["spec"]["spec"]["devices"]["requests"][0]["exactly"];
    assert_eq!(exactly["deviceClassName"], names.claims_class());
    let memory = units.map(|units| format!("{units}Gi"));
    assert_eq!(exactly["capacity"]["requests"], json!({"memory": memory}));
}

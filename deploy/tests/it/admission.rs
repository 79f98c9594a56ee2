//! The ValidatingAdmissionPolicies name the keys and the accounts that the programs have, and each is in force. What the API
//! server makes of them, `testing/e2e` tries.

use std::collections::BTreeSet;

use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use placement::names::{Names, aliyun};
use serde_json::Value;

use crate::manifests::{of_kind, read, strings, yaml};

/// Every object of `deploy/admission`.
fn objects() -> Vec<Value> {
    let files = strings(&yaml("admission/kustomization.yaml")["resources"]);
    let documents = |file: &String| -> Vec<Value> {
        serde_saphyr::from_multiple(&read(&format!("admission/{file}"))).expect("YAML")
    };
    files.iter().flat_map(documents).collect()
}

fn policies() -> Vec<ValidatingAdmissionPolicy> {
    let found = objects().into_iter().filter(|o| o["kind"] == "ValidatingAdmissionPolicy");
    found.map(|policy| serde_json::from_value(policy).expect("a policy")).collect()
}

fn policy(name: &str) -> String {
    let found = objects().into_iter().find(|object| object["metadata"]["name"] == name);
    found.expect("a policy")["spec"].to_string()
}

#[test]
fn each_policy_refuses_and_is_bound_once_and_everywhere() {
    let bindings = objects().into_iter().filter(|o| o["kind"] != "ValidatingAdmissionPolicy");
    let bound: Vec<ValidatingAdmissionPolicyBinding> =
        bindings.map(|binding| serde_json::from_value(binding).expect("a binding")).collect();
    assert_eq!((policies().len(), bound.len()), (5, 5));
    for policy in policies() {
        let (name, spec) = (policy.metadata.name.expect("a name"), policy.spec.expect("a spec"));
        assert_eq!(spec.failure_policy.as_deref(), Some("Fail"), "{name}");
        let of_it = |binding: &&ValidatingAdmissionPolicyBinding| binding.spec.policy_name == name;
        let binding: Vec<_> = bound.iter().filter(of_it).collect();
        let [binding] = &binding[..] else { panic!("{} bindings of {name}", binding.len()) };
        let spec = &binding.spec;
        assert_eq!(spec.validation_actions, ["Deny"], "{name}");
        assert!(spec.match_resources.is_none(), "{name}");
    }
}

#[test]
fn objects_without_namespace_carry_the_label_by_which_they_are_found() {
    for object in objects() {
        let metadata = &object["metadata"];
        assert!(metadata["namespace"].is_null(), "{metadata}");
        assert_eq!(metadata["labels"]["app.kubernetes.io/part-of"], "plimsoll", "{metadata}");
    }
    assert!(yaml("admission/kustomization.yaml")["namespace"].is_null());
    let all = strings(&yaml("kustomization.yaml")["resources"]);
    assert_eq!(all, ["base", "admission"]);
}

/// The keys, or beginnings of keys, that these expressions compare annotations with.
fn compared(expressions: &str) -> BTreeSet<String> {
    let after = |comparison| expressions.split(comparison).skip(1);
    let texts = after("key.startsWith('").chain(after("key == '"));
    texts.filter_map(|rest| Some(rest.split_once('\'')?.0.to_owned())).collect()
}

#[test]
fn every_key_that_bind_writes_is_protected_and_no_key_of_a_pods_author() {
    let names = Names::default();
    let written = [
        &names.claim(),
        aliyun::IDX,
        aliyun::DEV,
        aliyun::POD,
        aliyun::ASSIGNED,
        aliyun::ASSUME_TIME,
        aliyun::ALLOCATION,
    ];
    let own = [
        names.expected_use(),
        names.card_count(),
        names.gpu_cores(),
        names.gpu_mem_limit(),
        names.gpu_model(),
        names.gpu_uuid(),
        names.gpu_placement(),
    ];
    for name in ["plimsoll-claims", "plimsoll-bindings", "plimsoll-device-plugin-pods"] {
        let protected = compared(&policy(name));
        let is_protected = |key: &str| protected.iter().any(|prefix| key.starts_with(prefix));
        assert!(written.iter().all(|key| is_protected(key)), "{name}: {protected:?}");
        assert!(!own.iter().any(|key| is_protected(key)), "{name}: {protected:?}");
    }
}

#[test]
fn resources_are_those_that_pods_ask_for() {
    let names = Names::default();
    assert!(policy("plimsoll-gpu-environment").contains(&format!("'{}'", names.gpu_resource())));
    let nodes = policy("plimsoll-device-plugin-nodes");
    assert!(nodes.contains(&format!("'{}'", names.gpu_count_resource())));
    let written = format!("key in ['{}', '{}']", names.cards(), names.isolation());
    assert!(nodes.contains(&written), "{nodes}");
}

#[test]
fn accounts_are_those_of_extender_and_device_plugin() {
    let accounts: Vec<String> = of_kind("ServiceAccount")
        .iter()
        .map(|account| {
            let metadata = &account["metadata"];
            let part = |key: &str| metadata[key].as_str().expect("a text").to_owned();
            format!("system:serviceaccount:{}:{}", part("namespace"), part("name"))
        })
        .collect();
    let of = |name: &str| -> BTreeSet<String> {
        let text = policy(name);
        accounts.iter().filter(|account| text.contains(&format!("'{account}'"))).cloned().collect()
    };
    let set = |names: &[&str]| -> BTreeSet<String> {
        names.iter().map(|name| format!("system:serviceaccount:plimsoll:{name}")).collect()
    };
    assert_eq!(of("plimsoll-claims"), set(&["scheduler-extender", "gpushare-device-plugin"]));
    assert_eq!(of("plimsoll-bindings"), set(&["scheduler-extender"]));
    for name in ["plimsoll-device-plugin-nodes", "plimsoll-device-plugin-pods"] {
        assert_eq!(of(name), set(&["gpushare-device-plugin"]), "{name}");
    }
}

/// Each condition must hold for the policy to apply, so that one more exempts more accounts. The other patch has the device plugin place pods.
#[test]
fn a_move_from_gpushare_adds_a_condition_to_the_policy_of_claims_and_places_unclaimed_pods() {
    let patches = yaml("components/from-gpushare/kustomization.yaml")["patches"].clone();
    let [plugin, patch] = &patches.as_array().expect("patches")[..] else { panic!("{patches}") };
    let plugin =
        yaml(&format!("components/from-gpushare/{}", plugin["path"].as_str().expect("a path")));
    let placing = serde_json::json!([{ "name": "PLIMSOLL_UNCLAIMED_PODS", "value": "place" }]);
    assert_eq!(plugin["spec"]["template"]["spec"]["containers"][0]["env"], placing);
    assert_eq!(patch["target"]["name"], "plimsoll-claims");
    let operations: Value =
        serde_saphyr::from_str(patch["patch"].as_str().expect("a text")).expect("YAML");
    let [operation] = &operations.as_array().expect("a list")[..] else { panic!("{operations}") };
    assert_eq!(
        (&operation["op"], &operation["path"]),
        (&"add".into(), &"/spec/matchConditions/-".into())
    );
    let expression = operation["value"]["expression"].as_str().expect("an expression");
    assert!(expression.starts_with("!(request.userInfo.username in ["), "{expression}");
}

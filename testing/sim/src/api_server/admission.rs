//! The admission plugin ExtendedResourceToleration, and no other: a new pod tolerates the taints of the extended
//! resources that it requests. Clusters that taint GPU nodes turn it on (it is off by default), and the demo taints
//! them: so a pod that a user makes there with kubectl needs no toleration of its own.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::json::list;

/// Adds the tolerations.
pub(super) fn tolerate_extended_resources(pod: &mut Value) {
    for resource in extended_resources(&pod["spec"]) {
        let toleration = json!({"key": resource, "operator": "Exists", "effect": "NoSchedule"});
        match &mut pod["spec"]["tolerations"] {
            Value::Array(present) if present.contains(&toleration) => {}
            Value::Array(present) => present.push(toleration),
            absent => *absent = json!([toleration]),
        }
    }
}

/// The extended resources in requests and limits. A limit without a request counts as one.
fn extended_resources(spec: &Value) -> BTreeSet<String> {
    let containers = list(&spec["containers"]).chain(list(&spec["initContainers"]));
    let resources = containers.flat_map(|container| {
        ["requests", "limits"].map(|part| container["resources"][part].as_object())
    });
    let names = resources.flatten().flat_map(|amounts| amounts.keys().cloned());
    names.filter(|name| is_extended(name)).collect()
}

/// Whether a resource is not one of Kubernetes' own (`IsExtendedResourceName`).
fn is_extended(resource: &str) -> bool {
    resource.contains('/')
        && !resource.contains("kubernetes.io/")
        && !resource.starts_with("requests.")
}

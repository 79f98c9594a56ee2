//! What becomes of a new object on its way in: the admission plugin ExtendedResourceToleration, and no
//! other. An API server has it off unless it is told otherwise; clusters that keep other pods off nodes
//! with devices, by a taint whose key is the devices' resource, turn it on.

use std::collections::BTreeSet;

use serde_json::{Value, json};

/// Lets a pod bear the taints of the extended resources that it asks for.
pub(crate) fn tolerate_resources(pod: &mut Value) {
    for resource in extended_resources(&pod["spec"]) {
        let toleration = json!({"key": resource, "operator": "Exists", "effect": "NoSchedule"});
        match &mut pod["spec"]["tolerations"] {
            Value::Array(present) if present.contains(&toleration) => {}
            Value::Array(present) => present.push(toleration),
            absent => *absent = json!([toleration]),
        }
    }
}

/// Those that its containers request; a limit alone is a request, too.
fn extended_resources(spec: &Value) -> BTreeSet<String> {
    let containers = ["containers", "initContainers"].map(|part| spec[part].as_array());
    let asked = |container: &Value| {
        let amounts = ["requests", "limits"].map(|part| container["resources"][part].as_object());
        let names = amounts.into_iter().flatten().flat_map(|amounts| amounts.keys().cloned());
        names.collect::<Vec<_>>()
    };
    let names = containers.into_iter().flatten().flatten().flat_map(asked);
    names.filter(|name| is_extended(name)).collect()
}

/// Whether a resource is none of Kubernetes' own (`IsExtendedResourceName`).
fn is_extended(resource: &str) -> bool {
    resource.contains('/')
        && !resource.contains("kubernetes.io/")
        && !resource.starts_with("requests.")
}

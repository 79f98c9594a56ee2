//! The pod that a name of a pod or of a workload stands for.

use anyhow::{Result, bail};
use serde_json::Value;

use crate::cluster_access::Cluster;
use crate::cluster_access::objects::{List, Pod};

/// Kinds of workloads, with kubectl's short names.
const WORKLOADS: [(&str, &[&str]); 6] = [
    ("deployment", &["deploy", "deployment", "deployments"]),
    ("statefulset", &["sts", "statefulset", "statefulsets"]),
    ("daemonset", &["ds", "daemonset", "daemonsets"]),
    ("replicaset", &["rs", "replicaset", "replicasets"]),
    ("job", &["job", "jobs"]),
    ("replicationcontroller", &["rc", "replicationcontroller", "replicationcontrollers"]),
];

/// The name of the pod: the target itself, or the newest pod of the workload that waits, or its newest.
///
/// # Errors
///
/// If the target is of another kind, or has no pods, or they cannot be read.
pub(super) fn pod_of(target: &str, namespace: &str, cluster: &Cluster) -> Result<String> {
    let Some((kind, name)) = target.split_once('/') else { return Ok(target.to_owned()) };
    let given = kind.to_lowercase();
    if ["po", "pod", "pods"].contains(&given.as_str()) {
        return Ok(name.to_owned());
    }
    let Some((kind, _)) = WORKLOADS.iter().find(|(_, names)| names.contains(&given.as_str()))
    else {
        bail!(
            "{target}: expected a pod's name, or deploy/NAME, sts/NAME, ds/NAME, rs/NAME or job/NAME; for another kind \
             give one of its pods, or its manifest with -f"
        );
    };
    let in_namespace = format!("--namespace={namespace}");
    let workload: Value = cluster.kubectl().get(&[kind, name, &in_namespace])?;
    let selector = format!("--selector={}", selector(&workload["spec"]["selector"]));
    let pods: List<Pod> = cluster.kubectl().get(&["pods", &in_namespace, &selector])?;
    match newest(&pods.items) {
        Some(pod) => Ok(pod.metadata.name.clone()),
        None => bail!(
            "{target} in namespace {namespace} has no pods: `kubectl -n {namespace} describe {target}` says why; \
             -f FILE tells where one would go"
        ),
    }
}

/// The newest that waits, or without one the newest.
fn newest(pods: &[Pod]) -> Option<&Pod> {
    pods.iter().max_by_key(|pod| (pod.waits(), pod.metadata.creation_timestamp))
}

/// A selector as kubectl takes it.
fn selector(selector: &Value) -> String {
    let labels = selector.get("matchLabels").or(Some(selector)).and_then(Value::as_object);
    let mut parts: Vec<String> = Vec::new();
    for (key, value) in labels.into_iter().flatten() {
        if let Some(value) = value.as_str() {
            parts.push(format!("{key}={value}"));
        }
    }
    for part in selector["matchExpressions"].as_array().into_iter().flatten() {
        let key = part["key"].as_str().unwrap_or_default();
        let list = part["values"].as_array().map_or(&[][..], Vec::as_slice);
        let values = list.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(",");
        parts.push(match part["operator"].as_str().unwrap_or_default() {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "DoesNotExist" => format!("!{key}"),
            _ => key.to_owned(),
        });
    }
    parts.join(",")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, created: &str, node: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": name, "creationTimestamp": created},
            "spec": {"nodeName": node}, "status": {"phase": if node.is_empty() { "Pending" } else { "Running" }},
        }))
        .unwrap()
    }

    #[test]
    fn a_pod_that_waits_goes_before_newer_ones_that_run() {
        let pods = [
            pod("old", "2026-11-26T10:00:00Z", ""),
            pod("waits", "2026-11-26T11:00:00Z", ""),
            pod("runs", "2026-11-26T12:00:00Z", "n"),
        ];
        assert_eq!(newest(&pods).unwrap().metadata.name, "waits");
        assert_eq!(newest(&pods[2..]).unwrap().metadata.name, "runs");
        assert!(newest(&[]).is_none());
    }

    #[test]
    fn selectors_are_written_as_kubectl_reads_them() {
        let both = json!({
            "matchLabels": {"app": "web"},
            "matchExpressions": [
                {"key": "tier", "operator": "In", "values": ["a", "b"]},
                {"key": "old", "operator": "DoesNotExist"}, {"key": "new", "operator": "Exists"},
            ],
        });
        assert_eq!(selector(&both), "app=web,tier in (a,b),!old,new");
        assert_eq!(selector(&json!({"app": "web"})), "app=web");
    }
}

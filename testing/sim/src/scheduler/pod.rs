//! What the scheduler reads of a pod.

use serde_json::Value;

use crate::json::{name, namespace, text};

/// The scheduler of pods without `spec.schedulerName`.
pub(super) const DEFAULT_SCHEDULER: &str = "default-scheduler";

/// Namespace and name.
pub(super) type Key = (String, String);

/// A pod's namespace and name.
pub(super) fn key(pod: &Value) -> Key {
    (namespace(pod).to_owned(), name(pod).to_owned())
}

/// Whether a pod's phase is one that it never leaves.
pub(super) fn has_ended(pod: &Value) -> bool {
    matches!(text(&pod["status"]["phase"]), "Succeeded" | "Failed")
}

/// The name of the scheduler that a pod is for.
pub(super) fn scheduler_of(pod: &Value) -> &str {
    let named = text(&pod["spec"]["schedulerName"]);
    if named.is_empty() { DEFAULT_SCHEDULER } else { named }
}

/// A pod's priority. The API server would write it into `spec.priority` by the pod's class; here are only the classes
/// that every cluster has.
pub(super) fn priority(pod: &Value) -> i64 {
    match text(&pod["spec"]["priorityClassName"]) {
        "system-cluster-critical" => 2_000_000_000,
        "system-node-critical" => 2_000_001_000,
        _ => pod["spec"]["priority"].as_i64().unwrap_or(0),
    }
}

//! The Events by which kube-scheduler tells users what it does with their pods. `kubectl describe pod` shows them.
//!
//! One Event a pod and reason, with the newest message and the number of occurrences. kube-scheduler keeps the first
//! message and the number of a series.

use serde_json::{Value, json};

use crate::json::uid;
use crate::objects::kind::EVENTS;
use crate::objects::store::{Store, time};
use crate::scheduler::pod::{key, scheduler_of};

/// Longest message of an Event, in bytes.
const MAX_MESSAGE: usize = 1024;

/// Records that the pod was bound.
pub(in crate::scheduler) fn scheduled(store: &Store, pod: &Value, node: &str) {
    let (namespace, name) = key(pod);
    let message = format!("Successfully assigned {namespace}/{name} to {node}");
    record(store, pod, "Normal", "Scheduled", &message);
}

/// Records that the pod was not placed or not bound.
pub(in crate::scheduler) fn failed(store: &Store, pod: &Value, message: &str) {
    record(store, pod, "Warning", "FailedScheduling", message);
}

fn record(store: &Store, pod: &Value, severity: &str, reason: &str, message: &str) {
    let (namespace, pod_name) = key(pod);
    // The UID sets the Events of a later pod of this name apart.
    let name = format!("{pod_name}.{}.{}", uid(pod), reason.to_lowercase());
    let now = time();
    let message = shortened(message);
    // The closure cannot fail.
    let _ = store.change(EVENTS, &namespace, &name, |before| {
        let count = before.and_then(|before| before["count"].as_u64()).unwrap_or(0);
        let first = before.map_or_else(|| json!(now), |before| before["firstTimestamp"].clone());
        Ok(Some(json!({
            "metadata": {},
            "involvedObject": {
                "apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": pod_name,
                "uid": uid(pod),
            },
            "type": severity, "reason": reason, "message": message, "count": count + 1,
            "firstTimestamp": first, "lastTimestamp": now,
            "source": {"component": scheduler_of(pod)},
        })))
    });
}

fn shortened(message: &str) -> String {
    const END: &str = " ...";
    if message.len() <= MAX_MESSAGE {
        return message.to_owned();
    }
    let end = message.floor_char_boundary(MAX_MESSAGE - END.len());
    format!("{}{END}", &message[..end])
}

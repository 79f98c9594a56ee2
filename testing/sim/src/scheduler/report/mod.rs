//! What users read of a pod: the condition PodScheduled of one that was not placed, and Events.

pub(super) mod events;
mod message;

use serde_json::{Value, json};

pub(super) use self::message::{fit_message, unavailable};
use super::core::Core;
use super::pod::key;
use crate::json::{list, text, uid};
use crate::objects::kind::PODS;
use crate::objects::store::time;

/// The condition's reason.
#[derive(Debug, Clone, Copy)]
pub(super) enum FailureReason {
    /// No node takes the pod.
    Unschedulable,
    /// An extender or the API server failed.
    SchedulerError,
}

/// Writes the condition and the nominated node (empty: none) where either is new, and an Event. The pod's own change
/// then has it tried again if an extender has rejected it: see [`Queue::updated`](super::queue::Queue::updated).
pub(super) fn report(
    core: &Core,
    pod: &Value,
    reason: FailureReason,
    message: &str,
    nominated: &str,
) {
    let (namespace, name) = key(pod);
    let condition = json!({
        "type": "PodScheduled", "status": "False", "reason": format!("{reason:?}"),
        "message": message, "lastTransitionTime": time(),
    });
    // Nothing is written to a pod that is deleted or bound by now. The closure cannot fail.
    let _ = core.api.store.change(PODS, &namespace, &name, |before| {
        let Some(before) = before.filter(|now| is_new(now, pod, message, nominated)) else {
            return Ok(before.cloned());
        };
        let mut after = before.clone();
        let conditions = list(&before["status"]["conditions"]);
        let others = conditions.filter(|other| other["type"] != "PodScheduled").cloned();
        let conditions: Vec<Value> = others.chain([condition]).collect();
        after["status"]["conditions"] = conditions.into();
        if !nominated.is_empty() {
            after["status"]["nominatedNodeName"] = nominated.into();
        }
        Ok(Some(after))
    });
    events::failed(&core.api.store, pod, message);
}

fn is_new(now: &Value, pod: &Value, message: &str, nominated: &str) -> bool {
    let status = &now["status"];
    let known = list(&status["conditions"]).any(|condition| condition["message"] == message)
        && (nominated.is_empty() || status["nominatedNodeName"] == nominated);
    !known && uid(now) == uid(pod) && text(&now["spec"]["nodeName"]).is_empty()
}

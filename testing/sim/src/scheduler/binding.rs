//! The binding cycle, and what users are told when there is none.

use std::sync::Arc;

use serde_json::{Value, json};

use super::cycle::{Core, key, text};
use super::queue::{Seen, Waits};
use crate::binding::bind as bound;
use crate::error::Failure;
use crate::kind::PODS;
use crate::store::{Store, time};

/// Why a pod has no node, as its condition has it.
#[derive(Debug, Clone, Copy)]
pub(super) enum Trouble {
    /// No node takes it.
    Unschedulable,
    /// Somebody failed who was asked.
    SchedulerError,
}

/// Binds through the extender that binds such pods, else by itself. Runs beside later cycles.
pub(super) async fn bind(core: Arc<Core>, pod: Arc<Value>, node: String, seen: Seen) {
    let binder = core.config.extenders.iter().find(|e| !e.bind_verb.is_empty() && e.wants(&pod));
    let outcome = match binder {
        Some(extender) => {
            extender.bind(&core.http, &pod, &node).await.map_err(|error| error.to_string())
        }
        None => by_itself(&core.api.store, &pod, &node).map_err(|failure| failure.message),
    };
    match outcome {
        Ok(()) => core.events.scheduled(&core.api.store, &pod, &node),
        Err(why) => {
            core.cache.forget(text(&pod["metadata"]["uid"]));
            core.queue.nodes_changed(true);
            core.queue.failed(key(&pod), Waits::AfterError, seen);
            tell(&core, &pod, Trouble::SchedulerError, &why);
        }
    }
}

fn by_itself(store: &Store, pod: &Value, node: &str) -> Result<(), Failure> {
    let (namespace, name) = key(pod);
    let binding = json!({
        "metadata": {"name": name, "uid": pod["metadata"]["uid"]},
        "target": {"kind": "Node", "name": node},
    });
    store.change(PODS, &namespace, &name, |before| {
        let before = before.ok_or_else(|| Failure::not_found(PODS, &name))?;
        bound(before, &namespace, &binding, &time()).map(Some)
    })?;
    Ok(())
}

/// The pod's condition, where the words are new, and an Event.
pub(super) fn tell(core: &Core, pod: &Value, trouble: Trouble, message: &str) {
    let (namespace, name) = key(pod);
    let condition = json!({
        "type": "PodScheduled", "status": "False", "reason": format!("{trouble:?}"),
        "message": message, "lastTransitionTime": time(),
    });
    // Where the pod is gone or bound by now, there is nothing to say.
    let _ = core.api.store.change(PODS, &namespace, &name, |before| {
        let Some(before) = before.filter(|now| is_news(now, pod, message)) else {
            return Ok(before.cloned());
        };
        let mut after = before.clone();
        let conditions = after["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let others = conditions.into_iter().filter(|other| other["type"] != "PodScheduled");
        after["status"]["conditions"] = others.chain([condition]).collect();
        Ok(Some(after))
    });
    core.events.failed(&core.api.store, pod, message);
}

fn is_news(now: &Value, pod: &Value, message: &str) -> bool {
    let conditions = now["status"]["conditions"].as_array();
    let said = conditions.into_iter().flatten().any(|condition| condition["message"] == message);
    !said
        && now["metadata"]["uid"] == pod["metadata"]["uid"]
        && text(&now["spec"]["nodeName"]).is_empty()
}

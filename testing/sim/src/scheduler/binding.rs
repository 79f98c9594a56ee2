//! The binding cycle.

use std::sync::Arc;

use serde_json::{Value, json};

use super::core::Core;
use super::pod::key;
use super::queue::{Attempt, WaitingFor};
use super::report::events;
use super::report::{FailureReason, report};
use crate::api_server::binding::bind as bound;
use crate::json::uid;
use crate::objects::failure::Failure;
use crate::objects::kind::PODS;
use crate::objects::store::{Store, time};

/// Binds through the extender that binds such pods, otherwise in the store. Runs beside later scheduling cycles.
pub(super) async fn bind(core: Arc<Core>, pod: Arc<Value>, node: String, attempt: Attempt) {
    let binder = core.config.extenders.iter().find(|e| !e.bind_verb.is_empty() && e.wants(&pod));
    let outcome = match binder {
        Some(extender) => {
            extender.bind(&core.http, &pod, &node).await.map_err(|error| error.to_string())
        }
        None => bind_in_store(&core.api.store, &pod, &node).map_err(|failure| failure.message),
    };
    match outcome {
        Ok(()) => events::scheduled(&core.api.store, &pod, &node),
        Err(message) => {
            core.cache.forget(uid(&pod));
            core.queue.nodes_changed(true);
            core.queue.failed(key(&pod), WaitingFor::Backoff, attempt);
            report(&core, &pod, FailureReason::SchedulerError, &message, "");
        }
    }
}

fn bind_in_store(store: &Store, pod: &Value, node: &str) -> Result<(), Failure> {
    let (namespace, name) = key(pod);
    let binding = json!({
        "metadata": {"name": name, "uid": uid(pod)}, "target": {"kind": "Node", "name": node},
    });
    store.change(PODS, &namespace, &name, |before| {
        let before = before.ok_or_else(|| Failure::not_found(PODS, &name))?;
        bound(before, &binding, &time()).map(Some)
    })?;
    Ok(())
}

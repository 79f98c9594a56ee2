//! Writes an event on the policy's ConfigMap when a change of it, or of the shadow policy, is refused.
//!
//! Invariant: the followers of the policies' files do not wait for it.

use std::sync::Arc;
use std::time::Duration;

use cluster::{ConfigMapReference, EventText, EventWriter};
use daemon::Shutdown;
use tokio::sync::watch;

use crate::replicas::Replicas;

/// The timeout of one call to the API server.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Which policy is refused. Both are usually keys of one ConfigMap.
#[derive(Clone, Copy)]
pub(crate) enum RefusedPolicy {
    InForce,
    Shadow,
}

/// Writes events on the policy's ConfigMap. Of several replicas the leader does.
#[derive(Clone)]
pub(crate) struct PolicyEvents {
    pub(crate) map: ConfigMapReference,
    pub(crate) writer: EventWriter,
    pub(crate) replicas: Arc<Replicas>,
}

impl PolicyEvents {
    /// Writes an event for each new fault of a policy until the shutdown. `None` is no fault.
    ///
    /// # Errors
    ///
    /// None: an event that cannot be written is logged.
    pub(crate) async fn write_faults(
        self,
        policy: RefusedPolicy,
        mut faults: watch::Receiver<Option<String>>,
        shutdown: Shutdown,
    ) -> anyhow::Result<()> {
        while let Some(Ok(())) = shutdown.run_until_cancelled(faults.changed()).await {
            let fault = faults.borrow_and_update().clone();
            if let Some(fault) = fault
                && self.replicas.leads()
            {
                self.write(policy, &fault).await;
            }
        }
        Ok(())
    }

    async fn write(&self, policy: RefusedPolicy, fault: &str) {
        let stays = match policy {
            RefusedPolicy::InForce => "The last good policy stays in force.",
            RefusedPolicy::Shadow => "The shadow policy before, if any, stays.",
        };
        let text = EventText {
            reason: "PolicyRefused",
            action: "ReadPolicy",
            note: format!("{stays} {fault}"),
        };
        if let Err(error) = self.writer.warn_of_config_map(&self.map, &text, TIMEOUT).await {
            let ConfigMapReference { namespace, name: config_map } = &self.map;
            tracing::warn!(namespace, config_map, %error, "cannot write the event PolicyRefused");
        }
    }
}

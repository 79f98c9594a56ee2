//! Writes an event on the policy's ConfigMap when a change of it is refused.
//!
//! Invariant: the follower of the policy's file does not wait for it.

use std::sync::Arc;
use std::time::Duration;

use cluster::{ConfigMapReference, EventText, EventWriter};
use daemon::Shutdown;
use tokio::sync::watch;

use crate::replicas::Replicas;

/// The timeout of one call to the API server.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Writes events on the policy's ConfigMap. Of several replicas the leader does.
pub(crate) struct PolicyEvents {
    pub(crate) map: ConfigMapReference,
    pub(crate) writer: EventWriter,
    pub(crate) replicas: Arc<Replicas>,
}

impl PolicyEvents {
    /// Writes an event for each new fault of the policy until the shutdown. `None` is no fault.
    ///
    /// # Errors
    ///
    /// None: an event that cannot be written is logged.
    pub(crate) async fn write_faults(
        self,
        mut faults: watch::Receiver<Option<String>>,
        shutdown: Shutdown,
    ) -> anyhow::Result<()> {
        while let Some(Ok(())) = shutdown.run_until_cancelled(faults.changed()).await {
            let fault = faults.borrow_and_update().clone();
            if let Some(fault) = fault
                && self.replicas.leads()
            {
                self.write(&fault).await;
            }
        }
        Ok(())
    }

    async fn write(&self, fault: &str) {
        let text = EventText {
            reason: "PolicyRefused",
            action: "ReadPolicy",
            note: format!("The last good policy stays in force. {fault}"),
        };
        if let Err(error) = self.writer.warn_of_config_map(&self.map, &text, TIMEOUT).await {
            let ConfigMapReference { namespace, name } = &self.map;
            tracing::warn!(namespace, name, %error, "cannot write the event PolicyRefused");
        }
    }
}

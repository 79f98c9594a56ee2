//! Drops the CDI devices of limits that no container uses any more.
//!
//! Invariant: a limit stays in the file while the kubelet's checkpoint has a container with it, since the kubelet hands
//! the stored response to the runtime again at each restart of the container.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::Admission;
use crate::records::checkpoint::CheckpointError;

/// Pause between two looks at the checkpoint, and before the first: by then the kubelet has recorded what an earlier
/// process answered last.
const EVERY: Duration = Duration::from_secs(10);

/// Drops unused limits until the shutdown.
pub(crate) async fn run(admission: Arc<Admission>, shutdown: daemon::Shutdown) {
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = drop_unused(admission) => {}
    }
}

async fn drop_unused(shared: Arc<Admission>) {
    loop {
        sleep(EVERY).await;
        let admission = shared.clone();
        match spawn_blocking(move || admission.drop_unused_limits()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::debug!("unused limits stay in the CDI specification: {error}")
            }
            Err(panicked) => tracing::error!("dropping unused limits: {panicked}"),
        }
    }
}

impl Admission {
    /// Drops the limits that neither the kubelet's checkpoint nor a pod of this node has. Reads the checkpoint.
    ///
    /// # Errors
    /// If the checkpoint cannot be read: then it is not known which limits are in use.
    pub fn drop_unused_limits(&self) -> Result<(), CheckpointError> {
        let Some(file) = &self.responder.limits else { return Ok(()) };
        let Some(checkpoint) = self.sources.checkpoint.find()? else { return Ok(()) };
        // Allocate adds a limit and records its pod under this lock.
        let records = self.sources.records();
        if let Err(error) =
            file.set_in_use(checkpoint.limits(), |uid| records.holder(uid).is_some())
        {
            tracing::warn!("{error}");
        }
        Ok(())
    }
}

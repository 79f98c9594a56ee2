//! The inputs of the responses to the kubelet's calls.

use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use tokio::sync::watch;

use crate::gpus::Gpus;
use crate::gpus::closed::ClosedGpus;
use crate::lingering::Lingering;
use crate::pods::{PodCache, ReadPod};
use crate::records::checkpoint::CheckpointFile;
use crate::records::pod_resources::PodResourcesClient;
use crate::records::{Records, SharedRecords};

/// Time for reads of pods from the API server during one call, retries included. The kubelet admits
/// no other pod meanwhile.
pub const READ_BUDGET: Duration = Duration::from_secs(3);

/// Caches of GPUs, pods and device ids, and clients to read more.
#[derive(Clone)]
pub struct Sources {
    /// This node's GPUs, as they change.
    pub gpus: watch::Receiver<Arc<Gpus>>,
    /// Those that take no new pods.
    pub closed: watch::Receiver<Arc<ClosedGpus>>,
    /// This node's pods, from a watch.
    pub pods: Arc<PodCache>,
    /// Reads one pod from the API server.
    pub api: Arc<dyn ReadPod>,
    /// The kubelet's PodResources API.
    pub kubelet: PodResourcesClient,
    /// The kubelet's checkpoint file, which is read at each use.
    pub checkpoint: CheckpointFile,
    /// Which container holds which ids.
    pub records: Arc<SharedRecords>,
    /// Deleted pods whose processes still run.
    pub lingering: Arc<Lingering>,
}

impl Sources {
    /// The current GPUs.
    pub fn gpus(&self) -> Arc<Gpus> {
        self.gpus.borrow().clone()
    }

    /// Updates the records with the kubelet's list.
    ///
    /// # Errors
    /// When the kubelet does not answer.
    pub async fn relist(&self) -> Result<(), tonic::Status> {
        let list = self.kubelet.list().await?;
        // Not under the lock: this reads a file. It has every id of the list, since the kubelet writes it before it
        // lists an id.
        let checkpoint =
            self.checkpoint.read().inspect_err(|error| tracing::debug!("{error}")).ok();
        {
            let mut records = self.records();
            if records.relist(list, checkpoint.as_ref(), &self.pods) {
                self.lingering.save(&mut records);
            }
        }
        self.records.notify();
        Ok(())
    }

    /// Locks the records. Do not hold the lock over an await.
    pub fn records(&self) -> MutexGuard<'_, Records> {
        self.records.lock()
    }
}

//! Where the answers to the kubelet's calls take their facts from.

use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use tokio::sync::watch;

use crate::cards::Cards;
use crate::lingering::Lingering;
use crate::pods::{PodCache, PodRef, ReadPod};
use crate::records::checkpoint::CheckpointFile;
use crate::records::pod_resources::PodResourcesClient;
use crate::records::{Records, SharedRecords};

/// Time for reading pods from the API server during one call, repetitions included. The kubelet admits
/// nothing else meanwhile.
pub const READ_BUDGET: Duration = Duration::from_secs(3);

/// What is known of cards, pods and device ids, and where more can be read.
#[derive(Clone)]
pub struct Sources {
    /// This node's cards, as they change.
    pub cards: watch::Receiver<Arc<Cards>>,
    /// This node's pods, by a watch.
    pub pods: Arc<PodCache>,
    /// Reads one pod from the API server.
    pub api: Arc<dyn ReadPod>,
    /// The kubelet's PodResources API.
    pub kubelet: PodResourcesClient,
    /// The kubelet's checkpoint file, read anew at each use.
    pub checkpoint: CheckpointFile,
    /// Which container holds which ids.
    pub records: Arc<SharedRecords>,
    /// Which pods are gone while their processes run.
    pub lingering: Arc<Lingering>,
}

impl Sources {
    /// The cards as they are now.
    pub fn cards(&self) -> Arc<Cards> {
        self.cards.borrow().clone()
    }

    /// Brings the records up to date with the kubelet's list.
    ///
    /// # Errors
    /// When the kubelet does not answer.
    pub async fn relist(&self) -> Result<(), tonic::Status> {
        let list = self.kubelet.list().await?;
        let uid = |pod: &PodRef| self.pods.get(pod).map(|facts| facts.uid.clone());
        {
            let mut records = self.records();
            records.relist(list, uid);
            if records.note_listed(|pod| self.pods.get(pod)) {
                self.lingering.save(&mut records);
            }
        }
        self.records.notify();
        Ok(())
    }

    /// The records, locked. Not to be kept over an await.
    pub fn records(&self) -> MutexGuard<'_, Records> {
        self.records.lock()
    }
}

//! Evicts pods with a process outside of MPS, so that nothing limits it (`--evict-outside-mps`).
//!
//! A node's device plugin finds such processes and reports their pods with its GPUs. It evicts none itself: its token
//! is on every GPU node, and an admission policy for evictions sees no pod, so cannot tell of which node it is.
//!
//! Invariants: only the leader evicts; a pod is evicted by the report of no other node than its own, through the
//! Eviction API, and at most one of a node in a minute; no static pod, and none whose end would end other clients of
//! MPS.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use cluster::{Client, EventText, EventWriter, EvictOutcome, PodReference, evict, get_pod};
use daemon::Shutdown;
use placement::units::{NodeName, PodUid};
use tokio::time::{Instant, sleep};

use crate::replicas::Replicas;
use crate::view::{GpuPodId, Index, View};

/// The pause between two looks at the nodes' reports.
const EVERY: Duration = Duration::from_secs(1);

/// The pause between two evictions of a node, and between two of a pod where the first was refused.
const PAUSE: Duration = Duration::from_secs(60);

/// The timeout of one call to the API server.
const CALL_TIMEOUT: Duration = Duration::from_secs(2);

/// Evicts pods.
pub(crate) struct OutsideMps {
    /// The nodes' reports.
    pub(crate) view: Arc<View>,
    /// The API server's client.
    pub(crate) client: Client,
    /// Whether this replica leads.
    pub(crate) replicas: Arc<Replicas>,
    /// Writes events about evictions.
    pub(crate) events: EventWriter,
}

impl OutsideMps {
    /// Evicts until the shutdown.
    ///
    /// # Errors
    ///
    /// None: a refused eviction is logged, and tried again.
    pub(crate) async fn run(self, shutdown: Shutdown) -> anyhow::Result<()> {
        let mut nodes: HashMap<NodeName, Instant> = HashMap::new();
        let mut tried: HashMap<PodUid, Instant> = HashMap::new();
        while shutdown.run_until_cancelled(sleep(EVERY)).await.is_some() {
            nodes.retain(|_, at| at.elapsed() < PAUSE);
            tried.retain(|_, at| at.elapsed() < PAUSE);
            if !self.view.is_complete() {
                continue;
            }
            for (node, pod) in self.view.ask(Index::outside_mps) {
                let rests = nodes.contains_key(&node) || tried.contains_key(&pod.uid);
                if rests || !self.replicas.leads() {
                    continue;
                }
                tried.insert(pod.uid.clone(), Instant::now());
                if self.evict(&node, &pod).await {
                    nodes.insert(node, Instant::now());
                }
            }
        }
        Ok(())
    }

    /// Evicts a pod of this node. Returns whether it may have been.
    async fn evict(&self, node: &NodeName, pod: &GpuPodId) -> bool {
        let GpuPodId { uid, namespace, name } = pod;
        match get_pod(&self.client, namespace, name, CALL_TIMEOUT).await {
            Ok(Some(read)) if read.uid() == *uid && read.node() == Some(node.as_str()) => {
                if read.is_deleting() || read.is_finished() || read.is_static() {
                    return false;
                }
            }
            Ok(_) => return false,
            Err(error) => {
                tracing::warn!(%uid, namespace, pod = name, %error, "cannot read a pod with a process outside of MPS");
                return false;
            }
        }
        let reference =
            PodReference { namespace: namespace.clone(), name: name.clone(), uid: uid.to_string() };
        match evict(&self.client, &reference, CALL_TIMEOUT).await {
            EvictOutcome::NotNow(why) | EvictOutcome::Refused(why) => {
                tracing::warn!(%uid, namespace, pod = name, why, "a pod with a process outside of MPS is not evicted");
                return false;
            }
            EvictOutcome::Evicted | EvictOutcome::Unknown(_) => {}
        }
        tracing::info!(%uid, namespace, pod = name, %node, "evicted: a process of it is outside of MPS");
        let warning = EventText {
            reason: "EvictedOutsideMPS",
            action: "Evict",
            note: "Two audits of its node in a row found a process of it that MPS is to limit and that is no client of \
                   MPS: nothing limits what it takes of the GPU. The event GPUProcessOutsideMPS names the container"
                .to_owned(),
        };
        if let Err(error) = self.events.warn(&reference, &warning, CALL_TIMEOUT).await {
            tracing::warn!(%uid, namespace, pod = name, %error, "cannot write the event EvictedOutsideMPS");
        }
        true
    }
}

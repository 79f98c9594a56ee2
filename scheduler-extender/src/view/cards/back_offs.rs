//! The nodes that take no GPU pods for a while, since their kubelet refused several that Bind had sent there.
//!
//! Invariant: only what this process has seen itself counts: a pod for which it chose a card of that node, that carries the claim which
//! Bind wrote, and that the device plugin refused for a fault of the node. A pod that was bound by other means, whose claim was
//! changed, or that was refused for its own spec, says nothing about its node.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use cluster::{GpuPod, PodFacts};
use jiff::Timestamp;
use placement::gpu::{Claim, NodeBackOff};
use placement::units::NodeName;

use super::CardBook;

/// Back-offs that wait for their event at most; of more the newest get none.
const MAX_BEGUN: usize = 64;

/// The back-offs of all nodes that have some.
pub type NodeBackOffs = HashMap<NodeName, NodeBackOff>;

/// A back-off that has begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BegunBackOff {
    /// The node.
    pub node: NodeName,
    /// The namespace whose pods were refused.
    pub namespace: String,
    /// Its end.
    pub until: Timestamp,
    /// Whether pods of all namespaces are rejected now.
    pub all: bool,
}

/// The back-offs of all nodes.
#[derive(Debug, Default)]
pub(super) struct BackOffs {
    nodes: ArcSwap<NodeBackOffs>,
    /// Those whose event is not written yet.
    begun: Mutex<Vec<BegunBackOff>>,
    refused: AtomicU64,
}

/// The card that Bind chose for a pod, until the pod's admission is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sent {
    pub(super) node: NodeName,
    pub(super) claim: Claim,
}

impl BackOffs {
    fn change<T>(
        &self,
        node: &NodeName,
        now: Timestamp,
        change: impl Fn(&mut NodeBackOff) -> T,
    ) -> Option<T> {
        let mut outcome = None;
        self.nodes.rcu(|nodes| {
            let mut nodes = NodeBackOffs::clone(nodes);
            nodes.retain(|name, known| name == node || !known.is_over(now));
            outcome = Some(change(nodes.entry(node.clone()).or_default()));
            nodes
        });
        outcome
    }

    fn failed(&self, node: &NodeName, namespace: &str, now: Timestamp) {
        self.refused.fetch_add(1, Ordering::Relaxed);
        let until = self.change(node, now, |known| known.failed(namespace, now)).flatten();
        let Some(until) = until else { return };
        let all = self.nodes.load().get(node).is_some_and(|known| known.rejects_all(now));
        let (node, namespace) = (node.clone(), namespace.to_owned());
        tracing::warn!(%node, namespace, %until, all, "the node's kubelet refused several GPU pods: it gets none for a while");
        let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        if begun.len() < MAX_BEGUN {
            begun.push(BegunBackOff { node, namespace, until, all });
        }
    }

    fn admitted(&self, node: &NodeName, namespace: &str, now: Timestamp) {
        // Most nodes have never refused a pod.
        if self.nodes.load().contains_key(node) {
            self.change(node, now, |known| known.admitted(namespace, now));
        }
    }
}

impl CardBook {
    /// The back-offs of all nodes that have some.
    pub fn back_offs(&self) -> Arc<NodeBackOffs> {
        self.back_offs.nodes.load_full()
    }

    /// The back-offs that have begun since the last call.
    pub fn take_begun_back_offs(&self) -> Vec<BegunBackOff> {
        std::mem::take(&mut self.back_offs.begun.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Pods that a kubelet refused and that count.
    pub fn refused_pods(&self) -> u64 {
        self.back_offs.refused.load(Ordering::Relaxed)
    }

    /// Counts the outcome of a bound pod's admission, once for each pod.
    pub fn count_admission(&self, pod: &PodFacts, gpu: &GpuPod, now: Timestamp) {
        if !pod.refused && (pod.finished || !pod.admitted) {
            return;
        }
        let Some(mut record) = self.pods.get_mut(&pod.uid) else { return };
        let Some(sent) = record.sent.take() else { return };
        drop(record);
        if pod.node.as_ref() != Some(&sent.node) {
            return;
        }
        if !pod.refused {
            return self.back_offs.admitted(&sent.node, &pod.namespace, now);
        }
        let has_claim =
            matches!(&gpu.claim, Ok(Some(claim)) if claim.cards() == sent.claim.cards());
        if has_claim {
            self.back_offs.failed(&sent.node, &pod.namespace, now);
        }
    }
}

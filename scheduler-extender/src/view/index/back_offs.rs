//! The nodes that take no GPU pods for a while, since several that Bind had sent there were refused by the kubelet, or
//! could not be started.
//!
//! Invariant: only what this process has seen itself counts: a pod for which it chose a GPU of that node, that carries
//! the claim which Bind wrote, and that was refused, or not started, for a fault of the node. A pod that was bound by
//! other means, whose claim was changed, or that fails for its own spec, says nothing about its node. That a kubelet
//! admits a pod does not show that its containers start.

use std::sync::Arc;

use cluster::{GpuPod, PodFacts};
use jiff::Timestamp;
use placement::gpu::Claim;
use placement::shares::SharedTable;
use placement::units::NodeName;

use super::{Index, Notice};
use crate::tables::Table;
use crate::view::snapshot::NodeBackOffs;

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
#[derive(Debug, Clone)]
pub(super) struct BackOffs {
    nodes: Arc<NodeBackOffs>,
    /// Those whose event is not written yet, by node and namespace.
    begun: SharedTable<(NodeName, String), BegunBackOff>,
    refused: u64,
}

impl Default for BackOffs {
    fn default() -> Self {
        Self { nodes: Arc::default(), begun: Table::BackOffs.empty(), refused: 0 }
    }
}

/// The GPU that Bind chose for a pod, until it is known whether the pod starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sent {
    pub(super) node: NodeName,
    pub(super) claim: Claim,
}

impl BackOffs {
    pub(super) fn nodes(&self) -> Arc<NodeBackOffs> {
        Arc::clone(&self.nodes)
    }

    /// Counts a pod that a node refused. Returns the back-off that begins with it.
    pub(super) fn failed(
        &mut self,
        node: &NodeName,
        namespace: &str,
        now: Timestamp,
    ) -> Option<BegunBackOff> {
        self.refused += 1;
        let nodes = Arc::make_mut(&mut self.nodes);
        nodes.retain(|name, known| name == node || !known.is_over(now));
        let known = nodes.entry(node.clone()).or_default();
        let until = known.failed(namespace, now)?;
        let (node, namespace, all) = (node.clone(), namespace.to_owned(), known.rejects_all(now));
        let begun = BegunBackOff { node, namespace, until, all };
        let key = (begun.node.clone(), begun.namespace.clone());
        self.begun.insert(&begun.namespace, key, begun.clone());
        Some(begun)
    }

    /// Records that a node started a pod. Returns whether it had refused one before.
    fn started(&mut self, node: &NodeName, namespace: &str, now: Timestamp) -> bool {
        // Most nodes have never refused a pod.
        let has_refused = self.nodes.contains_key(node);
        if has_refused && let Some(known) = Arc::make_mut(&mut self.nodes).get_mut(node) {
            known.started(namespace, now);
        }
        has_refused
    }
}

impl Index {
    /// The back-offs that have begun since the last call.
    pub fn take_begun_back_offs(&mut self) -> Vec<BegunBackOff> {
        self.back_offs.begun.take_all().into_iter().map(|(_, begun)| begun).collect()
    }

    /// Pods that a kubelet refused and that count.
    #[must_use]
    pub fn refused_pods(&self) -> u64 {
        self.back_offs.refused
    }

    /// Counts whether a bound pod starts, once for each pod.
    pub(super) fn count_start(&mut self, pod: &PodFacts, gpu: &GpuPod, now: Timestamp) {
        if !pod.refused && !pod.started {
            return;
        }
        let record = self.pods.get_mut(&pod.uid);
        let Some(sent) = record.and_then(|record| record.sent.take()) else { return };
        if pod.node.as_ref() != Some(&sent.node) {
            return;
        }
        if !pod.refused {
            self.changes.others |= self.back_offs.started(&sent.node, &pod.namespace, now);
            return;
        }
        let has_claim = matches!(&gpu.claim, Ok(Some(claim)) if claim.gpus() == sent.claim.gpus());
        if has_claim {
            self.changes.others = true;
            let begun = self.back_offs.failed(&sent.node, &pod.namespace, now);
            self.notices.extend(begun.map(Notice::BackedOff));
        }
    }
}

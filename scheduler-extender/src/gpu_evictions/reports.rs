//! What Filter reports to the evictor: the pods that lack only a GPU.

use std::collections::BTreeSet;
use std::sync::Arc;

use cluster::PodReference;
use dashmap::DashSet;
use placement::units::{NodeName, PodUid};

use crate::decisions::DecidedPod;
use crate::tables::{Table, TurnQueue};

/// Nodes of a report at most.
const MAX_NODES: usize = 5_000;

/// Filter's report of a pod.
pub(super) struct Report {
    pub(super) pod: PodReference,
    pub(super) priority: i32,
    pub(super) nodes: Vec<NodeName>,
}

/// Filter's reports to the evictor.
#[derive(Clone)]
pub struct GpuEvictions {
    /// The last message about each pod.
    pub(super) queue: Arc<TurnQueue<PodUid, Message>>,
    /// Pods with a report that the evictor holds or has not read yet.
    pub(super) known: Arc<DashSet<PodUid>>,
}

pub(super) enum Message {
    /// No node passed Filter.
    Report(Report),
    /// A node passed Filter.
    Withdrawal,
}

impl GpuEvictions {
    /// An empty queue of reports.
    #[must_use]
    pub(crate) fn new() -> Self {
        Self { queue: Arc::new(TurnQueue::new(Table::GpuReports)), known: Arc::default() }
    }

    /// Reports a pod that every node rejects, with the nodes that reject it only because no GPU has room.
    pub(crate) fn report(
        &self,
        pod: &DecidedPod,
        priority: i32,
        nodes: impl Iterator<Item = NodeName>,
    ) {
        let Some(reference) = pod.reference() else { return };
        let nodes = distinct(nodes);
        if !nodes.is_empty() {
            // Inserted before sending: a withdrawal may come before the report is read.
            self.known.insert(pod.uid.clone());
            self.send(pod, Message::Report(Report { pod: reference, priority, nodes }));
        }
    }

    /// Withdraws the report of a pod for which a node has passed.
    pub(crate) fn withdraw(&self, pod: &DecidedPod) {
        if self.known.contains(&pod.uid) {
            self.send(pod, Message::Withdrawal);
        }
    }

    /// If the queue is full, another message is lost: kube-scheduler makes Filter report the pod again, and a report
    /// that is not withdrawn expires.
    fn send(&self, pod: &DecidedPod, message: Message) {
        let lost = self.queue.push(&pod.namespace, pod.uid.clone(), message);
        if let Some((uid, Message::Report(_))) = lost.filter(|(uid, _)| *uid != pod.uid) {
            self.known.remove(&uid);
        }
    }
}

/// Each node once, [`MAX_NODES`] at most.
fn distinct(nodes: impl Iterator<Item = NodeName>) -> Vec<NodeName> {
    let mut all = BTreeSet::new();
    for node in nodes {
        all.insert(node);
        if all.len() >= MAX_NODES {
            break;
        }
    }
    all.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use cluster::Pod;
    use jiff::SignedDuration;
    use serde_json::json;

    use super::super::waiting::PodsWithoutGpu;
    use super::*;
    use crate::view::PodEstimates;

    #[test]
    fn a_report_keeps_each_node_once_and_not_more_than_a_cluster_has() {
        for (nodes, kept) in [(3, 3), (2 * MAX_NODES, MAX_NODES)] {
            let each_twice = (0..2 * nodes).map(|at| (at % nodes).to_string().as_str().into());
            assert_eq!(distinct(each_twice).len(), kept);
        }
    }

    fn decided(uid: &str) -> DecidedPod {
        let meta = json!({ "name": uid, "namespace": "default", "uid": uid });
        let pod: Pod = serde_json::from_value(json!({ "metadata": meta })).unwrap();
        DecidedPod::new(&pod, PodEstimates::default(), SignedDuration::ZERO)
    }

    #[test]
    fn a_pod_that_finds_a_node_before_its_report_is_read_is_withdrawn() {
        let evictions = GpuEvictions::new();
        let mut waiting = PodsWithoutGpu::new(Arc::clone(&evictions.known));
        let pod = decided("p");
        evictions.withdraw(&pod);
        assert!(evictions.queue.try_next().is_none());
        evictions.report(&pod, 7, ["n1".into()].into_iter());
        evictions.withdraw(&pod);
        let Some((uid, Message::Withdrawal)) = evictions.queue.try_next() else { panic!() };
        waiting.withdraw(&uid);
        assert!(evictions.queue.try_next().is_none());
        assert!(waiting.due().is_none() && evictions.known.is_empty());
    }
}

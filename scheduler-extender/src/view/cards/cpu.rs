//! The free CPU of nodes, which limits what their cards can be used for.
//!
//! Invariant: a pod counts once at most on a node, from its reservation or the watch event of its binding until it has ended or the
//! reservation is released. A pod takes 8 bytes, so that 150,000 take 1.2 MB.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

use cluster::{Pod, WatchCause};
use placement::units::{NodeName, PodUid};

use super::CardBook;

/// The nodes' CPU.
#[derive(Debug, Default)]
pub(super) struct NodeCpus {
    nodes: Mutex<Nodes>,
    hasher: RandomState,
}

#[derive(Debug, Default)]
struct Nodes {
    nodes: HashMap<NodeName, NodeCpu>,
    /// The pods of the list that is being read.
    listing: Option<HashMap<NodeName, Requests>>,
    /// Whether a list of all pods has been applied. Before that, pods are missing.
    is_listed: bool,
}

#[derive(Debug, Default)]
struct NodeCpu {
    /// In thousandths of a core; `None` where the node does not report it.
    allocatable: Option<u64>,
    requests: Requests,
}

/// The CPU requests of the pods of one node.
#[derive(Debug, Default)]
struct Requests {
    /// For each pod, 40 bits of its UID's hash and 24 bits of thousandths of a core.
    pods: Vec<u64>,
    sum: u64,
}

/// More than any machine has: 16,777 cores.
const MOST: u64 = (1 << 24) - 1;

impl Requests {
    /// `hash` has zeros in its lower 24 bits.
    fn set(&mut self, hash: u64, cpu: u64) {
        self.remove(hash);
        let cpu = cpu.min(MOST);
        self.sum += cpu;
        self.pods.push(hash | cpu);
    }

    fn remove(&mut self, hash: u64) {
        if let Some(at) = self.pods.iter().position(|pod| pod & !MOST == hash) {
            self.sum -= self.pods.swap_remove(at) & MOST;
        }
    }
}

impl NodeCpu {
    fn free(&self) -> Option<u64> {
        self.allocatable.map(|all| all.saturating_sub(self.requests.sum))
    }
}

impl NodeCpus {
    /// The free CPU of a node, in thousandths of a core; `None` where that is not known.
    pub(super) fn free(&self, node: &NodeName) -> Option<u64> {
        self.lock().nodes.get(node)?.free()
    }

    /// The allocatable CPU of a node, in thousandths of a core; `None` where that is not known.
    pub(super) fn allocatable(&self, node: &NodeName) -> Option<u64> {
        self.lock().nodes.get(node)?.allocatable
    }

    /// The requested CPU of a node, in thousandths of a core; `None` before all pods are known.
    pub(super) fn requested(&self, node: &NodeName) -> Option<u64> {
        let nodes = self.lock();
        let of_pods = nodes.nodes.get(node).map_or(0, |node| node.requests.sum);
        nodes.is_listed.then_some(of_pods)
    }

    pub(super) fn set_allocatable(&self, node: &NodeName, cpu: Option<u64>) {
        let mut nodes = self.lock();
        let known = nodes.nodes.get(node).and_then(|known| known.allocatable);
        if known != cpu {
            nodes.nodes.entry(node.clone()).or_default().allocatable = cpu;
            nodes.drop_empty(node);
        }
    }

    /// Counts a pod on a node, with its CPU request.
    pub(super) fn set(&self, node: &NodeName, pod: &PodUid, cpu: u64) {
        let hash = self.hash(pod);
        let mut nodes = self.lock();
        match nodes.nodes.get_mut(node) {
            Some(known) => known.requests.set(hash, cpu),
            None => nodes.nodes.entry(node.clone()).or_default().requests.set(hash, cpu),
        }
    }

    pub(super) fn remove(&self, node: &NodeName, pod: &PodUid) {
        let hash = self.hash(pod);
        let mut nodes = self.lock();
        if let Some(known) = nodes.nodes.get_mut(node) {
            known.requests.remove(hash);
            nodes.drop_empty(node);
        }
    }

    /// Begins a list of all pods.
    pub(super) fn begin_list(&self) {
        self.lock().listing = Some(HashMap::new());
    }

    /// Adds a pod of the list.
    pub(super) fn listed(&self, node: &NodeName, pod: &PodUid, cpu: u64) {
        let hash = self.hash(pod);
        let mut nodes = self.lock();
        let Some(listing) = &mut nodes.listing else { return };
        match listing.get_mut(node) {
            Some(known) => known.set(hash, cpu),
            None => listing.entry(node.clone()).or_default().set(hash, cpu),
        }
    }

    /// Ends the list: pods that are not in it no longer count.
    pub(super) fn end_list(&self) {
        let mut nodes = self.lock();
        let Some(listing) = nodes.listing.take() else { return };
        nodes.is_listed = true;
        nodes.nodes.values_mut().for_each(|node| node.requests = Requests::default());
        for (node, mut requests) in listing {
            requests.pods.shrink_to_fit();
            nodes.nodes.entry(node).or_default().requests = requests;
        }
        nodes.nodes.retain(|_, node| !node.is_empty());
    }

    fn hash(&self, pod: &PodUid) -> u64 {
        self.hasher.hash_one(pod) & !MOST
    }

    // Every change is complete when the lock is released, also by a panic.
    fn lock(&self) -> MutexGuard<'_, Nodes> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl NodeCpu {
    fn is_empty(&self) -> bool {
        self.allocatable.is_none() && self.requests.pods.is_empty()
    }
}

impl Nodes {
    fn drop_empty(&mut self, node: &NodeName) {
        if self.nodes.get(node).is_some_and(NodeCpu::is_empty) {
            self.nodes.remove(node);
        }
    }
}

impl CardBook {
    /// Sets the allocatable CPU of a node, in thousandths of a core; `None` where that is not known.
    pub fn set_allocatable_cpu(&self, node: &NodeName, cpu: Option<u64>) {
        self.cpus.set_allocatable(node, cpu);
        self.publish_cpu(node);
    }

    /// Counts a pod's CPU request on its node, by a watch event.
    pub fn count_cpu(&self, pod: &Pod, seen: WatchCause) {
        let Some(node) = pod.node().map(NodeName::from) else { return };
        let (uid, runs) = (pod.uid(), !pod.is_finished());
        match seen {
            WatchCause::Listed if runs => return self.cpus.listed(&node, &uid, pod.cpu_request()),
            WatchCause::Listed => return,
            WatchCause::Changed if runs => self.cpus.set(&node, &uid, pod.cpu_request()),
            WatchCause::Changed | WatchCause::Gone => self.cpus.remove(&node, &uid),
        }
        self.publish_cpu(&node);
    }

    /// The requested CPU of a node, in cores; `None` before all pods are known.
    #[must_use]
    pub fn requested_cpu(&self, node: &NodeName) -> Option<f64> {
        self.cpus.requested(node).map(|thousandths| thousandths as f64 / 1_000.0)
    }

    /// Begins a list of all pods.
    pub fn begin_list(&self) {
        self.cpus.begin_list();
    }

    /// Ends a list whose pods have been applied. Pods with a reservation may have been bound since it began.
    pub fn end_list(&self) {
        self.cpus.end_list();
        for record in &self.pods {
            for node in &record.nodes {
                self.cpus.set(node, record.key(), record.request.cpu());
            }
        }
        self.nodes().iter().for_each(|node| self.publish_cpu(node));
    }

    fn publish_cpu(&self, node: &NodeName) {
        if let Some(cards) = self.read().node(node.as_str())
            && cards.cpu() != self.cpus.free(node)
        {
            self.ledgers.change(node, |ledger| ledger.set_cpu(self.cpus.free(node)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_counts_once_however_often_it_is_seen() {
        let (cpus, node) = (NodeCpus::default(), NodeName::from("a"));
        let pod = |number: u32| PodUid::from(format!("pod-{number}"));
        cpus.set(&node, &pod(1), 500);
        assert_eq!(cpus.free(&node), None);
        cpus.set_allocatable(&node, Some(8_000));
        cpus.set(&node, &pod(1), 700);
        cpus.set(&node, &pod(2), 1_000);
        assert_eq!(cpus.free(&node), Some(6_300));
        cpus.remove(&node, &pod(1));
        cpus.remove(&node, &pod(1));
        assert_eq!(cpus.free(&node), Some(7_000));
        // More than there is, as where the node was made smaller.
        cpus.set(&node, &pod(3), u64::MAX);
        assert_eq!(cpus.free(&node), Some(0));
        cpus.remove(&node, &pod(3));
        assert_eq!(cpus.free(&node), Some(7_000));
    }

    #[test]
    fn a_list_replaces_what_was_known_once_it_is_whole() {
        let (cpus, node) = (NodeCpus::default(), NodeName::from("a"));
        cpus.set_allocatable(&node, Some(1_000));
        cpus.set(&node, &"gone".into(), 100);
        cpus.begin_list();
        cpus.listed(&node, &"there".into(), 300);
        assert_eq!((cpus.free(&node), cpus.requested(&node)), (Some(900), None));
        // It broke off, and begins anew.
        cpus.begin_list();
        cpus.listed(&node, &"other".into(), 200);
        cpus.end_list();
        assert_eq!((cpus.free(&node), cpus.requested(&node)), (Some(800), Some(200)));
        assert_eq!(cpus.requested(&"empty".into()), Some(0));
        cpus.end_list();
        assert_eq!(cpus.free(&node), Some(800));
    }

    #[test]
    fn what_is_gone_takes_no_room() {
        let (cpus, node) = (NodeCpus::default(), NodeName::from("a"));
        cpus.set_allocatable(&node, Some(1_000));
        cpus.set(&node, &"p".into(), 100);
        cpus.set_allocatable(&node, None);
        cpus.remove(&node, &"p".into());
        assert!(cpus.lock().nodes.is_empty());
    }
}

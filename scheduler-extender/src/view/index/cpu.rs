//! What the pods of a node request of its CPU, which limits what its cards can be used for, and what they declare of
//! its network and disks.
//!
//! Invariant: a pod counts once at most on a node, from its reservation or the watch event of its binding until it has
//! ended or the reservation is released. A pod takes 8 bytes, so that 150,000 take 1.2 MB.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use cluster::{Pod, WatchCause};
use jiff::Timestamp;
use placement::demand::Rates;
use placement::load::DeclaredPods;
use placement::names::Names;
use placement::units::{NodeName, PodUid};

use super::Index;

/// The CPU of one node.
#[derive(Debug, Clone, Default)]
pub(super) struct NodeCpu {
    /// In thousandths of a core; `None` where the node does not report it.
    pub(super) allocatable: Option<u64>,
    pub(super) requests: Requests,
}

/// What the pods of one node request and declare.
#[derive(Debug, Clone, Default)]
pub(super) struct Requests {
    /// For each pod, 40 bits of its UID's hash and 24 bits of thousandths of a core.
    pods: Vec<u64>,
    sum: u64,
    /// Those that declare something, by the same hash. Shared with the node's load.
    declared: Arc<DeclaredPods>,
}

/// What a bound pod requests of its node's CPU, and declares of its network and disks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::view) struct PodRequest {
    /// The pod.
    pub(super) uid: PodUid,
    /// Its node.
    pub(super) node: NodeName,
    /// Thousandths of a core.
    pub(super) cpu: u64,
    pub(super) declares: Rates,
    /// When all of its containers had started; `None` while they have not.
    pub(super) started_at: Option<Timestamp>,
    /// Whether it has ended, so that it uses nothing.
    pub(super) is_finished: bool,
}

impl PodRequest {
    /// The request of a pod; `None` for one that is not bound.
    pub(in crate::view) fn of(pod: &Pod, names: &Names, now: Timestamp) -> Option<Self> {
        let node = NodeName::from(pod.node()?);
        let (uid, cpu, is_finished) = (pod.uid(), pod.cpu_request(), pod.is_finished());
        let declares = pod.declared(names).rates;
        let started_at = pod.container_runs(now).map(|runs| runs.started_at);
        Some(Self { uid, node, cpu, declares, started_at, is_finished })
    }
}

/// More than any machine has: 16,777 cores.
const MOST: u64 = (1 << 24) - 1;

impl Requests {
    /// `hash` has zeros in its lower 24 bits.
    pub(super) fn set(&mut self, hash: u64, cpu: u64) {
        self.remove_cpu(hash);
        let counted = cpu.min(MOST);
        self.sum += counted;
        self.pods.push(hash | counted);
    }

    /// Whether these are a pod's request and what it declares; `None` for a pod that does not count.
    fn has(&self, hash: u64, pod: Option<&PodRequest>) -> bool {
        let known = self.pods.iter().find(|pod| *pod & !MOST == hash).map(|pod| pod & MOST);
        let declares = pod.filter(|pod| !pod.declares.is_none());
        known == pod.map(|pod| pod.cpu.min(MOST))
            && self.declared.get(hash) == declares.map(|pod| (pod.declares, pod.started_at))
    }

    /// Whether a pod counts.
    fn counts(&self, hash: u64) -> bool {
        self.pods.iter().any(|pod| *pod & !MOST == hash)
    }

    /// Sets the request of a pod and what it declares; `None` for a pod that no longer counts.
    fn put(&mut self, hash: u64, pod: Option<&PodRequest>) {
        let Some(pod) = pod else { return self.remove(hash) };
        self.set(hash, pod.cpu);
        self.declare(hash, pod.declares, pod.started_at);
    }

    pub(super) fn remove(&mut self, hash: u64) {
        self.remove_cpu(hash);
        self.declare(hash, Rates::NONE, None);
    }

    fn remove_cpu(&mut self, hash: u64) {
        if let Some(at) = self.pods.iter().position(|pod| pod & !MOST == hash) {
            self.sum -= self.pods.swap_remove(at) & MOST;
        }
    }

    fn declare(&mut self, hash: u64, declares: Rates, started_at: Option<Timestamp>) {
        let next = Some((declares, started_at)).filter(|_| !declares.is_none());
        if self.declared.get(hash) != next {
            Arc::make_mut(&mut self.declared).set(hash, declares, started_at);
        }
    }

    /// What its pods declare.
    pub(super) fn declared(&self) -> &Arc<DeclaredPods> {
        &self.declared
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }
}

impl NodeCpu {
    /// The free CPU, in thousandths of a core; `None` where the node does not report what it has.
    pub(super) fn free(&self) -> Option<u64> {
        self.allocatable.map(|all| all.saturating_sub(self.requests.sum))
    }

    /// The requested CPU, in cores.
    pub(super) fn requested(&self) -> f64 {
        self.requests.sum as f64 / 1_000.0
    }
}

impl Index {
    /// Counts what a pod requests and declares on its node, by a watch event. Before a pod of a list:
    /// [`Index::begin_list`].
    pub(in crate::view) fn count_requests(&mut self, pod: &PodRequest, seen: WatchCause) {
        let hash = self.uid_hash(&pod.uid);
        let counts = !pod.is_finished && seen != WatchCause::Gone;
        let next = counts.then_some(pod);
        if seen == WatchCause::Listed {
            if let Some(listing) = self.listing.as_mut().filter(|_| counts) {
                match listing.get_mut(&pod.node) {
                    Some(known) => known.put(hash, next),
                    None => listing.entry(pod.node.clone()).or_default().put(hash, next),
                }
            }
            return;
        }
        if !pod.declares.is_none() {
            self.forget_declared_in_flight(pod);
        }
        if self.requests_on(&pod.node).is_some_and(|requests| requests.has(hash, next)) {
            return;
        }
        let changed = self.change_known(&pod.node, |node| node.cpu.requests.put(hash, next));
        if changed.is_none() {
            let requests = self.elsewhere.entry(pod.node.clone()).or_default();
            requests.put(hash, next);
            if requests.is_empty() {
                self.elsewhere.remove(&pod.node);
            }
        }
    }

    fn requests_on(&self, node: &NodeName) -> Option<&Requests> {
        let known = self.nodes.get(node).map(|node| &node.cpu.requests);
        known.or_else(|| self.elsewhere.get(node))
    }

    /// Begins a list of all pods.
    pub(super) fn begin_list(&mut self) {
        self.listing = Some(HashMap::new());
    }

    /// Ends a list whose pods have been applied: pods that are not in it no longer count, except those with a
    /// reservation, which may have been bound since it began.
    pub(super) fn end_list(&mut self) {
        let Some(mut listing) = self.listing.take() else { return };
        self.has_all_pods = true;
        for (uid, record) in &self.pods {
            let hash = self.uid_hash(uid);
            for node in &record.nodes {
                let requests = listing.entry(node.clone()).or_default();
                // A pod of the list may have been resized since it was reserved.
                if !requests.counts(hash) {
                    requests.set(hash, record.request.cpu());
                }
            }
        }
        for requests in listing.values_mut() {
            requests.pods.shrink_to_fit();
        }
        let declaring: HashSet<u64> =
            listing.values().flat_map(|requests| requests.declared.keys()).collect();
        let hasher = self.uid_hasher.clone();
        self.change_all(|node| {
            node.cpu.requests = listing.remove(&node.name).unwrap_or_default();
            if let Some(load) = &mut node.load
                && load.recent.declares_in_flight()
            {
                // On whichever node they were expected, they are bound.
                let is_bound = |pod: &PodUid| declaring.contains(&hash_of(&hasher, pod));
                Arc::make_mut(&mut load.recent).forget_declared_of(is_bound);
            }
        });
        self.elsewhere = listing;
    }

    /// The hash of a UID, for [`Requests`].
    pub(super) fn uid_hash(&self, pod: &PodUid) -> u64 {
        hash_of(&self.uid_hasher, pod)
    }
}

fn hash_of(hasher: &RandomState, pod: &PodUid) -> u64 {
    hasher.hash_one(pod) & !MOST
}

#[cfg(test)]
mod tests {
    use placement::load::NodeLoad;

    use super::*;
    use crate::view::fixtures;

    fn index() -> Index {
        let mut index = fixtures::index();
        index.change_node(&"a".into(), |node| {
            node.load = Some(NodeLoad::default());
            node.cpu.allocatable = Some(8_000);
        });
        index
    }

    fn request(pod: &str, cpu: u64, declares: Rates) -> PodRequest {
        PodRequest {
            uid: pod.into(),
            node: "a".into(),
            cpu,
            declares,
            started_at: None,
            is_finished: false,
        }
    }

    fn count(index: &mut Index, pod: &str, cpu: u64, seen: WatchCause) {
        index.count_requests(&request(pod, cpu, Rates::NONE), seen);
    }

    fn free(index: &Index) -> Option<u64> {
        index.nodes.get(&"a".into())?.cpu.free()
    }

    #[test]
    fn a_pod_counts_once_however_often_it_is_seen() {
        let mut index = index();
        count(&mut index, "1", 500, WatchCause::Changed);
        count(&mut index, "1", 700, WatchCause::Changed);
        count(&mut index, "2", 1_000, WatchCause::Changed);
        assert_eq!(free(&index), Some(6_300));
        count(&mut index, "1", 700, WatchCause::Gone);
        count(&mut index, "1", 700, WatchCause::Gone);
        assert_eq!(free(&index), Some(7_000));
        // More than there is, as where the node was made smaller.
        count(&mut index, "3", u64::MAX, WatchCause::Changed);
        assert_eq!(free(&index), Some(0));
        count(&mut index, "3", u64::MAX, WatchCause::Gone);
        assert_eq!(free(&index), Some(7_000));
    }

    #[test]
    fn a_pod_that_is_seen_again_unchanged_changes_no_node() {
        let mut index = index();
        count(&mut index, "1", 500, WatchCause::Changed);
        index.changes = Default::default();
        count(&mut index, "1", 500, WatchCause::Changed);
        count(&mut index, "2", 500, WatchCause::Gone);
        assert!(index.changes.slots.is_empty());
        count(&mut index, "1", 501, WatchCause::Changed);
        assert_eq!(index.changes.slots.len(), 1);
    }

    #[test]
    fn a_list_replaces_what_was_known_once_it_is_whole() {
        let mut index = index();
        count(&mut index, "gone", 100, WatchCause::Changed);
        index.begin_list();
        count(&mut index, "there", 300, WatchCause::Listed);
        assert_eq!((free(&index), index.has_all_pods), (Some(7_900), false));
        // It broke off, and begins anew.
        index.begin_list();
        count(&mut index, "other", 200, WatchCause::Listed);
        index.end_list();
        assert_eq!((free(&index), index.has_all_pods), (Some(7_800), true));
        index.end_list();
        assert_eq!(free(&index), Some(7_800));
    }

    #[test]
    fn a_node_that_is_gone_with_its_pods_takes_no_room() {
        let mut index = index();
        count(&mut index, "p", 100, WatchCause::Changed);
        index.change_node(&"a".into(), |node| node.load = None);
        assert_eq!((index.nodes.iter().count(), index.elsewhere.len()), (0, 1));
        count(&mut index, "p", 100, WatchCause::Gone);
        assert!(index.elsewhere.is_empty());
    }
}

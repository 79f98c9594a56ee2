//! Counts what pods request and declare on their nodes, by watch events and lists.
//!
//! Invariant: a pod of a list that breaks off changes nothing.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use cluster::WatchCause;
use placement::units::{NodeName, PodUid};

use super::cpu::{PodRequest, hash_of};
use super::nodes::Nodes;

impl Nodes {
    /// Counts what a pod requests and declares on its node, by a watch event. Before a pod of a list:
    /// [`Nodes::begin_list`].
    pub(super) fn count_requests(&mut self, pod: &PodRequest, seen: WatchCause) {
        let hash = self.uid_hash(&pod.uid);
        let counts = !pod.is_finished && seen != WatchCause::Gone;
        let next = counts.then_some(pod);
        if seen == WatchCause::Listed {
            if let Some(listing) = self.requests.listing.as_mut().filter(|_| counts) {
                match listing.get_mut(&pod.node) {
                    Some(known) => known.put(hash, next),
                    None => listing.entry(pod.node.clone()).or_default().put(hash, next),
                }
            }
            return;
        }
        let known = match self.get(&pod.node) {
            Some(node) => Some(&node.cpu.requests),
            None => self.requests.elsewhere.get(&pod.node),
        };
        if known.is_some_and(|requests| requests.has(hash, next)) {
            return;
        }
        let changed = self.change_known(&pod.node, |node| node.cpu.requests.put(hash, next));
        if changed.is_none() {
            let requests = self.requests.elsewhere.entry(pod.node.clone()).or_default();
            requests.put(hash, next);
            if requests.is_empty() {
                self.requests.elsewhere.remove(&pod.node);
            }
        }
    }

    /// Begins a list of all pods.
    pub(super) fn begin_list(&mut self) {
        self.requests.listing = Some(HashMap::new());
    }

    /// Ends a list whose pods have been applied: pods that are not in it no longer count, except those that hold units,
    /// which may have been bound since it began: `holding`, with the node and the CPU of each.
    pub(super) fn end_list<'p>(
        &mut self,
        holding: impl Iterator<Item = (&'p PodUid, &'p NodeName, u64)>,
    ) {
        let Some(mut listing) = self.requests.listing.take() else { return };
        self.requests.are_complete = true;
        for (uid, node, cpu) in holding {
            let hash = self.uid_hash(uid);
            let requests = listing.entry(node.clone()).or_default();
            // A pod of the list may have been resized since it was reserved.
            if requests.cpu(hash).is_none() {
                requests.set(hash, cpu);
            }
        }
        let mut declaring = HashSet::new();
        for requests in listing.values_mut() {
            requests.pods.shrink_to_fit();
            declaring.extend(requests.declared().keys());
        }
        let hasher = self.requests.hasher.clone();
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
        self.requests.elsewhere = listing;
    }

    /// The hash of a UID, for [`Requests`](super::cpu::Requests).
    pub(super) fn uid_hash(&self, pod: &PodUid) -> u64 {
        hash_of(&self.requests.hasher, pod)
    }
}

#[cfg(test)]
mod tests {
    use placement::demand::Rates;
    use placement::load::NodeLoad;

    use super::*;

    fn nodes() -> Nodes {
        let mut nodes = Nodes::default();
        nodes.change(&"a".into(), |node| {
            node.load = Some(NodeLoad::default());
            node.cpu.allocatable = Some(8_000);
        });
        nodes
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

    fn count(nodes: &mut Nodes, pod: &str, cpu: u64, seen: WatchCause) {
        nodes.count_requests(&request(pod, cpu, Rates::NONE), seen);
    }

    fn free(nodes: &Nodes) -> Option<u64> {
        nodes.get(&"a".into())?.cpu.free()
    }

    #[test]
    fn a_pod_counts_once_however_often_it_is_seen() {
        let mut nodes = nodes();
        count(&mut nodes, "1", 500, WatchCause::Changed);
        count(&mut nodes, "1", 700, WatchCause::Changed);
        count(&mut nodes, "2", 1_000, WatchCause::Changed);
        assert_eq!(free(&nodes), Some(6_300));
        count(&mut nodes, "1", 700, WatchCause::Gone);
        count(&mut nodes, "1", 700, WatchCause::Gone);
        assert_eq!(free(&nodes), Some(7_000));
        // More than there is, as where the node was made smaller.
        count(&mut nodes, "3", u64::MAX, WatchCause::Changed);
        assert_eq!(free(&nodes), Some(0));
        count(&mut nodes, "3", u64::MAX, WatchCause::Gone);
        assert_eq!(free(&nodes), Some(7_000));
    }

    #[test]
    fn a_pod_that_is_seen_again_unchanged_changes_no_node() {
        let mut nodes = nodes();
        count(&mut nodes, "1", 500, WatchCause::Changed);
        nodes.changed.clear();
        count(&mut nodes, "1", 500, WatchCause::Changed);
        count(&mut nodes, "2", 500, WatchCause::Gone);
        assert!(nodes.changed.is_empty());
        count(&mut nodes, "1", 501, WatchCause::Changed);
        assert_eq!(nodes.changed.len(), 1);
    }

    #[test]
    fn a_list_replaces_what_was_known_once_it_is_whole() {
        let mut nodes = nodes();
        count(&mut nodes, "gone", 100, WatchCause::Changed);
        nodes.begin_list();
        count(&mut nodes, "there", 300, WatchCause::Listed);
        assert_eq!((free(&nodes), nodes.requests.are_complete), (Some(7_900), false));
        // It broke off, and begins anew.
        nodes.begin_list();
        count(&mut nodes, "other", 200, WatchCause::Listed);
        nodes.end_list(std::iter::empty());
        assert_eq!((free(&nodes), nodes.requests.are_complete), (Some(7_800), true));
        nodes.end_list(std::iter::empty());
        assert_eq!(free(&nodes), Some(7_800));
    }

    #[test]
    fn a_node_that_is_gone_with_its_pods_takes_no_room() {
        let mut nodes = nodes();
        count(&mut nodes, "p", 100, WatchCause::Changed);
        nodes.change(&"a".into(), |node| node.load = None);
        assert_eq!((nodes.iter().count(), nodes.requests.elsewhere.len()), (0, 1));
        count(&mut nodes, "p", 100, WatchCause::Gone);
        assert!(nodes.requests.elsewhere.is_empty());
    }
}

//! The nodes, each in a slot of its own.
//!
//! Invariant: a node has a slot while a snapshot has it: from when the watch shows it, or a pod holds units there,
//! until neither is so. Of another name only the CPU requests of its pods are known: a pod's author can name any node,
//! also one that does not exist.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use jiff::Timestamp;
use placement::gpu::{MeasuredMemory, NodeLedger};
use placement::load::{NodeLoad, ResolvedPolicy};
use placement::units::NodeName;

use super::cpu::{NodeCpu, PodRequests, Requests};
use super::readings::ReadingSources;
use super::unmanaged::{LastMeasurements, OnGpus};

/// What is known of one node.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) name: NodeName,
    /// Its load; `None` until the watch has shown the node.
    pub(super) load: Option<NodeLoad>,
    /// What its load's readings are chosen from.
    pub(super) sources: ReadingSources,
    /// Whether it is not ready, by its kubelet or the node controller.
    pub(super) is_unready: bool,
    pub(super) ledger: NodeLedger,
    pub(super) cpu: NodeCpu,
    pub(super) measured: Option<LastMeasurements>,
}

impl Node {
    fn new(name: &NodeName, requests: Requests) -> Self {
        Self {
            name: name.clone(),
            load: None,
            sources: ReadingSources::default(),
            is_unready: false,
            ledger: NodeLedger::default(),
            cpu: NodeCpu { allocatable: None, requests },
            measured: None,
        }
    }

    /// Whether a snapshot has it.
    pub(super) fn is_shown(&self) -> bool {
        self.load.is_some() || !self.ledger.is_empty()
    }

    /// Sets the readings that count at `now` under the policy.
    pub(super) fn choose_readings(&mut self, policy: &ResolvedPolicy, now: Timestamp) {
        if let Some(load) = &mut self.load {
            let readings = self.sources.choose(policy.rules(&load.labels), now);
            if *load.readings != readings {
                load.readings = Arc::new(readings);
            }
        }
    }

    /// Applies a measurement of its GPUs; `None` where there is none.
    pub(super) fn set_measured(&mut self, measured: Option<&MeasuredMemory>) {
        let known = self.measured.take();
        let gpus = self.ledger.gpus();
        if !gpus.is_empty()
            && let Some(measured) = measured
        {
            self.measured = Some(LastMeasurements::new(measured, gpus, known));
        }
    }

    /// Updates its unmanaged memory by the measurements that are fresh at `now`. `counts`: whether the policy counts
    /// it.
    pub(super) fn count_unmanaged(&mut self, counts: bool, now: Timestamp) {
        self.ledger.set_unmanaged(self.unmanaged(counts, now));
    }

    pub(super) fn unmanaged(&self, counts: bool, now: Timestamp) -> OnGpus {
        match &self.measured {
            Some(measured) if counts => measured.unmanaged(now),
            _ => Vec::new(),
        }
    }

    /// Copies its CPU into its ledger and its load, and what its pods declare into its load. `has_all_pods`: whether
    /// the requests of all pods are known.
    fn copy_cpu(&mut self, has_all_pods: bool) {
        self.ledger.set_cpu(self.cpu.free());
        if let Some(load) = &mut self.load {
            load.requested_cpu = has_all_pods.then(|| self.cpu.requested());
            load.declared = has_all_pods.then(|| Arc::clone(self.cpu.requests.declared()));
        }
    }
}

/// The nodes by slot and by name.
#[derive(Debug, Clone, Default)]
pub(super) struct Nodes {
    /// A free slot has a node that is not shown.
    slots: Vec<Node>,
    by_name: HashMap<NodeName, usize>,
    free: BTreeSet<usize>,
    /// What pods request and declare on nodes without a slot, and how it is read.
    pub(super) requests: PodRequests,
    /// The slots of the nodes that have changed since the last snapshot.
    pub(super) changed: BTreeSet<usize>,
    /// Whether nodes have joined or left since.
    pub(super) has_other_names: bool,
}

impl Nodes {
    pub(super) fn get(&self, name: &NodeName) -> Option<&Node> {
        self.by_name.get(name).map(|slot| &self.slots[*slot])
    }

    /// The nodes by slot. The node of a free slot is not shown.
    pub(super) fn slots(&self) -> &[Node] {
        &self.slots
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Node> {
        self.slots.iter().filter(|node| node.is_shown())
    }

    fn add(&mut self, node: Node) -> usize {
        let slot = self.free.pop_first().unwrap_or(self.slots.len());
        self.by_name.insert(node.name.clone(), slot);
        if slot < self.slots.len() {
            self.slots[slot] = node;
        } else {
            self.slots.push(node);
        }
        slot
    }

    fn free(&mut self, slot: usize) {
        self.by_name.remove(&self.slots[slot].name);
        self.free.insert(slot);
    }

    /// Drops the free slots at the end.
    pub(super) fn trim(&mut self) {
        while let Some(last) = self.slots.len().checked_sub(1)
            && self.free.remove(&last)
        {
            self.slots.pop();
        }
    }

    /// Changes a node, which is added where it is unknown. Its next state is published.
    pub(super) fn change<T>(&mut self, name: &NodeName, change: impl FnOnce(&mut Node) -> T) -> T {
        let slot = match self.by_name.get(name) {
            Some(slot) => *slot,
            None => {
                let requests = self.requests.elsewhere.remove(name).unwrap_or_default();
                self.add(Node::new(name, requests))
            }
        };
        self.change_slot(slot, change)
    }

    /// As [`Nodes::change`], for a known node. `None` for another.
    pub(super) fn change_known<T>(
        &mut self,
        name: &NodeName,
        change: impl FnOnce(&mut Node) -> T,
    ) -> Option<T> {
        let slot = *self.by_name.get(name)?;
        Some(self.change_slot(slot, change))
    }

    /// As [`Nodes::change`], for each known node.
    pub(super) fn change_all(&mut self, mut change: impl FnMut(&mut Node)) {
        for slot in 0..self.slots.len() {
            if !self.free.contains(&slot) {
                self.change_slot(slot, &mut change);
            }
        }
    }

    fn change_slot<T>(&mut self, slot: usize, change: impl FnOnce(&mut Node) -> T) -> T {
        let node = &mut self.slots[slot];
        let was_shown = node.is_shown();
        let outcome = change(node);
        node.copy_cpu(self.requests.are_complete);
        let is_shown = node.is_shown();
        self.changed.insert(slot);
        self.has_other_names |= was_shown != is_shown;
        if !is_shown {
            let requests = std::mem::take(&mut node.cpu.requests);
            if !requests.is_empty() {
                self.requests.elsewhere.insert(node.name.clone(), requests);
            }
            self.free(slot);
        }
        outcome
    }

    /// Whether the watch has shown the node.
    pub(super) fn has_joined(&self, name: &NodeName) -> bool {
        self.get(name).is_some_and(|node| node.load.is_some())
    }
}

#[cfg(test)]
mod tests {
    use cluster::WatchCause;
    use placement::demand::Rates;
    use placement::gpu::{ChoiceRule, GpuRequest};
    use placement::units::Units;

    use super::super::cpu::PodRequest;
    use super::*;
    use crate::view::{GpuPodId, Index, fixtures};

    #[test]
    fn a_node_of_which_nothing_is_known_any_more_takes_no_room() {
        let mut nodes = Nodes::default();
        let [a, b, c] = ["a", "b", "c"].map(NodeName::from);
        for node in [&a, &b] {
            nodes.change(node, |node| node.load = Some(NodeLoad::default()));
        }
        nodes.change_known(&a, |node| node.load = None);
        assert_eq!((nodes.get(&a).is_none(), nodes.iter().count()), (true, 1));
        // The next node gets its slot; the other one keeps its own.
        nodes.change(&c, |node| node.load = Some(NodeLoad::default()));
        assert_eq!((nodes.by_name[&c], nodes.by_name[&b]), (0, 1));
        assert!(!nodes.has_joined(&a) && nodes.has_joined(&b));
    }

    /// As many names as there are pods: each would take its part of every snapshot, of what is prepared and of all kept
    /// ratings.
    #[test]
    fn pods_that_name_nodes_that_do_not_exist_make_no_snapshot_larger() {
        let view = fixtures::view();
        fixtures::join(&view, "a", vec![fixtures::gpu()]);
        let request = |number: usize| PodRequest {
            uid: format!("p{number}").into(),
            node: format!("forged-{number}").into(),
            cpu: 100,
            declares: Rates::NONE,
            started_at: None,
            is_finished: false,
        };
        for number in 0..1_000 {
            view.change(|index| index.count_requests(&request(number), WatchCause::Changed));
        }
        let snapshot = view.read();
        assert_eq!((snapshot.names().len(), snapshot.chunks().len()), (1, 1));
        assert_eq!(
            view.ask(|index| (index.nodes.slots.len(), index.nodes.requests.elsewhere.len())),
            (1, 1_000)
        );
        // A node of such a name joins, and has what its pods request.
        fixtures::join(&view, "forged-7", Vec::new());
        let requested =
            |index: &Index| index.nodes.get(&"forged-7".into()).map(|node| node.cpu.requested());
        assert_eq!(view.ask(requested), Some(0.1));
        fixtures::leave(&view, "forged-7");
        fixtures::join(&view, "forged-7", Vec::new());
        assert_eq!(view.ask(requested), Some(0.1));
        fixtures::leave(&view, "forged-7");
        for number in 0..1_000 {
            view.change(|index| index.count_requests(&request(number), WatchCause::Gone));
        }
        assert!(view.ask(|index| index.nodes.requests.elsewhere.is_empty()));
    }

    #[test]
    fn a_snapshot_is_small_again_once_most_nodes_are_gone() {
        let view = fixtures::view();
        let names: Vec<String> = (0..200).map(|number| format!("n{number}")).collect();
        fixtures::list(&view, &names, &fixtures::gpu());
        assert_eq!(view.read().chunks().len(), 4);
        // A pod's charge keeps the one in the third chunk.
        let pod = GpuPodId { uid: "p".into(), namespace: "ml".to_owned(), name: "p".to_owned() };
        let request = GpuRequest::single("c", Units(4)).unwrap();
        let reserve = |index: &mut Index| {
            index.reserve(&pod, &request, &"n130".into(), &ChoiceRule::default()).is_ok()
        };
        assert!(view.change(reserve));
        fixtures::list(&view, &names[..10], &fixtures::gpu());
        let snapshot = view.read();
        assert_eq!((snapshot.names().len(), snapshot.chunks().len()), (11, 3));
        assert!(snapshot.gpus("n130").is_some() && snapshot.gpus("n9").is_some());
        view.change(|index| index.cancel(&pod.uid, &"n130".into()));
        let snapshot = view.read();
        assert_eq!((snapshot.names().len(), snapshot.chunks().len()), (10, 1));
        // It grows again.
        fixtures::list(&view, &names, &fixtures::gpu());
        let snapshot = view.read();
        let places: Vec<_> = names.iter().map(|name| snapshot.names().place(name)).collect();
        assert!(places.iter().all(|place| snapshot.at(place.unwrap()).gpus.is_some()));
    }
}

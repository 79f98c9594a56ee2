//! The nodes, each in a slot of its own.

use std::collections::{BTreeSet, HashMap};

use placement::gpu::NodeLedger;
use placement::load::NodeLoad;
use placement::units::NodeName;

use super::Index;
use super::cpu::NodeCpu;
use super::unmanaged::LastMeasurements;

/// What is known of one node.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) name: NodeName,
    /// Its load; `None` until the watch has shown the node.
    pub(super) load: Option<NodeLoad>,
    /// Whether it is not ready, by its kubelet or the node controller.
    pub(super) is_unready: bool,
    pub(super) ledger: NodeLedger,
    pub(super) cpu: NodeCpu,
    pub(super) measured: Option<LastMeasurements>,
}

impl Node {
    fn new(name: &NodeName) -> Self {
        Self {
            name: name.clone(),
            load: None,
            is_unready: false,
            ledger: NodeLedger::default(),
            cpu: NodeCpu::default(),
            measured: None,
        }
    }

    /// Whether nothing is known of it.
    fn is_empty(&self) -> bool {
        !self.is_shown() && self.cpu.is_empty() && !self.is_unready && self.measured.is_none()
    }

    /// Whether a snapshot has it.
    pub(super) fn is_shown(&self) -> bool {
        self.load.is_some() || !self.ledger.is_empty()
    }

    /// Copies its CPU into its ledger and its load. `has_all_pods`: whether the requests of all pods are known.
    fn copy_cpu(&mut self, has_all_pods: bool) {
        self.ledger.set_cpu(self.cpu.free());
        if let Some(load) = &mut self.load {
            load.requested_cpu = has_all_pods.then(|| self.cpu.requested());
        }
    }
}

/// The nodes by slot and by name.
#[derive(Debug, Clone, Default)]
pub(super) struct Nodes {
    /// A free slot has a node of which nothing is known.
    slots: Vec<Node>,
    by_name: HashMap<NodeName, usize>,
    free: BTreeSet<usize>,
}

impl Nodes {
    pub(super) fn get(&self, name: &NodeName) -> Option<&Node> {
        self.by_name.get(name).map(|slot| &self.slots[*slot])
    }

    /// The nodes by slot. Nothing is known of the node of a free slot.
    pub(super) fn slots(&self) -> &[Node] {
        &self.slots
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Node> {
        self.slots.iter().filter(|node| !node.is_empty())
    }

    fn slot_of(&mut self, name: &NodeName) -> usize {
        if let Some(slot) = self.by_name.get(name) {
            return *slot;
        }
        let slot = match self.free.pop_first() {
            Some(slot) => {
                self.slots[slot] = Node::new(name);
                slot
            }
            None => {
                self.slots.push(Node::new(name));
                self.slots.len() - 1
            }
        };
        self.by_name.insert(name.clone(), slot);
        slot
    }

    fn free(&mut self, slot: usize) {
        self.by_name.remove(&self.slots[slot].name);
        self.free.insert(slot);
    }
}

impl Index {
    /// Changes a node, which is added where it is unknown. Its next state is published.
    pub(super) fn change_node<T>(
        &mut self,
        name: &NodeName,
        change: impl FnOnce(&mut Node) -> T,
    ) -> T {
        let slot = self.nodes.slot_of(name);
        self.change_slot(slot, change)
    }

    /// As [`Index::change_node`], for a known node. `None` for another.
    pub(super) fn change_known<T>(
        &mut self,
        name: &NodeName,
        change: impl FnOnce(&mut Node) -> T,
    ) -> Option<T> {
        let slot = *self.nodes.by_name.get(name)?;
        Some(self.change_slot(slot, change))
    }

    /// As [`Index::change_node`], for each known node.
    pub(super) fn change_all(&mut self, mut change: impl FnMut(&mut Node)) {
        for slot in 0..self.nodes.slots.len() {
            if !self.nodes.free.contains(&slot) {
                self.change_slot(slot, &mut change);
            }
        }
    }

    fn change_slot<T>(&mut self, slot: usize, change: impl FnOnce(&mut Node) -> T) -> T {
        let node = &mut self.nodes.slots[slot];
        let was_shown = node.is_shown();
        let outcome = change(node);
        node.copy_cpu(self.has_all_pods);
        let (is_shown, is_empty) = (node.is_shown(), node.is_empty());
        self.changes.slots.insert(slot);
        self.changes.names |= was_shown != is_shown;
        if is_empty {
            self.nodes.free(slot);
        }
        outcome
    }

    /// Whether the watch has shown the node.
    pub(super) fn has_joined(&self, name: &NodeName) -> bool {
        self.nodes.get(name).is_some_and(|node| node.load.is_some())
    }
}

#[cfg(test)]
mod tests {
    use placement::policy::LoadPolicy;

    use super::*;

    #[test]
    fn a_node_of_which_nothing_is_known_any_more_takes_no_room() {
        let policy = "apiVersion: scheduler.policy.crane.io/v1alpha1\nkind: DynamicSchedulerPolicy\nspec: {}";
        let mut index = Index::new(LoadPolicy::from_yaml(policy).unwrap(), false);
        let [a, b, c] = ["a", "b", "c"].map(NodeName::from);
        for node in [&a, &b] {
            index.change_node(node, |node| node.load = Some(NodeLoad::default()));
        }
        index.change_known(&a, |node| node.load = None);
        assert_eq!((index.nodes.get(&a).is_none(), index.nodes.iter().count()), (true, 1));
        // The next node gets its slot; the other one keeps its own.
        index.change_node(&c, |node| node.is_unready = true);
        assert_eq!((index.nodes.by_name[&c], index.nodes.by_name[&b]), (0, 1));
        assert!(!index.has_joined(&c) && index.has_joined(&b));
    }
}

//! The nodes: their size, zones and labels, and when they reboot or join.

use crate::time::{DAY, HOUR, MINUTE, Step};

/// A node's place in the list of nodes.
pub type NodeId = usize;

/// CPU of a node in thousandths of a core.
pub const NODE_CPU: u32 = 32_000;
/// CPU of a node in cores.
pub const NODE_CORES: f64 = NODE_CPU as f64 / 1000.0;
/// Memory of a node in MiB.
pub const NODE_MEMORY: u32 = 128 * 1024;
/// Pods that a node takes at most: the kubelet's default.
pub const NODE_PODS: u16 = 110;
/// Zones; neighbours in the list of nodes are in different zones, as in kube-scheduler's node tree.
pub const ZONES: usize = 3;

/// The zone of a node.
pub fn zone(node: NodeId) -> usize {
    node % ZONES
}

/// Whether a node has the label that some pods prefer: every second one.
pub fn is_preferred(node: NodeId) -> bool {
    node.is_multiple_of(2)
}

/// Size and timetable of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scale {
    /// Nodes at the start.
    pub nodes: usize,
    /// Nodes that join at [`Scale::join_at`].
    pub joining: usize,
    /// Length of the run.
    pub steps: Step,
    /// Nothing before this step is counted: windows fill.
    pub counted_from: Step,
    /// Nodes that reboot one after another.
    pub reboots: usize,
    /// When the first of them reboots.
    pub first_reboot: Step,
    /// Time from one reboot to the next.
    pub reboot_every: Step,
    /// For how long a node is away.
    pub down_for: Step,
    /// When new nodes join and arrivals grow in proportion.
    pub join_at: Step,
}

impl Scale {
    /// 200 nodes, four days of which three count. 20 nodes reboot on the second day from 8:00 on, one each half hour;
    /// 20 nodes join on the third day at 9:00.
    pub const FULL: Self = Self {
        nodes: 200,
        joining: 20,
        steps: 4 * DAY,
        counted_from: DAY,
        reboots: 20,
        first_reboot: DAY + 8 * HOUR,
        reboot_every: 30 * MINUTE,
        down_for: 5 * MINUTE,
        join_at: 2 * DAY + 9 * HOUR,
    };

    /// 50 nodes and one day of which 18 hours count, for tests.
    pub const QUICK: Self = Self {
        nodes: 50,
        joining: 5,
        steps: DAY,
        counted_from: 6 * HOUR,
        reboots: 5,
        first_reboot: 8 * HOUR,
        reboot_every: 30 * MINUTE,
        down_for: 5 * MINUTE,
        join_at: 16 * HOUR,
    };

    /// Nodes at the end.
    pub fn all_nodes(&self) -> usize {
        self.nodes + self.joining
    }

    /// By how much arrivals grow when nodes join: in proportion to the nodes.
    pub fn growth(&self) -> f64 {
        self.all_nodes() as f64 / self.nodes as f64
    }

    /// The node that reboots at `step`: it is drained then, and goes down.
    pub fn reboots_at(&self, step: Step) -> Option<NodeId> {
        let since = step.checked_sub(self.first_reboot)?;
        let turn = (since / self.reboot_every) as usize;
        (since.is_multiple_of(self.reboot_every) && turn < self.reboots)
            .then(|| self.rebooting(turn))
    }

    /// The node that is back at `step`.
    pub fn returns_at(&self, step: Step) -> Option<NodeId> {
        self.reboots_at(step.checked_sub(self.down_for)?)
    }

    /// Every tenth node, of both labels and of all zones.
    fn rebooting(&self, turn: usize) -> NodeId {
        let apart = self.nodes / self.reboots;
        turn * apart + turn % 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reboot_has_a_node_of_its_own() {
        let scale = Scale::FULL;
        let nodes: Vec<_> = (0..scale.steps).filter_map(|step| scale.reboots_at(step)).collect();
        let mut unique = nodes.clone();
        unique.dedup();
        assert_eq!((nodes.len(), unique.len()), (20, 20));
        assert!(nodes.iter().all(|node| *node < scale.nodes));
        assert_eq!(nodes.iter().filter(|node| is_preferred(**node)).count(), 10);
        let back = (0..scale.steps).filter_map(|step| scale.returns_at(step));
        assert_eq!(back.collect::<Vec<_>>(), nodes);
    }
}

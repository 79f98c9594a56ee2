//! What a node's score for a pod takes from other nodes: pairing and room for large pods. Both change the load of the
//! node's CPU.

use super::COUNTS_AS;
use super::large_pods::KeptNodes;
use super::pairing::{NodeCpu, Paired, Pairing};

/// What a node's score for a pod takes from other nodes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ByOtherNodes {
    /// How what nodes use beyond their requests counts, by all nodes.
    pub pairing: Pairing,
    /// Which nodes are kept for large pods, of those that the pod could go to.
    pub kept: KeptNodes,
}

impl ByOtherNodes {
    /// Nothing: each node is judged for itself.
    pub const NOTHING: Self = Self { pairing: Pairing::NONE, kept: KeptNodes::NONE };

    /// For a pod that uses so many cores, on a node with this CPU.
    pub(super) fn on(self, node: Option<NodeCpu>, uses: f64) -> OnCpu {
        OnCpu { paired: self.pairing.on(node), kept: self.kept.on(node, uses) }
    }
}

/// How other nodes change the load of a node's CPU in its score.
#[derive(Debug, Clone, Copy)]
pub(super) struct OnCpu {
    /// A part of its surplus is added.
    pub(super) paired: Option<Paired>,
    /// The group whose load is at least [`COUNTS_AS`].
    pub(super) kept: Option<usize>,
}

impl OnCpu {
    /// The load of a group that counts.
    pub(super) fn load_of(self, group: usize, load: f64) -> f64 {
        self.raised(group, load).unwrap_or_else(|| self.paired_load(group, load))
    }

    /// [`COUNTS_AS`], where it is more than the load that would count otherwise.
    pub(super) fn raised(self, group: usize, load: f64) -> Option<f64> {
        let is_raised = self.kept == Some(group) && self.paired_load(group, load) < COUNTS_AS;
        is_raised.then_some(COUNTS_AS)
    }

    fn paired_load(self, group: usize, load: f64) -> f64 {
        let paired = self.paired.filter(|paired| paired.group == group);
        load + paired.map_or(0.0, |paired| paired.surplus_at(load).counted)
    }
}

//! Pairing: pods that use much of their CPU requests and pods that use little share nodes.
//!
//! When a cluster is nearly full, requests leave room on few nodes only. Scored by load alone, nodes whose pods use
//! more than they request then get more pods, while nodes that are full by requests stay less loaded. So a node's
//! surplus counts together with its load:
//!
//! - surplus = load − a · requested, where a = Σ used ÷ Σ requested over all nodes whose CPU has a weight and for which
//!   both are known, and `requested` is a fraction of the node;
//! - load that counts = load + part · surplus, where part = strength · fullness · (1 − a ÷ u), from −strength to
//!   strength, and u is the part of its request that the pod will use;
//! - fullness = 0 if requests fill half of these nodes or less, 1 from three quarters on, and linear between.
//!
//! So a pod that uses more of its request than the average gets nodes with little surplus, and a pod that uses less
//! gets nodes with much. While requests leave room on every node, the load alone decides: with few requests, use by
//! request says little. Limits do not count the surplus. bench/RESULTS.md has the gain.

use std::iter::Sum;
use std::ops::Add;

use crate::policy::Scoring;

/// Up to this part of the nodes' CPU, requests do not limit where pods go, and pairing does not count.
const CONSTRAINED_FROM: f64 = 0.5;
/// From this part of the nodes' CPU on, pairing counts in full.
const CONSTRAINED_FULLY_FROM: f64 = 0.75;

/// Used and requested CPU of one or more nodes, in cores.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct CpuUse {
    /// CPU in use.
    pub used: f64,
    /// CPU that pods request.
    pub requested: f64,
    /// CPU of the nodes.
    pub capacity: f64,
}

impl Add for CpuUse {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            used: self.used + other.used,
            requested: self.requested + other.requested,
            capacity: self.capacity + other.capacity,
        }
    }
}

impl Sum for CpuUse {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), Self::add)
    }
}

impl CpuUse {
    /// Cores used for each requested core; `None` if nothing is requested.
    #[must_use]
    pub fn by_request(self) -> Option<f64> {
        let by_request = self.used / self.requested;
        (self.requested > 0.0 && by_request.is_finite()).then_some(by_request)
    }

    /// How much requests limit where pods go: 0 if they leave room on every node, 1 if they fill most nodes.
    fn fullness(self) -> f64 {
        let filled = self.requested / self.capacity;
        if filled.is_finite() {
            ((filled - CONSTRAINED_FROM) / (CONSTRAINED_FULLY_FROM - CONSTRAINED_FROM))
                .clamp(0.0, 1.0)
        } else {
            0.0
        }
    }
}

/// How a node's surplus counts for one pod.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Pairing {
    /// Cores that the pods of all nodes use for each requested core.
    pub average: f64,
    /// The part of a surplus that counts, −1 to 1; 0 for none.
    pub part: f64,
    /// What the pod requests, in cores.
    pub requested: f64,
}

impl Pairing {
    /// No surplus counts.
    pub const NONE: Self = Self { average: 0.0, part: 0.0, requested: 0.0 };

    /// For a pod that requests `requested` cores and will probably use `uses` cores; `nodes` is the CPU use of all
    /// nodes.
    #[must_use]
    pub fn new(scoring: &Scoring, nodes: CpuUse, requested: f64, uses: f64) -> Self {
        let (Some(average), true) = (nodes.by_request(), scoring.pairs()) else {
            return Self::NONE;
        };
        let above_average = if uses > 0.0 {
            (1.0 - average * requested / uses).clamp(-1.0, 1.0)
        } else if requested > 0.0 {
            -1.0
        } else {
            0.0
        };
        let part = scoring.pairing * nodes.fullness() * above_average;
        Self { average, part, requested }
    }

    /// How it counts on a node; `None` if it does not count.
    pub(super) fn on(self, node: Option<NodeCpu>) -> Option<Paired> {
        if self.part == 0.0 {
            return None;
        }
        let node = node?;
        let requested = (node.requested + self.requested) / node.capacity;
        let group = node.group;
        let part = self.part;
        let expected = self.average * requested;
        Some(Paired { group, part, requested, expected })
    }
}

/// A node's used and requested CPU, without the pod to be placed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct NodeCpu {
    /// The group of weights whose metrics are of CPU.
    pub(super) group: usize,
    /// The node's cores.
    pub(super) capacity: f64,
    /// Cores that its pods request.
    pub(super) requested: f64,
    /// Cores in use, by readings and by estimates of pods that these do not show yet.
    pub(super) used: f64,
}

impl NodeCpu {
    /// What it adds to the CPU use of all nodes. Requests count up to the node's capacity: pods that were bound without
    /// kube-scheduler may request more.
    pub(super) fn capped_use(self) -> CpuUse {
        let Self { used, requested, capacity, .. } = self;
        CpuUse { used, requested: requested.min(capacity), capacity }
    }

    /// The part of it that is in use.
    pub(super) fn load(self) -> f64 {
        self.used / self.capacity
    }
}

/// How pairing changes the load of one group of a node's weights.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Paired {
    pub(super) group: usize,
    part: f64,
    requested: f64,
    expected: f64,
}

impl Paired {
    /// The surplus at this load of the group.
    pub(super) fn surplus_at(self, load: f64) -> Surplus {
        let surplus = load - self.expected;
        Surplus { requested: self.requested, surplus, counted: self.part * surplus }
    }
}

/// A node's surplus with the pod to be placed, as fractions of its CPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Surplus {
    /// What its pods request, including the pod to be placed.
    pub requested: f64,
    /// The load, less what these requests use on average.
    pub surplus: f64,
    /// The part of the surplus that is added to the load.
    pub counted: f64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Direction, Model};

    /// Requests use 0.75 on average and fill four fifths of the nodes.
    const NODES: CpuUse = CpuUse { used: 12.0, requested: 16.0, capacity: 20.0 };

    fn learned(pairing: f64) -> Scoring {
        Scoring { model: Model::Learned, pairing, ..Scoring::crane() }
    }

    fn part(strength: f64, requested: f64, uses: f64) -> f64 {
        Pairing::new(&learned(strength), NODES, requested, uses).part
    }

    #[test]
    fn the_part_grows_with_what_a_pod_uses_of_its_request() {
        assert_eq!(
            (part(0.5, 4.0, 3.0), part(0.5, 1.0, 1.5), part(0.5, 3.0, 1.5)),
            (0.0, 0.25, -0.25)
        );
        // However little, and however much.
        assert_eq!(
            (part(0.5, 4.0, 0.01), part(0.5, 4.0, 0.0), part(0.5, 0.0, 1.0)),
            (-0.5, -0.5, 0.5)
        );
        assert_eq!((part(0.5, 0.0, 0.0), part(0.0, 1.0, 1.5)), (0.0, 0.0));
    }

    #[test]
    fn nothing_is_known_of_an_empty_cluster() {
        for (used, requested) in [(0.0, 0.0), (1.0, 0.0), (f64::INFINITY, 1.0)] {
            let nodes = CpuUse { used, requested, capacity: 1.0 };
            assert_eq!(Pairing::new(&learned(0.5), nodes, 1.0, 2.0), Pairing::NONE);
        }
    }

    #[test]
    fn a_surplus_counts_the_more_the_less_room_requests_leave() {
        let part =
            |capacity| Pairing::new(&learned(0.5), CpuUse { capacity, ..NODES }, 1.0, 1.5).part;
        assert_eq!([64.0, 32.0, 25.6, 16.0, 8.0].map(part), [0.0, 0.0, 0.125, 0.25, 0.25]);
        assert_eq!((part(0.0), part(f64::NAN)), (0.0, 0.0));
    }

    #[test]
    fn a_node_is_no_fuller_than_full() {
        let node = NodeCpu { group: 0, capacity: 10.0, requested: 1_000.0, used: 5.0 };
        assert_eq!(node.capped_use(), CpuUse { used: 5.0, requested: 10.0, capacity: 10.0 });
    }

    #[test]
    fn models_that_add_up_and_packing_have_no_pairs() {
        let linear = Scoring { pairing: 0.5, ..Scoring::crane() };
        let packed = Scoring { direction: Direction::Pack, ..learned(0.5) };
        for scoring in [linear, packed] {
            assert_eq!(Pairing::new(&scoring, NODES, 1.0, 1.5), Pairing::NONE);
        }
    }

    #[test]
    fn a_surplus_counts_in_part() {
        let node = NodeCpu { group: 0, capacity: 10.0, requested: 6.0, used: 5.0 };
        let pairing = Pairing { average: 0.75, part: 0.5, requested: 2.0 };
        let counted = pairing.on(Some(node)).unwrap().surplus_at(0.7);
        // 0.7 − 0.75 · 0.8 = 0.1.
        assert!((counted.surplus - 0.1).abs() < 1e-9 && (counted.counted - 0.05).abs() < 1e-9);
        assert!((counted.requested - 0.8).abs() < 1e-9);
        assert_eq!((pairing.on(None), Pairing::NONE.on(Some(node))), (None, None));
    }
}

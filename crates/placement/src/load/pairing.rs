//! Pairing: pods that use much of their CPU requests and pods that use little share nodes.
//!
//! Near the peak of a full cluster requests leave room on few nodes. By load alone these are the nodes whose pods use more than
//! they request, and they get still more, while nodes that are full of requests stay below their load. So a node's surplus counts
//! beside its load:
//!
//! - surplus = load − a · requested, where a = Σ used ÷ Σ requested over all nodes whose CPU has a weight and of which both are known, and `requested` is a fraction of the node;
//! - load that counts = load + part · surplus, where part = strength · fullness · (1 − a ÷ u), from −strength to strength, and the pod
//!   will use u of its request;
//! - fullness = 0 where requests fill half of these nodes or less, 1 from three quarters on, and linear between.
//!
//! A pod that uses more of its request than the average avoids surplus, and a pod that uses less seeks it. Where requests leave room on
//! every node, the load alone says enough, and what pods use of few requests says nothing. Limits see the load alone. What it gains is
//! measured in bench/RESULTS.md.

use std::iter::Sum;
use std::ops::Add;

use crate::policy::Scoring;

/// Up to this part of the nodes' CPU requests do not constrain where pods go.
const ROOMY: f64 = 0.5;
/// From this part on pairing counts in full.
const FULL: f64 = 0.75;

/// CPU that is used and CPU that pods request on some nodes, in cores.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct CpuUse {
    /// Used.
    pub used: f64,
    /// Requested.
    pub requested: f64,
    /// What the nodes have.
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
    /// What is used of each requested core; `None` where nothing is requested.
    #[must_use]
    pub fn by_request(self) -> Option<f64> {
        let by_request = self.used / self.requested;
        (self.requested > 0.0 && by_request.is_finite()).then_some(by_request)
    }

    /// How much requests constrain where pods go: 0 where they leave room everywhere, 1 where they fill most nodes.
    #[must_use]
    pub fn fullness(self) -> f64 {
        let filled = self.requested / self.capacity;
        if filled.is_finite() { ((filled - ROOMY) / (FULL - ROOMY)).clamp(0.0, 1.0) } else { 0.0 }
    }
}

/// How a node's surplus counts for one pod.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Pairing {
    /// What pods of all nodes use of each requested core.
    pub average: f64,
    /// How much of a surplus counts, −1 to 1; 0 where none does.
    pub part: f64,
    /// What the pod requests, in cores.
    pub requested: f64,
}

impl Pairing {
    /// No surplus counts.
    pub const NONE: Self = Self { average: 0.0, part: 0.0, requested: 0.0 };

    /// For a pod that requests some cores and will probably use some, among nodes of which so much is used and requested.
    #[must_use]
    pub fn new(scoring: &Scoring, nodes: CpuUse, requested: f64, uses: f64) -> Self {
        let (Some(average), true) = (nodes.by_request(), scoring.pairs()) else {
            return Self::NONE;
        };
        let above_average = match uses > 0.0 {
            true => (1.0 - average * requested / uses).clamp(-1.0, 1.0),
            false if requested > 0.0 => -1.0,
            false => 0.0,
        };
        let part = scoring.pairing * nodes.fullness() * above_average;
        Self { average, part, requested }
    }

    /// How it counts on a node; `None` where it does not.
    pub(super) fn on(self, node: Option<NodeCpu>) -> Option<Paired> {
        let node = node.filter(|_| self.part != 0.0)?;
        let requested = (node.requested + self.requested) / node.capacity;
        let (group, part, expected) = (node.group, self.part, self.average * requested);
        Some(Paired { group, part, requested, expected })
    }
}

/// What a node's CPU is known to be, without the pod to be placed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct NodeCpu {
    /// The group of weights that are of CPU.
    pub(super) group: usize,
    /// In cores.
    pub(super) capacity: f64,
    /// By its pods, in cores.
    pub(super) requested: f64,
    /// By readings and by pods that these do not show, in cores.
    pub(super) used: f64,
}

impl NodeCpu {
    /// Its part in what all nodes use. No pod has more of a node than all of it, whatever it requests: one that was bound without
    /// kube-scheduler may request more.
    pub(super) fn in_all(self) -> CpuUse {
        let Self { used, requested, capacity, .. } = self;
        CpuUse { used, requested: requested.min(capacity), capacity }
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
    /// What comes of the load of its group.
    pub(super) fn at(self, load: f64) -> Surplus {
        let surplus = load - self.expected;
        Surplus { requested: self.requested, surplus, counted: self.part * surplus }
    }
}

/// A node's surplus with the pod to be placed, as fractions of its CPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Surplus {
    /// What its pods request, with the pod.
    pub requested: f64,
    /// The load less what requests use on average.
    pub surplus: f64,
    /// What counts of it on top of the load.
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
        assert_eq!(node.in_all(), CpuUse { used: 5.0, requested: 10.0, capacity: 10.0 });
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
        let counted = pairing.on(Some(node)).unwrap().at(0.7);
        // 0.7 − 0.75 · 0.8 = 0.1.
        assert!((counted.surplus - 0.1).abs() < 1e-9 && (counted.counted - 0.05).abs() < 1e-9);
        assert!((counted.requested - 0.8).abs() < 1e-9);
        assert_eq!((pairing.on(None), Pairing::NONE.on(Some(node))), (None, None));
    }
}

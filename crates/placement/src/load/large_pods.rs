//! Room for large pods: pods that use a large part of a node find nodes that have it.
//!
//! A pod that uses half of a node's CPU fits below a limit only on a node that is less than half loaded, and scores by
//! load alone make all nodes equally loaded. So while such pods run, some of the least loaded nodes are kept for them:
//!
//! - A pod is large on a node if it uses [`LARGE`] of the node's CPU or more.
//! - The kept nodes are the n least loaded ones. n is the policy's part of all nodes, but not more than the hours for
//!   which pods ran within about a day that are large on the average node.
//! - For a pod that is not large, a kept node's CPU counts as [`COUNTS_AS`] loaded, or as its load if that is higher.
//!
//! It changes scores alone: a kept node takes any pod when the others are as loaded, and no limit counts it. Who runs
//! large pods can make other pods' nodes no more loaded than they are with that part of the nodes less.
//! bench/RESULTS.md has the gain.

use super::pairing::{CpuUse, NodeCpu, Pairing};
use crate::policy::Scoring;

/// The part of a node's CPU from which on a pod is large.
pub const LARGE: f64 = 0.25;

/// The load that a kept node has at least for pods that are not large.
pub const COUNTS_AS: f64 = 0.65;

/// For how long pods ran, by the CPU that they use.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PodSizes {
    /// Cores, the largest first, and the pod-hours of all that use as many or more.
    hours: Vec<(f64, f64)>,
}

impl PodSizes {
    /// From workloads: the cores that a pod uses, and for how many hours pods ran.
    #[must_use]
    pub fn new(workloads: impl IntoIterator<Item = (f64, f64)>) -> Self {
        let mut hours: Vec<(f64, f64)> = workloads.into_iter().collect();
        hours.retain(|(cores, hours)| *cores > 0.0 && *hours > 0.0);
        hours.sort_by(|(one, _), (other, _)| other.total_cmp(one));
        let mut sum = 0.0;
        for (_, hours) in &mut hours {
            sum += *hours;
            *hours = sum;
        }
        Self { hours }
    }

    /// For how many hours pods ran that use at least so many cores.
    #[must_use]
    pub fn hours_of(&self, cores: f64) -> f64 {
        let number = self.hours.partition_point(|(uses, _)| *uses >= cores);
        number.checked_sub(1).map_or(0.0, |last| self.hours[last].1)
    }
}

/// Which nodes are kept for large pods.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KeptNodes {
    /// Those with less load than this, without the pod to be placed.
    pub below: f64,
}

impl KeptNodes {
    /// None.
    pub const NONE: Self = Self { below: f64::NEG_INFINITY };

    /// How many of `nodes` are kept. Pods of these `sizes` run.
    #[must_use]
    pub fn number(scoring: &Scoring, nodes: CpuUse, sizes: &PodSizes) -> usize {
        if !scoring.keeps() || nodes.nodes == 0 {
            return 0;
        }
        let all = f64::from(nodes.nodes);
        let hours = sizes.hours_of(LARGE * nodes.capacity / all);
        // At most as many as there are nodes.
        (scoring.keep_for_large * all).floor().min(hours.ceil()) as usize
    }

    /// The nodes with the `number` lowest of these loads.
    #[must_use]
    pub fn least_loaded(number: usize, loads: &mut [f64]) -> Self {
        if number == 0 || number >= loads.len() {
            return Self::NONE;
        }
        let (_, first_other, _) = loads.select_nth_unstable_by(number, f64::total_cmp);
        Self { below: *first_other }
    }

    /// The group of weights whose load is at least [`COUNTS_AS`] on this node for a pod that uses so many cores; `None`
    /// if the node is not kept from it.
    pub(super) fn on(self, node: Option<NodeCpu>, uses: f64) -> Option<usize> {
        if self == Self::NONE {
            return None;
        }
        let node = node?;
        (node.load() < self.below && uses < LARGE * node.capacity).then_some(node.group)
    }
}

/// What a node's score for a pod takes from all nodes together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ByAllNodes {
    /// How what nodes use beyond their requests counts.
    pub pairing: Pairing,
    /// Which nodes are kept for large pods.
    pub kept: KeptNodes,
}

impl ByAllNodes {
    /// Nothing: each node is judged for itself.
    pub const NOTHING: Self = Self { pairing: Pairing::NONE, kept: KeptNodes::NONE };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Model;

    fn keeping(part: f64) -> Scoring {
        Scoring { model: Model::Learned, keep_for_large: part, ..Scoring::crane() }
    }

    /// Of 10 cores each.
    fn nodes(nodes: u32) -> CpuUse {
        CpuUse { capacity: 10.0 * f64::from(nodes), nodes, ..CpuUse::default() }
    }

    #[test]
    fn hours_add_up_from_the_largest_pods_on() {
        let sizes = PodSizes::new([(1.0, 8.0), (4.0, 2.0), (2.5, 0.5), (0.0, 9.0), (3.0, 0.0)]);
        let hours = [5.0, 4.0, 2.5, 2.0, 0.1].map(|cores| sizes.hours_of(cores));
        assert_eq!(hours, [0.0, 2.0, 2.5, 2.5, 10.5]);
        assert_eq!(PodSizes::default().hours_of(0.0), 0.0);
    }

    #[test]
    fn as_many_nodes_are_kept_as_large_pods_ran_for_hours_up_to_the_part() {
        let number =
            |part, nodes, sizes| KeptNodes::number(&keeping(part), nodes, &PodSizes::new(sizes));
        assert_eq!(number(0.06, nodes(200), vec![(2.5, 1_000.0)]), 12);
        assert_eq!(number(0.06, nodes(200), vec![(2.5, 3.2)]), 4);
        assert_eq!(number(0.06, nodes(200), vec![(2.4, 1_000.0)]), 0);
        // Of few nodes none is left.
        assert_eq!(number(0.06, nodes(16), vec![(2.5, 1_000.0)]), 0);
        assert_eq!(number(0.06, nodes(17), vec![(2.5, 1_000.0)]), 1);
        assert_eq!(number(0.0, nodes(200), vec![(2.5, 1_000.0)]), 0);
        assert_eq!(number(0.5, nodes(0), vec![(2.5, 1_000.0)]), 0);
    }

    #[test]
    fn the_kept_nodes_are_the_least_loaded() {
        let mut loads = [0.5, 0.1, 0.3, 0.2, 0.4];
        assert_eq!(KeptNodes::least_loaded(2, &mut loads), KeptNodes { below: 0.3 });
        assert_eq!(KeptNodes::least_loaded(0, &mut loads), KeptNodes::NONE);
        assert_eq!(KeptNodes::least_loaded(5, &mut loads), KeptNodes::NONE);
        assert_eq!(KeptNodes::least_loaded(1, &mut []), KeptNodes::NONE);
        // Idle nodes are all alike: none of them is less loaded than the others.
        assert_eq!(KeptNodes::least_loaded(1, &mut [0.0; 3]), KeptNodes { below: 0.0 });
    }

    #[test]
    fn a_node_is_kept_from_pods_that_are_not_large_there() {
        let node = NodeCpu { group: 1, capacity: 10.0, requested: 0.0, used: 2.0 };
        let kept = KeptNodes { below: 0.3 };
        assert_eq!((kept.on(Some(node), 2.4), kept.on(Some(node), 2.5)), (Some(1), None));
        assert_eq!(kept.on(Some(NodeCpu { used: 3.0, ..node }), 0.0), None);
        assert_eq!(kept.on(None, 0.0), None);
        assert_eq!(KeptNodes::NONE.on(Some(node), 0.0), None);
    }
}

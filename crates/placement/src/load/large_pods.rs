//! Room for large pods: pods that use a large part of a node find nodes that have it.
//!
//! A pod that uses half of a node's CPU fits below a limit only on a node that is less than half loaded, and scores by
//! load alone make all nodes equally loaded. So while such pods come, some of the least loaded nodes are kept for them:
//!
//! - A pod is large on a node if it uses [`LARGE`] of the node's CPU or more.
//! - The kept nodes are the n least loaded ones of those that the pod to be placed could go to: cordoned and tainted
//!   nodes have no room for anyone. n is the policy's part of these, but not more than the full hours for which pods
//!   ran that are large on the average of them, where older hours count less ([`crate::workload::HALF_LIFE`]).
//! - For a pod that is not large, a kept node's CPU counts as [`COUNTS_AS`] loaded, or as its load if that is higher.
//!
//! It changes scores alone: a kept node takes any pod when the others are as loaded, and no limit counts it. Who runs
//! large pods can make other pods' nodes no more loaded than they are with that part of the nodes less.
//! bench/RESULTS.md has the gain.

use jiff::Timestamp;

use super::pairing::{CpuUse, NodeCpu};
use crate::policy::Scoring;
use crate::workload::{HALF_LIFE, pod_minutes_at};

/// The part of a node's CPU from which on a pod is large.
pub const LARGE: f64 = 0.25;

const MINUTES_OF_AN_HOUR: f64 = 60.0;

/// What pods use that are large on no node worth keeping.
const SMALL_CORES: f64 = 0.5;

/// The load that a kept node has at least for pods that are not large.
pub const COUNTS_AS: f64 = 0.65;

/// For how long pods ran, by the CPU that they use.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PodSizes {
    /// Cores, the largest first, and the pod-hours of all that use as many or more.
    hours: Vec<(f64, f64)>,
}

impl PodSizes {
    /// From workloads: the cores that a pod uses, and the [`evidence`](crate::workload::evidence) of how long pods ran,
    /// with [`HALF_LIFE`]. Its hours are those that it is worth at `now`.
    #[must_use]
    pub fn of_workloads(workloads: impl IntoIterator<Item = (f64, f64)>, now: Timestamp) -> Self {
        let each = workloads.into_iter();
        Self::new(each.map(|(cores, evidence)| {
            (cores, pod_minutes_at(evidence, now, HALF_LIFE) / MINUTES_OF_AN_HOUR)
        }))
    }

    /// The cores that a pod uses, and for how many hours pods ran.
    #[must_use]
    pub fn new(workloads: impl IntoIterator<Item = (f64, f64)>) -> Self {
        let mut hours: Vec<(f64, f64)> = workloads.into_iter().collect();
        hours.retain(|(cores, hours)| *cores >= SMALL_CORES && *hours > 0.0);
        hours.shrink_to_fit();
        hours.sort_by(|(one, _), (other, _)| other.total_cmp(one));
        let mut sum = 0.0;
        for (_, hours) in &mut hours {
            sum += *hours;
            *hours = sum;
        }
        Self { hours }
    }

    /// Their size in memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.hours)
    }

    /// Whether no pods are known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.hours.is_empty()
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

    /// Whether any of these nodes can be kept while pods of these `sizes` run: whether such pods are large on the
    /// smallest node.
    #[must_use]
    pub fn can_be_some(nodes: &[CpuUse], sizes: &PodSizes) -> bool {
        let known = nodes.iter().map(|node| node.capacity).filter(|capacity| *capacity > 0.0);
        let smallest = known.reduce(f64::min);
        smallest.is_some_and(|smallest| sizes.hours_of(LARGE * smallest) >= 1.0)
    }

    /// Of these nodes, while pods of these `sizes` run. A node whose CPU use is not known is none.
    #[must_use]
    pub fn of(
        scoring: &Scoring,
        nodes: impl IntoIterator<Item = CpuUse>,
        sizes: &PodSizes,
    ) -> Self {
        if !scoring.keeps() || sizes.is_empty() {
            return Self::NONE;
        }
        let mut loads = Vec::new();
        let mut capacity = 0.0;
        for node in nodes.into_iter().filter(|node| node.capacity > 0.0) {
            loads.push(node.used / node.capacity);
            capacity += node.capacity;
        }
        let all = loads.len() as f64;
        let hours = sizes.hours_of(LARGE * capacity / all);
        // At most as many as there are nodes.
        let number = (scoring.keep_for_large * all).floor().min(hours.floor()) as usize;
        Self::least_loaded(number, &mut loads)
    }

    /// The nodes with the `number` lowest of these loads, but not all of them.
    fn least_loaded(number: usize, loads: &mut [f64]) -> Self {
        let number = number.min(loads.len().saturating_sub(1));
        if number == 0 {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Model;

    fn keeping(part: f64) -> Scoring {
        Scoring { model: Model::Learned, keep_for_large: part, ..Scoring::crane() }
    }

    /// So many nodes of 10 cores, of which 0.01 more are in use on each than on the last.
    fn nodes(number: u32) -> impl Iterator<Item = CpuUse> {
        (0..number).map(|node| CpuUse {
            used: 0.1 * f64::from(node),
            capacity: 10.0,
            ..CpuUse::default()
        })
    }

    #[test]
    fn hours_add_up_from_the_largest_pods_on() {
        let sizes = PodSizes::new([(1.0, 8.0), (4.0, 2.0), (2.5, 0.5), (0.4, 9.0), (3.0, 0.0)]);
        let hours = [5.0, 4.0, 2.5, 2.0, 0.1].map(|cores| sizes.hours_of(cores));
        assert_eq!(hours, [0.0, 2.0, 2.5, 2.5, 10.5]);
        assert_eq!(PodSizes::default().hours_of(0.0), 0.0);
    }

    #[test]
    fn as_many_nodes_are_kept_as_large_pods_ran_for_hours_up_to_the_part() {
        let kept = |part, number, size| {
            let kept = KeptNodes::of(&keeping(part), nodes(number), &PodSizes::new([size]));
            nodes(number).filter(|node| node.used / node.capacity < kept.below).count()
        };
        assert_eq!(kept(0.06, 200, (2.5, 1_000.0)), 12);
        assert_eq!((kept(0.06, 200, (2.5, 3.9)), kept(0.06, 200, (2.5, 0.9))), (3, 0));
        assert_eq!(kept(0.06, 200, (2.4, 1_000.0)), 0);
        // Of few nodes none is left.
        assert_eq!(kept(0.06, 16, (2.5, 1_000.0)), 0);
        assert_eq!(kept(0.06, 17, (2.5, 1_000.0)), 1);
        assert_eq!(kept(0.0, 200, (2.5, 1_000.0)), 0);
        assert_eq!(kept(0.5, 0, (2.5, 1_000.0)), 0);
        // One is left, however many are to be kept.
        assert_eq!(kept(1.0, 10, (2.5, 1_000.0)), 9);
    }

    #[test]
    fn a_node_whose_use_is_not_known_is_none_of_them() {
        let large = PodSizes::new([(5.0, 9.0)]);
        let unknown = (0..100).map(|_| CpuUse::default());
        let kept = KeptNodes::of(&keeping(0.1), nodes(20).chain(unknown), &large);
        assert_eq!(kept, KeptNodes { below: 0.02 });
    }

    #[test]
    fn none_can_be_kept_where_no_pods_are_large_on_the_smallest_node() {
        let smaller = CpuUse { capacity: 8.0, ..CpuUse::default() };
        let each: Vec<CpuUse> = nodes(20).chain([smaller, CpuUse::default()]).collect();
        let can_be_some =
            |cores, hours| KeptNodes::can_be_some(&each, &PodSizes::new([(cores, hours)]));
        assert!(can_be_some(2.0, 1.0) && !can_be_some(1.9, 1.0) && !can_be_some(2.0, 0.9));
        assert!(!KeptNodes::can_be_some(&[], &PodSizes::new([(9.0, 9.0)])));
    }

    #[test]
    fn the_kept_nodes_are_the_least_loaded() {
        let mut loads = [0.5, 0.1, 0.3, 0.2, 0.4];
        assert_eq!(KeptNodes::least_loaded(2, &mut loads), KeptNodes { below: 0.3 });
        assert_eq!(KeptNodes::least_loaded(0, &mut loads), KeptNodes::NONE);
        assert_eq!(KeptNodes::least_loaded(5, &mut loads), KeptNodes { below: 0.5 });
        assert_eq!(KeptNodes::least_loaded(1, &mut []), KeptNodes::NONE);
        assert_eq!(KeptNodes::least_loaded(1, &mut [0.5]), KeptNodes::NONE);
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

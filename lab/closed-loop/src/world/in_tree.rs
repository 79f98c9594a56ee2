//! Scores of kube-scheduler's own plugins, as version 1.36.3 computes them in whole numbers
//! (`pkg/scheduler/framework/plugins`), and the number of nodes that it looks for.
//!
//! TaintToleration, InterPodAffinity, ImageLocality and volumes are left out: nodes are alike to them.

use crate::cluster::{NODE_CPU, NODE_MEMORY, NodeId, ZONES, is_preferred, zone};

/// Which of kube-scheduler's own scores count beside the policy's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum InTree {
    /// LeastAllocated, BalancedAllocation, NodeAffinity and PodTopologySpread: the default profile.
    All,
    /// LeastAllocated and BalancedAllocation alone.
    Resources,
}

/// Weight of NodeAffinity in the default profile.
pub(super) const WEIGHT_OF_NODE_AFFINITY: i64 = 2;
/// Weight of PodTopologySpread in the default profile.
pub(super) const WEIGHT_OF_SPREAD: i64 = 2;

/// How many feasible nodes a search ends with (`numFeasibleNodesToFind` with the adaptive percentage).
pub(super) fn nodes_to_find(nodes: usize) -> usize {
    const AT_LEAST: usize = 100;
    if nodes < AT_LEAST {
        return nodes;
    }
    let percent = 50_usize.saturating_sub(nodes / 125).max(5);
    (nodes * percent / 100).max(AT_LEAST)
}

/// NodeResourcesFit with `LeastAllocated`: the mean of what is free of CPU and memory, the pod included.
pub(super) fn least_allocated(cpu: u32, memory: u32) -> i64 {
    i64::from((free(cpu, NODE_CPU) + free(memory, NODE_MEMORY)) / 2)
}

/// What is free, in percent of the capacity.
fn free(requested: u32, capacity: u32) -> u32 {
    (capacity - requested.min(capacity)) * 100 / capacity
}

/// 100·(1 − half of the difference of the requested fractions of CPU and memory).
pub(super) fn balance(cpu: u32, memory: u32) -> i64 {
    let deviation = ((fraction(cpu, NODE_CPU) - fraction(memory, NODE_MEMORY)) / 2.0).abs();
    ((1.0 - deviation) * 100.0) as i64
}

fn fraction(requested: u32, capacity: u32) -> f64 {
    f64::from(requested) / f64::from(capacity)
}

/// NodeResourcesBalancedAllocation: how much the pod improves the balance, about 75 where it changes nothing. (Up to
/// version 1.34 it was the balance with the pod alone.)
pub(super) fn balanced_allocation(balance_with_pod: i64, balance_without: i64) -> i64 {
    50 + (50 + balance_with_pod - balance_without) / 2
}

/// NodeAffinity, normalised: 100 for each node that a preferring pod prefers.
pub(super) fn node_affinity(prefers: bool, node: NodeId) -> i64 {
    if prefers && is_preferred(node) { 100 } else { 0 }
}

/// PodTopologySpread with the default constraints (host name with skew 3, zone with skew 5, both soft), normalised.
///
/// `on_node` has the pods of the same app on each candidate, `in_zone` those in each zone. Adds weight times score to
/// `totals`, in the order of `candidates`; `raw` is scratch space.
pub(super) fn add_spread(
    candidates: &[NodeId],
    on_node: impl Fn(NodeId) -> u32,
    in_zone: &[u32],
    raw: &mut Vec<i64>,
    totals: &mut [i64],
) {
    let mut zones = [false; ZONES];
    candidates.iter().for_each(|node| zones[zone(*node)] = true);
    let of_host = weight(candidates.len());
    let of_zone = weight(zones.iter().filter(|seen| **seen).count());
    raw.clear();
    raw.extend(candidates.iter().map(|node| {
        let host = f64::from(on_node(*node)) * of_host + 2.0;
        (host + f64::from(in_zone[zone(*node)]) * of_zone + 4.0).round() as i64
    }));
    let least = raw.iter().copied().min().unwrap_or(0);
    let most = raw.iter().copied().max().unwrap_or(0);
    for (total, raw) in totals.iter_mut().zip(raw) {
        let normalised = if most == 0 { 100 } else { 100 * (most + least - *raw) / most };
        *total += WEIGHT_OF_SPREAD * normalised;
    }
}

fn weight(size: usize) -> f64 {
    ((size + 2) as f64).ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_to_find_as_kube_scheduler_does() {
        // 50% less one for each 125 nodes, at least 5%, at least 100 nodes.
        let found = [50, 99, 100, 200, 220, 250, 1_000, 5_000, 6_000].map(nodes_to_find);
        assert_eq!(found, [50, 99, 100, 100, 107, 120, 420, 500, 300]);
    }

    #[test]
    fn least_allocated_is_the_mean_of_whole_percents() {
        assert_eq!(least_allocated(0, 0), 100);
        // 75 and ⌊(131072 − 50000)·100/131072⌋ = 61.
        assert_eq!(least_allocated(8_000, 50_000), 68);
        assert_eq!(least_allocated(32_000, 131_072), 0);
    }

    #[test]
    fn balanced_allocation_is_an_improvement() {
        // Half of 0.5 − 0.25.
        assert_eq!(balance(16_000, 32_768), 87);
        assert_eq!(balanced_allocation(100, 87), 81);
        assert_eq!(balanced_allocation(87, 87), 75);
        assert_eq!(balanced_allocation(87, 100), 68);
    }

    #[test]
    fn spread_prefers_nodes_and_zones_with_fewer_pods_of_the_app() {
        let candidates = [0, 1, 2, 3];
        let mut raw = Vec::new();
        let mut totals = [0; 4];
        let on_node = [2, 0, 0, 1];
        add_spread(&candidates, |node| on_node[node], &[3, 0, 1], &mut raw, &mut totals);
        // ln 6 = 1.7918 a pod on the node, ln 5 = 1.6094 a pod in the zone (node 3 is in zone 0), and 2 + 4.
        // 2·1.7918 + 3·1.6094 + 6 = 14.41; 6; 7.61; 1.7918 + 4.8283 + 6 = 12.62.
        assert_eq!(raw, [14, 6, 8, 13]);
        // 2 · ⌊100·(14 + 6 − score)/14⌋.
        assert_eq!(totals, [2 * 42, 2 * 100, 2 * 85, 2 * 50]);
    }
}

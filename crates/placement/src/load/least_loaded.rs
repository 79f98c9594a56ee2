//! Soft limits: which nodes pass if every node is over a limit.

use std::collections::BTreeMap;

use jiff::SignedDuration;

use super::Verdict;
use crate::policy::{Overload, WhenAllOverloaded};

/// Nodes pass whose ratio is this far above the least at most: with a limit of 80%, nodes up to 8 points above the
/// least loaded one. Scores choose among them.
const MARGIN: f64 = 0.1;

/// At least so many nodes pass, so that kube-scheduler's own scores, such as those that spread replicas, count too.
const AT_LEAST: usize = 3;

impl Overload {
    /// Whether a pod that has waited this long may go to nodes over their limits if no other node is left.
    fn lets_pass(&self, waited: SignedDuration) -> bool {
        match self.when_all {
            WhenAllOverloaded::PassLeastLoaded => true,
            WhenAllOverloaded::Wait { max_wait } => max_wait.is_some_and(|most| waited >= most),
        }
    }
}

/// The positions of nodes that pass although they are over a limit: those near the least loaded, by `limit_ratio`
/// ([`Evaluation::limit_ratio`](super::Evaluation::limit_ratio)); at least three, and the least loaded of each zone.
/// None pass if a node is accepted whose known load is below its limits, or if `rule` does not let a pod pass that has
/// waited this long. An accepted node of which nothing is known (its `limit_ratio` is infinite) does not keep them
/// from passing, and neither does one that has just joined and whose pods will probably take it over a limit (above
/// 1). Nodes for which `fits` is false, as for lack of GPU memory, do not count. A node that is not measured passes
/// only if none is.
pub fn pass_over_limits<'z>(
    rule: &Overload,
    waited: SignedDuration,
    verdicts: &[Verdict<'_>],
    fits: impl Fn(usize) -> bool,
    limit_ratio: impl Fn(usize) -> f64,
    zone: impl Fn(usize) -> Option<&'z str>,
) -> Vec<usize> {
    if !rule.lets_pass(waited) {
        return Vec::new();
    }
    let mut none_accepted = true;
    let mut over = Vec::new();
    for (node, verdict) in verdicts.iter().enumerate() {
        if *verdict == Verdict::Accepted {
            if fits(node) {
                if limit_ratio(node) <= 1.0 {
                    return Vec::new();
                }
                none_accepted = false;
            }
        } else if verdict.is_by_limit() && fits(node) {
            over.push((node, limit_ratio(node)));
        }
    }
    if over.iter().any(|(_, ratio)| ratio.is_finite()) {
        over.retain(|(_, ratio)| ratio.is_finite());
        return near_the_least(&over, zone);
    }
    // Where none is measured, one that is accepted is enough.
    if none_accepted { over.into_iter().map(|(node, _)| node).collect() } else { Vec::new() }
}

/// Of measured nodes with their ratios, those near the least loaded; at least three, and the least loaded of each zone.
fn near_the_least<'z>(
    nodes: &[(usize, f64)],
    zone: impl Fn(usize) -> Option<&'z str>,
) -> Vec<usize> {
    let mut ratios: Vec<f64> = nodes.iter().map(|(_, ratio)| *ratio).collect();
    ratios.sort_by(f64::total_cmp);
    let (Some(least), Some(third)) = (ratios.first(), ratios.get(AT_LEAST - 1).or(ratios.last()))
    else {
        return Vec::new();
    };
    let most = third.max(least + MARGIN);
    let mut least_of_zones: BTreeMap<&str, f64> = BTreeMap::new();
    for (node, ratio) in nodes {
        if let Some(zone) = zone(*node) {
            let least = least_of_zones.entry(zone).or_insert(*ratio);
            *least = least.min(*ratio);
        }
    }
    let passes = |node: usize, ratio: f64| {
        ratio <= most || zone(node).is_some_and(|zone| least_of_zones.get(zone) == Some(&ratio))
    };
    let mut passing = Vec::new();
    for (node, ratio) in nodes {
        if passes(*node, *ratio) {
            passing.push(*node);
        }
    }
    passing
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::{MetricTable, ResolvedLimit, ResolvedPolicy};
    use crate::policy::LoadPolicy;

    const UNMEASURED: f64 = f64::INFINITY;

    fn limit() -> ResolvedLimit {
        let policy = LoadPolicy::from_yaml(
            "{apiVersion: plimsoll.dev/v1alpha1, kind: SchedulingPolicy, metadata: {name: default}, \
             spec: {metrics: [{name: cpu_usage_avg_5m, period: 1m, limit: 0.8}]}}",
        );
        let policy = ResolvedPolicy::new(policy.unwrap(), &mut MetricTable::default());
        policy.all_rules().next().unwrap().limits[0].clone()
    }

    fn near(ratios: &[f64], zones: &[&'static str]) -> Vec<usize> {
        let nodes: Vec<_> = ratios.iter().copied().enumerate().collect();
        near_the_least(&nodes, |node| zones.get(node).copied())
    }

    #[test]
    fn nodes_near_the_least_loaded_pass_and_at_least_three() {
        // Limits of 80%, and loads of 80, 85 and 90%.
        assert_eq!(near(&[1.001, 1.0625, 1.125], &[]), [0, 1, 2]);
        assert_eq!(near(&[1.5, 1.3, 1.0, 1.2, 1.4], &[]), [1, 2, 3]);
        assert_eq!(near(&[1.0, 1.05, 1.25, 1.1, 1.09, 1.11], &[]), [0, 1, 3, 4]);
        // Of equally loaded ones none is left out.
        assert_eq!(near(&[1.0, 1.4, 1.4, 1.4], &[]), [0, 1, 2, 3]);
        assert_eq!(near(&[1.7], &[]), [0]);
    }

    #[test]
    fn the_least_loaded_node_of_each_zone_passes() {
        let zones = ["a", "a", "a", "b", "b", "c"];
        assert_eq!(near(&[1.0, 1.0, 1.0, 1.3, 1.25, 1.6], &zones), [0, 1, 2, 4, 5]);
    }

    #[test]
    fn a_node_that_is_not_measured_takes_the_pod_beside_the_least_loaded_ones() {
        let limit = limit();
        let over = Verdict::Overloaded(&limit);
        let unmeasured = Verdict::Unmeasured(&limit);
        let rule = Overload { when_all: WhenAllOverloaded::PassLeastLoaded, ..Overload::crane() };
        let pass = |verdicts: &[Verdict<'_>], limit_ratios: &[f64], misfit: usize| {
            pass_over_limits(
                &rule,
                SignedDuration::ZERO,
                verdicts,
                |node| node != misfit,
                |node| limit_ratios[node],
                |_| None,
            )
        };
        assert_eq!(pass(&[over, Verdict::Accepted], &[1.1, UNMEASURED], 9), [0]);
        assert_eq!(pass(&[over, Verdict::Accepted, over], &[1.3, UNMEASURED, 1.2], 9), [0, 2]);
        // One that is measured and below its limits takes it alone, where it fits.
        let all = [over, Verdict::Accepted, Verdict::Accepted];
        assert!(pass(&all, &[1.1, UNMEASURED, 0.5], 9).is_empty());
        assert_eq!(pass(&all, &[1.1, UNMEASURED, 0.5], 2), [0]);
        // A node that has just joined, and whose pods will fill it.
        assert_eq!(pass(&[over, Verdict::Accepted], &[1.1, 1.2], 9), [0]);
        // Where none is measured, the one that is accepted is enough.
        assert!(pass(&[unmeasured, Verdict::Accepted], &[UNMEASURED; 2], 9).is_empty());
        assert_eq!(pass(&[unmeasured, unmeasured], &[UNMEASURED; 2], 9), [0, 1]);
        assert_eq!(pass(&[unmeasured, over], &[UNMEASURED, 1.9], 9), [1]);
    }
}

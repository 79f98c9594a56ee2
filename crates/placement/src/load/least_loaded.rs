//! Soft limits: which nodes pass if every node is over a limit.

use std::cmp::Ordering;

use jiff::SignedDuration;

use super::Verdict;
use crate::policy::{Overload, WhenAllOverloaded};

/// The part of the nodes that pass: the least loaded tenth. kube-scheduler's own scores choose among them.
const PASSING_PART: f64 = 0.1;

impl Overload {
    /// Whether a pod that has waited this long may go to nodes over their limits if no other node is left.
    fn lets_pass(&self, waited: SignedDuration) -> bool {
        match self.when_all {
            WhenAllOverloaded::PassLeastLoaded => true,
            WhenAllOverloaded::Wait { max_wait } => max_wait.is_some_and(|most| waited >= most),
        }
    }
}

/// The positions of nodes that pass although they are over a limit: the least loaded, by `limit_ratio`. None pass if a
/// node is accepted whose known load is below its limits, or if `rule` does not let a pod pass that has waited this
/// long. An accepted node of which nothing is known (its `limit_ratio` is infinite) does not keep them from passing,
/// and neither does one that has just joined and whose pods will probably take it over a limit (above 1). Nodes for
/// which `fits` is false, as for lack of GPU memory, do not count. Of equally loaded nodes, the first pass in the order
/// of `compare_names`.
pub fn pass_over_limits(
    rule: &Overload,
    waited: SignedDuration,
    verdicts: &[Verdict<'_>],
    fits: impl Fn(usize) -> bool,
    limit_ratio: impl Fn(usize) -> f64,
    compare_names: impl Fn(usize, usize) -> Ordering,
) -> Vec<usize> {
    if !rule.lets_pass(waited) {
        return Vec::new();
    }
    let mut none_accepted = true;
    for (node, verdict) in verdicts.iter().enumerate() {
        if *verdict == Verdict::Accepted && fits(node) {
            if limit_ratio(node) <= 1.0 {
                return Vec::new();
            }
            none_accepted = false;
        }
    }
    let mut nodes: Vec<usize> =
        (0..verdicts.len()).filter(|node| verdicts[*node].is_by_limit() && fits(*node)).collect();
    nodes.sort_by(|one, other| compare_names(*one, *other));
    let limit_ratios: Vec<f64> = nodes.iter().map(|node| limit_ratio(*node)).collect();
    let mut pass = least_loaded(&limit_ratios);
    pass.retain(|at| none_accepted || limit_ratios[*at].is_finite());
    pass.into_iter().map(|at| nodes[at]).collect()
}

/// Indices of the least loaded of `limit_ratios` ([`Evaluation::limit_ratio`](super::Evaluation::limit_ratio) of each
/// node): a tenth, at least one. A node that is not measured (infinite) passes only if no node is measured.
fn least_loaded(limit_ratios: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..limit_ratios.len()).collect();
    order.sort_by(|a, b| limit_ratios[*a].total_cmp(&limit_ratios[*b]));
    let pass = (limit_ratios.len() as f64 * PASSING_PART).ceil() as usize;
    let measured = order.iter().take_while(|node| limit_ratios[**node].is_finite()).count();
    order.truncate(pass.min(measured.max(1)));
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::{MetricTable, ResolvedLimit, ResolvedPolicy};
    use crate::policy::LoadPolicy;

    fn limit() -> ResolvedLimit {
        let policy = LoadPolicy::from_yaml(
            "{apiVersion: plimsoll.dev/v1alpha1, kind: SchedulingPolicy, metadata: {name: default}, \
             spec: {metrics: [{name: cpu_usage_avg_5m, period: 1m, limit: 0.8}]}}",
        );
        let policy = ResolvedPolicy::new(policy.unwrap(), &mut MetricTable::default());
        policy.all_rules().next().unwrap().limits[0].clone()
    }

    #[test]
    fn the_least_loaded_tenth_is_at_least_one_node_and_measured_where_any_is() {
        assert_eq!(least_loaded(&[1.3, 1.1, 1.2]), [1]);
        assert_eq!(least_loaded(&[f64::INFINITY, 1.2]), [1]);
        assert!(least_loaded(&[]).is_empty());
    }

    #[test]
    fn a_node_that_is_not_measured_takes_the_pod_beside_the_least_loaded_ones() {
        let limit = limit();
        let over = Verdict::Overloaded(&limit);
        let unmeasured = Verdict::Unmeasured(&limit);
        let rule = Overload { when_all: WhenAllOverloaded::PassLeastLoaded, ..Overload::crane() };
        let names = ["c", "b", "a"];
        let pass = |verdicts: &[Verdict<'_>], limit_ratios: &[f64], misfit: usize| {
            pass_over_limits(
                &rule,
                SignedDuration::ZERO,
                verdicts,
                |node| node != misfit,
                |node| limit_ratios[node],
                |one, other| names[one].cmp(names[other]),
            )
        };
        let blind = f64::INFINITY;
        assert_eq!(pass(&[over, Verdict::Accepted], &[1.1, blind], 9), [0]);
        assert_eq!(pass(&[over, Verdict::Accepted, over], &[1.3, blind, 1.2], 9), [2]);
        // One that is measured and below its limits takes it alone, where it fits.
        let all = [over, Verdict::Accepted, Verdict::Accepted];
        assert!(pass(&all, &[1.1, blind, 0.5], 9).is_empty());
        assert_eq!(pass(&all, &[1.1, blind, 0.5], 2), [0]);
        // A node that has just joined, and whose pods will fill it.
        assert_eq!(pass(&[over, Verdict::Accepted], &[1.1, 1.2], 9), [0]);
        // Where none is measured, the one that is accepted is enough.
        assert!(pass(&[unmeasured, Verdict::Accepted], &[blind, blind], 9).is_empty());
        assert_eq!(pass(&[unmeasured, unmeasured], &[blind, blind], 9), [1]);
        // Of equally loaded ones, the first by name.
        assert_eq!(pass(&[over, over, over], &[1.2, 1.1, 1.1], 9), [2]);
    }
}

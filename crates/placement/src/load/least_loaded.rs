//! Soft limits: which nodes pass where every one is over a limit.

use jiff::SignedDuration;

use super::Verdict;
use crate::policy::{Overload, WhenAllOverloaded};

/// The part of the nodes that pass, the least loaded ones. kube-scheduler's own scores choose among them.
const PART: f64 = 0.1;

impl Overload {
    /// Whether a pod that has waited so long may go to nodes over their limits where no other is left.
    pub fn lets_pass(&self, waited: SignedDuration) -> bool {
        match self.when_all {
            WhenAllOverloaded::PassLeastLoaded => true,
            WhenAllOverloaded::Wait { max_wait } => max_wait.is_some_and(|most| waited >= most),
        }
    }
}

/// Which nodes pass although they are over a limit: the least loaded, by `overload`, where no measured node is accepted and
/// `rule` lets a pod pass that has waited so long. An accepted node that is not measured (its `overload` is infinite) takes
/// the pod beside them, not in their place. Nodes that do not `fit` the pod for another reason do not count.
pub fn pass_over_limits(
    rule: &Overload,
    waited: SignedDuration,
    verdicts: &[Verdict<'_>],
    fits: impl Fn(usize) -> bool,
    overload: impl Fn(usize) -> f64,
) -> Vec<usize> {
    if !rule.lets_pass(waited) {
        return Vec::new();
    }
    let accepted = |node: &usize| verdicts[*node] == Verdict::Accepted && fits(*node);
    if (0..verdicts.len()).filter(accepted).any(|node| overload(node).is_finite()) {
        return Vec::new();
    }
    let none_accepted = !(0..verdicts.len()).any(|node| accepted(&node));
    let by_limit = |node: &usize| verdicts[*node].is_by_limit() && fits(*node);
    let nodes: Vec<usize> = (0..verdicts.len()).filter(by_limit).collect();
    let overloads: Vec<f64> = nodes.iter().map(|node| overload(*node)).collect();
    let mut pass = least_loaded(&overloads);
    pass.retain(|at| none_accepted || overloads[*at].is_finite());
    pass.into_iter().map(|at| nodes[at]).collect()
}

/// Indices of the least loaded of `overloads` ([`Evaluation::overload`](super::Evaluation::overload) of each node): a tenth,
/// at least one. A node that is not measured (infinite) passes only where none is.
///
/// # Examples
///
/// ```
/// use placement::load::least_loaded;
///
/// assert_eq!(least_loaded(&[1.3, 1.1, 1.2]), [1]);
/// assert_eq!(least_loaded(&[f64::INFINITY, 1.2]), [1]);
/// assert!(least_loaded(&[]).is_empty());
/// ```
#[must_use]
pub fn least_loaded(overloads: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..overloads.len()).collect();
    order.sort_by(|a, b| overloads[*a].total_cmp(&overloads[*b]));
    let pass = (overloads.len() as f64 * PART).ceil() as usize;
    let measured = order.iter().take_while(|node| overloads[**node].is_finite()).count();
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
    fn a_node_that_is_not_measured_takes_the_pod_beside_the_least_loaded_ones() {
        let limit = limit();
        let (over, unmeasured) = (Verdict::Overloaded(&limit), Verdict::Unmeasured(&limit));
        let rule = Overload { when_all: WhenAllOverloaded::PassLeastLoaded, ..Overload::crane() };
        let pass = |verdicts: &[Verdict<'_>], overloads: &[f64], misfit: usize| {
            let (fits, overload) = (|node| node != misfit, |node| overloads[node]);
            pass_over_limits(&rule, SignedDuration::ZERO, verdicts, fits, overload)
        };
        let blind = f64::INFINITY;
        assert_eq!(pass(&[over, Verdict::Accepted], &[1.1, blind], 9), [0]);
        assert_eq!(pass(&[over, Verdict::Accepted, over], &[1.3, blind, 1.2], 9), [2]);
        // One that is measured and below its limits takes it alone, where it fits.
        let all = [over, Verdict::Accepted, Verdict::Accepted];
        assert!(pass(&all, &[1.1, blind, 0.5], 9).is_empty());
        assert_eq!(pass(&all, &[1.1, blind, 0.5], 2), [0]);
        // Where none is measured, the one that is accepted is enough.
        assert!(pass(&[unmeasured, Verdict::Accepted], &[blind, blind], 9).is_empty());
        assert_eq!(pass(&[unmeasured, unmeasured], &[blind, blind], 9), [0]);
    }
}

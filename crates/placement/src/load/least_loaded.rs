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

/// Which nodes pass although they are over a limit: the least loaded, by `overload`, where no node is accepted and `rule`
/// lets a pod pass that has waited so long. Nodes that do not `fit` the pod for another reason do not count.
pub fn pass_over_limits(
    rule: &Overload,
    waited: SignedDuration,
    verdicts: &[Verdict<'_>],
    fits: impl Fn(usize) -> bool,
    overload: impl Fn(usize) -> f64,
) -> Vec<usize> {
    let accepted = |node: usize| verdicts[node] == Verdict::Accepted && fits(node);
    if !rule.lets_pass(waited) || (0..verdicts.len()).any(accepted) {
        return Vec::new();
    }
    let by_limit = |node: &usize| verdicts[*node].is_by_limit() && fits(*node);
    let nodes: Vec<usize> = (0..verdicts.len()).filter(by_limit).collect();
    let overloads: Vec<f64> = nodes.iter().map(|node| overload(*node)).collect();
    least_loaded(&overloads).into_iter().map(|at| nodes[at]).collect()
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

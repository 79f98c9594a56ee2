//! Soft limits: which nodes pass where every one is over a limit.

/// The part of the nodes that pass, the least loaded ones. kube-scheduler's own scores choose among them.
const PART: f64 = 0.1;

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

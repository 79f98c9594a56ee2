//! Why no node took a pod, in kube-scheduler's words and order (`FitError` in `pkg/scheduler/framework/types.go`).

use std::collections::BTreeMap;

use crate::scheduler::decision::{Candidate, Verdict};

/// The message about these candidates. An extender's node without a reason adds none.
pub(in crate::scheduler) fn fit_message(candidates: &[Candidate]) -> String {
    let reasons = candidates.iter().flat_map(|candidate| match &candidate.verdict {
        Verdict::Fits => Vec::new(),
        Verdict::Unfit { reasons, .. } => reasons.clone(),
        Verdict::Rejected { reason, .. } if reason.is_empty() => Vec::new(),
        Verdict::Rejected { reason, .. } => vec![reason.clone()],
    });
    unavailable(candidates.len(), &reasons.collect::<Vec<_>>())
}

/// `0/12 nodes are available: 2 Insufficient cpu, 3 …`: equal reasons are counted, and sorted as text with their
/// counts.
pub(in crate::scheduler) fn unavailable(nodes: usize, reasons: &[String]) -> String {
    let mut counts: BTreeMap<&String, usize> = BTreeMap::new();
    reasons.iter().for_each(|reason| *counts.entry(reason).or_default() += 1);
    let mut counted: Vec<String> =
        counts.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    counted.sort_unstable();
    let none = format!("0/{nodes} nodes are available:");
    if counted.is_empty() { none } else { format!("{none} {}.", counted.join(", ")) }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(verdict: Verdict) -> Candidate {
        Candidate { node: "n".to_owned(), verdict, score: 0, extender_score: 0 }
    }

    fn rejected(reason: &str) -> Candidate {
        candidate(Verdict::Rejected { reason: reason.to_owned(), unresolvable: false })
    }

    fn short_of(resource: &str) -> Candidate {
        let reasons = vec![format!("Insufficient {resource}")];
        candidate(Verdict::Unfit { reasons, unresolvable: false })
    }

    #[test]
    fn equal_reasons_are_counted_together_and_sorted_with_their_numbers() {
        let nodes = [rejected("too hot"), short_of("cpu"), rejected("too hot")];
        let expected = "0/3 nodes are available: 1 Insufficient cpu, 2 too hot.";
        assert_eq!(fit_message(&nodes), expected);
        let nodes = [rejected("too hot"), short_of("cpu"), short_of("cpu")];
        let expected = "0/3 nodes are available: 1 too hot, 2 Insufficient cpu.";
        assert_eq!(fit_message(&nodes), expected);
    }

    #[test]
    fn an_extender_that_gives_no_reason_leaves_none() {
        let expected = "0/2 nodes are available: 1 too hot.";
        assert_eq!(fit_message(&[rejected("too hot"), rejected("")]), expected);
        assert_eq!(fit_message(&[rejected("")]), "0/1 nodes are available:");
    }
}

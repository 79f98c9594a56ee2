//! Why no node took a pod, in kube-scheduler's words and order.

use std::collections::BTreeMap;

use super::cycle::{Candidate, Verdict};

/// `0/12 nodes are available: 2 Insufficient cpu, 3 …`, sorted with their numbers as text (`FitError`
/// in `pkg/scheduler/framework/types.go`).
pub(super) fn message(candidates: &[Candidate]) -> String {
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    for candidate in candidates {
        let of_node: Vec<&str> = match &candidate.verdict {
            Verdict::Fits => Vec::new(),
            Verdict::Unfit { reasons, .. } => reasons.iter().map(String::as_str).collect(),
            Verdict::Rejected { reason, .. } if reason.is_empty() => Vec::new(),
            Verdict::Rejected { reason, .. } => vec![reason],
        };
        of_node.into_iter().for_each(|reason| *reasons.entry(reason).or_default() += 1);
    }
    let mut counted: Vec<String> =
        reasons.iter().map(|(reason, nodes)| format!("{nodes} {reason}")).collect();
    counted.sort_unstable();
    let none = format!("0/{} nodes are available:", candidates.len());
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
        assert_eq!(message(&nodes), expected);
        let nodes = [rejected("too hot"), short_of("cpu"), short_of("cpu")];
        let expected = "0/3 nodes are available: 1 too hot, 2 Insufficient cpu.";
        assert_eq!(message(&nodes), expected);
    }

    #[test]
    fn an_extender_that_gives_no_reason_leaves_none() {
        let expected = "0/2 nodes are available: 1 too hot.";
        assert_eq!(message(&[rejected("too hot"), rejected("")]), expected);
        assert_eq!(message(&[rejected("")]), "0/1 nodes are available:");
    }
}

//! Why no node took a pod, in kube-scheduler's words and order.

use std::collections::BTreeMap;

use super::cycle::{Candidate, Verdict};

/// `0/12 nodes are available: 2 Insufficient cpu, 3 …`, reasons in alphabetical order.
pub(super) fn message(candidates: &[Candidate]) -> String {
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    for candidate in candidates {
        let of_node: Vec<&str> = match &candidate.verdict {
            Verdict::Fits => Vec::new(),
            Verdict::NoRoom(reasons) => reasons.iter().map(String::as_str).collect(),
            Verdict::TurnedAway(reason) => vec![reason],
        };
        of_node.into_iter().for_each(|reason| *reasons.entry(reason).or_default() += 1);
    }
    let counted: Vec<String> =
        reasons.iter().map(|(reason, nodes)| format!("{nodes} {reason}")).collect();
    format!("0/{} nodes are available: {}.", candidates.len(), counted.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_reasons_are_counted_together() {
        let candidate = |verdict| Candidate { node: "n".to_owned(), verdict, score: 0, extra: 0 };
        let nodes = [
            candidate(Verdict::TurnedAway("too hot".to_owned())),
            candidate(Verdict::NoRoom(vec!["Insufficient cpu".to_owned()])),
            candidate(Verdict::TurnedAway("too hot".to_owned())),
        ];
        let expected = "0/3 nodes are available: 1 Insufficient cpu, 2 too hot.";
        assert_eq!(message(&nodes), expected);
    }
}

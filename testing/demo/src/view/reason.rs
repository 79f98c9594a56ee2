//! Why a pod is where it is, and what kube-scheduler would have done by itself, from the decisions of the two
//! schedulers, in a short and in a long form.

use sim::scheduler::{Candidate, Decision, Verdict};

use crate::baseline::{Choice, Problem};

/// What one of an extender's 10 points counts in kube-scheduler's sum: 10, times the shipped weight 3.
const POINT: i64 = 30;
/// Characters that the short form may take: the width of its column on a small terminal.
const SHORT: usize = 28;

/// Why a pod is on its node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reason {
    /// The node's extender score, 0 to 10: by load, and for a GPU pod by how well the card fits.
    score: i64,
    /// The next best node with its extender score, if another node fitted.
    next: Option<(String, i64)>,
    /// Number of nodes rejected for their load.
    overloaded: usize,
    /// Number of nodes with enough GPU memory, but not on one card.
    split: usize,
    /// Whether a DaemonSet owns the pod.
    daemon: bool,
}

impl Reason {
    /// The reason behind a decision; `None` where the pod went nowhere.
    pub(crate) fn of(decision: &Decision, daemon: bool) -> Option<Self> {
        let node = decision.outcome.as_ref().ok()?;
        let fitting = || decision.candidates.iter().filter(|c| c.verdict == Verdict::Fits);
        let score = |candidate: &Candidate| candidate.extender_score / POINT;
        let others = fitting().filter(|candidate| candidate.node != *node);
        // The first among equals.
        let next = others.rev().max_by_key(|candidate| score(candidate));
        let rejected = |by_load: bool| {
            let counts = |candidate: &&Candidate| match &candidate.verdict {
                Verdict::Rejected { reason, .. } => is_about_load(reason) == by_load,
                Verdict::Fits | Verdict::Unfit { .. } => false,
            };
            decision.candidates.iter().filter(counts).count()
        };
        Some(Self {
            score: fitting().find(|candidate| candidate.node == *node).map_or(0, score),
            next: next.map(|candidate| (candidate.node.clone(), score(candidate))),
            overloaded: rejected(true),
            split: rejected(false),
            daemon,
        })
    }

    /// In [`SHORT`] characters at most.
    pub(crate) fn short(&self) -> String {
        let place = match &self.next {
            _ if self.daemon => return "its DaemonSet's node".to_owned(),
            None => "one left".to_owned(),
            Some((_, next)) => {
                let fuller = if self.next_is_fuller() { " fuller" } else { "" };
                format!("{}/10, next {next}{fuller}", self.score)
            }
        };
        let whole = with_rejected(&place, "; ", &[(self.overloaded, "hot"), (self.split, "split")]);
        let sum = [(self.overloaded + self.split, "out")];
        if whole.len() <= SHORT { whole } else { with_rejected(&place, "; ", &sum) }
    }

    /// In whole words.
    pub(crate) fn long(&self) -> String {
        let place = match &self.next {
            _ if self.daemon => {
                return "its DaemonSet's node, which load does not forbid".to_owned();
            }
            None => "the only node left".to_owned(),
            Some((node, next)) => {
                let fuller = if self.next_is_fuller() { " but is fuller" } else { "" };
                format!("{} of 10 points, {node} has {next}{fuller}", self.score)
            }
        };
        let rejected = [(self.overloaded, "overloaded"), (self.split, "with no such card")];
        with_rejected(&place, "; out: ", &rejected)
    }

    /// Whether the next best node has a higher extender score. Then kube-scheduler's own scores have decided, which
    /// are lower the more of a node is requested.
    fn next_is_fuller(&self) -> bool {
        self.next.as_ref().is_some_and(|(_, next)| self.score < *next)
    }
}

/// Appends the counts that are not 0.
fn with_rejected(place: &str, separator: &str, counts: &[(usize, &str)]) -> String {
    let counts = counts.iter().filter(|(count, _)| *count > 0);
    let counts: Vec<String> = counts.map(|(count, what)| format!("{count} {what}")).collect();
    match counts.is_empty() {
        true => place.to_owned(),
        false => format!("{place}{separator}{}", counts.join(", ")),
    }
}

/// What kube-scheduler would have done by itself.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum BaselineChoice {
    /// The same node, where the pod would be as well off.
    Same,
    /// No node.
    None,
    /// Another node, or the same one where something is wrong with it.
    Node(Choice),
}

impl BaselineChoice {
    /// Compares a decision with the baseline's choice for the same pod.
    pub(crate) fn of(decision: &Decision, choice: Option<&Choice>) -> Self {
        match choice {
            None => Self::None,
            // A card that is free in the demo's cluster need not be free in the baseline's.
            Some(Choice { node, problem: None, .. }) if decision.outcome.as_ref() == Ok(node) => {
                Self::Same
            }
            Some(choice) => Self::Node(choice.clone()),
        }
    }

    /// In 23 characters at most, with the fleet's names.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Same => "the same".to_owned(),
            Self::None => "nowhere".to_owned(),
            Self::Node(Choice { node, problem: Some(problem), .. }) => {
                format!("{node}: {}", problem.text())
            }
            Self::Node(Choice { node, cpu: Some(cpu), .. }) => {
                format!("{node}, {:.0}% busy", cpu * 100.0)
            }
            Self::Node(Choice { node, .. }) => node.clone(),
        }
    }
}

impl Problem {
    fn text(self) -> &'static str {
        match self {
            Self::CpuOverloaded => "overloaded",
            Self::MemoryOverloaded => "memory full",
            Self::NoCard => "no card fits",
        }
    }
}

fn is_about_load(reason: &str) -> bool {
    reason.starts_with("Load[")
}

#[cfg(test)]
pub(super) fn example() -> (Reason, BaselineChoice) {
    let next = Some(("cpu-1".to_owned(), 6));
    let reason = Reason { score: 8, next, overloaded: 2, split: 1, daemon: false };
    let problem = Some(Problem::CpuOverloaded);
    (reason, BaselineChoice::Node(Choice { node: "cpu-2".to_owned(), cpu: Some(0.9), problem }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(node: &str, verdict: Verdict, points: i64) -> Candidate {
        Candidate { node: node.to_owned(), verdict, score: 0, extender_score: points * POINT }
    }

    fn decision() -> Decision {
        let no =
            |reason: &str| Verdict::Rejected { reason: reason.to_owned(), unresolvable: false };
        let insufficient = vec!["Insufficient cpu".to_owned()];
        Decision {
            uid: "u".to_owned(),
            pod: "p".to_owned(),
            outcome: Ok("b".to_owned()),
            candidates: vec![
                candidate("a", Verdict::Fits, 6),
                candidate("b", Verdict::Fits, 8),
                candidate("c", no("Insufficient GPU Memory in one device: asked 8 units"), 0),
                candidate("d", no("Load[cpu_usage_active] is too high: 0.91 > 65.0%"), 0),
                candidate("e", Verdict::Unfit { reasons: insufficient, unresolvable: false }, 0),
            ],
        }
    }

    #[test]
    fn a_reason_names_the_points_and_the_rejected_nodes() {
        let reason = Reason::of(&decision(), false).unwrap();
        assert_eq!(reason.short(), "8/10, next 6; 1 hot, 1 split");
        assert_eq!(
            reason.long(),
            "8 of 10 points, a has 6; out: 1 overloaded, 1 with no such card"
        );
    }

    #[test]
    fn a_next_best_node_that_lost_by_requests_is_called_fuller() {
        let mut decision = decision();
        // By 8 x 30 + 150 to 9 x 30 + 119.
        decision.candidates[0].extender_score = 9 * POINT;
        decision.candidates[0].score = 119;
        decision.candidates[1].score = 150;
        let told = |decision: &Decision| {
            let reason = Reason::of(decision, false).unwrap();
            (reason.short(), reason.long())
        };
        let full = "8 of 10 points, a has 9 but is fuller; out: 1 overloaded, 1 with no such card";
        assert_eq!(told(&decision), ("8/10, next 9 fuller; 2 out".to_owned(), full.to_owned()));
        decision.candidates.remove(2);
        let full = "8 of 10 points, a has 9 but is fuller; out: 1 overloaded";
        assert_eq!(told(&decision), ("8/10, next 9 fuller; 1 hot".to_owned(), full.to_owned()));
    }

    #[test]
    fn the_short_form_fits_into_its_column_whatever_the_points() {
        for (score, next) in (0..=10).flat_map(|score| (0..=10).map(move |next| (score, next))) {
            let next = Some(("a".to_owned(), next));
            let short = Reason { score, next, overloaded: 6, split: 5, daemon: false }.short();
            assert!(short.len() <= SHORT, "{short}");
        }
    }

    #[test]
    fn the_baseline_names_what_is_wrong_with_its_choice() {
        let text = |node: &str, problem| {
            let choice = Choice { node: node.to_owned(), cpu: Some(0.3), problem };
            BaselineChoice::of(&decision(), Some(&choice)).text()
        };
        assert_eq!(text("c", Some(Problem::NoCard)), "c: no card fits");
        assert_eq!(text("d", Some(Problem::CpuOverloaded)), "d: overloaded");
        assert_eq!(text("a", None), "a, 30% busy");
        assert_eq!(text("b", None), "the same");
        assert_eq!(text("b", Some(Problem::NoCard)), "b: no card fits");
        assert_eq!(BaselineChoice::of(&decision(), None).text(), "nowhere");
    }
}

//! Why a pod is where it is, and what kube-scheduler would have done by itself, from the decisions of the two
//! schedulers and the extender's explanation.

use api::explain::Explanation;
use sim::scheduler::{Candidate, Decision, Verdict};

use crate::baseline::{Choice, Problem};
use crate::cluster::{is_overloaded, lacks_card};

/// What one of an extender's points counts in kube-scheduler's sum: 10, times the shipped weight 1.
const POINT: i64 = 10;

/// Why a pod is on its node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reason {
    /// The node's extender score: by load, and for a GPU pod by how well the card fits.
    score: i64,
    /// The next best node with its extender score, if another node fitted.
    next: Option<(String, i64)>,
    rejections: Rejections,
    /// Whether a DaemonSet owns the pod.
    daemon: bool,
}

impl Reason {
    /// The reason behind a decision; `None` where the pod went nowhere.
    pub(crate) fn of(decision: &Decision, rejections: Rejections, daemon: bool) -> Option<Self> {
        let node = decision.outcome.as_ref().ok()?;
        let mut fitting: Vec<&Candidate> = decision.candidates.iter().collect();
        fitting.retain(|candidate| candidate.verdict == Verdict::Fits);
        let chosen = fitting.iter().find(|candidate| candidate.node == *node);
        let others = fitting.iter().filter(|candidate| candidate.node != *node);
        // Among equal ones this is the first.
        let next = others.rev().max_by_key(|candidate| score(candidate));
        Some(Self {
            score: chosen.map_or(0, |candidate| score(candidate)),
            next: next.map(|candidate| (candidate.node.clone(), score(candidate))),
            rejections,
            daemon,
        })
    }

    /// In words.
    pub(crate) fn text(&self) -> String {
        let place = match &self.next {
            _ if self.daemon => {
                return "its DaemonSet's node, which load does not forbid".to_owned();
            }
            None => "the only node left".to_owned(),
            Some((node, next)) => {
                let fuller = if self.next_is_fuller() { " but is fuller" } else { "" };
                format!("{} points, {node} has {next}{fuller}", self.score)
            }
        };
        let rejected = self.rejections.text();
        if rejected.is_empty() { place } else { format!("{place}; out: {rejected}") }
    }

    /// Whether the next best node has a higher extender score. Then kube-scheduler's own scores have decided, which
    /// are lower the more of a node is requested.
    fn next_is_fuller(&self) -> bool {
        self.next.as_ref().is_some_and(|(_, next)| self.score < *next)
    }
}

fn score(candidate: &Candidate) -> i64 {
    candidate.extender_score / POINT
}

/// How many nodes the extender rejected, by cause.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Rejections {
    /// A reading is over a limit.
    overloaded: usize,
    /// No single card has room, though the node may have enough units in all.
    no_card: usize,
    /// The extender no longer rejected them when it was asked for the cause, or did not answer.
    unexplained: usize,
}

impl Rejections {
    /// Counts what the explanation tells of `count` rejected nodes. A node that is rejected for both causes counts as
    /// overloaded: the verb for the load comes first.
    pub(crate) fn new(count: usize, explanation: Option<&Explanation>) -> Self {
        let mut overloaded = 0;
        let mut no_card = 0;
        for node in explanation.iter().flat_map(|explanation| &explanation.nodes) {
            if is_overloaded(node) {
                overloaded += 1;
            } else if lacks_card(node) {
                no_card += 1;
            }
        }
        Self { overloaded, no_card, unexplained: count.saturating_sub(overloaded + no_card) }
    }

    /// The counts that are not 0, in words; empty where all are.
    fn text(self) -> String {
        let counts = [
            (self.overloaded, "overloaded"),
            (self.no_card, "with no such card"),
            (self.unexplained, "for a cause that is gone"),
        ];
        let counts = counts.iter().filter(|(count, _)| *count > 0);
        counts.map(|(count, what)| format!("{count} {what}")).collect::<Vec<_>>().join(", ")
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

    /// In words.
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

#[cfg(test)]
pub(super) fn example() -> (Reason, BaselineChoice) {
    let next = Some(("cpu-1".to_owned(), 65));
    let rejections = Rejections { overloaded: 2, no_card: 1, unexplained: 0 };
    let reason = Reason { score: 78, next, rejections, daemon: false };
    let problem = Some(Problem::CpuOverloaded);
    (reason, BaselineChoice::Node(Choice { node: "cpu-2".to_owned(), cpu: Some(0.9), problem }))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn candidate(node: &str, verdict: Verdict, points: i64) -> Candidate {
        Candidate { node: node.to_owned(), verdict, score: 0, extender_score: points * POINT }
    }

    fn decision() -> Decision {
        // Its text tells nothing of the cause.
        let rejected = Verdict::Rejected { reason: "no".to_owned(), unresolvable: false };
        let insufficient = vec!["Insufficient cpu".to_owned()];
        Decision {
            uid: "u".to_owned(),
            pod: "p".to_owned(),
            outcome: Ok("b".to_owned()),
            candidates: vec![
                candidate("a", Verdict::Fits, 65),
                candidate("b", Verdict::Fits, 78),
                candidate("c", rejected.clone(), 0),
                candidate("d", rejected, 0),
                candidate("e", Verdict::Unfit { reasons: insufficient, unresolvable: false }, 0),
            ],
        }
    }

    const REJECTIONS: Rejections = Rejections { overloaded: 1, no_card: 1, unexplained: 0 };

    #[test]
    fn a_reason_names_the_points_and_the_rejected_nodes() {
        let long = "78 points, a has 65; out: 1 overloaded, 1 with no such card";
        assert_eq!(reason(&decision(), REJECTIONS), long);
    }

    /// An explanation as the extender writes it, whose reasons tell nothing of the cause.
    fn explanation() -> Explanation {
        let nodes = [
            node("overloaded", "exceeded", &[0]),
            node("overloaded-and-split", "exceeded", &[]),
            node("split", "met", &[]),
            node("free-by-now", "unknown", &[1]),
        ];
        let pod = json!({"namespace": "default", "name": "p", "uid": "u"});
        let explanation = json!({"pod": pod, "time": "2026-01-01T00:00:00Z", "nodes": nodes});
        serde_json::from_value(explanation).unwrap()
    }

    fn node(name: &str, limit: &str, chosen: &[u32]) -> Value {
        let reading = json!({"status": "fresh", "value": 0.9});
        json!({
            "name": name, "known": true, "accepted": false, "reasons": ["no"], "score": 0,
            "extenderScore": 0,
            "load": {
                "limits": [{"metric": "m", "max": 0.65, "outcome": limit, "reading": reading}],
                "terms": [], "score": 0,
            },
            "cards": {"asked": 8, "chosen": chosen, "cards": [], "score": 0},
        })
    }

    #[test]
    fn a_rejection_is_counted_by_the_cause_that_the_extender_explains() {
        let expected = Rejections { overloaded: 2, no_card: 1, unexplained: 1 };
        assert_eq!(Rejections::new(4, Some(&explanation())), expected);
        assert_eq!(
            expected.text(),
            "2 overloaded, 1 with no such card, 1 for a cause that is gone"
        );
        let unexplained = Rejections { unexplained: 4, ..Rejections::default() };
        assert_eq!(Rejections::new(4, None), unexplained);
        assert_eq!(Rejections::default().text(), "");
    }

    #[test]
    fn a_next_best_node_that_lost_by_requests_is_called_fuller() {
        let mut decision = decision();
        // By 78 x 10 + 150 to 79 x 10 + 119.
        decision.candidates[0].extender_score = 79 * POINT;
        decision.candidates[0].score = 119;
        decision.candidates[1].score = 150;
        let long = "78 points, a has 79 but is fuller; out: 1 overloaded, 1 with no such card";
        assert_eq!(reason(&decision, REJECTIONS), long);
        let long = "78 points, a has 79 but is fuller; out: 1 overloaded";
        let overloaded = Rejections { no_card: 0, ..REJECTIONS };
        assert_eq!(reason(&decision, overloaded), long);
    }

    fn reason(decision: &Decision, rejections: Rejections) -> String {
        Reason::of(decision, rejections, false).unwrap().text()
    }

    #[test]
    fn the_baseline_names_what_is_wrong_with_its_choice() {
        assert_eq!(text("c", Some(Problem::NoCard)), "c: no card fits");
        assert_eq!(text("d", Some(Problem::CpuOverloaded)), "d: overloaded");
        assert_eq!(text("a", None), "a, 30% busy");
        assert_eq!(text("b", None), "the same");
        assert_eq!(text("b", Some(Problem::NoCard)), "b: no card fits");
        assert_eq!(BaselineChoice::of(&decision(), None).text(), "nowhere");
    }

    fn text(node: &str, problem: Option<Problem>) -> String {
        let choice = Choice { node: node.to_owned(), cpu: Some(0.3), problem };
        BaselineChoice::of(&decision(), Some(&choice)).text()
    }
}

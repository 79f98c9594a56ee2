//! Why a pod is where it is, and what kube-scheduler would have done by itself, from the decisions of the two
//! schedulers and the extender's explanation.

use api::explain::Explanation;
use sim::scheduler::{Candidate, Decision, Verdict};

use crate::baseline::{Choice, Problem};
use crate::cluster::{is_overloaded, lacks_gpu};

/// What one of an extender's points counts in kube-scheduler's sum: 10, times the shipped weight 1.
const POINT: i64 = 10;

/// Why a pod is on its node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reason {
    /// The node's extender score: by load, and for a GPU pod by how well the GPU fits.
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
    /// No single GPU has room, though the node may have enough units in all.
    no_gpu: usize,
    /// The extender no longer rejected them when it was asked for the cause, or did not answer.
    unexplained: usize,
}

impl Rejections {
    /// Counts what the explanation tells of `count` rejected nodes. A node that is rejected for both causes counts as
    /// overloaded: the verb for the load comes first.
    pub(crate) fn new(count: usize, explanation: Option<&Explanation>) -> Self {
        let mut overloaded = 0;
        let mut no_gpu = 0;
        for node in explanation.iter().flat_map(|explanation| &explanation.nodes) {
            if is_overloaded(node) {
                overloaded += 1;
            } else if lacks_gpu(node) {
                no_gpu += 1;
            }
        }
        Self { overloaded, no_gpu, unexplained: count.saturating_sub(overloaded + no_gpu) }
    }

    /// The counts that are not 0, in words; empty where all are.
    fn text(self) -> String {
        let counts = [
            (self.overloaded, "overloaded"),
            (self.no_gpu, "with no such GPU"),
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
            // A GPU that is free in the demo's cluster need not be free in the baseline's.
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
            Self::NoGpu => "no GPU fits",
        }
    }
}

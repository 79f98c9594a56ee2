//! Compares one decision under two policies.
//!
//! Invariant: both use the same readings, pods and GPUs: those of the decision.

use std::cmp::Reverse;
use std::sync::Arc;

use jiff::Timestamp;
use placement::load::{ResolvedPolicy, Score, Verdict};
use placement::units::NodeName;

use crate::decisions::{DecidedPod, Decision, Evaluator};

/// The number of best nodes whose names are kept.
const MAX_BEST: usize = 3;

/// What two policies decide about one pod.
#[derive(Debug)]
pub struct Comparison {
    /// The pod, and the node that it was bound to.
    pub pod: Arc<DecidedPod>,
    /// The time of kube-scheduler's request.
    pub time: Timestamp,
    /// The number of nodes in the request.
    pub nodes: usize,
    /// What the policy in force decided.
    pub policy: PolicyResult,
    /// What the shadow policy would have decided.
    pub shadow: PolicyResult,
    /// How many nodes are best for both.
    pub best_for_both: usize,
}

/// The result of one policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyResult {
    /// The number of rejected nodes.
    pub rejected: usize,
    /// The number of these that the other policy accepts.
    pub rejected_alone: usize,
    /// The number of accepted nodes that share the best extender score.
    pub best_nodes: usize,
    /// The names of the first of these.
    pub best: Vec<NodeName>,
    /// The best score; `None` where every node is rejected.
    pub best_score: Option<Score>,
}

impl Comparison {
    /// Whether one policy rejects a node that the other accepts.
    #[must_use]
    pub fn differs_in_filter(&self) -> bool {
        self.policy.rejected_alone + self.shadow.rejected_alone > 0
    }

    /// Whether no node is best for both.
    #[must_use]
    pub fn differs_in_score(&self) -> bool {
        self.best_for_both == 0 && self.policy.best_nodes + self.shadow.best_nodes > 0
    }
}

/// Evaluates a decision under the policy in force and under `shadow`.
#[must_use]
pub fn compare(decision: &Decision, shadow: &ResolvedPolicy) -> Comparison {
    let policy = Answers::of(decision, &Evaluator::new(decision));
    let shadow = Answers::of(decision, &Evaluator::under(decision, shadow));
    let best = policy.best();
    let best_of_shadow = shadow.best();
    let best_for_both = best.iter().filter(|at| best_of_shadow.binary_search(at).is_ok()).count();
    Comparison {
        pod: Arc::clone(&decision.pod),
        time: decision.time,
        nodes: decision.len(),
        best_for_both,
        policy: policy.result(&shadow, &best, decision),
        shadow: shadow.result(&policy, &best_of_shadow, decision),
    }
}

/// The answers of Filter and Prioritize under a policy, by node; `None` for a rejected node.
struct Answers(Vec<Option<NodeScore>>);

#[derive(Clone, Copy)]
struct NodeScore {
    /// The score on the policy's scale, as Prioritize answers it.
    scaled: i64,
    exact: Score,
}

impl Answers {
    fn of(decision: &Decision, evaluator: &Evaluator<'_>) -> Self {
        let scale = evaluator.scale();
        let verdicts = evaluator.verdicts();
        let scores = evaluator.scores();
        let mut answers = Vec::with_capacity(decision.len());
        for (position, score) in scores.into_iter().enumerate() {
            let passes = verdicts.each[position] == Verdict::Accepted;
            let score = NodeScore { scaled: score.on(scale), exact: score };
            answers.push((passes && decision.no_fit(position).is_none()).then_some(score));
        }
        Self(answers)
    }

    /// Positions of the accepted nodes with the highest scaled score, ascending.
    fn best(&self) -> Vec<usize> {
        let Some(highest) = self.0.iter().flatten().map(|score| score.scaled).max() else {
            return Vec::new();
        };
        let mut best = Vec::new();
        for (position, score) in self.0.iter().enumerate() {
            if score.is_some_and(|score| score.scaled == highest) {
                best.push(position);
            }
        }
        best
    }

    fn score(&self, position: usize) -> Option<Score> {
        self.0[position].map(|score| score.exact)
    }

    fn result(&self, other: &Self, best: &[usize], decision: &Decision) -> PolicyResult {
        let mut first = best.to_vec();
        // By score where the policy's scale is coarse, then by name.
        first.sort_by_key(|node| (Reverse(self.score(*node)), decision.name(*node)));
        let best_score = first.first().and_then(|node| self.score(*node));
        first.truncate(MAX_BEST);
        let mut rejected_alone = 0;
        for (own, other) in self.0.iter().zip(&other.0) {
            rejected_alone += usize::from(own.is_none() && other.is_some());
        }
        PolicyResult {
            rejected: self.0.iter().filter(|answer| answer.is_none()).count(),
            rejected_alone,
            best_nodes: best.len(),
            best: first.iter().map(|node| decision.name(*node).clone()).collect(),
            best_score,
        }
    }
}

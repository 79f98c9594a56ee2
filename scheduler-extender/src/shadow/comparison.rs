//! Compares one decision under two policies.
//!
//! Invariant: both use the same readings, pods and cards: those of the decision.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::sync::Arc;

use jiff::Timestamp;
use placement::load::{ResolvedPolicy, Score, Verdict};
use placement::units::NodeName;

use crate::decisions::{DecidedPod, Decision};

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
    pub policy: Choice,
    /// What the shadow policy would have decided.
    pub shadow: Choice,
    /// How many nodes are best for both.
    pub best_for_both: usize,
}

/// The result of one policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
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
    let policy = Answers::of(decision, decision.policy());
    let shadow = Answers::of(decision, shadow);
    let (of_policy, of_shadow) = (policy.best(), shadow.best());
    let other: HashSet<usize> = of_shadow.iter().copied().collect();
    Comparison {
        pod: Arc::clone(&decision.pod),
        time: decision.time,
        nodes: decision.len(),
        policy: policy.choice(&shadow, &of_policy, decision),
        shadow: shadow.choice(&policy, &of_shadow, decision),
        best_for_both: of_policy.iter().filter(|node| other.contains(node)).count(),
    }
}

/// The answers of Filter and Prioritize under a policy: for each node its extender score and its score; `None` for a rejected node.
struct Answers(Vec<Option<(i64, Score)>>);

impl Answers {
    fn of(decision: &Decision, policy: &ResolvedPolicy) -> Self {
        let scale = policy.policy.scoring.scale;
        let verdicts = decision.verdicts(policy, None);
        let scores = decision.scores(policy, None);
        let answer = |position: usize| {
            let passes = verdicts.each[position] == Verdict::Accepted;
            let score = scores[position];
            (passes && decision.no_fit(position).is_none()).then(|| (score.on(scale), score))
        };
        Self((0..decision.len()).map(answer).collect())
    }

    /// Positions of the accepted nodes with the highest answer.
    fn best(&self) -> Vec<usize> {
        let highest = self.0.iter().flatten().map(|(answer, _)| *answer).max();
        let is_best = |answer: &Option<(i64, Score)>| {
            answer.is_some_and(|(answer, _)| Some(answer) == highest)
        };
        (0..self.0.len()).filter(|position| is_best(&self.0[*position])).collect()
    }

    fn choice(&self, other: &Self, best: &[usize], decision: &Decision) -> Choice {
        let pairs = || self.0.iter().zip(&other.0);
        let score = |position: usize| self.0[position].map(|(_, score)| score);
        let mut first = best.to_vec();
        // By score where the policy's scale is coarse, then by name.
        first.sort_by_key(|node| (Reverse(score(*node)), decision.name(*node)));
        let best_score = first.first().and_then(|node| score(*node));
        first.truncate(MAX_BEST);
        Choice {
            rejected: self.0.iter().filter(|answer| answer.is_none()).count(),
            rejected_alone: pairs().filter(|(own, other)| own.is_none() && other.is_some()).count(),
            best_nodes: best.len(),
            best: first.iter().map(|node| decision.name(*node).clone()).collect(),
            best_score,
        }
    }
}

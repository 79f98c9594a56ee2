//! The loads of some nodes, made ready for decisions about any pod.
//!
//! Invariant: within its span of time, this decides as [`Evaluation`] does, by the same limits and models. Only the loads are
//! computed before: a pod adds to each what it uses, and nothing else of a pod bears on them.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::decision::first_rejection;
use super::model::{Weighed, score_of};
use super::{
    Evaluation, KnownLoad, NodeLoad, PodToPlace, ResolvedMetric, ResolvedPolicy, Score, Verdict,
};
use crate::reading::{HOT_VALUE_MAX_AGE, MAX_AHEAD};
use crate::resources::Amounts;

/// The loads of some nodes under one policy, from one time to before another.
#[derive(Debug)]
pub struct PreparedNodes {
    policy: Arc<ResolvedPolicy>,
    from: Timestamp,
    until: Timestamp,
    nodes: Vec<Node>,
    /// Of each node: a load for each limit, then one for each weight.
    loads: Vec<Load>,
}

#[derive(Debug)]
struct Node {
    hot_value: f64,
    /// Of its first load.
    first: u32,
    /// The number of its rules.
    rules: u32,
}

/// A metric's load without the pod.
#[derive(Debug, Clone, Copy)]
struct Load {
    known: KnownLoad,
    /// What the pod's use is a part of; infinite where a pod adds nothing.
    capacity: f64,
}

impl PreparedNodes {
    /// The loads of these nodes at `now`, and for as long as they stay so by themselves.
    pub fn new<'n>(
        policy: &Arc<ResolvedPolicy>,
        nodes: impl IntoIterator<Item = &'n NodeLoad>,
        now: Timestamp,
    ) -> Self {
        let (policy, from, until) = (Arc::clone(policy), now, Timestamp::MAX);
        let mut all = Self { policy, from, until, nodes: Vec::new(), loads: Vec::new() };
        nodes.into_iter().for_each(|node| all.push(node));
        all
    }

    fn push(&mut self, node: &NodeLoad) {
        let policy = Arc::clone(&self.policy);
        let number = policy.rules_number(&node.labels);
        let rules = policy.rules_of(number);
        let at = Evaluation { policy: &policy, node, pod: PodToPlace::ORDINARY, now: self.from };
        let position = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        self.nodes.push(Node {
            hot_value: at.hot_value(),
            first: position(self.loads.len()),
            rules: position(number),
        });
        let limits = rules.limits.iter().map(|limit| &limit.metric);
        for metric in limits.chain(rules.weights.iter().map(|weight| &weight.metric)) {
            let known = at.load(metric).known();
            let capacity = at.capacity(metric).unwrap_or(f64::INFINITY);
            self.loads.push(Load { known, capacity });
            if let (Some(reading), Some(max_age)) = (node.readings.get(metric.id), metric.max_age) {
                self.changes(reading.at, max_age);
                self.changes(reading.at, -MAX_AHEAD);
            }
        }
        for (at, after) in node.recent.ends(policy.hot()) {
            self.changes(at, after);
        }
        if let Some(note) = node.crane_hot_value {
            self.changes(note.at, HOT_VALUE_MAX_AGE);
            self.changes(note.at, -MAX_AHEAD);
        }
    }

    /// Something may change so long after `at`.
    fn changes(&mut self, at: Timestamp, after: SignedDuration) {
        // A time that does not exist never comes.
        let Ok(time) = at.checked_add(after) else { return };
        if time > self.from {
            self.until = self.until.min(time);
        }
    }

    /// Whether these are the loads under `policy` at `now`.
    #[must_use]
    pub fn hold(&self, policy: &Arc<ResolvedPolicy>, now: Timestamp) -> bool {
        Arc::ptr_eq(&self.policy, policy) && self.from <= now && now < self.until
    }

    /// Whether the node at a position may take a pod that uses so much, of a namespace that the policy does not
    /// [confine](ResolvedPolicy::confines) and that it does not [exempt](ResolvedPolicy::exempts). `policy` is that of these loads.
    #[must_use]
    pub fn verdict<'p>(
        &self,
        policy: &'p ResolvedPolicy,
        node: usize,
        uses: &Amounts,
    ) -> Verdict<'p> {
        let node = &self.nodes[node];
        let limits = &policy.rules_of(node.rules as usize).limits;
        let loads = &self.loads[node.first as usize..];
        let verdict = |(limit, load): (&'p super::ResolvedLimit, &Load)| {
            limit.verdict(limit.outcome(load.with(&limit.metric, uses), false))
        };
        first_rejection(limits.iter().zip(loads).map(verdict))
    }

    /// The score of the node at a position for a pod that uses so much. `policy` is that of these loads.
    #[must_use]
    pub fn score(&self, policy: &ResolvedPolicy, node: usize, uses: &Amounts) -> Score {
        let node = &self.nodes[node];
        let rules = policy.rules_of(node.rules as usize);
        let loads = &self.loads[node.first as usize + rules.limits.len()..];
        let terms = || {
            let weights = rules.weights.iter().zip(loads);
            weights.map(|(weight, load)| Weighed { weight, load: load.with(&weight.metric, uses) })
        };
        score_of(&policy.policy.scoring, rules.groups, terms, node.hot_value)
    }
}

impl Load {
    /// The load with what the pod uses.
    fn with(self, metric: &ResolvedMetric, uses: &Amounts) -> KnownLoad {
        match self.known {
            KnownLoad::Known(load) => {
                let pod = metric.meaning.resource.map_or(0.0, |of| uses.get(of) / self.capacity);
                KnownLoad::Known(load + pod)
            }
            unknown => unknown,
        }
    }
}

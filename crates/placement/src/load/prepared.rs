//! The loads of some nodes, made ready for decisions about any pod.
//!
//! Invariant: within its span of time, this decides as [`Evaluation`] does, by the same limits and models. Only the loads are
//! computed before: a pod adds to each what it uses, and nothing else of a pod bears on them.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::decision::first_rejection;
use super::model::{Weighed, score_of};
use super::pairing::{CpuUse, NodeCpu, Pairing};
use super::{
    Evaluation, KnownLoad, NodeLoad, PodToPlace, ResolvedMetric, ResolvedPolicy, Score, Verdict,
};
use crate::reading::{HOT_VALUE_MAX_AGE, MAX_AHEAD};
use crate::resources::Amounts;

/// The loads of some nodes under one policy, from one time to before another.
#[derive(Debug, Clone)]
pub struct PreparedNodes {
    policy: Arc<ResolvedPolicy>,
    from: Timestamp,
    until: Timestamp,
    nodes: Vec<Node>,
    /// Of each node: a load for each limit, then one for each weight.
    loads: Vec<Load>,
    /// For each limit at least what any node is loaded; `None` where nodes differ in more than loads.
    fullest: Option<Vec<Load>>,
    /// Of all nodes together.
    cpu_use: CpuUse,
}

#[derive(Debug, Clone)]
struct Node {
    hot_value: f64,
    cpu: Option<NodeCpu>,
    /// Of its first load.
    first: u32,
    /// The number of its rules.
    rules: u32,
    /// When its loads change by themselves.
    until: Timestamp,
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
        let mut all = Self {
            policy: Arc::clone(policy),
            from: now,
            until: Timestamp::MAX,
            nodes: Vec::new(),
            loads: Vec::new(),
            fullest: None,
            cpu_use: CpuUse::default(),
        };
        for node in nodes {
            let (ready, loads) = ready(policy, node, now);
            // A cluster has fewer than 4 billion of them.
            let first = u32::try_from(all.loads.len()).unwrap_or(u32::MAX);
            all.nodes.push(Node { first, ..ready });
            all.loads.extend(loads);
        }
        all.sum_up();
        all
    }

    /// The loads of the same nodes at `now`. Prepares again those for which `is_changed` returns true, and those that have expired. `node`
    /// returns a node's load by its position.
    #[must_use]
    pub fn renewed<'n>(
        &self,
        is_changed: impl Fn(usize) -> bool,
        node: impl Fn(usize) -> &'n NodeLoad,
        now: Timestamp,
    ) -> Self {
        let all = || Self::new(&self.policy, (0..self.nodes.len()).map(&node), now);
        if now < self.from {
            return all();
        }
        let mut renewed = Self { from: now, ..self.clone() };
        for (position, slot) in renewed.nodes.iter_mut().enumerate() {
            if !is_changed(position) && now < slot.until {
                continue;
            }
            let (ready, loads) = ready(&self.policy, node(position), now);
            if ready.rules != slot.rules {
                // The node may be in another pool, whose rules need more loads.
                return all();
            }
            let first = slot.first as usize;
            *slot = Node { first: slot.first, ..ready };
            renewed.loads[first..first + loads.len()].copy_from_slice(&loads);
        }
        renewed.sum_up();
        renewed
    }

    /// Takes together what holds of all nodes.
    fn sum_up(&mut self) {
        self.until = self.nodes.iter().map(|node| node.until).min().unwrap_or(Timestamp::MAX);
        self.fullest = self.fullest();
        self.cpu_use = self.nodes.iter().filter_map(|node| node.cpu).map(NodeCpu::in_all).sum();
    }

    fn fullest(&self) -> Option<Vec<Load>> {
        let rules = self.nodes.first()?.rules;
        let limits = &self.policy.rules_of(rules as usize).limits;
        let mut fullest =
            vec![Load { known: KnownLoad::Missing, capacity: f64::INFINITY }; limits.len()];
        for node in &self.nodes {
            if node.rules != rules {
                return None;
            }
            for ((limit, most), load) in
                limits.iter().zip(&mut fullest).zip(&self.loads[node.first as usize..])
            {
                let KnownLoad::Known(known) = load.known else {
                    match limit.verdict(limit.outcome(load.known, false)) {
                        Verdict::Accepted => continue,
                        _ => return None,
                    }
                };
                if known.is_nan() || load.capacity.is_nan() || load.capacity <= 0.0 {
                    return None;
                }
                let before = match most.known {
                    KnownLoad::Known(before) => before,
                    _ => known,
                };
                most.known = KnownLoad::Known(before.max(known));
                most.capacity = most.capacity.min(load.capacity);
            }
        }
        // What no node is known to be loaded is accepted.
        Some(fullest)
    }

    /// Whether these are loads under `policy`, which may be [renewed](PreparedNodes::renewed).
    #[must_use]
    pub fn are_under(&self, policy: &Arc<ResolvedPolicy>) -> bool {
        Arc::ptr_eq(&self.policy, policy)
    }

    /// Whether these are the loads under `policy` at `now`.
    #[must_use]
    pub fn hold(&self, policy: &Arc<ResolvedPolicy>, now: Timestamp) -> bool {
        self.are_under(policy) && self.from <= now && now < self.until
    }

    /// Whether every node may take a pod that uses so much, as [`PreparedNodes::verdict`] says. May be false where they all may.
    #[must_use]
    pub fn all_accept(&self, uses: &Amounts) -> bool {
        let (Some(fullest), Some(first)) = (&self.fullest, self.nodes.first()) else {
            return self.nodes.is_empty();
        };
        let limits = &self.policy.rules_of(first.rules as usize).limits;
        // Sums and quotients are rounded alike for all nodes, so none comes to more than the fullest.
        let is_met =
            |(limit, most): (&super::ResolvedLimit, &Load)| match most.with(&limit.metric, uses) {
                KnownLoad::Known(load) => load <= limit.max,
                KnownLoad::Stale | KnownLoad::Missing => true,
            };
        uses.cpu >= 0.0 && uses.memory >= 0.0 && limits.iter().zip(fullest).all(is_met)
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

    /// What the nodes use and what their pods request, of those of which both is known.
    #[must_use]
    pub fn cpu_use(&self) -> CpuUse {
        self.cpu_use
    }

    /// The score of the node at a position for a pod that uses so much. `policy` is that of these loads.
    #[must_use]
    pub fn score(
        &self,
        policy: &ResolvedPolicy,
        node: usize,
        uses: &Amounts,
        pairing: Pairing,
    ) -> Score {
        let node = &self.nodes[node];
        let rules = policy.rules_of(node.rules as usize);
        let loads = &self.loads[node.first as usize + rules.limits.len()..];
        let terms = || {
            let weights = rules.weights.iter().zip(loads);
            weights.map(|(weight, load)| Weighed { weight, load: load.with(&weight.metric, uses) })
        };
        score_of(&policy.policy.scoring, rules.groups, terms, pairing.on(node.cpu), node.hot_value)
    }
}

/// A node's loads at `now`, and until when they stay so by themselves. `first` is not set.
fn ready(policy: &ResolvedPolicy, node: &NodeLoad, now: Timestamp) -> (Node, Vec<Load>) {
    let number = policy.rules_number(&node.labels);
    let rules = policy.rules_of(number);
    let at = Evaluation { policy, node, pod: PodToPlace::ORDINARY, now };
    let mut until = Timestamp::MAX;
    // Something may change so long after `at`.
    let mut changes = |at: Timestamp, after: SignedDuration| {
        // A time that does not exist never comes.
        if let Ok(time) = at.checked_add(after)
            && time > now
        {
            until = until.min(time);
        }
    };
    let limits = rules.limits.iter().map(|limit| &limit.metric);
    let metrics = limits.chain(rules.weights.iter().map(|weight| &weight.metric));
    let load = |metric: &ResolvedMetric| {
        if let (Some(reading), Some(max_age)) = (node.readings.get(metric.id), metric.max_age) {
            changes(reading.at, max_age);
            changes(reading.at, -MAX_AHEAD);
        }
        let capacity = at.capacity(metric).unwrap_or(f64::INFINITY);
        Load { known: at.load(metric).known(), capacity }
    };
    let loads = metrics.map(load).collect();
    for (at, after) in node.recent.ends(policy.hot()) {
        changes(at, after);
    }
    if let Some(note) = node.crane_hot_value {
        changes(note.at, HOT_VALUE_MAX_AGE);
        changes(note.at, -MAX_AHEAD);
    }
    // A policy has fewer than 4 billion pools.
    let rules = u32::try_from(number).unwrap_or(u32::MAX);
    (Node { hot_value: at.hot_value(), cpu: at.node_cpu(), first: 0, rules, until }, loads)
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

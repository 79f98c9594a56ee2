//! The loads of all nodes, computed once for many pods.
//!
//! Invariant: while a node's values are valid, [`PreparedNodes`] decides as [`Evaluation`] does, by the same limits and
//! models. A pod changes a load only by what it uses, so that is added for each pod.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::costs::{change_times, costs};
use super::decision::first_rejection;
use super::model::{Weighed, score_of};
use super::{
    Evaluation, KnownLoad, MetricLoad, NodeLoad, PodAdds, PodToPlace, ResolvedDemand,
    ResolvedLimit, ResolvedMetric, ResolvedPolicy, Score, Verdict,
};
use crate::policy::NOT_MEASURED_YET;
use crate::reading::MAX_AHEAD;

/// The loads of nodes under one policy, valid from one time until before another. A node of which nothing is known yet
/// has no loads.
#[derive(Debug, Clone)]
pub struct PreparedNodes {
    policy: Arc<ResolvedPolicy>,
    from: Timestamp,
    /// The end of the first node whose loads end.
    until: Timestamp,
    nodes: Vec<Option<Node>>,
    /// The loads of all nodes: for each node one for each limit, then one for each weight.
    loads: Vec<Load>,
    /// [`Evaluation::present_load`] of all nodes: for each node one for each group of weights.
    present_loads: Vec<Option<f64>>,
    /// For each limit a load that no node exceeds; `None` if that cannot be said, as with nodes of several pools.
    max_loads: Option<Vec<Load>>,
}

#[derive(Debug, Clone)]
struct Node {
    /// Points that the node costs whatever the pod is.
    cost: f64,
    /// The position of its first load.
    first_load: u32,
    /// The number of its rules in the policy: of its pool, or of nodes without one.
    rules: u32,
    /// The time at which its loads change without an event, as when a reading becomes stale.
    until: Timestamp,
}

/// A metric's load without the pod.
#[derive(Debug, Clone, Copy)]
struct Load {
    known: KnownLoad,
    /// The node's capacity, of which what the pod adds is a part; infinite if a pod adds nothing to the metric.
    capacity: f64,
}

impl PreparedNodes {
    /// The loads of these nodes at `now`, valid until one of them changes without an event. `None` for a node of which
    /// nothing is known.
    pub fn new<'n>(
        policy: &Arc<ResolvedPolicy>,
        nodes: impl IntoIterator<Item = Option<&'n NodeLoad>>,
        now: Timestamp,
    ) -> Self {
        let mut all = Self {
            policy: Arc::clone(policy),
            from: now,
            until: Timestamp::MAX,
            nodes: Vec::new(),
            loads: Vec::new(),
            present_loads: Vec::new(),
            max_loads: None,
        };
        for node in nodes {
            let Some(node) = node else {
                all.nodes.push(None);
                all.present_loads.extend((0..policy.groups()).map(|_| None));
                continue;
            };
            all.present_loads.extend(present_loads(policy, node, now));
            let (prepared, loads) = prepare(policy, node, now);
            // A cluster has fewer than 4 billion of them.
            let first_load = u32::try_from(all.loads.len()).unwrap_or(u32::MAX);
            all.nodes.push(Some(Node { first_load, ..prepared }));
            all.loads.extend(loads);
        }
        all.set_totals();
        all
    }

    /// The loads of the same nodes at `now`. Computes again those for which `is_changed` returns true and those that
    /// are no longer valid. `node` returns a node's load by its position.
    #[must_use]
    pub fn renewed<'n>(
        &self,
        is_changed: impl Fn(usize) -> bool,
        node: impl Fn(usize) -> Option<&'n NodeLoad>,
        now: Timestamp,
    ) -> Self {
        self.partly_renewed(is_changed, &node, now)
            .unwrap_or_else(|| Self::new(&self.policy, (0..self.nodes.len()).map(node), now))
    }

    /// As [`PreparedNodes::renewed`]; `None` if all have to be computed again.
    fn partly_renewed<'n>(
        &self,
        is_changed: impl Fn(usize) -> bool,
        node: impl Fn(usize) -> Option<&'n NodeLoad>,
        now: Timestamp,
    ) -> Option<Self> {
        if now < self.from {
            return None;
        }
        let mut renewed = Self { from: now, ..self.clone() };
        for (position, slot) in renewed.nodes.iter_mut().enumerate() {
            if !is_changed(position) && slot.as_ref().is_none_or(|slot| now < slot.until) {
                continue;
            }
            let slot = slot.as_mut()?;
            let node = node(position)?;
            let (prepared, loads) = prepare(&self.policy, node, now);
            if prepared.rules != slot.rules {
                // The node may be in another pool, whose rules need more loads.
                return None;
            }
            let first_load = slot.first_load as usize;
            *slot = Node { first_load: slot.first_load, ..prepared };
            renewed.loads[first_load..first_load + loads.len()].copy_from_slice(&loads);
            let groups = self.policy.groups();
            let present = &mut renewed.present_loads[position * groups..][..groups];
            present
                .iter_mut()
                .zip(present_loads(&self.policy, node, now))
                .for_each(|(old, new)| *old = new);
        }
        renewed.set_totals();
        Some(renewed)
    }

    /// Sets the fields that are computed from all nodes.
    fn set_totals(&mut self) {
        let until = self.nodes.iter().flatten().map(|node| node.until).min();
        self.until = until.unwrap_or(Timestamp::MAX);
        self.max_loads = self.max_loads();
    }

    fn max_loads(&self) -> Option<Vec<Load>> {
        let rules = self.nodes.iter().flatten().next()?.rules;
        let limits = &self.policy.rules_of(rules as usize).limits;
        let mut max_loads =
            vec![Load { known: KnownLoad::Missing, capacity: f64::INFINITY }; limits.len()];
        for node in self.nodes.iter().flatten() {
            if node.rules != rules {
                return None;
            }
            for ((limit, most), load) in
                limits.iter().zip(&mut max_loads).zip(&self.loads[node.first_load as usize..])
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
        // A limit for which no node has a known load rejects no node.
        Some(max_loads)
    }

    /// Whether these are loads under `policy`. Then they can be [renewed](PreparedNodes::renewed).
    #[must_use]
    pub fn are_under(&self, policy: &Arc<ResolvedPolicy>) -> bool {
        Arc::ptr_eq(&self.policy, policy)
    }

    /// Whether these are loads under `policy` and all valid at `now`.
    #[must_use]
    pub fn are_valid(&self, policy: &Arc<ResolvedPolicy>, now: Timestamp) -> bool {
        self.are_under(policy) && self.from <= now && now < self.until
    }

    /// Whether the loads of the node at a position are under `policy` and valid at `now`.
    #[must_use]
    pub fn is_valid(&self, policy: &Arc<ResolvedPolicy>, node: usize, now: Timestamp) -> bool {
        self.are_under(policy)
            && self.from <= now
            && self.nodes[node].as_ref().is_none_or(|node| now < node.until)
    }

    /// Whether every node may take a pod that adds this, by [`PreparedNodes::verdict`]. May return false although all
    /// nodes may take it.
    #[must_use]
    pub fn all_accept(&self, pod: &PodAdds) -> bool {
        let Some(first) = self.nodes.iter().flatten().next() else { return true };
        let Some(max_loads) = &self.max_loads else { return false };
        let limits = &self.policy.rules_of(first.rules as usize).limits;
        // Sums and quotients are rounded in the same way for all nodes, so no load comes out above `max_loads`. A pod
        // that is over a limit by itself is over it here too, and its nodes are looked at one by one.
        let is_met = |(limit, most): (&ResolvedLimit, &Load)| match most.with(&limit.metric, pod) {
            KnownLoad::Known(load) => load <= limit.max,
            KnownLoad::Stale | KnownLoad::Missing | KnownLoad::NotYet => true,
        };
        let uses = &pod.uses;
        uses.cpu >= 0.0 && uses.memory >= 0.0 && limits.iter().zip(max_loads).all(is_met)
    }

    /// Whether the node at a position may take a pod that adds this; a node of which nothing is known may. Only for
    /// pods whose namespace the policy does not [confine](ResolvedPolicy::confines) and which it does not
    /// [exempt](ResolvedPolicy::exempts). `policy` has to be the policy of these loads.
    #[must_use]
    pub fn verdict<'p>(
        &self,
        policy: &'p ResolvedPolicy,
        node: usize,
        pod: &PodAdds,
    ) -> Verdict<'p> {
        let Some(node) = &self.nodes[node] else { return Verdict::Accepted };
        let limits = &policy.rules_of(node.rules as usize).limits;
        let loads = &self.loads[node.first_load as usize..];
        first_rejection(
            limits
                .iter()
                .zip(loads)
                .filter(|(limit, _)| pod.is_judged_by(limit.metric.of_demand()))
                .map(|(limit, load)| {
                    limit.verdict(limit.outcome(load.for_limit(limit, pod), false))
                }),
        )
    }

    /// [`Evaluation::present_load`] of the node at a position.
    #[must_use]
    pub fn present_load(&self, node: usize, group: usize) -> Option<f64> {
        self.nodes[node].as_ref()?;
        self.present_loads[node * self.policy.groups() + group]
    }

    /// The score of the node at a position for a pod that adds this, 0 for a node of which nothing is known. `policy`
    /// has to be the policy of these loads.
    #[must_use]
    pub fn score(
        &self,
        policy: &ResolvedPolicy,
        node: usize,
        pod: &PodAdds,
        typical: &[f64],
    ) -> Score {
        let Some(node) = &self.nodes[node] else { return Score::ZERO };
        let rules = policy.rules_of(node.rules as usize);
        let loads = &self.loads[node.first_load as usize + rules.limits.len()..];
        score_of(
            &policy.policy.scoring,
            || {
                rules
                    .weights
                    .iter()
                    .zip(loads)
                    .map(|(weight, load)| Weighed { weight, load: load.with(&weight.metric, pod) })
            },
            policy.groups(),
            typical,
            node.cost,
        )
    }
}

/// [`Evaluation::present_load`] of each group.
fn present_loads<'a>(
    policy: &'a ResolvedPolicy,
    node: &'a NodeLoad,
    now: Timestamp,
) -> impl Iterator<Item = Option<f64>> + 'a {
    let at = Evaluation { policy, node, pod: PodToPlace::ORDINARY, now };
    (0..policy.groups()).map(move |group| at.present_load(group))
}

/// A node and its loads at `now`. `first_load` is not set.
fn prepare(policy: &ResolvedPolicy, node: &NodeLoad, now: Timestamp) -> (Node, Vec<Load>) {
    let number = policy.rules_number(&node.labels);
    let rules = policy.rules_of(number);
    let at = Evaluation { policy, node, pod: PodToPlace::ORDINARY, now };
    let mut next_change = NextChange { now, at: Timestamp::MAX };
    let limits = rules.limits.iter().map(|limit| (&limit.metric, MetricLoad::known as fn(_) -> _));
    let weights = rules.weights.iter().map(|weight| (&weight.metric, MetricLoad::for_score as _));
    let mut loads = Vec::with_capacity(rules.limits.len() + rules.weights.len());
    for (metric, known) in limits.chain(weights) {
        if let (Some(reading), Some(max_age)) = (node.readings.get(metric.id), metric.max_age) {
            next_change.may_be(reading.at, max_age);
            next_change.may_be(reading.at, -MAX_AHEAD);
        }
        for (id, max_age) in metric.demand.iter().flat_map(ResolvedDemand::readings) {
            if let Some(reading) = node.readings.get(id) {
                next_change.may_be(reading.at, max_age);
                next_change.may_be(reading.at, -MAX_AHEAD);
            }
        }
        let capacity = at.capacity(metric).unwrap_or(f64::INFINITY);
        loads.push(Load { known: known(at.load(metric)), capacity });
    }
    if let Some(created_at) = node.created_at
        && node.readings.is_empty()
    {
        next_change.may_be(created_at, NOT_MEASURED_YET);
        next_change.may_be(created_at, -MAX_AHEAD);
    }
    for (at, after) in node.recent.change_times(&[]) {
        next_change.may_be(at, after);
    }
    change_times(policy, node, |at, after| next_change.may_be(at, after));
    // A policy has fewer than 4 billion pools.
    let rules = u32::try_from(number).unwrap_or(u32::MAX);
    let cost = costs(policy, node, now).map(|cost| cost.points).sum();
    (Node { cost, first_load: 0, rules, until: next_change.at }, loads)
}

/// When a node's loads of `now` may change first.
struct NextChange {
    now: Timestamp,
    at: Timestamp,
}

impl NextChange {
    /// They may change at the time `after` later than `at`. A time out of range never comes.
    fn may_be(&mut self, at: Timestamp, after: SignedDuration) {
        if let Ok(time) = at.checked_add(after)
            && time > self.now
        {
            self.at = self.at.min(time);
        }
    }
}

impl Load {
    /// The load with what the pod adds; unknown for a demand that the pod does not declare.
    fn with(self, metric: &ResolvedMetric, pod: &PodAdds) -> KnownLoad {
        let KnownLoad::Known(load) = self.known else { return self.known };
        match self.part_of(metric, pod) {
            Some(part) => KnownLoad::Known(load + part),
            None => KnownLoad::Missing,
        }
    }

    /// As [`Load::with`], or the load alone where the pod is over the limit by itself.
    fn for_limit(self, limit: &ResolvedLimit, pod: &PodAdds) -> KnownLoad {
        let part = self.part_of(&limit.metric, pod);
        if part.is_some_and(|part| limit.is_exceeded_by_pod(part)) {
            return self.known;
        }
        self.with(&limit.metric, pod)
    }

    /// What the pod adds, as a fraction of the node; `None` for a demand that the pod does not declare.
    fn part_of(self, metric: &ResolvedMetric, pod: &PodAdds) -> Option<f64> {
        let adds = match metric.of_demand() {
            Some(demand) if pod.is_judged_by(Some(demand)) => {
                (*pod.declares.get(demand) as f64).min(self.capacity)
            }
            Some(_) => return None,
            None => metric.meaning.resource.map_or(0.0, |of| *pod.uses.get(of)),
        };
        Some(adds / self.capacity)
    }
}

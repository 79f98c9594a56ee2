//! Which nodes must have a taint for their load, and the next write of a taint. Pure decisions: no I/O, and `now` is a
//! parameter.
//!
//! Invariants: the Nodes are the only record of taints, so a new leader or a restarted process finds and clears the
//! taints of earlier ones, even with another key, if taints are disabled, or on nodes that are not selected any more;
//! at most one write is in flight; a write that failed on a version of a Node is not repeated on the same version. A
//! write that failed otherwise is repeated until the Node is as wanted.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use cluster::{CallError, NodeFacts, NodeTaints, Taint};
use jiff::{SignedDuration, Timestamp};
use placement::policy::{Limit, LoadPolicy};
use placement::reading::Reading;
use placement::taint::{Overheating, TaintRules, unknown_loads};
use placement::units::{MetricName, NodeName};

/// The period of checks of all nodes: readings become stale, and loads exceed their limits for long enough, without a
/// watch event.
const SWEEP: SignedDuration = SignedDuration::from_secs(10);

/// The time between two writes.
const GAP: SignedDuration = SignedDuration::from_millis(100);

/// The taint of hot nodes, and when it is set and cleared.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TaintSettings {
    pub taint: Taint,
    /// When it is set and cleared.
    pub rules: TaintRules,
}

/// One write.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TaintChange {
    pub node: NodeName,
    /// Its taints, as the watch showed them.
    pub taints: NodeTaints,
    /// The taint to set; `None` clears ours.
    pub wanted: Option<Taint>,
}

/// Why a node no longer has a taint of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WhyCleared {
    /// Its load is below all limits, by the margin.
    Below,
    /// It is over no limit by what is known, and the loads of these metrics are missing or stale.
    Unknown(Vec<MetricName>),
    /// It is to have none: it is not selected, or taints are disabled.
    NotWanted,
}

/// All selected nodes, and the others that carry a taint of ours.
#[derive(Debug)]
pub(crate) struct HotNodes {
    /// `None` if taints are disabled.
    settings: Option<TaintSettings>,
    policy: Arc<LoadPolicy>,
    nodes: HashMap<NodeName, HotNode>,
    /// Nodes that may need a write.
    queue: VecDeque<NodeName>,
    in_flight: bool,
    sweep_at: Timestamp,
    not_before: Timestamp,
    tainted: usize,
}

#[derive(Debug, Default)]
struct HotNode {
    taints: NodeTaints,
    /// Whether the node is selected; otherwise no taint is wanted.
    is_selected: bool,
    labels: BTreeMap<String, String>,
    readings: Vec<(MetricName, Reading)>,
    overheating: Overheating,
    /// A write was made or refused for this version of the taints: the next write waits for a newer version.
    is_old: bool,
    /// The earliest next write after a failure.
    not_before: Option<Timestamp>,
}

impl HotNodes {
    /// A value without nodes.
    pub(crate) fn new(settings: Option<TaintSettings>, policy: Arc<LoadPolicy>) -> Self {
        Self {
            settings,
            policy,
            nodes: HashMap::new(),
            queue: VecDeque::new(),
            in_flight: false,
            sweep_at: Timestamp::MIN,
            not_before: Timestamp::MIN,
            tainted: 0,
        }
    }

    /// How many nodes carry a taint of ours.
    pub(crate) fn tainted_nodes(&self) -> usize {
        self.tainted
    }

    /// A warning about the combination of settings and policy.
    pub(crate) fn warning(&self) -> Option<&'static str> {
        let any = |limits: &[Limit]| limits.iter().any(|limit| limit.max_age.is_some());
        let LoadPolicy { limits, pools, .. } = &*self.policy;
        let any_counts = any(limits) || pools.iter().any(|pool| any(&pool.limits));
        (self.settings.is_some() && !any_counts).then_some(
            "no limit of the policy has a reading that counts: --taint-hot-nodes has no effect",
        )
    }

    /// Another policy is in force.
    pub(crate) fn set_policy(&mut self, policy: Arc<LoadPolicy>) {
        self.policy = policy;
        self.check_all_again();
    }

    /// Makes a check of all nodes due at once, as after the clock was set back.
    pub(crate) fn check_all_again(&mut self) {
        self.sweep_at = Timestamp::MIN;
        self.not_before = Timestamp::MIN;
    }

    /// Applies a complete list of nodes. `is_selected` is that of [`HotNodes::apply`].
    pub(crate) fn replace(
        &mut self,
        nodes: &[NodeFacts],
        is_selected: impl Fn(&NodeFacts) -> bool,
        now: Timestamp,
    ) {
        let present: HashSet<&NodeName> = nodes.iter().map(|facts| &facts.name).collect();
        let gone: Vec<NodeName> =
            self.nodes.keys().filter(|name| !present.contains(name)).cloned().collect();
        for name in gone {
            self.remove(&name);
        }
        for facts in nodes {
            self.apply(facts, is_selected(facts), now);
        }
    }

    /// A node is new or has changed. `is_selected`: whether it may have a taint of ours.
    pub(crate) fn apply(&mut self, facts: &NodeFacts, is_selected: bool, now: Timestamp) {
        let taints = &facts.taints;
        if !is_selected && !taints.has_ours() {
            return self.remove(&facts.name);
        }
        let node = self.nodes.entry(facts.name.clone()).or_default();
        node.is_selected = is_selected;
        self.tainted -= usize::from(node.taints.has_ours());
        self.tainted += usize::from(taints.has_ours());
        node.is_old &= node.taints == *taints;
        node.taints = taints.clone();
        if is_selected && self.settings.is_some() {
            node.readings.clear();
            for (metric, reading) in &facts.readings {
                if let Ok(reading) = reading {
                    node.readings.push((metric.clone(), *reading));
                }
            }
            node.labels = facts.labels.clone();
        }
        if self.change(&facts.name, now).is_some() && !self.queue.contains(&facts.name) {
            self.queue.push_back(facts.name.clone());
        }
    }

    /// A node was deleted.
    pub(crate) fn remove(&mut self, name: &NodeName) {
        if let Some(node) = self.nodes.remove(name) {
            self.tainted -= usize::from(node.taints.has_ours());
        }
    }

    /// When the next write may be due; it may be past.
    pub(crate) fn next(&self) -> Option<Timestamp> {
        let is_idle = self.settings.is_none() && self.tainted == 0;
        let none_waits = self.queue.is_empty();
        if self.in_flight || (is_idle && none_waits) {
            return None;
        }
        let work_at = if none_waits { self.sweep_at } else { Timestamp::MIN };
        Some(work_at.max(self.not_before))
    }

    /// The next write at `now`; it must be ended with [`HotNodes::finish`].
    pub(crate) fn take(&mut self, now: Timestamp) -> Option<TaintChange> {
        if self.in_flight || now < self.not_before {
            return None;
        }
        if now >= self.sweep_at {
            self.sweep_at = now.checked_add(SWEEP).unwrap_or(Timestamp::MAX);
            let names: Vec<NodeName> = self.nodes.keys().cloned().collect();
            self.queue =
                names.into_iter().filter(|name| self.change(name, now).is_some()).collect();
        }
        while let Some(name) = self.queue.pop_front() {
            if let Some(change) = self.change(&name, now) {
                self.in_flight = true;
                return Some(change);
            }
        }
        None
    }

    /// Why the taint of a node was cleared at `now`.
    pub(crate) fn why_cleared(&self, name: &NodeName, now: Timestamp) -> WhyCleared {
        let node = self.nodes.get(name).filter(|node| node.is_selected);
        let (Some(node), Some(_)) = (node, &self.settings) else { return WhyCleared::NotWanted };
        let unknown = unknown_loads(&self.policy, &node.labels, |metric| node.reading(metric), now);
        if unknown.is_empty() {
            return WhyCleared::Below;
        }
        WhyCleared::Unknown(unknown.into_iter().cloned().collect())
    }

    /// A write has ended; `None` where it was not begun.
    pub(crate) fn finish(
        &mut self,
        change: &TaintChange,
        outcome: Option<&Result<(), CallError>>,
        now: Timestamp,
    ) {
        self.in_flight = false;
        self.not_before = now.checked_add(GAP).unwrap_or(Timestamp::MAX);
        let Some(node) = self.nodes.get_mut(&change.node) else { return };
        match outcome {
            Some(Ok(()) | Err(CallError::Conflict(_))) => {
                node.is_old |= node.taints == change.taints;
                node.not_before = None;
            }
            Some(Err(_)) | None => node.not_before = now.checked_add(SWEEP).ok(),
        }
    }

    /// The write that a node needs at `now`.
    fn change(&mut self, name: &NodeName, now: Timestamp) -> Option<TaintChange> {
        let node = self.nodes.get_mut(name)?;
        let wanted = node.wanted(self.settings.as_ref(), &self.policy, now);
        // A time far ahead is of a clock that was set back.
        let waits = node.not_before.is_some_and(|at| now < at && at.duration_since(now) <= SWEEP);
        if node.is_old || waits || node.taints.match_wanted(wanted.as_ref()) {
            return None;
        }
        Some(TaintChange { node: name.clone(), taints: node.taints.clone(), wanted })
    }
}

impl HotNode {
    fn wanted(
        &mut self,
        settings: Option<&TaintSettings>,
        policy: &LoadPolicy,
        now: Timestamp,
    ) -> Option<Taint> {
        if !self.is_selected {
            return None;
        }
        let TaintSettings { taint, rules } = settings?;
        let heat = rules.heat(policy, &self.labels, |metric| self.reading(metric), now);
        let tainted = self.taints.has_ours();
        let is_wanted = rules.is_wanted(&mut self.overheating, heat, tainted, now);
        is_wanted.then(|| taint.clone())
    }

    fn reading(&self, metric: &MetricName) -> Option<Reading> {
        self.readings.iter().find(|(name, _)| name == metric).map(|(_, reading)| *reading)
    }
}

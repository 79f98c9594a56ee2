//! One node, one pod, one policy, one time: everything that follows from them.
//!
//! Invariant: whatever asks, the same code answers. [`Evaluation::limits`] and [`Evaluation::terms`] are
//! lazy; the verdict stops at the first limit that is not met, the score adds the terms up without
//! keeping them, and [`Evaluation::decide`] keeps all.
//!
//! A metric's load is its reading and, where the policy counts estimates, what the node's recent pods use that the reading
//! does not show yet, and what the pod to be placed will use. Limits and scores see the same loads.

use jiff::{SignedDuration, Timestamp};

use super::model::{Weighed, node_cpu, points, score_of, surplus};
use super::pairing::{CpuUse, NodeCpu, Paired, Surplus};
use super::{
    NodeLoad, PodKind, PodToPlace, ResolvedLimit, ResolvedMetric, ResolvedPolicy, ResolvedRules,
    ResolvedWeight, Score,
};
use crate::policy::{Measure, NamespaceRule, Unknown};
use crate::reading::{HOT_VALUE_MAX_AGE, HotValueNote, Reading, is_fresh};

/// The four things that a decision about a node's load follows from.
///
/// # Examples
///
/// ```
/// use std::sync::Arc;
///
/// use jiff::Timestamp;
/// use placement::load::{Evaluation, MetricTable, NodeLoad, PodToPlace, Readings, ResolvedPolicy};
/// use placement::policy::LoadPolicy;
/// use placement::reading::Reading;
/// use placement::units::Ratio;
///
/// let policy = "
/// apiVersion: scheduler.policy.crane.io/v1alpha1
/// kind: DynamicSchedulerPolicy
/// spec:
///   syncPolicy: [{name: cpu_usage_avg_5m, period: 3m}]
///   predicate:  [{name: cpu_usage_avg_5m, maxLimitPecent: 0.65}]
///   priority:   [{name: cpu_usage_avg_5m, weight: 1}]
/// ";
/// let mut table = MetricTable::default();
/// let policy = ResolvedPolicy::new(LoadPolicy::from_yaml(policy)?, &mut table);
/// let now = Timestamp::UNIX_EPOCH;
/// let reading = Ratio::new(0.80).map(|value| ("cpu_usage_avg_5m".into(), Reading::new(value, now)));
/// let readings = Arc::new(Readings::new(&mut table, reading));
/// let node = NodeLoad { readings, ..NodeLoad::default() };
///
/// let decision = Evaluation { policy: &policy, node: &node, pod: PodToPlace::ORDINARY, now }.decide();
/// let reason = "Load[cpu_usage_avg_5m] is too high, over 0.65 (see: kubectl plimsoll explain pod)";
/// assert_eq!(decision.reasons().collect::<Vec<_>>(), [reason]);
/// assert_eq!(decision.score.get(), 20);
/// # Ok::<(), placement::policy::PolicyError>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Evaluation<'p, 'n> {
    /// The policy in force, or one that is tried.
    pub policy: &'p ResolvedPolicy,
    /// What is known of the node.
    pub node: &'n NodeLoad,
    /// The pod.
    pub pod: PodToPlace<'p>,
    /// The time at which readings are fresh or stale.
    pub now: Timestamp,
}

/// A metric's reading, and whether it counts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ReadingStatus {
    /// It counts.
    Fresh(Reading),
    /// It is too old, or too far ahead.
    Stale(Reading),
    /// There is none.
    Missing,
    /// No sync rule fetches the metric, so that readings have no maximum age.
    NotFetched,
}

impl ReadingStatus {
    /// The reading, where it counts.
    pub fn fresh(self) -> Option<Reading> {
        match self {
            Self::Fresh(reading) => Some(reading),
            Self::Stale(_) | Self::Missing | Self::NotFetched => None,
        }
    }
}

/// A metric's load of a node.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MetricLoad {
    /// What was measured.
    pub reading: ReadingStatus,
    /// The use of pods that were bound to the node recently, or are in flight to it, that the reading does not show yet, less
    /// what it still shows of pods that have ended: a fraction of the node. Never takes more off than was read.
    pub in_flight: f64,
    /// What the pod to be placed will use: a fraction of the node.
    pub pod: f64,
}

impl MetricLoad {
    /// The load with the pod: 0 idle, 1 full; `None` without a reading that counts.
    pub fn value(self) -> Option<f64> {
        match self.known() {
            KnownLoad::Known(load) => Some(load),
            KnownLoad::Stale | KnownLoad::Missing => None,
        }
    }

    /// What was measured, without what it still shows of pods that have ended, as far as no newer ones use that; without
    /// any estimate on top. `None` without a reading that counts.
    pub fn measured(self) -> Option<f64> {
        self.reading.fresh().map(|reading| reading.value.get() + self.in_flight.min(0.0))
    }

    /// What limits and scores see of it.
    pub fn known(self) -> KnownLoad {
        match self.reading {
            ReadingStatus::Fresh(reading) => {
                KnownLoad::Known(reading.value.get() + self.in_flight + self.pod)
            }
            ReadingStatus::Stale(_) => KnownLoad::Stale,
            ReadingStatus::Missing | ReadingStatus::NotFetched => KnownLoad::Missing,
        }
    }
}

/// A metric's load as limits and scores see it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum KnownLoad {
    /// With all that counts: 0 idle, 1 full.
    Known(f64),
    /// The reading is too old, or too far ahead.
    Stale,
    /// There is none.
    Missing,
}

/// One limit, and what came of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LimitCheck<'a> {
    /// The limit.
    pub limit: &'a ResolvedLimit,
    /// What it was held against.
    pub load: MetricLoad,
    /// What came of it.
    pub outcome: LimitOutcome,
}

/// What came of one limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitOutcome {
    /// The load is at or below it.
    Met,
    /// The load is over it.
    Exceeded,
    /// There is no fresh reading: what is not known rejects no node.
    Unknown,
    /// There is no fresh reading, and the policy rejects the node for it.
    UnknownRejected,
    /// Limits do not apply to the pod.
    Exempt,
}

/// What one metric adds to a score.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Term<'a> {
    /// The metric and its part of all weights.
    pub weight: &'a ResolvedWeight,
    /// What it was computed from.
    pub load: MetricLoad,
}

/// Whether the node may take the pod.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Verdict<'a> {
    /// It may.
    Accepted,
    /// It may not: the first limit that is exceeded.
    Overloaded(&'a ResolvedLimit),
    /// It may not: the first limit without a reading, where the policy rejects for that.
    Unmeasured(&'a ResolvedLimit),
    /// It may not: pods of this namespace go to other nodes.
    OtherNamespace(&'a NamespaceRule),
}

impl<'a> Verdict<'a> {
    /// Why the node may not take the pod: a constant text; `None` where it may.
    pub fn reason(self) -> Option<&'a str> {
        match self {
            Self::Accepted => None,
            Self::Overloaded(limit) => Some(&limit.reason),
            Self::Unmeasured(limit) => Some(&limit.unknown_reason),
            Self::OtherNamespace(_) => Some(OTHER_NAMESPACE),
        }
    }

    /// A word for metrics: the limit's metric, or `namespace`; `None` where the node may take the pod.
    pub fn label(self) -> Option<&'a str> {
        match self {
            Self::Accepted => None,
            Self::Overloaded(limit) | Self::Unmeasured(limit) => Some(limit.metric.name.as_str()),
            Self::OtherNamespace(_) => Some("namespace"),
        }
    }

    /// Whether it is a limit that the node does not meet: soft limits can be passed over, a namespace's nodes cannot.
    pub fn is_by_limit(self) -> bool {
        matches!(self, Self::Overloaded(_) | Self::Unmeasured(_))
    }
}

/// Why a node takes no pods of a namespace that has nodes of its own.
const OTHER_NAMESPACE: &str = reason!("Not one of the nodes of the pod's namespace");

/// Everything that follows for one node and one pod.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadDecision<'a> {
    /// Whether the node may take the pod.
    pub verdict: Verdict<'a>,
    /// Every limit of the policy, in its order.
    pub limits: Vec<LimitCheck<'a>>,
    /// Every term of the score, in the order of the policy's weights.
    pub terms: Vec<Term<'a>>,
    /// The hot value; each whole one costs 10 points.
    pub hot_value: f64,
    /// What counts of the node's surplus; `None` where none does.
    pub surplus: Option<Surplus>,
    /// The score.
    pub score: Score,
}

impl<'a> LoadDecision<'a> {
    /// Why the node may not take the pod: one constant text for each cause.
    pub fn reasons(&self) -> impl Iterator<Item = &'a str> {
        let namespace = match self.verdict {
            Verdict::OtherNamespace(_) => self.verdict.reason(),
            _ => None,
        };
        let limits = self.limits.iter().filter_map(|check| check.verdict().reason());
        namespace.into_iter().chain(limits)
    }
}

impl<'a> LimitCheck<'a> {
    fn verdict(&self) -> Verdict<'a> {
        self.limit.verdict(self.outcome)
    }
}

impl ResolvedLimit {
    /// What comes of the limit for a load.
    pub(super) fn outcome(&self, load: KnownLoad, exempt: bool) -> LimitOutcome {
        let unknown = |rule: Unknown| match rule {
            Unknown::Ignore | Unknown::Penalise => LimitOutcome::Unknown,
            Unknown::Reject => LimitOutcome::UnknownRejected,
        };
        match load {
            _ if exempt => LimitOutcome::Exempt,
            KnownLoad::Known(load) if load > self.max => LimitOutcome::Exceeded,
            KnownLoad::Known(_) => LimitOutcome::Met,
            KnownLoad::Stale => unknown(self.metric.when_stale),
            KnownLoad::Missing => unknown(self.metric.when_missing),
        }
    }

    /// Whether the node may take the pod, by this limit alone.
    pub(super) fn verdict(&self, outcome: LimitOutcome) -> Verdict<'_> {
        match outcome {
            LimitOutcome::Met | LimitOutcome::Unknown | LimitOutcome::Exempt => Verdict::Accepted,
            LimitOutcome::Exceeded => Verdict::Overloaded(self),
            LimitOutcome::UnknownRejected => Verdict::Unmeasured(self),
        }
    }
}

/// The first verdict that does not accept; looks no further.
pub(super) fn first_rejection<'a>(mut verdicts: impl Iterator<Item = Verdict<'a>>) -> Verdict<'a> {
    verdicts.find(|verdict| *verdict != Verdict::Accepted).unwrap_or(Verdict::Accepted)
}

impl<'a> Term<'a> {
    /// As the models see it.
    pub(super) fn weighed(&self) -> Weighed<'a> {
        Weighed { weight: self.weight, load: self.load.known() }
    }
}

impl<'p> Evaluation<'p, '_> {
    /// Everything.
    pub fn decide(&self) -> LoadDecision<'p> {
        LoadDecision {
            verdict: self.verdict(),
            limits: self.limits().collect(),
            terms: self.terms().collect(),
            hot_value: self.hot_value(),
            surplus: self.surplus(),
            score: self.score(),
        }
    }

    /// Whether the node may take the pod; looks no further than the first limit that is not met.
    pub fn verdict(&self) -> Verdict<'p> {
        if self.pod.kind == PodKind::Ordinary
            && let Some(rule) =
                self.policy.broken_namespace_rule(self.pod.namespace, &self.node.labels)
        {
            return Verdict::OtherNamespace(rule);
        }
        first_rejection(self.limits().map(|check| check.verdict()))
    }

    /// The node's score alone.
    pub fn score(&self) -> Score {
        let scoring = &self.policy.policy.scoring;
        let terms = || self.terms().map(|term| term.weighed());
        score_of(scoring, self.rules().groups, terms, self.paired(), self.hot_value())
    }

    /// What the node uses and what its pods request, without the pod to be placed; nothing where either is not known.
    pub fn cpu_use(&self) -> CpuUse {
        self.node_cpu().map(NodeCpu::in_all).unwrap_or_default()
    }

    /// What counts of the node's surplus for the pod; `None` where none does.
    pub fn surplus(&self) -> Option<Surplus> {
        let paired = self.paired()?;
        surplus(self.terms().map(|term| term.weighed()), paired)
    }

    fn paired(&self) -> Option<Paired> {
        // What the node is known to use takes time to find out.
        let counts = self.pod.pairing.part != 0.0;
        self.pod.pairing.on(counts.then(|| self.node_cpu()).flatten())
    }

    pub(super) fn node_cpu(&self) -> Option<NodeCpu> {
        let without = Self { pod: PodToPlace::ORDINARY, ..*self };
        node_cpu(self.rules(), without.terms().map(|term| term.weighed()), self.node, self.now)
    }

    /// How near to its limits the node is with the pod: 1 is at the nearest one. Infinite where a limit's reading is unknown,
    /// since a node that is not measured is never the least loaded; 0 where no limit applies.
    pub fn overload(&self) -> f64 {
        let of = |check: LimitCheck<'_>| match check.outcome {
            LimitOutcome::Exempt => 0.0,
            _ => check.load.value().map_or(f64::INFINITY, |load| load / check.limit.max),
        };
        self.limits().map(of).fold(0.0, f64::max)
    }

    /// What is [measured](MetricLoad::measured) of the node's load divided by its limit, for the limit that is nearest: above 1 the
    /// node is over it. Never more than what Filter holds against that limit for any pod. `None` where no limit applies, and
    /// where a reading is unknown, unless the node is over another limit.
    pub fn measured_overload(&self) -> Option<f64> {
        let ratio = |check: LimitCheck<'_>| Some(check.load.measured()? / check.limit.max);
        let (mut highest, mut unknown) = (None, false);
        for ratio in self.limits().map(ratio) {
            unknown |= ratio.is_none();
            highest = ratio
                .map(|ratio| highest.map_or(ratio, |highest: f64| highest.max(ratio)))
                .or(highest);
        }
        highest.filter(|highest| !unknown || *highest > 1.0)
    }

    /// Each limit for the node in the policy's order, checked lazily.
    pub fn limits(&self) -> impl Iterator<Item = LimitCheck<'p>> {
        let this = *self;
        let exempt = this.policy.exempts(&this.pod);
        this.rules().limits.iter().map(move |limit| this.check(limit, exempt))
    }

    /// Each term of the score, computed lazily.
    pub fn terms(&self) -> impl Iterator<Item = Term<'p>> {
        let this = *self;
        let term =
            move |weight: &'p ResolvedWeight| Term { weight, load: this.load(&weight.metric) };
        this.rules().weights.iter().map(term)
    }

    /// Points of 100 that a term adds; `None` under a model that adds none up.
    pub fn points(&self, term: &Term<'_>) -> Option<f64> {
        points(&self.policy.policy.scoring, term.weighed())
    }

    /// How hot recent pods make the node: what was counted here or, where it is believed and higher,
    /// crane's own count.
    pub fn hot_value(&self) -> f64 {
        let counted = self.node.recent.hot_value(self.policy.hot(), self.now) as f64;
        let fresh = |note: &HotValueNote| is_fresh(note.at, self.now, HOT_VALUE_MAX_AGE);
        let note = self.node.crane_hot_value.filter(fresh);
        note.map_or(counted, |note| note.value.max(counted))
    }

    fn rules(&self) -> &'p ResolvedRules {
        self.policy.rules(&self.node.labels)
    }

    fn check(&self, limit: &'p ResolvedLimit, exempt: bool) -> LimitCheck<'p> {
        let load = self.load(&limit.metric);
        LimitCheck { limit, load, outcome: limit.outcome(load.known(), exempt) }
    }

    pub(super) fn load(&self, metric: &ResolvedMetric) -> MetricLoad {
        let reading = self.reading(self.node.readings.get(metric.id), metric.max_age);
        let (in_flight, pod) = self.not_in(reading, metric).unwrap_or((0.0, 0.0));
        MetricLoad { reading, in_flight, pod }
    }

    /// What recent pods and the pod itself add to a reading; `None` where estimates do not bear on it.
    fn not_in(&self, reading: ReadingStatus, metric: &ResolvedMetric) -> Option<(f64, f64)> {
        let capacity = self.capacity(metric)?;
        let read = reading.fresh()?;
        let read_at = read.at;
        let (resource, unseen_for) = (metric.meaning.resource?, metric.meaning.unseen_for?);
        let unseen = self.node.recent.unseen(resource, read_at, unseen_for, self.now);
        let still_seen = match metric.meaning.measure {
            Measure::Mean => self.node.recent.still_seen(resource, read_at, unseen_for),
            _ => 0.0,
        };
        let in_flight = unseen - still_seen.min(read.value.get() * capacity);
        Some((in_flight / capacity, self.pod.uses.get(resource) / capacity))
    }

    /// What the use of pods is a part of; `None` where estimates do not bear on the metric.
    pub(super) fn capacity(&self, metric: &ResolvedMetric) -> Option<f64> {
        self.policy.policy.estimates.as_ref()?;
        let (resource, _) = metric.meaning.resource.zip(metric.meaning.unseen_for)?;
        self.node.capacity.get(resource).filter(|capacity| *capacity > 0.0)
    }

    fn reading(&self, reading: Option<Reading>, max_age: Option<SignedDuration>) -> ReadingStatus {
        match (reading, max_age) {
            (_, None) => ReadingStatus::NotFetched,
            (None, _) => ReadingStatus::Missing,
            (Some(reading), Some(max_age)) if reading.is_fresh(self.now, max_age) => {
                ReadingStatus::Fresh(reading)
            }
            (Some(reading), _) => ReadingStatus::Stale(reading),
        }
    }
}

//! The decision about one node's load for one pod, by one policy at one time.
//!
//! Invariant: Filter, Prioritize and explain run the same code. [`Evaluation::limits`] and [`Evaluation::terms`] are
//! lazy: the verdict stops at the first limit that is not met, the score adds the terms up without keeping them, and
//! [`Evaluation::decide`] keeps all.
//!
//! A metric's load is its reading. If the policy counts estimates, the use of recent pods that the reading does not
//! show yet and the use of the pod to be placed are added. Limits and scores use the same loads, except on a node that
//! has just joined and is not measured yet: its score uses what its pods will probably use, and no limit does.
//!
//! The load of a demand is the larger of two: what the node's pods declare, and what is measured of it with what pods
//! declare that the measurement does not show. It concerns only pods that declare the demand.

use jiff::{SignedDuration, Timestamp};

use super::costs::{NodeCost, costs};
use super::model::{Weighed, group_load, points, score_of};
use super::{
    KnownLoad, MetricId, MetricLoad, NodeLoad, PodKind, PodToPlace, ReadingStatus, ResolvedDemand,
    ResolvedLimit, ResolvedMetric, ResolvedPolicy, ResolvedRules, ResolvedWeight, Score,
};
use crate::policy::{NamespaceRule, Unknown};
use crate::reading::Reading;
use crate::units::Ratio;

/// The annotator divides each value by this: it takes all for percent.
const PERCENT: f64 = 100.0;

/// The inputs of a decision about a node's load.
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
    /// The policy in force, or a shadow policy.
    pub policy: &'p ResolvedPolicy,
    /// What is known of the node.
    pub node: &'n NodeLoad,
    /// The pod.
    pub pod: PodToPlace<'p>,
    /// The time of the decision.
    pub now: Timestamp,
}

/// One limit, and whether it is met.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LimitCheck<'a> {
    /// The limit.
    pub limit: &'a ResolvedLimit,
    /// The load, of which the pod's part is left out where it is over the limit by itself.
    pub load: MetricLoad,
    /// Whether it is met.
    pub outcome: LimitOutcome,
}

/// Whether a limit is met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitOutcome {
    /// The load is at or below it.
    Met,
    /// The pod alone is over it, as it would be on an empty node. What else the node carries is at or below it.
    MetWithoutPod,
    /// The load is over it.
    Exceeded,
    /// There is no fresh reading, which rejects no node.
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

    /// Whether a limit rejects the node. Soft limits can let a pod pass, namespace rules never do.
    pub(crate) fn is_by_limit(self) -> bool {
        matches!(self, Self::Overloaded(_) | Self::Unmeasured(_))
    }
}

/// The reason if pods of the namespace go to other nodes only.
const OTHER_NAMESPACE: &str = reason!("Not one of the nodes of the pod's namespace");

/// The whole decision about one node's load for one pod.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadDecision<'a> {
    /// Whether the node may take the pod.
    pub verdict: Verdict<'a>,
    /// Every limit of the policy, in its order.
    pub limits: Vec<LimitCheck<'a>>,
    /// Every term of the score, in the order of the policy's weights.
    pub terms: Vec<Term<'a>>,
    /// What costs points whatever the pod is.
    pub costs: Vec<NodeCost>,
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
        namespace.into_iter().chain(self.limits.iter().filter_map(|check| check.verdict().reason()))
    }
}

impl<'a> LimitCheck<'a> {
    fn verdict(&self) -> Verdict<'a> {
        self.limit.verdict(self.outcome)
    }
}

impl LimitOutcome {
    /// The outcome for a load that is not known.
    fn of_unknown(rule: Unknown) -> Self {
        match rule {
            Unknown::Ignore | Unknown::Penalise => Self::Unknown,
            Unknown::Reject => Self::UnknownRejected,
        }
    }
}

impl ResolvedLimit {
    /// Whether the pod is over the limit by itself, with this use as a fraction of the node. It would be so on every
    /// node of this size, so that what else the node carries is compared with the limit.
    pub(super) fn is_exceeded_by_pod(&self, pod: f64) -> bool {
        self.metric.demand.is_none() && pod > self.max
    }

    /// The part of a load that is compared with the limit.
    fn judged_load(&self, load: MetricLoad) -> MetricLoad {
        if self.is_exceeded_by_pod(load.pod) { load.without_pod() } else { load }
    }

    /// Whether a load meets the limit.
    pub(super) fn outcome(&self, load: KnownLoad, exempt: bool) -> LimitOutcome {
        match load {
            _ if exempt => LimitOutcome::Exempt,
            KnownLoad::Known(load) if load > self.max => LimitOutcome::Exceeded,
            KnownLoad::Known(_) => LimitOutcome::Met,
            KnownLoad::Stale => LimitOutcome::of_unknown(self.metric.when_stale),
            KnownLoad::Missing | KnownLoad::NotYet => {
                LimitOutcome::of_unknown(self.metric.when_missing)
            }
        }
    }

    /// Whether the node may take the pod, by this limit alone.
    pub(super) fn verdict(&self, outcome: LimitOutcome) -> Verdict<'_> {
        match outcome {
            LimitOutcome::Met
            | LimitOutcome::MetWithoutPod
            | LimitOutcome::Unknown
            | LimitOutcome::Exempt => Verdict::Accepted,
            LimitOutcome::Exceeded => Verdict::Overloaded(self),
            LimitOutcome::UnknownRejected => Verdict::Unmeasured(self),
        }
    }
}

/// The first verdict that does not accept; later ones are not computed.
pub(super) fn first_rejection<'a>(mut verdicts: impl Iterator<Item = Verdict<'a>>) -> Verdict<'a> {
    verdicts.find(|verdict| *verdict != Verdict::Accepted).unwrap_or(Verdict::Accepted)
}

impl<'a> Term<'a> {
    /// The weight and the load, for the scoring models.
    fn for_score(&self) -> Weighed<'a> {
        Weighed { weight: self.weight, load: self.load.for_score() }
    }
}

impl<'p> Evaluation<'p, '_> {
    /// The whole decision.
    pub fn decide(&self) -> LoadDecision<'p> {
        LoadDecision {
            verdict: self.verdict(),
            limits: self.limits().collect(),
            terms: self.terms().filter(|term| self.is_judged_by(&term.weight.metric)).collect(),
            costs: costs(self.policy, self.node, self.now).collect(),
            score: self.score(),
        }
    }

    /// Whether the node may take the pod. Limits after the first that is not met are not checked.
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
        score_of(
            scoring,
            || self.terms().map(|term| term.for_score()),
            self.policy.groups(),
            self.pod.typical,
            costs(self.policy, self.node, self.now).map(|cost| cost.points).sum(),
        )
    }

    /// The node's load of a group of weights as scores count it, without the pod to be placed; `None` where it is not
    /// known, or where the node is about to be removed: then it says nothing of what is typical.
    pub fn present_load(&self, group: usize) -> Option<f64> {
        if self.node.is_to_be_removed {
            return None;
        }
        let without = Self { pod: PodToPlace::ORDINARY, ..*self };
        let load = group_load(without.terms().map(|term| term.for_score()), group, f64::NAN)?;
        load.is_finite().then_some(load)
    }

    /// The node's load with the pod divided by its limit, for the nearest of the limits whose load is known: above 1
    /// the node is over it. Without the pod where the pod alone is over the limit. A metric without a reading is left
    /// out, since many nodes cannot have it, such as `gpu_usage` on nodes without GPUs. Infinite if no load is known,
    /// or if the policy rejects the node for a missing reading: such a node is never the least loaded. 0 if no limit
    /// applies.
    pub fn limit_ratio(&self) -> f64 {
        let mut highest = None;
        let mut limits = 0;
        let mut measured_limits = 0;
        let mut is_measured = false;
        for check in self.limits() {
            limits += 1;
            measured_limits += usize::from(check.limit.metric.demand.is_none());
            let ratio = match (check.outcome, check.limit.judged_load(check.load).for_score()) {
                (LimitOutcome::Exempt, _) => 0.0,
                (LimitOutcome::UnknownRejected, _) => return f64::INFINITY,
                (_, KnownLoad::Known(load)) => load / check.limit.max,
                (_, KnownLoad::Stale | KnownLoad::Missing | KnownLoad::NotYet) => continue,
            };
            is_measured |= check.limit.metric.demand.is_none();
            highest = Some(highest.map_or(ratio, |highest: f64| highest.max(ratio)));
        }
        // What pods declare says nothing of the loads that are not measured.
        if measured_limits > 0 && !is_measured {
            return f64::INFINITY;
        }
        highest.unwrap_or(if limits == 0 { 0.0 } else { f64::INFINITY })
    }

    /// The node's [measured](MetricLoad::measured) load divided by its limit, for the nearest of the limits whose load
    /// is measured: above 1 the node is over it. Never more than [`Evaluation::limit_ratio`] for any pod. `None` if no
    /// limit's load is measured, or if the policy rejects the node for a missing reading and the node is not over
    /// another limit.
    pub fn measured_limit_ratio(&self) -> Option<f64> {
        let mut highest = None;
        let mut is_rejected = false;
        for check in self.limits().filter(|check| check.limit.metric.demand.is_none()) {
            is_rejected |= check.outcome == LimitOutcome::UnknownRejected;
            let Some(measured) = check.load.measured() else { continue };
            let ratio = measured / check.limit.max;
            highest = Some(highest.map_or(ratio, |highest: f64| highest.max(ratio)));
        }
        highest.filter(|highest| !is_rejected || *highest > 1.0)
    }

    /// Whether the pod is over a limit by itself, as it would be on an empty node.
    pub fn is_exceeded_by_pod(&self) -> bool {
        self.limits().any(|check| check.limit.is_exceeded_by_pod(check.load.pod))
    }

    /// Each limit that concerns the pod, in the policy's order, checked lazily.
    pub fn limits(&self) -> impl Iterator<Item = LimitCheck<'p>> {
        let this = *self;
        let exempt = this.policy.exempts(&this.pod);
        this.rules()
            .limits
            .iter()
            .filter(move |limit| this.is_judged_by(&limit.metric))
            .map(move |limit| this.check(limit, exempt))
    }

    /// Each term of the score, computed lazily. One that does not concern the pod has no load, and is left out of the
    /// score.
    pub fn terms(&self) -> impl Iterator<Item = Term<'p>> {
        let this = *self;
        let term = move |weight: &'p ResolvedWeight| {
            let is_judged = this.is_judged_by(&weight.metric);
            let load = if is_judged { this.load(&weight.metric) } else { MetricLoad::UNKNOWN };
            Term { weight, load }
        };
        this.rules().weights.iter().map(term)
    }

    /// Points of 100 that a term adds; `None` under a model that does not add terms up.
    pub fn points(&self, term: &Term<'_>) -> Option<f64> {
        points(&self.policy.policy.scoring, term.for_score())
    }

    fn rules(&self) -> &'p ResolvedRules {
        self.policy.rules(&self.node.labels)
    }

    fn check(&self, limit: &'p ResolvedLimit, exempt: bool) -> LimitCheck<'p> {
        let load = self.load(&limit.metric);
        let outcome = match limit.outcome(limit.judged_load(load).known(), exempt) {
            LimitOutcome::Met if limit.is_exceeded_by_pod(load.pod) => LimitOutcome::MetWithoutPod,
            outcome => outcome,
        };
        LimitCheck { limit, load, outcome }
    }

    /// Whether a limit or weight of the metric concerns the pod.
    fn is_judged_by(&self, metric: &ResolvedMetric) -> bool {
        self.pod.adds().is_judged_by(metric.of_demand())
    }

    pub(super) fn load(&self, metric: &ResolvedMetric) -> MetricLoad {
        if let Some(demand) = &metric.demand {
            return self.demand_load(demand).unwrap_or(MetricLoad::UNKNOWN);
        }
        let reading = self.reading(self.node.readings.get(metric.id), metric.max_age);
        let estimate = self.unread_use(reading, metric);
        let (in_flight, pod) = estimate.unwrap_or((0.0, 0.0));
        MetricLoad { reading, in_flight, pod, is_estimated: estimate.is_some() }
    }

    /// The use of recent pods and of the pod to be placed that a reading does not include, as fractions of the node;
    /// `None` if estimates do not count for the metric. Without a reading yet, that is the use of all pods since the
    /// node joined.
    fn unread_use(&self, reading: ReadingStatus, metric: &ResolvedMetric) -> Option<(f64, f64)> {
        let capacity = self.capacity(metric)?;
        let resource = metric.meaning.resource?;
        let visible_after = metric.meaning.visible_after?;
        let read_at = match reading {
            ReadingStatus::Fresh(reading) => reading.at,
            ReadingStatus::NotYet => self.node.joined_at(self.now)?,
            ReadingStatus::Stale(_) | ReadingStatus::Missing | ReadingStatus::NotFetched => {
                return None;
            }
        };
        let recent = &self.node.recent;
        let in_flight = recent.use_not_in_reading(resource, read_at, visible_after, self.now);
        Some((in_flight / capacity, self.pod.uses.get(resource) / capacity))
    }

    /// The load of a demand: its reading is what is declared or measured, as a fraction of the node's speed. `None`
    /// where the speed, or what pods declare, is not known.
    fn demand_load(&self, resolved: &ResolvedDemand) -> Option<MetricLoad> {
        let ResolvedDemand { demand, measured, .. } = *resolved;
        let speed = self.speed(resolved)?;
        let pods = self.node.declared.as_ref()?;
        let mut reading = (pods.sum(demand, speed), self.now);
        if let Some(measured) = measured
            && let Some((value, read_at)) = self.bytes_a_second(measured.id, measured.max_age)
        {
            let unseen = pods.unseen(demand, speed, read_at, measured.visible_after);
            if value + unseen > reading.0 {
                reading = (value + unseen, read_at);
            }
        }
        let in_flight = self.node.recent.declared_in_flight(demand, speed, self.now);
        Some(MetricLoad {
            reading: ReadingStatus::Fresh(Reading::new(Ratio::new(reading.0 / speed)?, reading.1)),
            in_flight: in_flight / speed,
            // A pod counts for no more than its node can do.
            pod: (*self.pod.declares.get(demand) as f64).min(speed) / speed,
            is_estimated: false,
        })
    }

    /// How much of a demand the node can do, in bytes a second: by its annotation, or else by its exporter; `None`
    /// where neither says it.
    fn speed(&self, resolved: &ResolvedDemand) -> Option<f64> {
        let stated = self.node.speeds.get(resolved.demand).map(|speed| speed as f64);
        let speed = stated.or_else(|| {
            let (metric, max_age) = resolved.speed?;
            self.bytes_a_second(metric, max_age).map(|(speed, _)| speed)
        });
        speed.filter(|speed| *speed > 0.0)
    }

    /// A fresh reading of a signal in bytes a second, and when it was taken.
    fn bytes_a_second(
        &self,
        metric: MetricId,
        max_age: SignedDuration,
    ) -> Option<(f64, Timestamp)> {
        let reading = self.node.readings.get(metric)?;
        let is_fresh = reading.is_fresh(self.now, max_age) && reading.value.get().is_finite();
        is_fresh.then(|| (reading.value.get() * PERCENT, reading.at))
    }

    /// The node's capacity of the metric's resource; `None` if estimates do not count for the metric.
    pub(super) fn capacity(&self, metric: &ResolvedMetric) -> Option<f64> {
        if let Some(demand) = &metric.demand {
            return self.speed(demand);
        }
        self.policy.policy.estimates.as_ref()?;
        let (resource, _) = metric.meaning.resource.zip(metric.meaning.visible_after)?;
        self.node.capacity.get(resource).filter(|capacity| *capacity > 0.0)
    }

    /// Whether the node has just joined, and the policy can estimate its load until it is measured.
    fn is_not_measured_yet(&self) -> bool {
        self.policy.policy.estimates.is_some() && self.node.joined_at(self.now).is_some()
    }

    fn reading(&self, reading: Option<Reading>, max_age: Option<SignedDuration>) -> ReadingStatus {
        match (reading, max_age) {
            (_, None) => ReadingStatus::NotFetched,
            (None, _) if self.is_not_measured_yet() => ReadingStatus::NotYet,
            (None, _) => ReadingStatus::Missing,
            (Some(reading), Some(max_age)) if reading.is_fresh(self.now, max_age) => {
                ReadingStatus::Fresh(reading)
            }
            (Some(reading), _) => ReadingStatus::Stale(reading),
        }
    }
}

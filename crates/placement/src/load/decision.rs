//! One node, one pod, one policy, one time: everything that follows from them.
//!
//! Invariant: whatever asks, the same code answers. [`Evaluation::limits`] and [`Evaluation::terms`] are
//! lazy; the verdict stops at the first limit that is not met, the score adds the terms up without
//! keeping them, and [`Evaluation::decide`] keeps all.
//!
//! The score is crane's formula: trunc(Σ over fresh metrics of 100·w·(1−u) ÷ Σ of all w) − 10·hot value,
//! clamped to 0..=100. A metric without a fresh reading keeps its weight in the divisor, so not knowing
//! costs points.

use jiff::{SignedDuration, Timestamp};

use super::{NodeLoad, PodKind, ResolvedLimit, ResolvedPolicy, ResolvedWeight, Score};
use crate::reading::{HotValueNote, Reading, is_fresh};

/// Points that each whole hot value costs: crane's 10 of 100.
const POINTS_PER_HOT_VALUE: f64 = 10.0;

/// For how long crane honours a `node_hot_value` annotation.
const CRANE_HOT_VALUE_MAX_AGE: SignedDuration = SignedDuration::from_mins(5);

/// The four things that a decision about a node's load follows from.
///
/// # Examples
///
/// ```
/// use std::sync::Arc;
///
/// use jiff::Timestamp;
/// use placement::load::{Evaluation, MetricTable, NodeLoad, PodKind, Readings, ResolvedPolicy};
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
/// let decision = Evaluation { policy: &policy, node: &node, pod: PodKind::Ordinary, now }.decide();
/// assert_eq!(decision.reasons().collect::<Vec<_>>(), ["Load[cpu_usage_avg_5m] is too high, over 0.65"]);
/// assert_eq!(decision.score.get(), 20);
/// # Ok::<(), placement::policy::PolicyError>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Evaluation<'p, 'n> {
    /// The policy in force, or one that is tried.
    pub policy: &'p ResolvedPolicy,
    /// What is known of the node.
    pub node: &'n NodeLoad,
    /// Whether limits apply to the pod.
    pub pod: PodKind,
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
    /// No sync rule fetches the metric, so that nothing says for how long a reading counts.
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

/// One limit, and what came of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LimitCheck<'a> {
    /// The limit.
    pub limit: &'a ResolvedLimit,
    /// What it was held against.
    pub reading: ReadingStatus,
    /// What came of it.
    pub outcome: LimitOutcome,
}

/// What came of one limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitOutcome {
    /// A fresh reading is at or below it.
    Met,
    /// A fresh reading is over it.
    Exceeded,
    /// There is no fresh reading: what is not known rejects no node.
    Unknown,
    /// Limits do not apply to the pod.
    Exempt,
}

/// What one metric adds to a score.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Term<'a> {
    /// The metric and its part of all weights.
    pub weight: &'a ResolvedWeight,
    /// What it was computed from.
    pub reading: ReadingStatus,
    /// Points out of 100; 0 without a fresh reading. Negative where the reading is above 1.
    pub points: f64,
}

/// Whether the node may take the pod.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Verdict<'a> {
    /// It may.
    Accepted,
    /// It may not: the first limit that is exceeded.
    Overloaded(&'a ResolvedLimit),
}

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
    /// The score.
    pub score: Score,
}

impl<'a> LoadDecision<'a> {
    /// Why the node may not take the pod: one constant text for each limit that is exceeded.
    pub fn reasons(&self) -> impl Iterator<Item = &'a str> {
        let exceeded = self.limits.iter().filter(|check| check.outcome == LimitOutcome::Exceeded);
        exceeded.map(|check| &*check.limit.reason)
    }
}

impl<'p> Evaluation<'p, '_> {
    /// Everything.
    pub fn decide(&self) -> LoadDecision<'p> {
        let limits: Vec<_> = self.limits().collect();
        let terms: Vec<_> = self.terms().collect();
        let hot_value = self.hot_value();
        let score = score(terms.iter(), hot_value);
        LoadDecision {
            verdict: first_exceeded(limits.iter().copied()),
            limits,
            terms,
            hot_value,
            score,
        }
    }

    /// Whether the node may take the pod; looks no further than the first limit that is exceeded.
    pub fn verdict(&self) -> Verdict<'p> {
        first_exceeded(self.limits())
    }

    /// The node's score alone.
    pub fn score(&self) -> Score {
        let mut points = 0.0;
        self.terms().for_each(|term| points += term.points);
        finish(points, self.hot_value())
    }

    /// Each limit of the policy in its order, checked as it is asked for.
    pub fn limits(&self) -> impl Iterator<Item = LimitCheck<'p>> {
        let this = *self;
        this.policy.limits.iter().map(move |limit| this.check(limit))
    }

    /// Each term of the score, computed as it is asked for.
    pub fn terms(&self) -> impl Iterator<Item = Term<'p>> {
        let this = *self;
        this.policy.weights.iter().map(move |weight| this.term(weight))
    }

    /// How hot recent pods make the node: what was counted here or, where it is believed and higher,
    /// crane's own count.
    pub fn hot_value(&self) -> f64 {
        let counted = self.node.recent.hot_value(self.policy.hot(), self.now) as f64;
        let fresh = |note: &HotValueNote| is_fresh(note.at, self.now, CRANE_HOT_VALUE_MAX_AGE);
        let note = self.node.crane_hot_value.filter(fresh);
        note.map_or(counted, |note| note.value.max(counted))
    }

    fn check(&self, limit: &'p ResolvedLimit) -> LimitCheck<'p> {
        let reading = self.reading(self.node.readings.get(limit.id), limit.max_age);
        let outcome = match (self.pod, reading.fresh()) {
            (PodKind::Daemon, _) => LimitOutcome::Exempt,
            (PodKind::Ordinary, None) => LimitOutcome::Unknown,
            (PodKind::Ordinary, Some(fresh)) if fresh.value.get() > limit.max => {
                LimitOutcome::Exceeded
            }
            (PodKind::Ordinary, Some(_)) => LimitOutcome::Met,
        };
        LimitCheck { limit, reading, outcome }
    }

    fn term(&self, weight: &'p ResolvedWeight) -> Term<'p> {
        let reading = self.reading(self.node.readings.get(weight.id), weight.max_age);
        let points = match reading.fresh() {
            // A weight of 0 adds nothing, whatever the value: 0 times infinity is no number.
            Some(fresh) if weight.share > 0.0 => 100.0 * weight.share * (1.0 - fresh.value.get()),
            _ => 0.0,
        };
        Term { weight, reading, points }
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

fn first_exceeded<'a>(mut limits: impl Iterator<Item = LimitCheck<'a>>) -> Verdict<'a> {
    let exceeded = limits.find(|check| check.outcome == LimitOutcome::Exceeded);
    exceeded.map_or(Verdict::Accepted, |check| Verdict::Overloaded(check.limit))
}

fn score<'t, 'a: 't>(terms: impl Iterator<Item = &'t Term<'a>>, hot_value: f64) -> Score {
    let mut points = 0.0;
    terms.for_each(|term| points += term.points);
    finish(points, hot_value)
}

fn finish(points: f64, hot_value: f64) -> Score {
    // Dividing before adding leaves rounding dust below a whole point, which truncation would turn
    // into a lost point.
    let load = (points + 1e-9).trunc();
    Score::truncated(load - (POINTS_PER_HOT_VALUE * hot_value).trunc())
}

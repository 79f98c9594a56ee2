//! When a node's readings are written where their readers see them.
//!
//! Readings are polled often and written seldom: each write of a Node makes kube-scheduler retry every pod that an extender
//! rejected. [`NodeWriteRules::reason`] tells from what is written and what was polled since whether a write is worth it, and
//! [`WriteReason::urgency`] how long it can wait. Invariants: what readers hold of a limit is never wrong for longer than a poll and what
//! [`Urgency::Soon`] lasts; a written reading never expires for its readers while a newer one is at hand.

mod rules;

use jiff::{SignedDuration, Timestamp};

pub use self::rules::{NodeWriteRules, WriteRules};
use crate::reading::{HOT_VALUE_MAX_AGE, HotValueNote, Reading, is_fresh};
use crate::units::MetricName;

/// How much earlier than it must a reading is renewed: so long the writer may be gone, as while another takes over, before
/// the first reading expires.
pub const MARGIN: SignedDuration = SignedDuration::from_mins(1);

/// How much earlier than it must a hot value is renewed: a burst of writes takes some seconds, and clocks differ by some.
const HOT_VALUE_MARGIN: SignedDuration = SignedDuration::from_secs(15);

/// The dead band unless another is set. In the closed loop (bench/closed-loop, S40, seeds 1 to 5) node-minutes above 80% were
/// 0.65 of those of crane's plugin where each reading was written (60 times an hour), 0.68 with 0.03 (14 times) and 0.71
/// with this one (11 times).
pub const DEFAULT_DEAD_BAND: f64 = 0.05;

/// What is known of one node: as last written, or as just polled.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct NodeValues<'a> {
    /// Each metric's reading, once each.
    pub readings: &'a [(MetricName, Reading)],
    /// The hot value; `None` where it is not known or not written. Written and missing is 0 to its readers.
    pub hot_value: Option<HotValueNote>,
}

impl NodeValues<'_> {
    /// The reading of a metric.
    #[must_use]
    pub fn get(&self, metric: &MetricName) -> Option<Reading> {
        let found = self.readings.iter().find(|(other, _)| other == metric);
        found.map(|(_, reading)| *reading)
    }
}

/// Why a node is to be written. In the order of urgency.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum WriteReason {
    /// Readers have no reading of a metric that counts, and there is one now.
    First,
    /// A metric is on the other side of one of its limits than what is written, or of the line below it where a taint is cleared.
    Crossed,
    /// What is written would expire for its readers before the next chance to write.
    Expiring,
    /// The hot value has risen, or would expire while it is not 0.
    Heat,
    /// A metric has moved by more than the dead band.
    Moved,
}

impl WriteReason {
    /// Every reason.
    pub const ALL: [Self; 5] =
        [Self::First, Self::Crossed, Self::Expiring, Self::Heat, Self::Moved];

    /// A word for metrics, such as `crossed`.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Crossed => "crossed",
            Self::Expiring => "expiring",
            Self::Heat => "heat",
            Self::Moved => "moved",
        }
    }

    /// How long the write can wait for others, to be made with them.
    #[must_use]
    pub fn urgency(self) -> Urgency {
        match self {
            Self::First | Self::Expiring => Urgency::AtOnce,
            Self::Crossed => Urgency::Soon,
            Self::Heat | Self::Moved => Urgency::NextBurst,
        }
    }
}

/// How long a write can wait. The most urgent first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// Not at all: readers lack a reading, or are about to.
    AtOnce,
    /// Some seconds. Nodes that hover around a limit cross it at any time, and each write for itself would make kube-scheduler retry
    /// all rejected pods.
    Soon,
    /// Until the next burst.
    NextBurst,
}

impl NodeWriteRules {
    /// Why the node should be written at `now`, the most urgent reason; `None` where it need not be. `next_chance` is the
    /// time of the next write if there is none now. A metric that was not polled since it was written is no reason.
    ///
    /// # Examples
    ///
    /// ```
    /// use jiff::{SignedDuration, Timestamp};
    /// use placement::policy::LoadPolicy;
    /// use placement::publish::{NodeValues, WriteReason, WriteRules};
    /// use placement::reading::ReadingCodec;
    ///
    /// let policy = LoadPolicy::from_yaml(
    ///     "
    /// apiVersion: plimsoll.dev/v1alpha1
    /// kind: SchedulingPolicy
    /// spec:
    ///   metrics: [{name: cpu_usage_avg_5m, period: 1m, maxAge: 8m, limit: 0.8, weight: 1}]
    /// ",
    /// )?;
    /// let rules = WriteRules::new(&policy, 0.05, None);
    /// let written = [("cpu_usage_avg_5m".into(), ReadingCodec::default().decode("0.76,2026-11-20T09:00:00Z")?)];
    /// let reason = |polled: &str| {
    ///     let polled = ReadingCodec::default().decode(polled).ok()?;
    ///     let now = polled.at;
    ///     let polled = [("cpu_usage_avg_5m".into(), polled)];
    ///     let [written, polled] = [&written, &polled].map(|readings| NodeValues { readings, hot_value: None });
    ///     let rules = rules.of(&Default::default());
    ///     rules.reason(written, polled, now, now + SignedDuration::from_mins(1))
    /// };
    /// assert_eq!(reason("0.79,2026-11-20T09:02:00Z"), None);
    /// assert_eq!(reason("0.81,2026-11-20T09:02:00Z"), Some(WriteReason::Crossed));
    /// assert_eq!(reason("0.70,2026-11-20T09:02:00Z"), Some(WriteReason::Moved));
    /// assert_eq!(reason("0.79,2026-11-20T09:07:00Z"), Some(WriteReason::Expiring));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn reason(
        &self,
        written: NodeValues<'_>,
        polled: NodeValues<'_>,
        now: Timestamp,
        next_chance: Timestamp,
    ) -> Option<WriteReason> {
        let until = |margin| next_chance.checked_add(margin).unwrap_or(Timestamp::MAX);
        let (readings_until, heat_until) = (until(MARGIN), until(HOT_VALUE_MARGIN));
        let of_metric = |rule: &rules::MetricRule| {
            let polled = polled.get(&rule.metric)?.as_written();
            let written = written.get(&rule.metric).map(Reading::as_written);
            self.of_metric(rule, written, polled, now, readings_until)
        };
        let of_metrics = self.metrics.iter().filter_map(of_metric);
        of_metrics.chain(heat(written.hot_value, polled.hot_value, now, heat_until)).min()
    }

    /// Whether readers that hold `written` reject the node for a limit, or did so until it expired, and those that hold
    /// `polled` do not at `now`. Pods that were rejected for it wait until something makes kube-scheduler try again.
    #[must_use]
    pub fn has_cooled(
        &self,
        written: NodeValues<'_>,
        polled: NodeValues<'_>,
        now: Timestamp,
    ) -> bool {
        let is_over = |rule: &rules::MetricRule, reading: Reading| {
            rule.limits.iter().any(|max| reading.as_written().value.get() > *max)
        };
        let was_over = |rule: &rules::MetricRule| {
            written.get(&rule.metric).is_some_and(|reading| is_over(rule, reading))
        };
        let still_over = |rule: &rules::MetricRule| {
            let counts = polled.get(&rule.metric).filter(|it| it.is_fresh(now, rule.max_age));
            counts.is_some_and(|reading| is_over(rule, reading))
        };
        self.metrics.iter().any(was_over) && !self.metrics.iter().any(still_over)
    }

    fn of_metric(
        &self,
        rule: &rules::MetricRule,
        written: Option<Reading>,
        polled: Reading,
        now: Timestamp,
        until: Timestamp,
    ) -> Option<WriteReason> {
        let counts = |reading: &Reading| reading.is_fresh(now, rule.max_age);
        let Some(written) = written.filter(counts) else {
            return counts(&polled).then_some(WriteReason::First);
        };
        if polled.at <= written.at {
            return None;
        }
        let (old, new) = (written.value.get(), polled.value.get());
        let mut lines = rule.limits.iter().chain(&rule.cool);
        if lines.any(|line| (old > *line) != (new > *line)) {
            return Some(WriteReason::Crossed);
        }
        if until.duration_since(written.at) >= rule.max_age {
            return Some(WriteReason::Expiring);
        }
        (rule.is_used && self.dead_band.is_left(old, new)).then_some(WriteReason::Moved)
    }
}

/// A lower hot value rides along with the next write: until then the node only looks hotter than it is.
fn heat(
    written: Option<HotValueNote>,
    polled: Option<HotValueNote>,
    now: Timestamp,
    until: Timestamp,
) -> Option<WriteReason> {
    let polled = polled?;
    let counts = |note: &HotValueNote| is_fresh(note.at, now, HOT_VALUE_MAX_AGE);
    let written = written.filter(counts);
    let risen = polled.value > written.map_or(0.0, |note| note.value);
    let expires =
        |note: HotValueNote| until.duration_since(note.at) >= HOT_VALUE_MAX_AGE && note.value > 0.0;
    let expiring = polled.value > 0.0 && written.is_some_and(expires);
    (risen || expiring).then_some(WriteReason::Heat)
}

#[cfg(test)]
mod tests;

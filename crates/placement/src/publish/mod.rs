//! When a node's readings are written to its annotations. Below, readers are the programs that use what is written:
//! other programs, and the extender where the annotator does not tell it each poll.
//!
//! Readings are polled often and written rarely: each write of a Node makes kube-scheduler retry every pod that an
//! extender rejected. [`NodeWriteRules::reason`] compares the written with the polled values and returns whether a
//! write is needed; [`WriteReason::urgency`] is how long it can wait. Invariants: whether a written reading is over a
//! limit is wrong for at most one poll and the time of [`Urgency::Soon`]; a written reading never expires for its
//! readers while a newer one was polled.

mod rules;

use jiff::{SignedDuration, Timestamp};

pub use self::rules::{NodeWriteRules, WriteRules};
use crate::reading::{HOT_VALUE_MAX_AGE, HotValueNote, Reading, is_fresh};
use crate::units::MetricName;

/// How long before it expires a reading is renewed. So the writer can stop for this long, as while another replica
/// takes over, before the first reading expires.
const RENEWAL_MARGIN: SignedDuration = SignedDuration::from_mins(1);

/// How long before it expires a hot value is renewed: a burst of writes takes some seconds, and clocks differ by some
/// seconds.
const HOT_VALUE_MARGIN: SignedDuration = SignedDuration::from_secs(15);

/// The default dead band. Extenders get each poll without a write, so what has moved is written for other readers, and
/// for extenders that have just started. A node whose readings deviate by 0.05 is written 10.0 times an hour, as a
/// steady one is, and with a dead band of 0.05 19.5 times (annotator/src/fleet/tests/writes.rs).
pub const DEFAULT_DEAD_BAND: f64 = 0.2;

/// The values of one node: as last written, or as just polled.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct NodeValues<'a> {
    /// The readings, one for each metric.
    pub readings: &'a [(MetricName, Reading)],
    /// The hot value; `None` if it is not known or not written. Readers take a missing one as 0.
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

/// Why a node has to be written, the most urgent reason first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum WriteReason {
    /// The written reading of a metric is missing or stale, and a fresh one was polled.
    First,
    /// The polled and the written reading are on different sides of a limit, or of the line below it where a taint is
    /// cleared.
    Crossed,
    /// The written reading would expire for its readers before the next chance to write.
    Expiring,
    /// The hot value has risen, or a written one above 0 would expire.
    HotValue,
    /// A metric has changed by more than the dead band.
    Moved,
}

impl WriteReason {
    /// Every reason.
    pub const ALL: [Self; 5] =
        [Self::First, Self::Crossed, Self::Expiring, Self::HotValue, Self::Moved];

    /// The label value in metrics, such as `crossed`.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Crossed => "crossed",
            Self::Expiring => "expiring",
            Self::HotValue => "heat",
            Self::Moved => "moved",
        }
    }

    /// How long the write can wait, so that other changes are written together with it.
    #[must_use]
    pub fn urgency(self) -> Urgency {
        match self {
            Self::First | Self::Expiring => Urgency::AtOnce,
            Self::Crossed => Urgency::Soon,
            Self::HotValue | Self::Moved => Urgency::NextBurst,
        }
    }
}

/// How long a write can wait. The most urgent first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// Not at all: a written reading is missing or about to expire.
    AtOnce,
    /// Some seconds. Nodes with a load near a limit cross it often, and each single write would make kube-scheduler
    /// retry all rejected pods.
    Soon,
    /// Until the next burst.
    NextBurst,
}

impl NodeWriteRules {
    /// The most urgent reason to write the node at `now`; `None` if there is none. `next_chance` is the time of the
    /// next write if there is none now. A metric that was not polled since it was written is no reason.
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
    ///     let reading = ReadingCodec::default().decode(polled).ok()?;
    ///     let polled = [("cpu_usage_avg_5m".into(), reading)];
    ///     let [written, polled] = [&written, &polled].map(|readings| NodeValues { readings, hot_value: None });
    ///     let next_chance = reading.at + SignedDuration::from_mins(1);
    ///     rules.of(&Default::default()).reason(written, polled, reading.at, next_chance)
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
        let readings_until = next_chance.checked_add(RENEWAL_MARGIN).unwrap_or(Timestamp::MAX);
        let hot_value_until = next_chance.checked_add(HOT_VALUE_MARGIN).unwrap_or(Timestamp::MAX);
        let of_metric = |rule: &rules::MetricRule| {
            let new = polled.get(&rule.metric)?.as_written();
            let old = written.get(&rule.metric).map(Reading::as_written);
            self.metric_reason(rule, old, new, now, readings_until)
        };
        let hot_value = hot_value_reason(written.hot_value, polled.hot_value, now, hot_value_until);
        self.metrics.iter().filter_map(of_metric).chain(hot_value).min()
    }

    fn metric_reason(
        &self,
        rule: &rules::MetricRule,
        written: Option<Reading>,
        polled: Reading,
        now: Timestamp,
        until: Timestamp,
    ) -> Option<WriteReason> {
        let Some(written) = written.filter(|written| written.is_fresh(now, rule.max_age)) else {
            return polled.is_fresh(now, rule.max_age).then_some(WriteReason::First);
        };
        if polled.at <= written.at {
            return None;
        }
        let old = written.value.get();
        let new = polled.value.get();
        let is_crossed = |line: &f64| (old > *line) != (new > *line);
        if rule.limits.iter().chain(&rule.taint_clear_lines).any(is_crossed) {
            return Some(WriteReason::Crossed);
        }
        if until.duration_since(written.at) >= rule.max_age {
            return Some(WriteReason::Expiring);
        }
        (rule.is_used && self.dead_band.is_exceeded(old, new)).then_some(WriteReason::Moved)
    }
}

/// The reason to write the hot value. A lower hot value is no reason: it is written with the next write, and until then
/// the node only looks more loaded than it is.
fn hot_value_reason(
    written: Option<HotValueNote>,
    polled: Option<HotValueNote>,
    now: Timestamp,
    until: Timestamp,
) -> Option<WriteReason> {
    let polled = polled?;
    let fresh = written.filter(|note| is_fresh(note.at, now, HOT_VALUE_MAX_AGE));
    let risen = polled.value > fresh.map_or(0.0, |note| note.value);
    let expires =
        |note: HotValueNote| until.duration_since(note.at) >= HOT_VALUE_MAX_AGE && note.value > 0.0;
    let expiring = polled.value > 0.0 && fresh.is_some_and(expires);
    (risen || expiring).then_some(WriteReason::HotValue)
}

#[cfg(test)]
mod tests;

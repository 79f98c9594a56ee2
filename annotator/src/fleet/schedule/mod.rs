//! When one node is polled, by the periods of its metrics. Pure arithmetic; `now` is a parameter.
//!
//! The ticks of a metric lie one period apart, at a phase that follows from the node's name. Invariants: ticks never
//! move, so a restart changes nothing; the phases of nodes are spread over the period; where one period divides
//! another, every tick of the longer one is a tick of the shorter one, so one poll serves both. A metric that was never
//! read, or not since the node booted, is due at once.

use jiff::{SignedDuration, Timestamp};
use placement::fnv;
use placement::policy::{GRACE, LoadPolicy};
use placement::reading::is_far_ahead;
use placement::units::{MetricName, NodeName};

use super::retry::Retry;

/// A boot counts only if it is this much later than the last one. This bounds the polls and writes that an exporter can
/// cause by always reporting a short uptime, and absorbs the rounding of uptimes.
const MIN_BOOT_GAP: SignedDuration = SignedDuration::from_mins(5);

/// How long before it expires a reading must be polled again: the time to write the new one, and to try once more.
const BEFORE_EXPIRY: SignedDuration = SignedDuration::from_mins(1);

/// The ticks of one node and one period, in whole seconds since the epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Grid {
    period: i64,
    phase: i64,
}

impl Grid {
    /// The period is at least one second, since timestamps in annotations have no fractions.
    pub(super) fn new(node: &NodeName, period: SignedDuration) -> Self {
        let seconds = period.as_secs().max(1);
        Self { period: seconds, phase: hash(node.as_str()).rem_euclid(seconds) }
    }

    /// A poll serves the ticks up to this many seconds after it: a tenth of a period.
    pub(super) fn slack(self) -> i64 {
        self.period / 10
    }

    /// The last tick that a poll at `second` serves.
    fn served_tick(self, second: i64) -> i64 {
        let reach = second.saturating_add(self.slack());
        reach - (reach - self.phase).rem_euclid(self.period)
    }

    /// The first tick that a poll at `read` does not serve.
    pub(super) fn due(self, read: Option<Timestamp>) -> Timestamp {
        let Some(read) = read else { return Timestamp::MIN };
        let tick = self.served_tick(read.as_second()) + self.period;
        Timestamp::from_second(tick).unwrap_or(Timestamp::MAX)
    }
}

/// The high half of FNV-1a, which is mixed better than the low half.
fn hash(text: &str) -> i64 {
    i64::from((fnv::hash(text.as_bytes()) >> 32) as u32)
}

/// One metric of one node.
#[derive(Debug, Clone)]
struct Entry {
    metric: MetricName,
    grid: Grid,
    /// How long a reading counts.
    max_age: SignedDuration,
    /// The time of the newest reading: on the node, or polled since.
    read_at: Option<Timestamp>,
    /// Back-off after answers without a usable value of this metric.
    retry: Retry,
}

/// The metrics of one node, each with the time of its newest reading.
#[derive(Debug, Clone)]
pub struct Schedule {
    entries: Vec<Entry>,
    /// When the node booted, by the annotator's clock; `None` if its exporter does not report an uptime.
    booted_at: Option<Timestamp>,
}

impl Schedule {
    /// The metrics of the policy's sync rules. If a metric has several rules the first one counts, as in crane.
    #[must_use]
    pub fn new(node: &NodeName, policy: &LoadPolicy) -> Self {
        let mut entries: Vec<Entry> = Vec::with_capacity(policy.sync.len());
        for rule in &policy.sync {
            if entries.iter().all(|entry| entry.metric != rule.metric) {
                let default_age = rule.period.saturating_add(GRACE);
                entries.push(Entry {
                    metric: rule.metric.clone(),
                    grid: Grid::new(node, rule.period),
                    max_age: policy.max_age(&rule.metric).unwrap_or(default_age),
                    read_at: None,
                    retry: Retry::default(),
                });
            }
        }
        Self { entries, booted_at: None }
    }

    /// The schedule of the same node under another policy, with the times of the readings.
    pub(crate) fn with_policy(&self, node: &NodeName, policy: &LoadPolicy) -> Self {
        let mut schedule = Self { booted_at: self.booted_at, ..Self::new(node, policy) };
        for entry in &mut schedule.entries {
            entry.read_at = self.find(&entry.metric).and_then(|known| known.read_at);
        }
        schedule
    }

    /// The metrics.
    pub fn metrics(&self) -> impl Iterator<Item = &MetricName> {
        self.entries.iter().map(|entry| &entry.metric)
    }

    /// Whether it has the metric.
    pub(crate) fn has(&self, metric: &MetricName) -> bool {
        self.find(metric).is_some()
    }

    /// A poll at `at` gave a usable value.
    pub(crate) fn record_poll(&mut self, metric: &MetricName, at: Timestamp) {
        if let Some(entry) = self.find_mut(metric) {
            entry.read_at = Some(at);
            entry.retry.record_success();
        }
    }

    /// The watch shows a reading with the time `at` on the node. It may be older than the last poll. A time far ahead
    /// of `now` was not written by this program and is ignored.
    pub(crate) fn observe(&mut self, metric: &MetricName, at: Timestamp, now: Timestamp) {
        if is_far_ahead(at, now) {
            return;
        }
        if let Some(entry) = self.find_mut(metric) {
            entry.read_at = entry.read_at.max(Some(at));
        }
    }

    /// Metrics count as polled at `now` if their newest reading is valid until they are polled again after that.
    pub(crate) fn count_as_polled(&mut self, now: Timestamp) {
        for entry in &mut self.entries {
            let Some(read_at) = entry.read_at else { continue };
            let next = entry.grid.due(Some(now.max(read_at)));
            if next.duration_since(read_at).saturating_add(BEFORE_EXPIRY) <= entry.max_age {
                entry.read_at = Some(read_at.max(now));
            }
        }
    }

    /// The answer of a poll at `at` did not have the metric. It is polled again after at most `longest`, if that is
    /// given and shorter than the back-off.
    pub(crate) fn record_missing(
        &mut self,
        metric: &MetricName,
        at: Timestamp,
        longest: Option<SignedDuration>,
    ) {
        if let Some(entry) = self.find_mut(metric) {
            entry.retry.record_failure_within(at, longest.unwrap_or(SignedDuration::MAX));
        }
    }

    /// An exporter's answer shows that the node booted at `at`, by the annotator's clock. Metrics with earlier readings
    /// are due.
    pub(crate) fn record_boot(&mut self, at: Timestamp) {
        if self.booted_at.is_none_or(|known| at.duration_since(known) > MIN_BOOT_GAP) {
            self.booted_at = Some(at);
        }
    }

    /// The answer of a poll at `at` had a value that will not be usable before `wait` has passed. The metric is polled
    /// again then, or one period later if that is earlier, since the exporter may have recovered its samples. If waits
    /// end without a usable value, as on an exporter that loses half of its samples, a back-off applies, up to 2
    /// minutes.
    pub(crate) fn hold_back(&mut self, metric: &MetricName, at: Timestamp, wait: SignedDuration) {
        if let Some(entry) = self.find_mut(metric) {
            let longest = SignedDuration::from_secs(entry.grid.period);
            entry.retry.wait(at, wait.clamp(SignedDuration::from_secs(1), longest));
        }
    }

    /// The clock was set back, so the ends of waits may be far ahead: all waits are dropped.
    pub(crate) fn drop_waits(&mut self) {
        self.booted_at = None;
        self.entries.iter_mut().for_each(|entry| entry.retry.record_success());
    }

    /// When the node should be polled next; `None` if the policy has no sync rule.
    #[must_use]
    pub fn next(&self, now: Timestamp) -> Option<Timestamp> {
        self.entries.iter().map(|entry| self.due(entry, now).max(entry.retry.not_before())).min()
    }

    /// When the node booted, by the annotator's clock; `None` if its exporter does not report an uptime.
    pub(crate) fn booted_at(&self) -> Option<Timestamp> {
        self.booted_at
    }

    /// The shortest period; `None` if the policy has no sync rule.
    pub(crate) fn shortest_period(&self) -> Option<SignedDuration> {
        self.entries.iter().map(|entry| entry.grid.period).min().map(SignedDuration::from_secs)
    }

    /// Whether there are readings on the node, and all of them have been due for longer than `span`.
    pub(super) fn is_overdue(&self, now: Timestamp, span: SignedDuration) -> bool {
        let latest = self.entries.iter().map(|entry| self.due(entry, now)).max();
        latest.is_some_and(|due| due > Timestamp::MIN && now.duration_since(due) > span)
    }

    /// When a metric is due. Readings from before the node's boot, or far in the future, are ignored.
    fn due(&self, entry: &Entry, now: Timestamp) -> Timestamp {
        let read_at = entry.read_at.filter(|at| {
            !is_far_ahead(*at, now) && self.booted_at.is_none_or(|booted_at| booted_at <= *at)
        });
        entry.grid.due(read_at)
    }

    fn find(&self, metric: &MetricName) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.metric == *metric)
    }

    fn find_mut(&mut self, metric: &MetricName) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|entry| entry.metric == *metric)
    }
}

#[cfg(test)]
mod tests;

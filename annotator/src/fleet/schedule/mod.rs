//! When each metric of one node is due. Pure arithmetic; `now` is a parameter.
//!
//! The ticks of a metric lie one period apart, at a phase that follows from the node's name. Invariants: ticks never
//! move, so a restart changes nothing; the phases of nodes are spread over the period; where one period divides another,
//! every tick of the longer one is a tick of the shorter one, so one poll serves both. A metric that was never written is
//! due at once.

use jiff::{SignedDuration, Timestamp};
use placement::policy::LoadPolicy;
use placement::units::{MetricName, NodeName};

use super::retry::Retry;

/// A reading whose time is further ahead than this was written by a wrong clock or in another time zone. It counts as
/// never written.
const MAX_CLOCK_SKEW: SignedDuration = SignedDuration::from_mins(1);

/// The ticks of one node and one period, in whole seconds since the epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Grid {
    period: i64,
    phase: i64,
}

impl Grid {
    /// The period is at least one second, since timestamps in annotations have no fractions.
    fn new(node: &NodeName, period: SignedDuration) -> Self {
        let period = period.as_secs().max(1);
        Self { period, phase: hash(node.as_str()).rem_euclid(period) }
    }

    /// A write serves the ticks up to this many seconds after it: a tenth of a period.
    fn slack(self) -> i64 {
        self.period / 10
    }

    /// The last tick that a write at `second` serves.
    fn served(self, second: i64) -> i64 {
        let reach = second.saturating_add(self.slack());
        reach - (reach - self.phase).rem_euclid(self.period)
    }

    /// The first tick that a write at `written` does not serve.
    fn due(self, written: Option<Timestamp>) -> Timestamp {
        let Some(written) = written else { return Timestamp::MIN };
        let tick = self.served(written.as_second()) + self.period;
        Timestamp::from_second(tick).unwrap_or(Timestamp::MAX)
    }
}

/// The high half of FNV-1a, which is mixed better than the low half. It must be the same on every machine and in every
/// release; the hashers of `std` do not promise that.
fn hash(text: &str) -> i64 {
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    i64::from((hash >> 32) as u32)
}

/// One metric of one node.
#[derive(Debug, Clone)]
struct Entry {
    metric: MetricName,
    grid: Grid,
    /// The time of the reading on the node.
    written: Option<Timestamp>,
    /// Back-off after answers without a usable value of this metric.
    retry: Retry,
}

impl Entry {
    fn due(&self, now: Timestamp) -> Timestamp {
        self.grid.due(self.written.filter(|at| at.duration_since(now) <= MAX_CLOCK_SKEW))
    }

    /// When the node should be polled for this metric.
    fn poll_at(&self, now: Timestamp) -> Timestamp {
        self.due(now).max(self.retry.not_before())
    }

    /// Whether a poll at `now` should include this metric.
    fn is_wanted(&self, now: Timestamp) -> bool {
        let slack = SignedDuration::from_secs(self.grid.slack());
        self.due(now).duration_since(now) <= slack
    }
}

/// The metrics of one node, each with the time at which it was last written.
#[derive(Debug, Clone)]
pub struct Schedule(Vec<Entry>);

impl Schedule {
    /// The metrics of the policy's sync rules. Where a metric has several rules the first one counts, as in crane.
    #[must_use]
    pub fn new(node: &NodeName, policy: &LoadPolicy) -> Self {
        let mut entries: Vec<Entry> = Vec::with_capacity(policy.sync.len());
        for rule in &policy.sync {
            if entries.iter().all(|entry| entry.metric != rule.metric) {
                let (metric, grid) = (rule.metric.clone(), Grid::new(node, rule.period));
                entries.push(Entry { metric, grid, written: None, retry: Retry::default() });
            }
        }
        Self(entries)
    }

    /// The schedule of the same node under another policy, with the times of the readings that are on the node.
    #[must_use]
    pub fn under(&self, node: &NodeName, policy: &LoadPolicy) -> Self {
        let mut schedule = Self::new(node, policy);
        for entry in &mut schedule.0 {
            entry.written = self.find(&entry.metric).and_then(|known| known.written);
        }
        schedule
    }

    /// The metrics.
    pub fn metrics(&self) -> impl Iterator<Item = &MetricName> {
        self.0.iter().map(|entry| &entry.metric)
    }

    /// A reading with the time `at` was written.
    pub fn written(&mut self, metric: &MetricName, at: Timestamp) {
        if let Some(entry) = self.find_mut(metric) {
            entry.written = Some(at);
            entry.retry.succeeded();
        }
    }

    /// The watch shows a reading with the time `at` on the node. It may be older than what was written since.
    pub fn observed(&mut self, metric: &MetricName, at: Timestamp) {
        if let Some(entry) = self.find_mut(metric) {
            entry.written = entry.written.max(Some(at));
        }
    }

    /// The answer of a poll at `at` held no usable value of the metric.
    pub fn missing(&mut self, metric: &MetricName, at: Timestamp) {
        if let Some(entry) = self.find_mut(metric) {
            entry.retry.failed(at);
        }
    }

    /// The answer of a poll at `at` held a value that will not be usable before `wait` has passed. The metric is polled
    /// for again then, or one period later if that is earlier, since the exporter may have recovered its samples.
    pub fn held_back(&mut self, metric: &MetricName, at: Timestamp, wait: SignedDuration) {
        if let Some(entry) = self.find_mut(metric) {
            let longest = SignedDuration::from_secs(entry.grid.period);
            let wait = wait.clamp(SignedDuration::from_secs(1), longest);
            entry.retry.wait_until(at.checked_add(wait).unwrap_or(Timestamp::MAX));
        }
    }

    /// The clock was set back, so any time that is waited for may be far ahead: nothing is waited for.
    pub fn clock_set_back(&mut self) {
        self.0.iter_mut().for_each(|entry| entry.retry.succeeded());
    }

    /// When the node should be polled next; `None` where the policy has no sync rule.
    #[must_use]
    pub fn next(&self, now: Timestamp) -> Option<Timestamp> {
        self.0.iter().map(|entry| entry.poll_at(now)).min()
    }

    /// The metrics that a poll at `now` should write: those that are due, and those due within a tenth of their period.
    #[must_use]
    pub fn wanted(&self, now: Timestamp) -> Vec<MetricName> {
        let wanted = self.0.iter().filter(|entry| entry.is_wanted(now));
        wanted.map(|entry| entry.metric.clone()).collect()
    }

    /// Whether there are readings on the node, and all of them have been due for longer than `span`.
    pub(super) fn is_overdue(&self, now: Timestamp, span: SignedDuration) -> bool {
        let written = self.0.iter().map(|entry| entry.due(now)).filter(|due| *due > Timestamp::MIN);
        written.max().is_some_and(|latest| now.duration_since(latest) > span)
    }

    fn find(&self, metric: &MetricName) -> Option<&Entry> {
        self.0.iter().find(|entry| entry.metric == *metric)
    }

    fn find_mut(&mut self, metric: &MetricName) -> Option<&mut Entry> {
        self.0.iter_mut().find(|entry| entry.metric == *metric)
    }
}

#[cfg(test)]
mod tests;

//! Which metrics of a node are due, and when: arithmetic on a grid of ticks, without a clock.
//!
//! Invariants: the ticks of a node and a period never move, so a restart changes nothing; they lie
//! spread over the period from node to node; where one period divides another, every tick of the
//! longer is one of the shorter, so that both share a poll. What was never written is due at once.

use jiff::{SignedDuration, Timestamp};
use placement::policy::LoadPolicy;
use placement::units::{MetricName, NodeName};

use crate::retry::Retry;

/// A time further ahead than this was written by a wrong clock or in another time zone.
const AHEAD: SignedDuration = SignedDuration::from_mins(1);

/// The ticks of one node and one period, in whole seconds since the epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Grid {
    period: i64,
    phase: i64,
}

impl Grid {
    /// A period is at least a second: timestamps in annotations have no fractions.
    fn new(node: &NodeName, period: SignedDuration) -> Self {
        let period = period.as_secs().max(1);
        Self { period, phase: spread(node.as_str()).rem_euclid(period) }
    }

    /// A write serves the ticks up to a tenth of a period after it.
    fn slack(self) -> i64 {
        self.period / 10
    }

    /// The last tick that a write at `second` serves.
    fn served(self, second: i64) -> i64 {
        let reach = second.saturating_add(self.slack());
        reach - (reach - self.phase).rem_euclid(self.period)
    }

    /// The first tick that a write at `written` leaves unserved.
    fn due(self, written: Option<Timestamp>) -> Timestamp {
        let Some(written) = written else { return Timestamp::MIN };
        let tick = self.served(written.as_second()) + self.period;
        Timestamp::from_second(tick).unwrap_or(Timestamp::MAX)
    }
}

/// FNV-1a: the same on every machine and in every release, which `std`'s hashers do not promise.
fn spread(text: &str) -> i64 {
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    // The high half is the better mixed one.
    i64::from((hash >> 32) as u32)
}

/// One metric of one node.
#[derive(Debug, Clone)]
struct Entry {
    metric: MetricName,
    grid: Grid,
    written: Option<Timestamp>,
    /// Where the exporter answers, but without this metric.
    absent: Retry,
}

impl Entry {
    /// A time from the future counts for nothing, or the node would starve until then.
    fn due(&self, now: Timestamp) -> Timestamp {
        self.grid.due(self.written.filter(|at| at.duration_since(now) <= AHEAD))
    }

    /// When the metric by itself is worth a poll.
    fn worth_a_poll(&self, now: Timestamp) -> Timestamp {
        self.due(now).max(self.absent.not_before())
    }

    /// Whether a poll made anyway should serve it.
    fn rides_along(&self, now: Timestamp) -> bool {
        let slack = SignedDuration::from_secs(self.grid.slack());
        self.due(now).duration_since(now) <= slack
    }
}

/// The metrics of one node, each with the time at which it was last written.
#[derive(Debug, Clone)]
pub struct Dues(Vec<Entry>);

impl Dues {
    /// The metrics that `policy` has fetched; the first rule of a name counts, as in crane.
    #[must_use]
    pub fn new(node: &NodeName, policy: &LoadPolicy) -> Self {
        let mut entries: Vec<Entry> = Vec::with_capacity(policy.sync.len());
        for rule in &policy.sync {
            if entries.iter().all(|entry| entry.metric != rule.metric) {
                let (metric, grid) = (rule.metric.clone(), Grid::new(node, rule.period));
                entries.push(Entry { metric, grid, written: None, absent: Retry::default() });
            }
        }
        Self(entries)
    }

    /// The same metrics under another policy: what was written stays written.
    #[must_use]
    pub fn under(&self, node: &NodeName, policy: &LoadPolicy) -> Self {
        let mut dues = Self::new(node, policy);
        for entry in &mut dues.0 {
            entry.written = self.find(&entry.metric).and_then(|known| known.written);
        }
        dues
    }

    /// The metrics.
    pub fn metrics(&self) -> impl Iterator<Item = &MetricName> {
        self.0.iter().map(|entry| &entry.metric)
    }

    /// The metric was written at that time.
    pub fn written(&mut self, metric: &MetricName, at: Timestamp) {
        if let Some(entry) = self.find_mut(metric) {
            entry.written = Some(at);
            entry.absent.succeeded();
        }
    }

    /// The metric is on the node with that time. An older time than we know of is an echo.
    pub fn observed(&mut self, metric: &MetricName, at: Timestamp) {
        if let Some(entry) = self.find_mut(metric) {
            entry.written = entry.written.max(Some(at));
        }
    }

    /// The metric was asked for at that time, and was not in the answer.
    pub fn absent(&mut self, metric: &MetricName, at: Timestamp) {
        if let Some(entry) = self.find_mut(metric) {
            entry.absent.failed(at);
        }
    }

    /// The metric was asked for at that time, and will not be written for so long. It is asked for
    /// again at its next tick at the latest: how the exporter fares may have changed by then.
    pub fn held_back(&mut self, metric: &MetricName, at: Timestamp, wait: SignedDuration) {
        if let Some(entry) = self.find_mut(metric) {
            let longest = SignedDuration::from_secs(entry.grid.period);
            let wait = wait.clamp(SignedDuration::from_secs(1), longest);
            entry.absent.wait_until(at.checked_add(wait).unwrap_or(Timestamp::MAX));
        }
    }

    /// The clock was set back: times that were noted to wait for may be far ahead.
    pub fn clock_set_back(&mut self) {
        self.0.iter_mut().for_each(|entry| entry.absent.succeeded());
    }

    /// When the node is next worth a poll; `None` where the policy fetches nothing.
    #[must_use]
    pub fn next(&self, now: Timestamp) -> Option<Timestamp> {
        self.0.iter().map(|entry| entry.worth_a_poll(now)).min()
    }

    /// The metrics that a poll at `now` should serve.
    #[must_use]
    pub fn wanted(&self, now: Timestamp) -> Vec<MetricName> {
        let wanted = self.0.iter().filter(|entry| entry.rides_along(now));
        wanted.map(|entry| entry.metric.clone()).collect()
    }

    fn find(&self, metric: &MetricName) -> Option<&Entry> {
        self.0.iter().find(|entry| entry.metric == *metric)
    }

    fn find_mut(&mut self, metric: &MetricName) -> Option<&mut Entry> {
        self.0.iter_mut().find(|entry| entry.metric == *metric)
    }
}

#[cfg(test)]
#[path = "due_tests.rs"]
mod tests;

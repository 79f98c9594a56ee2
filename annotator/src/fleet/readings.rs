//! The readings of one node: as written, as polled, and whether a write is due.
//!
//! Invariants: readings from the watch count like readings that this process wrote, so a restart writes nothing; a reading is never
//! replaced by an older one; a polled reading is kept until a newer one, so every write holds all readings.

use std::sync::Arc;

use jiff::Timestamp;
use placement::publish::{NodeWriteRules, Urgency, WriteReason};
use placement::reading::{HotValueNote, Reading, is_far_ahead};
use placement::units::MetricName;

use super::write_plan::{Write, WritePlan};

/// The readings of one node.
#[derive(Debug, Clone)]
pub(crate) struct NodeReadings {
    rules: Arc<NodeWriteRules>,
    written: Vec<(MetricName, Reading)>,
    /// The metrics that the watch shows.
    shown: Vec<MetricName>,
    written_hot_value: Option<HotValueNote>,
    polled: Vec<(MetricName, Reading)>,
    /// Whether the last poll gave a reading that is not written yet.
    unwritten: bool,
    /// A write is due at that time: in a burst, soon after a limit was crossed, or at once after a failed patch.
    due: Option<(WriteReason, Timestamp)>,
    /// There was a burst while a job was in flight.
    missed_burst: bool,
    /// Polls whose readings were replaced by newer ones before they were written.
    writes_saved: u64,
}

impl NodeReadings {
    /// No readings written or polled.
    pub(crate) fn new(rules: Arc<NodeWriteRules>) -> Self {
        Self {
            rules,
            written: Vec::new(),
            shown: Vec::new(),
            written_hot_value: None,
            polled: Vec::new(),
            unwritten: false,
            due: None,
            missed_burst: false,
            writes_saved: 0,
        }
    }

    /// Sets the rules, as after a change of the policy or of the node's labels. Polled readings of metrics that `keeps`
    /// excludes are dropped.
    pub(crate) fn set_rules(
        &mut self,
        rules: &Arc<NodeWriteRules>,
        keeps: impl Fn(&MetricName) -> bool,
    ) {
        if !Arc::ptr_eq(&self.rules, rules) {
            self.rules = Arc::clone(rules);
            self.polled.retain(|(metric, _)| keeps(metric));
            self.due = self.due.filter(|_| !self.polled.is_empty());
        }
    }

    /// The watch shows readings of exactly these metrics. A metric that it showed before is no longer on the node.
    pub(crate) fn shown<'m>(&mut self, metrics: impl Iterator<Item = &'m MetricName> + Clone) {
        // Most changes of a node are its kubelet's heartbeats.
        if metrics.clone().eq(&self.shown) {
            return;
        }
        let now: Vec<MetricName> = metrics.cloned().collect();
        let before = std::mem::replace(&mut self.shown, now);
        let is_gone = |metric: &MetricName| before.contains(metric) && !self.shown.contains(metric);
        self.written.retain(|(metric, _)| !is_gone(metric));
    }

    /// The watch shows a reading on the node. A time far ahead of `now` comes from a wrong clock and is ignored.
    pub(crate) fn observed(&mut self, metric: &MetricName, reading: Reading, now: Timestamp) {
        if !is_far_ahead(reading.at, now) {
            keep_newer(&mut self.written, metric, reading);
        }
        if self.due.is_some() && self.is_on_node() {
            (self.unwritten, self.due) = (false, None);
        }
    }

    /// Whether all polled readings are on the node, as after a write whose answer was lost. Annotations have whole seconds.
    fn is_on_node(&self) -> bool {
        let of = |(metric, polled): &(MetricName, Reading)| {
            let mut written = self.written.iter().filter(|(other, _)| other == metric);
            written.any(|(_, written)| written.at.as_second() >= polled.at.as_second())
        };
        self.polled.iter().all(of)
    }

    /// The watch shows a hot value on the node.
    pub(crate) fn hot_value_observed(&mut self, note: Option<HotValueNote>, now: Timestamp) {
        let note = note.filter(|note| !is_far_ahead(note.at, now));
        let newest = self.written_hot_value.into_iter().chain(note);
        self.written_hot_value = newest.max_by_key(|note| note.at);
    }

    /// The node booted at `at`: earlier readings are dropped.
    pub(crate) fn booted(&mut self, at: Timestamp) {
        self.written.retain(|(_, reading)| reading.at >= at);
    }

    /// A poll gave these readings.
    pub(crate) fn polled(&mut self, readings: &[(MetricName, Reading)]) {
        if readings.is_empty() {
            return;
        }
        self.writes_saved += u64::from(std::mem::replace(&mut self.unwritten, true));
        readings
            .iter()
            .for_each(|(metric, reading)| keep_newer(&mut self.polled, metric, *reading));
    }

    /// Polls whose readings were replaced by newer ones before they were written.
    pub(crate) fn writes_saved(&self) -> u64 {
        self.writes_saved
    }

    /// A write succeeded.
    pub(crate) fn written(&mut self, write: &Write) {
        for (metric, reading) in &write.readings {
            keep_newer(&mut self.written, metric, *reading);
        }
        if write.hot_value.is_some() {
            self.written_hot_value = write.hot_value;
        }
        (self.unwritten, self.due) = (false, None);
    }

    /// A write at `at` failed: it stays due, unless the watch shows the readings, so that only the answer was lost.
    pub(crate) fn not_written(&mut self, write: &Write, at: Timestamp) {
        self.due = (!self.is_on_node()).then_some((write.reason, at));
    }

    /// When a write is due.
    pub(crate) fn due(&self) -> Option<Timestamp> {
        self.due.map(|(_, at)| at)
    }

    /// There is a burst at `now`, and the next one at `next`: a write is due if there is a reason.
    pub(crate) fn burst(&mut self, hot_value: Option<u64>, now: Timestamp, next: Timestamp) {
        self.due = match self.due {
            Some((reason, at)) => Some((reason, at.min(now))),
            None => {
                let reason = self.write_reason(Urgency::NextBurst, hot_value, now, next);
                reason.map(|reason| (reason, now))
            }
        };
    }

    /// After a poll at `now`, with the next burst at `next`: a write that can wait only for some seconds is due at `soon`.
    pub(crate) fn due_soon(&mut self, soon: Timestamp, now: Timestamp, next: Timestamp) {
        if self.due.is_none() {
            let reason = self.write_reason(Urgency::Soon, None, now, next);
            self.due = reason.map(|reason| (reason, soon));
        }
    }

    /// The reason for a write that is at least as urgent as `least`.
    fn write_reason(
        &self,
        least: Urgency,
        hot_value: Option<u64>,
        now: Timestamp,
        next: Timestamp,
    ) -> Option<WriteReason> {
        Some(self.plan(next, least).decide(&[], hot_value, now)?.reason)
    }

    /// A burst was due while a job is in flight.
    pub(crate) fn burst_missed(&mut self) {
        self.missed_burst = true;
    }

    /// The job has ended. Returns whether a burst was missed during it.
    pub(crate) fn job_ended(&mut self) -> bool {
        std::mem::take(&mut self.missed_burst)
    }

    /// The clock was set back: readings with times far ahead are dropped.
    pub(crate) fn clock_set_back(&mut self, now: Timestamp) {
        let fits = |(_, reading): &(MetricName, Reading)| !is_far_ahead(reading.at, now);
        self.written.retain(fits);
        self.polled.retain(fits);
        self.written_hot_value = self.written_hot_value.filter(|note| !is_far_ahead(note.at, now));
        self.due = self.due.map(|(reason, at)| (reason, at.min(now)));
    }

    /// The write plan of a job, for reasons at least as urgent as `least`. `next_chance` is when the node can next be written.
    pub(crate) fn plan(&self, next_chance: Timestamp, least: Urgency) -> WritePlan {
        WritePlan {
            rules: Arc::clone(&self.rules),
            written: self.written.clone(),
            written_hot_value: self.written_hot_value,
            polled: self.polled.clone(),
            due: self.due.map(|(reason, _)| reason),
            next_chance,
            least,
        }
    }
}

/// Replaces the metric's reading unless the known one is newer.
pub(super) fn keep_newer(
    readings: &mut Vec<(MetricName, Reading)>,
    metric: &MetricName,
    reading: Reading,
) {
    match readings.iter_mut().find(|(other, _)| other == metric) {
        Some((_, known)) if known.at <= reading.at => *known = reading,
        Some(_) => {}
        None => readings.push((metric.clone(), reading)),
    }
}

//! The readings of one node: as written, as polled, and whether a write is due.
//!
//! Invariants: readings from the watch count like readings that this process wrote, so a restart writes nothing; a
//! reading is never replaced by an older one; a polled reading is kept until a newer one, so every write holds all
//! readings.

use std::sync::Arc;

use jiff::Timestamp;
use placement::publish::{NodeWriteRules, Urgency, WriteReason};
use placement::reading::{HotValueNote, Reading, is_far_ahead};
use placement::units::MetricName;

use super::plan::{ReadingsPlan, keep_newer};
use crate::node_write::ReadingsWrite;

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
            writes_saved: 0,
        }
    }

    /// Sets the rules, as after a change of the policy or of the node's labels. Polled readings of metrics that are not
    /// `wanted` any more are dropped.
    pub(crate) fn set_rules(
        &mut self,
        rules: &Arc<NodeWriteRules>,
        wanted: impl Fn(&MetricName) -> bool,
    ) {
        if Arc::ptr_eq(&self.rules, rules) {
            return;
        }
        self.rules = Arc::clone(rules);
        self.polled.retain(|(metric, _)| wanted(metric));
        if self.polled.is_empty() {
            self.due = None;
        }
    }

    /// The watch shows readings of exactly these metrics. A metric that it showed before is no longer on the node.
    pub(crate) fn observe_metrics<'m>(
        &mut self,
        metrics: impl Iterator<Item = &'m MetricName> + Clone,
    ) {
        // Most changes of a node are its kubelet's heartbeats.
        if metrics.clone().eq(&self.shown) {
            return;
        }
        let now: Vec<MetricName> = metrics.cloned().collect();
        let before = std::mem::replace(&mut self.shown, now);
        let shown = &self.shown;
        self.written.retain(|(metric, _)| !before.contains(metric) || shown.contains(metric));
    }

    /// The watch shows a reading on the node. A time far ahead of `now` comes from a wrong clock and is ignored.
    pub(crate) fn observe(&mut self, metric: &MetricName, reading: Reading, now: Timestamp) {
        if !is_far_ahead(reading.at, now) {
            keep_newer(&mut self.written, metric, reading);
        }
        if self.due.is_some() && self.is_stored() {
            self.unwritten = false;
            self.due = None;
        }
    }

    /// Whether all polled readings are stored, as after a write whose answer was lost. Annotations have whole seconds.
    fn is_stored(&self) -> bool {
        self.polled.iter().all(|(metric, polled)| {
            let covers = |written: &Reading| written.at.as_second() >= polled.at.as_second();
            self.written.iter().any(|(other, written)| other == metric && covers(written))
        })
    }

    /// The watch shows a hot value on the node.
    pub(crate) fn observe_hot_value(&mut self, note: Option<HotValueNote>, now: Timestamp) {
        let shown = note.filter(|note| !is_far_ahead(note.at, now));
        let known = self.written_hot_value;
        self.written_hot_value = known.into_iter().chain(shown).max_by_key(|note| note.at);
    }

    /// Drops readings from before the node's boot.
    pub(crate) fn drop_before(&mut self, booted_at: Timestamp) {
        self.written.retain(|(_, reading)| reading.at >= booted_at);
    }

    /// A poll gave these readings.
    pub(crate) fn record_poll(&mut self, readings: &[(MetricName, Reading)]) {
        if readings.is_empty() {
            return;
        }
        self.writes_saved += u64::from(self.unwritten);
        self.unwritten = true;
        for (metric, reading) in readings {
            keep_newer(&mut self.polled, metric, *reading);
        }
    }

    /// Polls whose readings were replaced by newer ones before they were written.
    pub(crate) fn writes_saved(&self) -> u64 {
        self.writes_saved
    }

    /// A write succeeded.
    pub(crate) fn record_write(&mut self, write: &ReadingsWrite) {
        for (metric, reading) in &write.readings {
            keep_newer(&mut self.written, metric, *reading);
        }
        if write.hot_value.is_some() {
            self.written_hot_value = write.hot_value;
        }
        self.unwritten = false;
        self.due = None;
    }

    /// A write at `at` failed: it stays due, unless the watch shows the readings, so that only the answer was lost.
    pub(crate) fn record_failed_write(&mut self, write: &ReadingsWrite, at: Timestamp) {
        self.due = (!self.is_stored()).then_some((write.reason, at));
    }

    /// When a write is due.
    pub(crate) fn due(&self) -> Option<Timestamp> {
        self.due.map(|(_, at)| at)
    }

    /// There is a burst at `now`, and the next one at `next`: a write is due if there is a reason.
    pub(crate) fn join_burst(&mut self, hot_value: Option<u64>, now: Timestamp, next: Timestamp) {
        self.due = match self.due {
            Some((reason, at)) => Some((reason, at.min(now))),
            None => {
                let write = self.plan(hot_value, next, Urgency::NextBurst).decide(&[], now);
                write.map(|write| (write.reason, now))
            }
        };
    }

    /// After a poll at `now`, with the next burst at `next`: a write that can wait only for some seconds is due at
    /// `soon`.
    pub(crate) fn become_due_soon(&mut self, soon: Timestamp, now: Timestamp, next: Timestamp) {
        if self.due.is_none() {
            let write = self.plan(None, next, Urgency::Soon).decide(&[], now);
            self.due = write.map(|write| (write.reason, soon));
        }
    }

    /// The clock was set back: readings with times far ahead are dropped.
    pub(crate) fn drop_far_ahead(&mut self, now: Timestamp) {
        self.written.retain(|(_, reading)| !is_far_ahead(reading.at, now));
        self.polled.retain(|(_, reading)| !is_far_ahead(reading.at, now));
        self.written_hot_value = self.written_hot_value.filter(|note| !is_far_ahead(note.at, now));
        self.due = self.due.map(|(reason, at)| (reason, at.min(now)));
    }

    /// The plan of a write for reasons at least as urgent as `least_urgent`. `next_chance` is when the node can next be
    /// written.
    pub(crate) fn plan(
        &self,
        hot_value: Option<u64>,
        next_chance: Timestamp,
        least_urgent: Urgency,
    ) -> ReadingsPlan {
        ReadingsPlan {
            rules: Arc::clone(&self.rules),
            written: self.written.clone(),
            written_hot_value: self.written_hot_value,
            polled: self.polled.clone(),
            hot_value,
            due: self.due.map(|(reason, _)| reason),
            next_chance,
            least_urgent,
        }
    }
}

//! The decision about a write of a node's readings: made after the job's poll, from written and polled readings.

use std::sync::Arc;

use jiff::Timestamp;
use placement::publish::{NodeValues, NodeWriteRules, Urgency, WriteReason};
use placement::reading::{HOT_VALUE_MAX_AGE, HotValueNote, Reading};
use placement::units::MetricName;

use super::readings::keep_newer;

/// The inputs of the decision, except the poll's answer.
#[derive(Debug, Clone, PartialEq)]
pub struct WritePlan {
    pub(super) rules: Arc<NodeWriteRules>,
    pub(super) written: Vec<(MetricName, Reading)>,
    pub(super) written_hot_value: Option<HotValueNote>,
    /// Readings of earlier polls.
    pub(super) polled: Vec<(MetricName, Reading)>,
    /// The reason of a write that is due in any case, if any reading was ever polled.
    pub(super) due: Option<WriteReason>,
    /// When the node can next be written if it is not written now.
    pub(super) next_chance: Timestamp,
    /// The least urgent reason for which the node is written now.
    pub(super) least: Urgency,
}

/// A write of a node.
#[derive(Debug, Clone, PartialEq)]
pub struct Write {
    /// The reason.
    pub reason: WriteReason,
    /// The last reading of each metric, with its own time.
    pub readings: Vec<(MetricName, Reading)>,
    /// The hot value; `None` if unknown.
    pub hot_value: Option<HotValueNote>,
    /// The node is over a limit by the readings on the node, and not by these readings.
    pub cools: bool,
}

impl WritePlan {
    /// The write at `at`, after a poll with the result `usable`; `None` if there is no reason for a write, or it can wait.
    #[must_use]
    pub fn decide(
        &self,
        usable: &[(MetricName, Reading)],
        hot_value: Option<u64>,
        at: Timestamp,
    ) -> Option<Write> {
        let mut readings = self.polled.clone();
        for (metric, reading) in usable {
            keep_newer(&mut readings, metric, *reading);
        }
        // Another replica may have led meanwhile and written readings newer than this replica's last poll.
        for (metric, reading) in &self.written {
            if readings.iter().any(|(polled, _)| polled == metric) {
                keep_newer(&mut readings, metric, *reading);
            }
        }
        let newest = readings.iter().map(|(_, reading)| reading.at).max()?;
        // A cast loses nothing below 2^53 pods.
        let hot_value = hot_value.map(|count| HotValueNote { value: count as f64, at });
        // A silent node is not written, however many pods are bound to it.
        let counts = at.duration_since(newest) < HOT_VALUE_MAX_AGE;
        let written = NodeValues { readings: &self.written, hot_value: self.written_hot_value };
        let polled = NodeValues { readings: &readings, hot_value: hot_value.filter(|_| counts) };
        let reason = || {
            let reason = self.rules.reason(written, polled, at, self.next_chance)?;
            (reason.urgency() <= self.least).then_some(reason)
        };
        let reason = self.due.or_else(reason)?;
        let cools = self.rules.has_cooled(written, polled, at);
        Some(Write { reason, readings, hot_value, cools })
    }
}

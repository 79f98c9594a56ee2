//! What a job writes of a node's readings: decided after its poll, by what is written and what was polled.

use std::sync::Arc;

use jiff::Timestamp;
use placement::publish::{NodeValues, NodeWriteRules, Urgency, WriteReason};
use placement::reading::{HOT_VALUE_MAX_AGE, HotValueNote, Reading};
use placement::units::MetricName;

use super::readings::renew;

/// All that the decision follows from, but for the poll's answer.
#[derive(Debug, Clone, PartialEq)]
pub struct WritePlan {
    pub(super) rules: Arc<NodeWriteRules>,
    pub(super) written: Vec<(MetricName, Reading)>,
    pub(super) written_hot_value: Option<HotValueNote>,
    /// What earlier polls gave.
    pub(super) polled: Vec<(MetricName, Reading)>,
    /// The node is written in any case, if anything was ever polled.
    pub(super) due: Option<WriteReason>,
    /// When the node can next be written if it is not now.
    pub(super) next_chance: Timestamp,
    /// The least urgent that is written now.
    pub(super) least: Urgency,
}

/// A write of a node.
#[derive(Debug, Clone, PartialEq)]
pub struct Write {
    /// Why.
    pub reason: WriteReason,
    /// The last reading of each metric, with its own time.
    pub readings: Vec<(MetricName, Reading)>,
    /// The hot value, where it is known.
    pub hot_value: Option<HotValueNote>,
    /// By what was written before, the node is over a limit; by these readings it is not.
    pub cools: bool,
}

impl WritePlan {
    /// What to write at `at`, where a poll has just given `usable` and the hot value is `hot_value`; `None` where nothing is
    /// worth a write, or it can wait.
    #[must_use]
    pub fn decide(
        &self,
        usable: &[(MetricName, Reading)],
        hot_value: Option<u64>,
        at: Timestamp,
    ) -> Option<Write> {
        let mut readings = self.polled.clone();
        for (metric, reading) in usable {
            renew(&mut readings, metric, *reading);
        }
        // Another replica may have led meanwhile, and have written what is newer than this one's last poll.
        for (metric, reading) in &self.written {
            if readings.iter().any(|(polled, _)| polled == metric) {
                renew(&mut readings, metric, *reading);
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

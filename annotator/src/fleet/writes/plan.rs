//! The decision what to write of a node: made after the job's poll, from what is stored and what was polled.

use std::sync::Arc;

use jiff::Timestamp;
use placement::publish::{NodeValues, NodeWriteRules, Urgency, WriteReason};
use placement::reading::{HOT_VALUE_MAX_AGE, HotValueNote, Reading};
use placement::units::MetricName;

use super::share::SharePlan;
use crate::exporter::gpus::GpuMeasurements;
use crate::node_write::{NodeWrite, ReadingsWrite};

/// The inputs of the decision, except the poll's answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct WritePlan {
    /// `None` if the job decides nothing about readings: it does not poll them, and no write of them is due.
    pub(crate) readings: Option<ReadingsPlan>,
    /// The share of the GPUs; `None` if it is unknown.
    pub(crate) share: Option<SharePlan>,
}

/// The inputs of the decision about readings.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ReadingsPlan {
    pub(super) rules: Arc<NodeWriteRules>,
    pub(super) written: Vec<(MetricName, Reading)>,
    pub(super) written_hot_value: Option<HotValueNote>,
    /// Readings of earlier polls.
    pub(super) polled: Vec<(MetricName, Reading)>,
    /// The node's hot value; `None` if it is unknown or the policy has no rule for it.
    pub(crate) hot_value: Option<u64>,
    /// The reason of a write that is due in any case, if any reading was ever polled.
    pub(crate) due: Option<WriteReason>,
    /// When the node can next be written if it is not written now.
    pub(super) next_chance: Timestamp,
    /// The least urgent reason for which the node is written now.
    pub(super) least_urgent: Urgency,
}

impl WritePlan {
    /// Whether there is something to write whatever a poll gives.
    pub(crate) fn is_due(&self) -> bool {
        self.readings.as_ref().is_some_and(|plan| plan.due.is_some())
            || self.share.as_ref().is_some_and(|plan| plan.is_due)
    }

    /// What the job writes at `at`, after a poll that gave the `usable` readings and these measurements of `gpus`.
    pub(crate) fn decide(
        &self,
        usable: &[(MetricName, Reading)],
        gpus: &GpuMeasurements,
        at: Timestamp,
    ) -> NodeWrite {
        let readings = self.readings.as_ref().and_then(|plan| plan.decide(usable, at));
        let share = self.share.as_ref().and_then(|plan| plan.decide(gpus, readings.is_some(), at));
        NodeWrite { readings, share }
    }
}

impl ReadingsPlan {
    /// The write at `at`, after a poll that gave the `usable` readings; `None` if there is no reason for a write, or it
    /// can wait.
    pub(crate) fn decide(
        &self,
        usable: &[(MetricName, Reading)],
        at: Timestamp,
    ) -> Option<ReadingsWrite> {
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
        let hot_value = self.hot_value.map(|count| HotValueNote { value: count as f64, at });
        let written = NodeValues { readings: &self.written, hot_value: self.written_hot_value };
        let mut polled = NodeValues { readings: &readings, hot_value };
        if at.duration_since(newest) >= HOT_VALUE_MAX_AGE {
            // The exporter is silent: the hot value is no reason to write the node, however many pods are bound to it.
            polled.hot_value = None;
        }
        let reason = self.due.or_else(|| self.reason(written, polled, at))?;
        Some(ReadingsWrite { reason, readings, hot_value })
    }

    /// The reason to write these readings now.
    fn reason(
        &self,
        written: NodeValues<'_>,
        polled: NodeValues<'_>,
        at: Timestamp,
    ) -> Option<WriteReason> {
        let reason = self.rules.reason(written, polled, at, self.next_chance)?;
        (reason.urgency() <= self.least_urgent).then_some(reason)
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

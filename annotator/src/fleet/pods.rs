//! When the exporter of one node is polled for pods' use.

use jiff::{SignedDuration, Timestamp};
use placement::units::NodeName;

use super::schedule::Grid;
use crate::exporter::error::PollError;

/// The pause after an answer that there is no such path, or that is of another form. The exporter may be an older
/// version, or one of another project, or it sees no control groups; the pause limits the cost of many such exporters.
const RETRY: SignedDuration = SignedDuration::from_mins(10);

/// The ticks of one node. If the period divides those of the policy, one connection serves both.
#[derive(Debug, Clone)]
pub(crate) struct PodsSchedule {
    /// `None` if pods' use is not polled.
    grid: Option<Grid>,
    polled_at: Option<Timestamp>,
    not_before: Timestamp,
}

impl PodsSchedule {
    pub(crate) fn new(node: &NodeName, period: Option<SignedDuration>) -> Self {
        let grid = period.map(|period| Grid::new(node, period));
        Self { grid, polled_at: None, not_before: Timestamp::MIN }
    }

    /// When the next poll is due.
    pub(crate) fn next(&self) -> Option<Timestamp> {
        Some(self.grid?.due(self.polled_at).max(self.not_before))
    }

    /// Whether a job at `now` polls pods' use. A job that polls readings as well does so a tenth of the period ahead.
    pub(crate) fn is_due(&self, now: Timestamp, polls: bool) -> bool {
        let Some((grid, next)) = self.grid.zip(self.next()) else { return false };
        let slack = if polls { grid.slack() } else { 0 };
        let until = now.checked_add(SignedDuration::from_secs(slack)).unwrap_or(now);
        next <= until
    }

    /// The exporter was polled at `now`. An answer that is late or breaks off is no reason for a pause: a node is slow
    /// when it is busy, and what its pods use then counts most.
    pub(crate) fn record_poll(&mut self, failure: Option<&PollError>, now: Timestamp) {
        self.polled_at = Some(now);
        self.not_before = match failure {
            Some(PollError::Status(404) | PollError::Body { .. } | PollError::TooLong) => {
                now.checked_add(RETRY).unwrap_or(Timestamp::MAX)
            }
            _ => Timestamp::MIN,
        };
    }

    /// Ends the pause after a failure, since there may be another exporter.
    pub(crate) fn reset_back_off(&mut self) {
        self.not_before = Timestamp::MIN;
    }

    /// The clock was set back, so the ends of waits may be far ahead: all waits are dropped.
    pub(crate) fn drop_waits(&mut self) {
        self.polled_at = None;
        self.not_before = Timestamp::MIN;
    }
}

//! When the exporter of one node is asked what pods use.

use jiff::{SignedDuration, Timestamp};
use placement::units::NodeName;

use super::schedule::Grid;

/// An exporter that does not answer is asked again after this: it may be an older one, or one of another project. What it
/// costs to ask many of them in vain stays small.
const RETRY: SignedDuration = SignedDuration::from_mins(10);

/// The ticks of one node. Where the period divides those of the policy, one connection serves both.
#[derive(Debug, Clone)]
pub(crate) struct PodsSchedule {
    /// `None` where nothing is asked.
    grid: Option<Grid>,
    asked: Option<Timestamp>,
    not_before: Timestamp,
}

impl PodsSchedule {
    pub(crate) fn new(node: &NodeName, period: Option<SignedDuration>) -> Self {
        let grid = period.map(|period| Grid::new(node, period));
        Self { grid, asked: None, not_before: Timestamp::MIN }
    }

    /// When to ask next.
    pub(crate) fn next(&self) -> Option<Timestamp> {
        Some(self.grid?.due(self.asked).max(self.not_before))
    }

    /// Whether a job at `now` asks. One that polls anyway also asks a tenth of the period ahead.
    pub(crate) fn is_wanted(&self, now: Timestamp, polls: bool) -> bool {
        let slack = self.grid.filter(|_| polls).map_or(0, Grid::slack);
        let until = now.checked_add(SignedDuration::from_secs(slack)).unwrap_or(now);
        self.next().is_some_and(|next| next <= until)
    }

    /// It was asked, and answered or not.
    pub(crate) fn asked(&mut self, answered: bool, now: Timestamp) {
        self.asked = Some(now);
        self.not_before = match answered {
            true => Timestamp::MIN,
            false => now.checked_add(RETRY).unwrap_or(Timestamp::MAX),
        };
    }

    /// There may be another exporter.
    pub(crate) fn ask_again(&mut self) {
        self.not_before = Timestamp::MIN;
    }

    /// The clock was set back, so any time that is waited for may be far ahead: nothing is waited for.
    pub(crate) fn clock_set_back(&mut self) {
        self.asked = None;
        self.not_before = Timestamp::MIN;
    }
}

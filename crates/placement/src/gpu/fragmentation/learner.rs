//! When the measure is recomputed from what was requested.

use super::{Measure, NodeClass, Shape, TypicalPods};

/// The first measure is made after so many requests. Before, best fit is as good a guess.
const FIRST: u64 = 16;
/// Then when this much more have come,
const GROWTH: f64 = 1.25;
/// or this many: an eighth of the requests after which one counts half.
const MOST: u64 = 1_024;

/// Counts the requests of pods, and decides when the measure has to be recomputed.
#[derive(Debug, Clone)]
pub struct Learner {
    typical: TypicalPods,
    /// The number of requests at which the measure is recomputed.
    due: u64,
}

impl Default for Learner {
    fn default() -> Self {
        Self { typical: TypicalPods::default(), due: FIRST }
    }
}

impl Learner {
    /// Counts one request. The caller counts each pod once, however often it is tried.
    pub fn observe(&mut self, shape: &Shape) {
        self.typical.observe(shape);
    }

    /// Whether so many requests have come since the last measure that there should be another.
    pub fn is_due(&self) -> bool {
        self.typical.seen() >= self.due
    }

    /// Whether a measure was taken: enough pods have been seen.
    pub fn has_begun(&self) -> bool {
        self.due > FIRST
    }

    /// The counted requests, from which to compute a measure. Schedules the next computation.
    pub fn take(&mut self) -> TypicalPods {
        let seen = self.typical.seen();
        let more = (seen as f64 * (GROWTH - 1.0)).ceil().max(1.0) as u64;
        self.due = seen + more.min(MOST);
        self.typical.clone()
    }

    /// The measure for pods as they came so far, on nodes as in `classes`.
    pub fn measure(&mut self, classes: &[NodeClass]) -> Measure {
        Measure::new(&self.take(), classes)
    }
}

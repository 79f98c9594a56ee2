//! When the measure is recomputed from what was requested.

use super::{HeldParts, Measure, NodeClass, PodShape, TypicalPods};

/// The first measure is computed after this number of requests. With fewer, best fit is as good.
const FIRST_AFTER: u64 = 16;
/// It is recomputed when the number of requests has grown by this factor,
const GROWTH: f64 = 1.25;
/// or by this number at most: an eighth of the requests after which a request counts half.
const MAX_GROWTH: u64 = 1_024;

/// Counts the requests of pods, and decides when the measure has to be recomputed.
#[derive(Debug, Clone)]
pub struct RequestCounter {
    typical: TypicalPods,
    /// The number of requests at which the measure is recomputed.
    due: u64,
}

impl Default for RequestCounter {
    fn default() -> Self {
        Self { typical: TypicalPods::default(), due: FIRST_AFTER }
    }
}

impl RequestCounter {
    /// Counts one request. The caller counts each pod once, however often it is tried.
    pub fn observe(&mut self, shape: &PodShape) {
        self.typical.observe(shape);
    }

    /// Whether enough requests were counted since the last measure that it has to be recomputed.
    pub fn is_due(&self) -> bool {
        self.typical.seen() >= self.due
    }

    /// Whether a measure was computed: enough requests were counted.
    pub fn has_begun(&self) -> bool {
        self.due > FIRST_AFTER
    }

    /// The counted requests, from which to compute a measure. Schedules the next computation.
    pub fn take(&mut self) -> TypicalPods {
        let seen = self.typical.seen();
        let more = (seen as f64 * (GROWTH - 1.0)).ceil().max(1.0) as u64;
        self.due = seen + more.min(MAX_GROWTH);
        self.typical.clone()
    }

    /// The measure for pods as they came so far, on nodes as in `classes`, while pods hold what is in `held`.
    pub fn measure(&mut self, held: &HeldParts, classes: &[NodeClass]) -> Measure {
        Measure::new(&self.take(), held, classes)
    }
}

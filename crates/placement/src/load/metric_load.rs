//! A node's load by one metric: what was read, and what is estimated beside it.

use crate::reading::Reading;

/// A metric's reading, and whether it counts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ReadingStatus {
    /// It counts.
    Fresh(Reading),
    /// It is too old, or too far in the future.
    Stale(Reading),
    /// There is no reading.
    Missing,
    /// There is none yet: the node has joined recently and has no reading at all. Only under a policy with estimates.
    NotYet,
    /// No sync rule fetches the metric, so that readings have no maximum age.
    NotFetched,
}

impl ReadingStatus {
    /// The reading; `None` if it does not count.
    pub fn fresh(self) -> Option<Reading> {
        match self {
            Self::Fresh(reading) => Some(reading),
            Self::Stale(_) | Self::Missing | Self::NotYet | Self::NotFetched => None,
        }
    }
}

/// A node's load by one metric.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MetricLoad {
    /// What was measured.
    pub reading: ReadingStatus,
    /// The use of recently bound and in-flight pods that the reading does not show yet: a fraction of the node.
    pub in_flight: f64,
    /// What the pod to be placed will use: a fraction of the node.
    pub pod: f64,
    /// Whether the use of pods is estimated for the metric; otherwise both are 0.
    pub is_estimated: bool,
}

impl MetricLoad {
    /// Nothing is known.
    pub(super) const UNKNOWN: Self =
        Self { reading: ReadingStatus::Missing, in_flight: 0.0, pod: 0.0, is_estimated: false };

    /// The load with the pod: 0 idle, 1 full; `None` without a fresh reading.
    pub fn value(self) -> Option<f64> {
        match self.known() {
            KnownLoad::Known(load) => Some(load),
            KnownLoad::Stale | KnownLoad::Missing | KnownLoad::NotYet => None,
        }
    }

    /// The measured load, without any estimate. `None` without a fresh reading.
    pub fn measured(self) -> Option<f64> {
        self.reading.fresh().map(|reading| reading.value.get())
    }

    /// The load without the pod to be placed.
    pub(super) fn without_pod(self) -> Self {
        Self { pod: 0.0, ..self }
    }

    /// The load with the pod.
    pub fn known(self) -> KnownLoad {
        match self.reading {
            ReadingStatus::Fresh(reading) => {
                KnownLoad::Known(reading.value.get() + self.in_flight + self.pod)
            }
            ReadingStatus::Stale(_) => KnownLoad::Stale,
            ReadingStatus::Missing | ReadingStatus::NotYet | ReadingStatus::NotFetched => {
                KnownLoad::Missing
            }
        }
    }

    /// The load that scores use: of a node that is not measured yet, what its pods will probably use.
    pub(crate) fn for_score(self) -> KnownLoad {
        match self.reading {
            ReadingStatus::NotYet if self.is_estimated => {
                KnownLoad::Known(self.in_flight + self.pod)
            }
            ReadingStatus::NotYet => KnownLoad::NotYet,
            _ => self.known(),
        }
    }
}

/// A metric's load as limits and scores use it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum KnownLoad {
    /// The load with estimates: 0 idle, 1 full.
    Known(f64),
    /// The reading is too old, or too far in the future.
    Stale,
    /// There is no reading.
    Missing,
    /// There is no reading yet and no estimate: the metric is left out of the score.
    NotYet,
}

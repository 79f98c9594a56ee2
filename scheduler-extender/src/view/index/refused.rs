//! Implausible and malformed readings: counted by cause, and logged with a hint, once a minute for each cause.

use jiff::{SignedDuration, Timestamp};
use placement::reading::{Implausible, ReadingError};
/// The shortest time between two log lines of one cause.
const LOG_EVERY: SignedDuration = SignedDuration::from_mins(1);

/// The causes, in the order of the counters.
const CAUSES: [&str; 3] = ["ahead", "not-a-fraction", "malformed"];

/// Why a reading counts as missing.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub(super) enum RefusedReading {
    /// It is well-formed but implausible.
    #[error(transparent)]
    Implausible(#[from] Implausible),
    /// Its text cannot be parsed.
    #[error(transparent)]
    Malformed(#[from] ReadingError),
}

impl RefusedReading {
    fn cause(&self) -> usize {
        match self {
            Self::Implausible(Implausible::Ahead(_)) => 0,
            Self::Implausible(Implausible::NotAFraction(_)) => 1,
            Self::Malformed(_) => 2,
        }
    }
}

/// The number of refused readings of the policy's metrics, by cause. A reading counts again with each watch event of
/// its node.
#[derive(Debug, Clone, Default)]
pub(super) struct RefusedReadings {
    counts: [u64; CAUSES.len()],
    logged: [Option<Timestamp>; CAUSES.len()],
}

impl RefusedReadings {
    /// The causes with their counts.
    pub(super) fn counts(&self) -> [(&'static str, u64); CAUSES.len()] {
        std::array::from_fn(|cause| (CAUSES[cause], self.counts[cause]))
    }

    /// Counts a refused reading. Returns whether it is to be logged.
    pub(super) fn count(&mut self, error: &RefusedReading, now: Timestamp) -> bool {
        let cause = error.cause();
        self.counts[cause] += 1;
        let logs = self.logged[cause].is_none_or(|at| now.duration_since(at).abs() >= LOG_EVERY);
        if logs {
            self.logged[cause] = Some(now);
        }
        logs
    }
}

//! Implausible and malformed readings: counted by cause, and logged with a hint, once a minute for each cause.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use placement::reading::{Implausible, ReadingError};
use placement::units::{MetricName, NodeName};

/// The shortest time between two log lines of one cause.
const LOG_EVERY: Duration = Duration::from_secs(60);

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
#[derive(Debug, Default)]
pub struct RefusedReadings {
    counts: [AtomicU64; CAUSES.len()],
    logged: Mutex<[Option<Instant>; CAUSES.len()]>,
}

impl RefusedReadings {
    /// The causes with their counts.
    pub fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.counts.iter().map(|count| count.load(Ordering::Relaxed));
        CAUSES.into_iter().zip(counts)
    }

    pub(super) fn count(&self, node: &NodeName, metric: &MetricName, error: &RefusedReading) {
        let cause = error.cause();
        self.counts[cause].fetch_add(1, Ordering::Relaxed);
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        if logged[cause].is_none_or(|at| at.elapsed() >= LOG_EVERY) {
            logged[cause] = Some(Instant::now());
            tracing::warn!(%node, %metric, %error, "reading refused, counts as missing");
        }
    }
}

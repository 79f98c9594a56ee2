//! The settings of programs with several replicas.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

use daemon::metrics::{Counter, Registry};

/// Reads the flag of a Lease's duration: what a Lease can say.
///
/// # Errors
///
/// Anything but whole seconds, 1 s to 5 min.
pub fn lease_duration(text: &str) -> Result<Duration, String> {
    let duration = daemon::duration(text).map_err(|error| error.to_string())?;
    let fits = duration.subsec_nanos() == 0 && (1..=300).contains(&duration.as_secs());
    fits.then_some(duration).ok_or_else(|| "expected whole seconds, 1s to 5m".to_owned())
}

/// A name of this process in a Lease: the pod's name, and a number that no process before it in the same pod had.
/// `program` stands in for the pod's name outside of pods.
#[must_use]
pub fn replica_identity(program: &str) -> String {
    let pod = std::env::var("HOSTNAME").unwrap_or_else(|_| program.to_owned());
    format!("{pod}_{:016x}", RandomState::new().build_hasher().finish())
}
/// The metrics of a Lease; clones share them.
#[derive(Debug, Clone)]
pub struct LeaseMetrics {
    /// Times that this replica became the leader.
    pub terms: Counter,
    /// Times that the Lease could be neither read nor renewed.
    pub failures: Counter,
}

impl LeaseMetrics {
    /// Registers them.
    pub fn register(registry: &mut Registry) -> Self {
        Self {
            terms: registry
                .counter("plimsoll_lease_terms_total", "Times that this replica became the leader"),
            failures: registry.counter(
                "plimsoll_lease_failures_total",
                "Times that the Lease could be neither read nor renewed",
            ),
        }
    }
}

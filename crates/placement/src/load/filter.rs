//! May a node take a pod, by its load?

use std::fmt;

use jiff::Timestamp;

use super::{NodeLoad, PodKind};
use crate::policy::LoadPolicy;
use crate::reading::Reading;
use crate::units::MetricName;

/// Why a node's load forbids a pod.
#[derive(Debug, Clone, PartialEq)]
pub struct Overload {
    /// The metric over its limit.
    pub metric: MetricName,
    /// Its reading.
    pub reading: Reading,
    /// The limit, as a fraction.
    pub max: f64,
}

impl fmt::Display for Overload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { metric, reading, max } = self;
        write!(f, "Load[{metric}] is too high: {} > {:.1}%", reading.value, max * 100.0)
    }
}

impl std::error::Error for Overload {}

/// Accepts the node unless a fresh reading is over its limit.
///
/// # Errors
///
/// The first limit that the node exceeds.
pub fn filter(
    policy: &LoadPolicy,
    node: &NodeLoad,
    pod: PodKind,
    now: Timestamp,
) -> Result<(), Overload> {
    if pod == PodKind::Daemon {
        return Ok(());
    }
    for limit in &policy.limits {
        match node.fresh(limit.slot, limit.max_age, now) {
            Some(reading) if reading.value.get() > limit.max => {
                let metric = policy.metrics[limit.slot].clone();
                return Err(Overload { metric, reading, max: limit.max });
            }
            _ => {}
        }
    }
    Ok(())
}

//! Decisions about pods, and the log of the last ones, from which explain shows why a pod is on its node.
//!
//! Invariant: a [`Decision`] holds the values that Filter used, and its explanation is computed from these alone, on
//! request and by the same code as new decisions.

mod decided_pod;
mod decision;
mod evaluator;
mod explanation;
mod held;
mod kept;
mod log;
mod nominated;
mod over_limit_cause;
mod rating_cache;
mod summary;
#[cfg(test)]
mod tests;
mod waiting;

pub use decided_pod::DecidedPod;
pub use decision::Decision;
pub use evaluator::{Evaluator, Verdicts};
pub use explanation::explain;
pub use log::{DecisionLog, MAX_BYTES, MAX_PODS, Which};
pub use nominated::NominatedPods;
pub use over_limit_cause::OverLimitCause;
pub use rating_cache::RatingCache;
pub use waiting::WaitingPods;

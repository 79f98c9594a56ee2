//! What each pod was decided by: so that explain can tell why a pod is where it is.
//!
//! Invariant: a [`Decision`] holds the very values that Filter decided by, and its explanation is made from nothing else.
//! What follows from it is computed when it is asked for, by the code that also answers for pods that are asked about now.

mod decided_pod;
mod decision;
mod explanation;
mod log;
mod waiting;

pub use decided_pod::DecidedPod;
pub use decision::{Candidate, Decision};
pub use explanation::explain;
pub use log::{DecisionLog, MAX_BYTES, MAX_PODS};
pub use waiting::WaitingPods;

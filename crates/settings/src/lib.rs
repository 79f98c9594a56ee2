//! Flags and files that several programs share: the names on the wire, the API server, the time zone of readings, and
//! the policy file.
//!
//! Invariant: a flag that two programs have means the same in both, and stands here once.
#![deny(missing_docs)]

mod flags;
mod lease;
mod policy_file;

pub use flags::{ApiArgs, LoadArgs, NameArgs};
pub use lease::{LeaseMetrics, lease_duration, replica_identity};
pub use policy_file::{PolicyFile, policy_warnings};

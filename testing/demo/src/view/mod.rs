//! What people see: a [`Snapshot`] of the cluster as values, of which a [`Log`] writes what is new.

mod log;
mod reason;
mod snapshot;

pub(crate) use log::Log;
pub(crate) use reason::Rejections;
pub(crate) use snapshot::{Decided, Decisions, Snapshot, SnapshotInputs};

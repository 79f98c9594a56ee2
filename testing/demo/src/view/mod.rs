//! What people see: a [`Snapshot`] of the cluster as values, drawn as a table ([`frame`]) on the terminal, into a
//! recording ([`asciicast`]) and into an SVG ([`svg`]), or written as a [`log`].

mod asciicast;
mod bars;
pub(crate) mod frame;
mod log;
mod outputs;
mod reason;
mod snapshot;
pub(crate) mod svg;

pub(crate) use outputs::Outputs;
pub(crate) use reason::Rejections;
pub(crate) use snapshot::{Decided, Decisions, Letters, Snapshot, SnapshotInputs};

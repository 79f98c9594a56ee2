//! Replays a trace of GPU pods against a cluster until it is full: how much of the GPUs a placement policy gives out.
//!
//! The recipe is that of the simulator of the ATC'23 paper on fragmentation gradient descent: pods in random order,
//! then pods drawn from the same list until 130% of the GPUs are asked for; none leaves, and one that fits nowhere is
//! not tried again. GPU shares are in thousandths of a GPU.

pub mod args;
pub mod arrivals;
pub mod cluster;
pub mod csv;
pub mod departures;
pub mod objects;
pub mod policies;
pub mod replay;
pub mod report;
pub mod tables;
pub mod trace;

//! The whole plugin against the kubelet stand-in over real gRPC, with pods from the API stand-in over
//! real HTTP.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]
#![expect(unreachable_pub, reason = "the modules of a test are used in this binary alone")]

mod admission;
mod audit;
mod contexts;
mod dra;
mod drain;
mod gpus;
mod identify;
mod idle;
mod isolation;
mod large_objects;
mod lingering;
mod processes;
mod resource_claims;
mod restarts;
mod rig;
mod start;
mod unclaimed;
mod withheld;

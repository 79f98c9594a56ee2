//! What the tests of several crates need and no program has: a certificate authority, scripts that can be run at once,
//! and Prometheus's own programs.
//!
//! Every function panics where it fails: so does the test that calls it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "what fails here fails a test"
)]

pub mod authority;
pub mod programs;
pub mod promtool;

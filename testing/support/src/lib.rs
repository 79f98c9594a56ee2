//! What the tests of several crates need and no program has: a certificate authority, and Prometheus's own programs.
//!
//! Every function panics where it fails: so does the test that calls it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "what fails here fails a test"
)]

pub mod authority;
pub mod promtool;

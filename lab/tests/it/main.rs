//! Integration tests of the replays.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod openb;

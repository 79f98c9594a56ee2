//! Integration tests of the replays, and of annotator and extender together.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod openb;
mod readings_channel;
mod results;
mod slopes;

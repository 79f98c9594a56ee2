//! Integration tests of what writes results down, and of annotator and extender together.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod readings_channel;
mod results;
mod slopes;

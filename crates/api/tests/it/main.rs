//! Every JSON value: its golden file, its schema, its round trip, its limits.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod golden;
mod limits;
mod policy_schema;
mod round_trip;
mod schema;
mod values;

//! Placement's rules as its users call them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod gpu;
mod ledger;
mod load;
mod models;
mod policy;
mod prepared;
mod printed_policy;
mod scheduling_policy;
mod taint;

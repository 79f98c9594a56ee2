//! Placement's rules as its users call them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod beyond_units;
mod claim_model;
mod demand;
mod gpu;
mod gpu_sharing;
mod learning;
mod ledger;
mod load;
mod models;
mod moves;
mod moves_search;
mod nvlink;
mod policy;
mod preemption;
mod prepared;
mod printed_policy;
mod resource_claims;
mod scheduling_policy;
mod shares;
mod taint;

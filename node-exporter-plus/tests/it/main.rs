//! The exporter over real HTTP, as a library with the test's clock and as the real binary.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

mod cgroups;
mod endpoints;
mod gpu;
mod http;
mod metrics;
mod node;
mod pods;
mod process;
mod same_readings;
mod start;
mod web;

//! The windows against a real Prometheus: 26 hours of virtual time, every rule at every minute.
//!
//! Needs `prometheus` and `promtool` (Debian's package): `make oracle`. It prints the greatest difference.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.
#![allow(clippy::print_stdout)] // The differences are what it is run for.

mod compare;
mod counters;
mod gauge;
mod prometheus;
mod synthetic;

//! The stand-ins over their real interfaces, and held against `conformance`.
#![allow(clippy::unwrap_used, clippy::panic)] // A failed unwrap is a failed test.

mod api;
mod binding;
mod conformance;
mod kubelet;
mod scheduler;
mod watch;

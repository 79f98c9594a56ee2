//! Samples a node and serves aggregates over windows of up to a day.
//!
//! ```text
//! /proc, /sys ──collectors──> Sampler ──> Store (a Series for each signal) ──render──> /metrics, /statistics
//!                                           │ ▲
//!                                           ▼ │
//!                                         storage (a file)
//! /sys/fs/cgroup ──pods, on demand──render──> /v1/pods
//! ```
//!
//! Invariants: missing data is absent, never zero; a value disappears once its newest sample is older than three sample
//! intervals; memory is bounded by the number of signals, not by time or requests.

pub mod app;
mod args;
pub mod collectors;
pub mod config;
pub mod gpu;
pub mod http;
mod list;
mod metrics;
pub mod pods;
pub mod render;
mod sample;
pub mod series;
pub mod storage;
mod store;

pub use args::Args;
pub use metrics::Metrics;
pub use sample::Sampler;
pub use store::{SharedStore, Store};

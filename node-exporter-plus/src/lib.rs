//! Samples a node and serves a day of aggregates.
//!
//! ```text
//! /proc ──collectors──> Sampler ──> Store (a Series for each signal) ──render──> /metrics, /statistics
//! ```
//!
//! Invariants: missing is absent, never zero; a value older than three sample intervals is missing; memory is
//! fixed by the number of signals, never by time or by scrapes.

pub mod app;
mod args;
pub mod collectors;
pub mod gpu;
pub mod http;
mod metrics;
pub mod pages;
pub mod plan;
pub mod render;
mod sample;
pub mod series;
pub mod storage;
mod store;
mod web;

pub use args::Args;
pub use metrics::Metrics;
pub use sample::Sampler;
pub use store::{SharedStore, Store};

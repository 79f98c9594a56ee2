//! The whole annotator over real HTTP: an API server stand-in, exporter stand-ins, and a clock that
//! the tests move.
#![allow(clippy::unwrap_used, clippy::panic)] // A failed unwrap is a failed test.

mod addresses;
mod bands;
mod boot;
mod connections;
mod coverage;
mod exporter;
mod gpu;
mod large_objects;
mod lease;
mod load;
mod metrics;
mod metrics_server;
mod pod_use;
mod policy;
mod prometheus;
mod readings;
mod same_readings;
mod start;
mod taints;
mod tls;
mod trouble;
mod world;

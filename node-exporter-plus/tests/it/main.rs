//! The exporter as its users meet it: over HTTP, and as a process.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

mod endpoints;
mod gpu;
mod http;
mod node;
mod process;
mod start;
mod web;

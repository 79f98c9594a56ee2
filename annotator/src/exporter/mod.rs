//! Exporters: their addresses, the connections to them, and their answers.
//!
//! Invariant: everything that depends on the HTTP client or on an exporter's format stays in this module. Other modules use
//! a [`Poller`](poll::Poller) that turns an [`Endpoint`](endpoint::Endpoint) into
//! [`Statistics`](statistics::Statistics) or a [`PollError`](error::PollError).

pub mod cards;
mod connections;
pub mod credentials;
pub mod discovery;
pub mod endpoint;
pub mod error;
mod http;
pub mod poll;
pub mod statistics;
pub mod tls;
pub mod transport;

//! Exporters: their addresses, the connections to them, and their answers.
//!
//! Invariant: everything that depends on the HTTP client or on an exporter's format stays in this module. Other modules
//! use a [`Poller`](poll::Poller) that turns an [`Endpoint`](endpoint::Endpoint) into
//! [`Statistics`](statistics::Statistics) or a [`PollError`](error::PollError).

pub(crate) mod connections;
pub(crate) mod credentials;
pub(crate) mod discovery;
pub mod endpoint;
pub(crate) mod error;
pub(crate) mod gpus;
mod http;
pub(crate) mod poll;
pub mod statistics;
pub(crate) mod tls;
pub(crate) mod transport;

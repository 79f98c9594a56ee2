//! The admin endpoints and the HTTP server from the outside.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

mod admin;
mod errors;
#[cfg(feature = "tls")]
mod floods;
mod http;
#[cfg(feature = "tls")]
mod servers;
#[cfg(feature = "tls")]
mod tls;

//! A client for HTTP to other pods of Plimsoll.

use std::sync::Arc;

use daemon::Causes;
use reqwest::{Client, ClientBuilder, Response, redirect};
use rustls::{ClientConfig, RootCertStore};

/// Why there is no HTTP client.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The TLS library's error.
    #[error("TLS cannot be set up")]
    Tls(#[from] rustls::Error),
    /// The HTTP client's error.
    #[error("no HTTP client can be set up")]
    Client(#[from] reqwest::Error),
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AnswerError {
    #[error("its answer has more than {0} bytes")]
    TooLong(usize),
    #[error("{0}")]
    Connection(String),
}

impl From<reqwest::Error> for AnswerError {
    /// Takes the innermost error: the outer ones only repeat the URL.
    fn from(error: reqwest::Error) -> Self {
        Self::Connection(Causes(&error).innermost())
    }
}

/// The answer's body, of `limit` bytes at most.
pub(crate) async fn body(mut answer: Response, limit: usize) -> Result<Vec<u8>, AnswerError> {
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await? {
        if body.len() + chunk.len() > limit {
            return Err(AnswerError::TooLong(limit));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// A client of plain HTTP/1 that uses no proxy and follows no redirect.
pub(crate) fn builder() -> Result<ClientBuilder, SetupError> {
    // reqwest requires a TLS configuration even if it is never used.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(builder_with(tls.with_root_certificates(RootCertStore::empty()).with_no_client_auth()))
}

/// As [`builder`], also for TLS with this configuration.
pub(crate) fn builder_with(tls: ClientConfig) -> ClientBuilder {
    let builder = Client::builder().tls_backend_preconfigured(tls).http1_only().no_proxy();
    builder.redirect(redirect::Policy::none())
}

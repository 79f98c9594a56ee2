//! A client for plain HTTP to other pods of Plimsoll.

use std::sync::Arc;

use reqwest::{Client, ClientBuilder, redirect};
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

/// A client of HTTP/1 that uses no proxy and follows no redirect.
pub(crate) fn builder() -> Result<ClientBuilder, SetupError> {
    // reqwest wants a TLS configuration even where it is never used.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let tls = tls.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
    let builder = Client::builder().tls_backend_preconfigured(tls).http1_only().no_proxy();
    Ok(builder.redirect(redirect::Policy::none()))
}

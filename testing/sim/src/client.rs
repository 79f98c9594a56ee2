//! The HTTP client of the stand-ins, the demo and their tests: plain HTTP to this machine, without a
//! proxy.

use std::io;
use std::sync::Arc;

use reqwest::Client;
use rustls::crypto::ring;
use rustls::{ClientConfig, RootCertStore};

/// A client for `http://` URLs. `Client::new()` panics here: reqwest is built with TLS and without a
/// crypto provider of its own.
///
/// # Errors
/// When it cannot be set up.
pub fn http_client() -> io::Result<Client> {
    let nobody = trusting_nobody().map_err(io::Error::other)?;
    let client = Client::builder().no_proxy().tls_backend_preconfigured(nobody).build();
    client.map_err(io::Error::other)
}

fn trusting_nobody() -> Result<ClientConfig, rustls::Error> {
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let config = config.with_safe_default_protocol_versions()?;
    Ok(config.with_root_certificates(RootCertStore::empty()).with_no_client_auth())
}

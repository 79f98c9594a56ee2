//! The HTTP client of the stand-ins, the demo and their tests: plain HTTP to this machine, without a proxy.

use std::io;
use std::sync::Arc;

use reqwest::Client;
use rustls::crypto::ring;
use rustls::{ClientConfig, RootCertStore};

/// A client for `http://` URLs. `Client::new()` would panic: in this workspace reqwest has TLS, but no crypto provider.
///
/// # Errors
/// When it cannot be set up.
pub fn http_client() -> io::Result<Client> {
    let tls = without_roots().map_err(io::Error::other)?;
    let client = Client::builder().no_proxy().tls_backend_preconfigured(tls).build();
    client.map_err(io::Error::other)
}

/// A TLS configuration that trusts no certificate.
fn without_roots() -> Result<ClientConfig, rustls::Error> {
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let config = config.with_safe_default_protocol_versions()?;
    Ok(config.with_root_certificates(RootCertStore::empty()).with_no_client_auth())
}

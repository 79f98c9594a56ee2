//! The HTTP client of the stand-ins, the demo and their tests: plain HTTP to this machine, without a proxy; and free addresses here.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
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

/// An address that nothing listens on, for a server that must be told its port.
///
/// It is another than 127.0.0.1: there the kernel gives a port that was closed to the next server or connection of the many that tests
/// have at once.
///
/// # Errors
/// Where it has no free port.
pub fn free_address() -> io::Result<SocketAddr> {
    let [.., high, low] = std::process::id().to_be_bytes();
    TcpListener::bind((Ipv4Addr::new(127, 1, high, low), 0))?.local_addr()
}

/// A TLS configuration that trusts no certificate.
fn without_roots() -> Result<ClientConfig, rustls::Error> {
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let config = config.with_safe_default_protocol_versions()?;
    Ok(config.with_root_certificates(RootCertStore::empty()).with_no_client_auth())
}

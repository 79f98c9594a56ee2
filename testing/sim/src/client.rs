//! The HTTP client of the stand-ins, the demo and their tests: plain HTTP to this machine, without a proxy; and
//! addresses here that are kept for a server.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use reqwest::Client;
use rustls::crypto::ring;
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpSocket;

/// A client for `http://` URLs. `Client::new()` would panic: in this workspace reqwest has TLS, but no crypto provider.
///
/// # Errors
/// When it cannot be set up.
pub fn http_client() -> io::Result<Client> {
    let tls = without_roots().map_err(io::Error::other)?;
    let client = Client::builder().no_proxy().tls_backend_preconfigured(tls).build();
    client.map_err(io::Error::other)
}

/// An address of the loopback that is kept for a server which must be told its port, or that refuses every client.
///
/// Until it is dropped, a socket is bound there that never listens. So the kernel gives the port to no socket that asks
/// for any free one, and clients are refused while no server listens. A server can listen beside it, and again after
/// its end, if it sets `SO_REUSEADDR` (socket(7)), as those of tokio, Go and this workspace do.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// let kept = sim::KeptAddress::new()?;
/// let refused = tokio::net::TcpStream::connect(kept.address()).await;
/// assert_eq!(refused.unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
/// for _ in 0..2 {
///     let _server = tokio::net::TcpListener::bind(kept.address()).await?;
///     assert!(tokio::net::TcpStream::connect(kept.address()).await.is_ok());
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct KeptAddress {
    _socket: TcpSocket,
    address: SocketAddr,
}

impl KeptAddress {
    /// One with a free port.
    ///
    /// # Errors
    /// Where there is none.
    pub fn new() -> io::Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.set_reuseaddr(true)?;
        socket.bind((Ipv4Addr::LOCALHOST, 0).into())?;
        let address = socket.local_addr()?;
        Ok(Self { _socket: socket, address })
    }

    /// The address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// A TLS configuration that trusts no certificate.
fn without_roots() -> Result<ClientConfig, rustls::Error> {
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let config = config.with_safe_default_protocol_versions()?;
    Ok(config.with_root_certificates(RootCertStore::empty()).with_no_client_auth())
}

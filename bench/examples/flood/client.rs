//! A client that sends the first message of a TLS handshake, made once, over new connections as fast as it can.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpSocket, TcpStream};

/// Connections that are open at once.
const OPEN: usize = 400;

/// Floods until the process ends.
pub(crate) async fn flood(
    from: IpAddr,
    server: SocketAddr,
    name: &'static str,
) -> anyhow::Result<()> {
    let hello = hello(name)?;
    let mut open = VecDeque::with_capacity(OPEN);
    loop {
        match connect(from, server, &hello).await {
            Ok(stream) => open.push_back(stream),
            // As where the server resets it: the next try is at once.
            Err(_) => tokio::task::yield_now().await,
        }
        if open.len() == OPEN {
            open.pop_front();
        }
    }
}

async fn connect(from: IpAddr, server: SocketAddr, hello: &[u8]) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    // Its end leaves nothing in the kernel, so that ports do not run out.
    socket.set_zero_linger()?;
    socket.bind(SocketAddr::new(from, 0))?;
    let mut stream = socket.connect(server).await?;
    stream.write_all(hello).await?;
    Ok(stream)
}

/// The first message of a client that knows no CA.
fn hello(name: &'static str) -> anyhow::Result<Vec<u8>> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let config = config.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
    let mut client = ClientConnection::new(Arc::new(config), ServerName::try_from(name)?)?;
    let mut hello = Vec::new();
    client.write_tls(&mut hello)?;
    Ok(hello)
}

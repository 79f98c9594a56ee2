//! A bounded HTTP/1 server: nobody who can reach the port can exhaust the process.
//!
//! Bounded are the connections, the time for a TLS handshake, the time for a request's head (and for an idle connection, which to HTTP/1 is
//! the same wait), the time for a whole request, the body, the head's size, and the time
//! for which a client may leave its answer unread.

mod connection;
mod routes;
mod transport;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::task::TaskTracker;

use self::connection::converse;
pub use self::routes::Handler;
use self::routes::Routes;
pub use self::transport::Transport;
use crate::Shutdown;

/// What one server grants its clients.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections at once; further ones wait in the kernel's backlog.
    pub connections: usize,
    /// From a connection's beginning to the end of its TLS handshake, where there is one.
    pub handshake: Duration,
    /// From an idle connection to a whole request head. Longer than the idle time of the clients' pools (90 s
    /// for Go), so that it is they who close, and no request meets a connection that is about to end.
    pub head: Duration,
    /// From the head to the response's head, the request's body included.
    pub request: Duration,
    /// The largest body, in bytes, as axum's extractors read it.
    pub body: usize,
    /// The largest head, in bytes, and the unit in which a connection reads. At least 8 KiB.
    pub head_bytes: usize,
}

impl Default for Limits {
    /// For a server that other machines talk to all the time.
    fn default() -> Self {
        Self {
            connections: 256,
            handshake: Duration::from_secs(10),
            head: Duration::from_secs(100),
            request: Duration::from_secs(30),
            body: 8 << 20,
            head_bytes: 64 << 10,
        }
    }
}

impl Limits {
    /// For small answers to a few clients: scrapes and probes.
    #[must_use]
    pub fn admin() -> Self {
        Self {
            connections: 32,
            handshake: Duration::from_secs(5),
            head: Duration::from_secs(30),
            request: Duration::from_secs(5),
            body: 16 << 10,
            head_bytes: 8 << 10,
        }
    }
}

/// An address that cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("{flag} {address}: cannot listen there: {source}; free the port or give another address")]
pub struct BindError {
    /// The flag that gave the address.
    pub flag: &'static str,
    /// The address.
    pub address: SocketAddr,
    /// What the kernel says.
    pub source: io::Error,
}

/// Listens on `address`, which `flag` gave.
///
/// # Errors
/// When the kernel refuses.
pub async fn bind(address: SocketAddr, flag: &'static str) -> Result<TcpListener, BindError> {
    let listener = TcpListener::bind(address).await;
    listener.map_err(|source| BindError { flag, address, source })
}

/// Serves `handler` over plain HTTP until `shutdown`, then lets the requests in flight end.
///
/// # Errors
/// None today; the type suits [`Context::spawn`](crate::Context::spawn).
pub async fn serve(
    listener: TcpListener,
    handler: impl Into<Handler>,
    limits: Limits,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    serve_over(Transport::Plain, listener, handler, limits, shutdown).await
}

/// [`serve`], over the given transport.
///
/// # Errors
/// As [`serve`].
pub async fn serve_over(
    transport: Transport,
    listener: TcpListener,
    handler: impl Into<Handler>,
    limits: Limits,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let routes = Routes::new(handler.into(), &limits);
    let permits = Arc::new(Semaphore::new(limits.connections));
    let connections = TaskTracker::new();
    while let Some((stream, permit)) =
        shutdown.run_until_cancelled(accept(&listener, &permits)).await.flatten()
    {
        let (transport, routes) = (transport.clone(), routes.clone());
        let connection = converse(stream, transport, routes, limits, shutdown.clone());
        connections.spawn(hold(permit, connection));
    }
    // Closed now, so that late clients are refused at once.
    drop(listener);
    connections.close();
    connections.wait().await;
    Ok(())
}

/// The next connection, once there is room for it.
async fn accept(
    listener: &TcpListener,
    permits: &Arc<Semaphore>,
) -> Option<(TcpStream, OwnedSemaphorePermit)> {
    // `None` only when the semaphore is closed, which nobody does.
    let permit = Arc::clone(permits).acquire_owned().await.ok()?;
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return Some((stream, permit)),
            Err(error) => endure(&error).await,
        }
    }
}

/// A peer that is gone costs nothing; out of files or memory, only time helps.
async fn endure(error: &io::Error) {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset};
    if !matches!(error.kind(), ConnectionAborted | ConnectionReset) {
        tracing::warn!(%error, "cannot accept a connection");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

async fn hold(permit: OwnedSemaphorePermit, connection: impl Future<Output = ()>) {
    connection.await;
    drop(permit);
}

//! A bounded HTTP/1 server: nobody who can reach the port can exhaust the process.
//!
//! Bounded are the connections, the time for a TLS handshake, the time for a request's head (and for an idle connection, which to HTTP/1 is
//! the same wait), the time for a whole request, the body, the head's size, the time
//! for which a client may leave its answer unread, and what the kernel holds of it. Who is idle keeps nobody out: where all places are taken, a
//! new client gets the place of the connection that has been idle longest, and to leave an answer unread is to be idle.

mod connection;
mod kernel;
mod places;
mod routes;
mod seen;
mod transport;

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::TaskTracker;

use self::connection::converse;
use self::places::Places;
pub use self::routes::Handler;
use self::routes::Routes;
pub use self::transport::Transport;
use crate::Shutdown;

/// What one server grants its clients.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections at once. A further one takes the place of the one that has waited longest for a head, or for its client to read; while none
    /// waits so, it waits itself for the first answer, and others behind it in the kernel's backlog.
    pub connections: usize,
    /// From a connection's beginning to the end of its TLS handshake, where there is one.
    pub handshake: Duration,
    /// From a connection's beginning, or the end of its handshake, to its first whole request head; at most `head`.
    pub first_head: Duration,
    /// From an idle connection to a whole request head. Longer than the idle time of the clients' pools (90 s
    /// for Go), so that it is they who close, and no request meets a connection that is about to end.
    pub head: Duration,
    /// From the head to the response's head, the request's body included.
    pub request: Duration,
    /// From an answer's being made to its last byte's being with the kernel, and then for the client to take what lies there.
    pub unread: Duration,
    /// As `unread`, where a client waits for a place and finds none.
    pub patience: Duration,
    /// The largest body, in bytes, as axum's extractors read it.
    pub body: usize,
    /// The largest head, in bytes, and the unit in which a connection reads. At least 8 KiB.
    pub head_bytes: usize,
    /// What the kernel holds of a connection's answers that its client has not read, in bytes; it takes twice that for it. What is too little
    /// for an answer costs it the time in which the client takes the rest.
    pub unread_bytes: usize,
    /// What the kernel holds of a connection's requests that are not read, alike; without it as much as it sees fit, up to 6 MiB.
    pub unseen_bytes: Option<usize>,
}

impl Default for Limits {
    /// For a server that other machines talk to all the time.
    fn default() -> Self {
        Self {
            connections: 256,
            handshake: Duration::from_secs(10),
            // Go's pools also hold connections that were opened in vain and have sent nothing yet.
            first_head: Duration::from_secs(100),
            head: Duration::from_secs(100),
            request: Duration::from_secs(30),
            unread: Duration::from_secs(30),
            patience: Duration::from_secs(1),
            body: 8 << 20,
            head_bytes: 64 << 10,
            unread_bytes: 512 << 10,
            unseen_bytes: None,
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
            first_head: Duration::from_secs(5),
            head: Duration::from_secs(30),
            request: Duration::from_secs(5),
            unread: Duration::from_secs(5),
            // Half of the shortest time-out of a probe.
            patience: Duration::from_millis(500),
            body: 16 << 10,
            head_bytes: 8 << 10,
            unread_bytes: 32 << 10,
            unseen_bytes: Some(8 << 10),
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
    kernel::bound(&listener, &limits);
    let routes = Routes::new(handler.into(), &limits);
    let places = Places::new(limits.connections, shutdown.clone());
    let connections = TaskTracker::new();
    // Accepted before there is a place: only so is known that somebody wants one.
    while let Some((stream, taken)) =
        shutdown.run_until_cancelled(async { (accept(&listener).await, places.take().await) }).await
    {
        let (transport, routes) = (transport.clone(), routes.clone());
        connections.spawn(converse(stream, transport, routes, limits, taken));
    }
    // Closed now, so that late clients are refused at once.
    drop(listener);
    connections.close();
    connections.wait().await;
    Ok(())
}

/// The next connection.
async fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
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

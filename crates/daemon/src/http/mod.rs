//! A bounded HTTP/1 server: a client that can reach the port cannot exhaust the process or keep other clients out.
//!
//! Bounded are: connections, TLS handshakes at once and by address, the time of a TLS handshake, of a request's head
//! (and so of an idle connection) and of a whole request, the sizes of head and body, the time in which a client reads
//! its answer, and what the kernel buffers for it.
//!
//! A bound on connections alone would let a few idle clients keep every scrape and probe out, and no server crate
//! closes idle connections for newcomers. So when all slots are taken, a new client gets the slot of the connection
//! that has been idle longest ([`slots`]); a client that does not read its answer counts as idle. The attacks are tests
//! (`tests/it/http.rs`, `tests/it/floods.rs`, and those of the exporter on its real binary). Measured with
//! [`Limits::admin`], 60 probes with a time-out of 1 s, and 100 clients that reconnect when they are closed:
//!
//! | the clients | probes answered | without closing idle connections |
//! |---|---|---|
//! | send nothing | 59, within 51 ms | 0 |
//! | send half a request's head | 58, within 55 ms | 0 |
//! | ask for 256 KiB and read nothing | 48 | 0 |

mod bind;
mod connection;
mod limits;
mod rates;
mod service;
mod slots;
mod socket;
mod stream;
mod transport;

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

pub use self::bind::{BindError, Bound, bind, reserve};
use self::connection::Connection;
pub use self::limits::Limits;
pub use self::rates::Rate;
use self::rates::Rates;
use self::service::Service;
pub use self::service::{Client, Handler};
use self::slots::{Phase, Slots};
pub use self::transport::Transport;
use crate::{OwnThread, Shutdown};

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
    serve_by(None, transport, listener, handler.into(), limits, shutdown).await
}

/// [`serve_over`], with the answers made on `thread`. Connections are accepted by the caller's runtime, which also does
/// the TLS handshakes: clients without a certificate cost the thread nothing.
///
/// # Errors
/// As [`serve`].
pub async fn serve_on(
    thread: OwnThread,
    transport: Transport,
    listener: TcpListener,
    handler: impl Into<Handler>,
    limits: Limits,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    serve_by(Some(thread), transport, listener, handler.into(), limits, shutdown).await
}

async fn serve_by(
    thread: Option<OwnThread>,
    transport: Transport,
    listener: TcpListener,
    handler: Handler,
    limits: Limits,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    socket::limit_buffers(&listener, &limits);
    let service = Service::new(handler, &limits);
    let first = if transport.has_handshake() { Phase::Handshake } else { Phase::Waiting };
    let slots = Slots::new(&limits, first);
    let rates = Arc::new(Rates::new(limits.handshake_rate));
    let connections = TaskTracker::new();
    // Accepted before a slot is free, since an idle connection is closed only for a waiting client.
    let next = async || {
        let (stream, address) = accept(&listener, &transport, &rates).await;
        (stream, address, slots.take().await)
    };
    while let Some((stream, address, slot)) = shutdown.run_until_cancelled(next()).await {
        let connection = Connection {
            address,
            transport: transport.clone(),
            service: service.clone(),
            limits,
            slot,
            rates: rates.clone(),
            shutdown: shutdown.clone(),
        };
        connections.spawn(connection.serve(stream, thread.clone()));
    }
    // Closed now, so that later clients are refused at once.
    drop(listener);
    connections.close();
    connections.wait().await;
    Ok(())
}

/// The next connection that may begin, and its client's address.
async fn accept(
    listener: &TcpListener,
    transport: &Transport,
    rates: &Rates,
) -> (TcpStream, IpAddr) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let address = peer.ip().to_canonical();
                if !transport.has_handshake() || rates.admits(address, Instant::now()) {
                    return (stream, address);
                }
                transport.count_refused();
                socket::reset_on_close(&stream);
                tracing::debug!(%address, "too many TLS handshakes of this address: reset");
            }
            Err(error) => pause_after(&error).await,
        }
    }
}

/// Waits if `accept` would fail again at once, for example without free file descriptors or memory. It does not wait if
/// only the client has closed the connection.
async fn pause_after(error: &io::Error) {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset};
    if !matches!(error.kind(), ConnectionAborted | ConnectionReset) {
        tracing::warn!(%error, "cannot accept a connection");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

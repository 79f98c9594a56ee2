//! A bounded HTTP/1 server: a client that can reach the port cannot exhaust the process or keep other clients out.
//!
//! Bounded are: connections, the time of a TLS handshake, of a request's head (and so of an idle connection) and of a
//! whole request, the sizes of head and body, the time in which a client reads its answer, and what the kernel buffers
//! for it.
//!
//! A bound on connections alone would let a few idle clients keep every scrape and probe out, and no server crate
//! closes idle connections for newcomers. So when all slots are taken, a new client gets the slot of the connection
//! that has been idle longest ([`slots`]); a client that does not read its answer counts as idle. The attacks are tests
//! (`tests/it/http.rs`, and those of the exporter on its real binary). Measured with [`Limits::admin`], 60 probes with
//! a time-out of 1 s, and 100 clients that reconnect when they are closed:
//!
//! | the clients | probes answered | without closing idle connections |
//! |---|---|---|
//! | send nothing | 59, within 51 ms | 0 |
//! | send half a request's head | 58, within 55 ms | 0 |
//! | ask for 256 KiB and read nothing | 48 | 0 |

mod bind;
mod connection;
mod limits;
mod service;
mod slots;
mod socket;
mod stream;
mod transport;

use std::io;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::TaskTracker;

pub use self::bind::{BindError, Bound, bind, reserve};
use self::connection::Connection;
pub use self::limits::Limits;
pub use self::service::Handler;
use self::service::Service;
use self::slots::Slots;
pub use self::transport::Transport;
use crate::Shutdown;

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
    socket::limit_buffers(&listener, &limits);
    let service = Service::new(handler.into(), &limits);
    let slots = Slots::new(&limits);
    let connections = TaskTracker::new();
    // Accepted before a slot is free, since an idle connection is closed only for a waiting client.
    while let Some((stream, slot)) =
        shutdown.run_until_cancelled(async { (accept(&listener).await, slots.take().await) }).await
    {
        let connection = Connection {
            transport: transport.clone(),
            service: service.clone(),
            limits,
            slot,
            shutdown: shutdown.clone(),
        };
        connections.spawn(connection.serve(stream));
    }
    // Closed now, so that later clients are refused at once.
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

//! The pool of connections to exporters, which are kept from one poll to the next.
//!
//! Invariants: a connection is reused only for the address that it was made to: all exporters' certificates have the
//! same name, so the name does not identify an exporter. It is reused only with the CA that verified it: after a change
//! of the CA all connections are closed. At most one connection for each address is kept, for at most [`MAX_IDLE`], and
//! in total at most [`Connections::capacity`].

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use daemon::metrics::{Counter, Registry};
use tokio::time::Instant;

use super::http::Connection;
use super::transport::Transport;

/// The longest time that an idle connection is kept: the same as in most clients. Servers wait longer, so no request is
/// sent on a connection that the server is closing.
const MAX_IDLE: Duration = Duration::from_secs(90);

/// The period of sweeps of expired connections.
const SWEEP_EVERY: Duration = Duration::from_secs(30);

/// The largest number of kept connections: twice the nodes that Kubernetes supports.
const MAX_CONNECTIONS: usize = 10_000;

/// The assumed limit of open files if it is unknown.
const DEFAULT_FILES: u64 = 1024;

/// Numbers about connections to exporters; clones share them.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionMetrics {
    opened: Counter,
}

impl ConnectionMetrics {
    pub(crate) fn register(registry: &mut Registry) -> Self {
        Self {
            opened: registry.counter(
                "plimsoll_annotator_connections_opened_total",
                "Connections made to exporters",
            ),
        }
    }
}

/// The kept connections; clones share them.
#[derive(Clone)]
pub(super) struct Connections {
    capacity: usize,
    pool: Arc<Mutex<Pool>>,
    metrics: ConnectionMetrics,
}

#[derive(Default)]
struct Pool {
    /// The transport that the connections were made with.
    transport: Option<Arc<Transport>>,
    by_address: HashMap<Box<str>, IdleConnection>,
}

struct IdleConnection {
    connection: Connection,
    since: Instant,
}

impl Connections {
    /// An empty pool. It uses at most half of the process's limit of open files.
    pub(super) fn new(metrics: ConnectionMetrics) -> Self {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let files = limit.current.unwrap_or(DEFAULT_FILES.max(2 * MAX_CONNECTIONS as u64));
        let capacity = usize::try_from(files / 2).unwrap_or(MAX_CONNECTIONS).min(MAX_CONNECTIONS);
        Self::with_capacity(capacity, metrics)
    }

    fn with_capacity(capacity: usize, metrics: ConnectionMetrics) -> Self {
        Self { capacity, pool: Arc::default(), metrics }
    }

    /// A connection was made.
    pub(super) fn count_opened(&self) {
        self.metrics.opened.inc();
    }

    /// Removes and returns the open connection to `address` that `transport` may use.
    pub(super) fn take(&self, transport: &Arc<Transport>, address: &str) -> Option<Connection> {
        let mut idle = self.pool_for(transport).by_address.remove(address)?;
        let is_fresh = idle.since.elapsed() <= MAX_IDLE;
        (is_fresh && idle.connection.is_open()).then_some(idle.connection)
    }

    /// Keeps a connection that was made by `transport`, unless the pool is full.
    pub(super) fn keep(&self, transport: &Arc<Transport>, address: &str, connection: Connection) {
        let mut pool = self.lock();
        let is_same = pool.transport.as_ref().is_some_and(|now| now.trusts_like(transport));
        if is_same && pool.by_address.len() < self.capacity {
            let idle = IdleConnection { connection, since: Instant::now() };
            pool.by_address.insert(address.into(), idle);
        }
    }

    /// Closes expired connections periodically, without end.
    pub(super) async fn sweep(self) {
        loop {
            tokio::time::sleep(SWEEP_EVERY).await;
            let now = Instant::now();
            self.lock().by_address.retain(|_, idle| now.duration_since(idle.since) <= MAX_IDLE);
        }
    }

    /// The connections that `transport` may use.
    fn pool_for(&self, transport: &Arc<Transport>) -> MutexGuard<'_, Pool> {
        let mut pool = self.lock();
        if pool.transport.as_ref().is_none_or(|now| !now.trusts_like(transport)) {
            pool.by_address.clear();
        }
        pool.transport = Some(Arc::clone(transport));
        pool
    }

    fn lock(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::DuplexStream;

    use super::*;

    fn plain() -> Arc<Transport> {
        Arc::new(Transport::Plain)
    }

    fn kept_at_most(capacity: usize) -> Connections {
        Connections::with_capacity(capacity, ConnectionMetrics::register(&mut Registry::default()))
    }

    /// An open connection, and its other end.
    async fn open() -> (Connection, DuplexStream) {
        let (ours, theirs) = tokio::io::duplex(64);
        let mut connection = Connection::new(ours);
        assert!(connection.is_open());
        (connection, theirs)
    }

    #[tokio::test]
    async fn a_kept_connection_is_taken_once_and_for_its_address_alone() {
        let connections = kept_at_most(8);
        let (connection, _end) = open().await;
        assert!(connections.take(&plain(), "10.0.0.1:1").is_none());
        connections.keep(&plain(), "10.0.0.1:1", connection);
        assert!(connections.take(&plain(), "10.0.0.2:1").is_none());
        assert!(connections.take(&plain(), "10.0.0.1:1").is_some());
        assert!(connections.take(&plain(), "10.0.0.1:1").is_none());
    }

    #[tokio::test]
    async fn a_connection_that_the_exporter_closed_is_not_taken() {
        let connections = kept_at_most(8);
        let (connection, end) = open().await;
        drop(connections.take(&plain(), "a:1"));
        connections.keep(&plain(), "a:1", connection);
        drop(end);
        assert!(connections.take(&plain(), "a:1").is_none());
    }

    #[tokio::test]
    async fn more_connections_than_fit_are_not_kept() {
        let connections = kept_at_most(2);
        drop(connections.take(&plain(), "0"));
        let mut ends = Vec::new();
        for address in ["1", "2", "3"] {
            let (connection, end) = open().await;
            ends.push(end);
            connections.keep(&plain(), address, connection);
        }
        let kept = ["1", "2", "3"].map(|address| connections.take(&plain(), address).is_some());
        assert_eq!(kept, [true, true, false]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_was_idle_for_too_long_is_closed_though_nothing_asks_for_it() {
        let connections = kept_at_most(2);
        drop(connections.take(&plain(), "0"));
        let (connection, mut end) = open().await;
        connections.keep(&plain(), "1", connection);
        let sweeping = tokio::spawn(connections.clone().sweep());
        let closed = async { tokio::io::AsyncReadExt::read_u8(&mut end).await.is_err() };
        assert!(tokio::time::timeout(MAX_IDLE + 2 * SWEEP_EVERY, closed).await.unwrap());
        sweeping.abort();
    }
}

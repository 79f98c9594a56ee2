//! What one server grants its clients.

use std::time::Duration;

use super::Rate;

/// A handshake takes some 0.2 ms of a core: the burst of an address a twentieth of a second, and what follows 0.3% of a
/// core.
const HANDSHAKE_RATE: Rate = Rate { burst: 256, every: Duration::from_millis(64) };

/// The limits of one server.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections at once. A further client gets the slot of the connection that has been idle longest; while none is
    /// idle it waits, and others behind it in the kernel's backlog.
    pub connections: usize,
    /// TLS handshakes at once. A further one takes the place of the one that has taken longest.
    pub handshakes: usize,
    /// TLS handshakes of one address. A further one is reset.
    pub handshake_rate: Rate,
    /// From a connection's beginning to the end of its TLS handshake.
    pub handshake: Duration,
    /// From an idle connection to a whole request head. Longer than the idle time of the clients' connection pools (90
    /// s in Go), so that clients close idle connections, and no request meets one that the server is closing.
    pub head: Duration,
    /// From a request's head to the response's head, the request's body included.
    pub request: Duration,
    /// For a client to read a whole answer. Then its connection is reset.
    pub unread: Duration,
    /// After so long with an answer unread, a connection counts as idle and may make room for a new client.
    pub patience: Duration,
    /// The largest request body, in bytes, as axum's extractors read it.
    pub body: usize,
    /// The largest request head, in bytes, and the unit in which a connection reads. At least 8 KiB.
    pub head_bytes: usize,
    /// The kernel's buffer of an answer that its client has not read, in bytes; the kernel uses twice that memory for
    /// it. A longer answer waits for its client to read.
    pub unread_bytes: usize,
    /// The kernel's buffer of requests that the server has not read, in bytes; `None` is the kernel's own bound (6 MiB
    /// by default).
    pub unseen_bytes: Option<usize>,
}

impl Default for Limits {
    /// For a server that other machines call all the time.
    fn default() -> Self {
        Self {
            connections: 256,
            handshakes: 128,
            handshake_rate: HANDSHAKE_RATE,
            handshake: Duration::from_secs(10),
            head: Duration::from_secs(100),
            request: Duration::from_secs(30),
            unread: Duration::from_secs(30),
            patience: Duration::from_secs(1),
            body: 8 << 20,
            head_bytes: 64 << 10,
            unread_bytes: 512 << 10,
            unseen_bytes: Some(64 << 10),
        }
    }
}

impl Limits {
    /// For small answers to a few clients: scrapes and probes. Buffers of 32 connections take 3 MiB at most, which fits
    /// the exporter's container of 24 MiB, 12 more than its windows may take.
    #[must_use]
    pub fn admin() -> Self {
        Self {
            connections: 32,
            handshakes: 32,
            handshake_rate: Rate::ENDLESS,
            handshake: Duration::from_secs(5),
            head: Duration::from_secs(100),
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

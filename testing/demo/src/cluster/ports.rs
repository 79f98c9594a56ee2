//! Ports for programs whose address others must know before they start.
//!
//! They lie below the range from which Linux serves requests for any free port, so that no program that starts
//! meanwhile is given one of them. Each is held for as long as the demo runs: a socket is bound to it that never
//! listens, beside which the program listens that it is for, as all of them set `SO_REUSEADDR`.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Context;
use tokio::net::TcpSocket;

/// Linux's default range for any free port begins at 32768.
const PORTS: std::ops::Range<u32> = 12_000..32_000;

/// Hands out ports.
#[derive(Debug)]
pub(super) struct Ports {
    /// The last one, as an offset into [`PORTS`] that wraps around.
    last: u32,
    held: Vec<TcpSocket>,
}

impl Ports {
    /// Starts at an offset that depends on the process id, so that two demos at once rarely try the same ports.
    pub(super) fn new() -> Self {
        Self { last: std::process::id().wrapping_mul(131), held: Vec::new() }
    }

    /// The next port to which nothing is bound.
    ///
    /// # Errors
    /// When there is none.
    pub(super) fn take(&mut self) -> anyhow::Result<u16> {
        let count = PORTS.end - PORTS.start;
        let free = (0..count).find_map(|_| {
            self.last = self.last.wrapping_add(1);
            let port = u16::try_from(PORTS.start + self.last % count).ok()?;
            hold(port).ok().map(|socket| (port, socket))
        });
        let (port, socket) = free.context("no free port on the loopback")?;
        self.held.push(socket);
        Ok(port)
    }
}

/// Binds a socket to a port of the loopback.
///
/// # Errors
/// When anything else is bound to it.
fn hold(port: u16) -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
    // Only now: with it, the port that another demo holds could be bound, too.
    socket.set_reuseaddr(true)?;
    Ok(socket)
}

/// A port's address on the loopback.
pub(super) fn loopback(port: u16) -> String {
    format!("127.0.0.1:{port}")
}

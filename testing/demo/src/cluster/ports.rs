//! Ports for programs whose address others must know before they start.
//!
//! They lie below the range from which Linux serves requests for any free port, so that no program that starts
//! meanwhile is given one of them.

use std::net::TcpListener;

use anyhow::Context;

/// Linux's default range for any free port begins at 32768.
const PORTS: std::ops::Range<u32> = 12_000..32_000;

/// Hands out ports.
#[derive(Debug)]
pub(super) struct Ports {
    /// The last one, as an offset into [`PORTS`] that wraps around.
    last: u32,
}

impl Ports {
    /// Starts at an offset that depends on the process id, so that two demos at once rarely try the same ports.
    pub(super) fn new() -> Self {
        Self { last: std::process::id().wrapping_mul(131) }
    }

    /// The next port that nothing listens on.
    ///
    /// # Errors
    /// When there is none.
    pub(super) fn take(&mut self) -> anyhow::Result<u16> {
        let count = PORTS.end - PORTS.start;
        let free = (0..count).find_map(|_| {
            self.last = self.last.wrapping_add(1);
            let port = u16::try_from(PORTS.start + self.last % count).ok()?;
            TcpListener::bind(loopback(port)).is_ok().then_some(port)
        });
        free.context("no free port on the loopback")
    }
}

/// A port's address on the loopback.
pub(super) fn loopback(port: u16) -> String {
    format!("127.0.0.1:{port}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_is_listened_on_is_passed_over() {
        let mut ports = Ports::new();
        let first = ports.take().unwrap();
        let _taken = TcpListener::bind(loopback(first));
        let second = Ports { last: ports.last - 1 }.take().unwrap();
        assert_ne!(first, second);
    }
}

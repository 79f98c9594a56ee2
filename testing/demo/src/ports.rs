//! Ports for programs whose address others must know before they run.
//!
//! Below the range from which the system serves those who ask for any port, so that none of the many
//! programs that start at once can be given one of them.

use std::net::TcpListener;

use anyhow::Context;

use crate::world::local;

/// Linux gives out 32768 and up to who asks for any.
const PORTS: std::ops::Range<u32> = 12_000..32_000;

/// Where the search goes on.
#[derive(Debug)]
pub(crate) struct Ports(u32);

impl Ports {
    /// Begins at a place of this process's own, so that two demos at once are not after the same ports.
    pub(crate) fn new() -> Self {
        Self(std::process::id().wrapping_mul(131))
    }

    /// One that nobody listens at now.
    pub(crate) fn take(&mut self) -> anyhow::Result<u16> {
        let count = PORTS.end - PORTS.start;
        let free = (0..count).find_map(|_| {
            self.0 = self.0.wrapping_add(1);
            let port = u16::try_from(PORTS.start + self.0 % count).ok()?;
            TcpListener::bind(local(port)).is_ok().then_some(port)
        });
        free.context("no free port on the loopback")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_is_listened_at_is_passed_over() {
        let mut ports = Ports::new();
        let first = ports.take().unwrap();
        let _taken = TcpListener::bind(local(first));
        let second = Ports(ports.0 - 1).take().unwrap();
        assert_ne!(first, second);
    }
}

//! How many TLS handshakes an address may begin.
//!
//! A client's first message can be made once and sent over and over, and each time costs the server a key exchange and
//! a signature. So each address may begin [`Rate::burst`] handshakes at once, and then one after each [`Rate::every`];
//! one that ends with a client's certificate does not count. Invariant: the table has at most [`MOST`] addresses.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Addresses in the table. For a further one, the address goes whose handshakes are forgotten first.
const MOST: usize = 1024;

/// How many TLS handshakes one address may begin without showing a certificate.
#[derive(Debug, Clone, Copy)]
pub struct Rate {
    /// At once.
    pub burst: u32,
    /// After this time, one of them is forgotten.
    pub every: Duration,
}

impl Rate {
    /// Each address may begin as many as it likes: where no thread of its own waits for them, and clients that keep
    /// silent share an address with those that ask.
    pub const ENDLESS: Self = Self { burst: 1, every: Duration::ZERO };
}

/// The handshakes of each address.
pub(super) struct Rates {
    rate: Rate,
    /// When the last handshake of an address is forgotten.
    until: Mutex<HashMap<IpAddr, Instant>>,
}

impl Rates {
    pub(super) fn new(rate: Rate) -> Self {
        Self { rate, until: Mutex::default() }
    }

    /// Counts a handshake. Returns whether the address may begin it.
    pub(super) fn admits(&self, address: IpAddr, now: Instant) -> bool {
        let Rate { burst, every } = self.rate;
        let mut all = self.until.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MOST && !all.contains_key(&address) {
            all.retain(|_, until| *until > now);
            let first = all.iter().min_by_key(|(_, until)| **until).map(|(address, _)| *address);
            if let Some(first) = first.filter(|_| all.len() >= MOST) {
                all.remove(&first);
            }
        }
        let until = all.entry(address).or_insert(now);
        let next = now.max(*until) + every;
        let is_admitted = next <= now + every * burst;
        if is_admitted {
            *until = next;
        }
        is_admitted
    }

    /// Forgets a handshake of an address.
    pub(super) fn forget(&self, address: IpAddr) {
        let mut all = self.until.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(until) = all.get_mut(&address) {
            *until = until.checked_sub(self.rate.every).unwrap_or(*until);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn rates() -> Rates {
        Rates::new(Rate { burst: 3, every: SECOND })
    }

    fn address(number: u32) -> IpAddr {
        Ipv4Addr::from_bits(number).into()
    }

    #[test]
    fn an_address_has_its_burst_and_then_one_handshake_for_each_that_is_forgotten() {
        let (rates, now) = (rates(), Instant::now());
        let admitted = |now| (0..10).filter(|_| rates.admits(address(1), now)).count();
        assert_eq!(admitted(now), 3);
        assert_eq!(admitted(now + SECOND / 2), 0);
        assert_eq!(admitted(now + SECOND), 1);
        assert_eq!(admitted(now + 100 * SECOND), 3);
    }

    #[test]
    fn without_an_end_each_handshake_is_admitted() {
        let (rates, now) = (Rates::new(Rate::ENDLESS), Instant::now());
        assert!((0..1_000).all(|_| rates.admits(address(1), now)));
    }

    #[test]
    fn other_addresses_have_their_own() {
        let (rates, now) = (rates(), Instant::now());
        assert_eq!((0..10).filter(|_| rates.admits(address(1), now)).count(), 3);
        assert_eq!((0..10).filter(|_| rates.admits(address(2), now)).count(), 3);
    }

    #[test]
    fn a_handshake_that_ends_with_a_certificate_does_not_count() {
        let (rates, now) = (rates(), Instant::now());
        for _ in 0..100 {
            assert!(rates.admits(address(1), now));
            rates.forget(address(1));
        }
        assert_eq!((0..10).filter(|_| rates.admits(address(1), now)).count(), 3);
        rates.forget(address(7));
    }

    #[test]
    fn the_table_has_an_end_and_keeps_those_that_ask_most() {
        let (rates, now) = (rates(), Instant::now());
        assert_eq!((0..3).filter(|_| rates.admits(address(0), now)).count(), 3);
        for number in 1..=5 * MOST as u32 {
            assert!(rates.admits(address(number), now));
        }
        assert_eq!(rates.until.lock().unwrap().len(), MOST);
        assert!(!rates.admits(address(0), now));
        assert!(rates.admits(address(1 << 31), now + 2 * SECOND));
        assert_eq!(rates.until.lock().unwrap().len(), 2, "what is forgotten is not kept");
    }
}

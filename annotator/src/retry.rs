//! How long to wait after failures in a row.

use jiff::{SignedDuration, Timestamp};

/// After the first failure.
const FIRST: SignedDuration = SignedDuration::from_secs(5);

/// At most. A reading lives 5 minutes longer than its period, so that an exporter that is back is
/// heard well before what it said last has expired.
const LONGEST: SignedDuration = SignedDuration::from_mins(2);

/// Failures in a row, and when to try again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Retry {
    failures: u32,
    at: Option<Timestamp>,
}

impl Retry {
    /// Another failure: the wait doubles, from 5 seconds up to 2 minutes.
    pub fn failed(&mut self, now: Timestamp) {
        let doubled = FIRST.checked_mul(1 << self.failures.min(16)).unwrap_or(LONGEST);
        self.at = now.checked_add(doubled.min(LONGEST)).ok();
        self.failures = self.failures.saturating_add(1);
    }

    /// Nothing is wrong; it is only known that nothing comes before `at`.
    pub fn wait_until(&mut self, at: Timestamp) {
        *self = Self { failures: 0, at: Some(at) };
    }

    /// All is well again.
    pub fn succeeded(&mut self) {
        *self = Self::default();
    }

    /// Nothing should be tried before then.
    #[must_use]
    pub fn not_before(&self) -> Timestamp {
        self.at.unwrap_or(Timestamp::MIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_two_minutes_and_start_anew_after_a_success() {
        let now = Timestamp::UNIX_EPOCH;
        let mut retry = Retry::default();
        assert!(retry.not_before() < now);
        for seconds in [5, 10, 20, 40, 80, 120, 120] {
            retry.failed(now);
            assert_eq!(retry.not_before().as_second(), seconds);
        }
        (0..100).for_each(|_| retry.failed(now));
        assert_eq!(retry.not_before().as_second(), 120);
        retry.succeeded();
        assert_eq!(retry, Retry::default());
    }
}

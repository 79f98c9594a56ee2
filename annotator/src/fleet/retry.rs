//! Exponential back-off.

use jiff::{SignedDuration, Timestamp};

/// The wait after the first failure.
const FIRST: SignedDuration = SignedDuration::from_secs(5);

/// The longest wait. A reading is valid for its period plus 5 minutes, so an exporter that recovers is polled well
/// before its last readings expire.
const LONGEST: SignedDuration = SignedDuration::from_mins(2);

/// Failures in a row, and when to try again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Retry {
    failures: u32,
    at: Option<Timestamp>,
}

impl Retry {
    /// Counts a failure at `now`. The wait is 5 seconds after the first one in a row and doubles up to 2 minutes.
    pub fn failed(&mut self, now: Timestamp) {
        self.failed_within(now, LONGEST);
    }

    /// Counts a failure at `now`, as [`failed`](Self::failed) does, with a wait of at most `longest`.
    pub fn failed_within(&mut self, now: Timestamp, longest: SignedDuration) {
        let doubled = FIRST.checked_mul(1 << self.failures.min(16)).unwrap_or(LONGEST);
        self.at = now.checked_add(doubled.min(LONGEST).min(longest)).ok();
        self.failures = self.failures.saturating_add(1);
    }

    /// Waits until `at` without counting a failure.
    pub fn wait_until(&mut self, at: Timestamp) {
        *self = Self { failures: 0, at: Some(at) };
    }

    /// Forgets all failures and waits for nothing.
    pub fn succeeded(&mut self) {
        *self = Self::default();
    }

    /// The earliest time of the next try; [`Timestamp::MIN`] where there is nothing to wait for.
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

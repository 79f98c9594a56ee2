//! Exponential back-off.

use jiff::{SignedDuration, Timestamp};

/// The wait after the first failure.
const FIRST: SignedDuration = SignedDuration::from_secs(5);

/// The longest wait. A reading is valid for its period plus 5 minutes, so an exporter that recovers is polled well
/// before its last readings expire.
const LONGEST: SignedDuration = SignedDuration::from_mins(2);

/// Failures in a row, and when to try again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Retry {
    failures: u32,
    /// Waits by [`Retry::wait`] that ended without success, since the last success.
    repeated_waits: u32,
    /// Whether `at` was set by [`Retry::wait`].
    is_wait: bool,
    at: Option<Timestamp>,
}

impl Retry {
    /// Counts a failure at `now`. The wait is 5 seconds after the first one in a row and doubles up to 2 minutes.
    pub(crate) fn record_failure(&mut self, now: Timestamp) {
        self.record_failure_within(now, LONGEST);
    }

    /// Counts a failure at `now`, as [`record_failure`](Self::record_failure) does, with a wait of at most `longest`.
    pub(crate) fn record_failure_within(&mut self, now: Timestamp, longest: SignedDuration) {
        self.failures = self.failures.saturating_add(1);
        self.is_wait = false;
        self.at = now.checked_add(back_off(self.failures).min(longest)).ok();
    }

    /// Waits for `span`, which is no failure. If the last wait ended without success, it waits for at least as long as
    /// after a failure.
    pub(crate) fn wait(&mut self, now: Timestamp, span: SignedDuration) {
        let is_repeated = self.is_wait && self.at.is_some_and(|at| at <= now);
        self.repeated_waits = self.repeated_waits.saturating_add(u32::from(is_repeated));
        self.is_wait = true;
        let pause = span.max(back_off(self.repeated_waits));
        self.at = Some(now.checked_add(pause).unwrap_or(Timestamp::MAX));
    }

    /// Drops all failures and the wait.
    pub(crate) fn record_success(&mut self) {
        *self = Self::default();
    }

    /// The earliest time of the next attempt; [`Timestamp::MIN`] without a wait.
    pub(crate) fn not_before(&self) -> Timestamp {
        self.at.unwrap_or(Timestamp::MIN)
    }
}

/// Zero before the first failure, then [`FIRST`], doubled after each further failure.
fn back_off(failures: u32) -> SignedDuration {
    let Some(doublings) = failures.checked_sub(1) else { return SignedDuration::ZERO };
    let doubled = FIRST.checked_mul(1 << doublings.min(16)).unwrap_or(LONGEST);
    doubled.min(LONGEST)
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
            retry.record_failure(now);
            assert_eq!(retry.not_before().as_second(), seconds);
        }
        (0..100).for_each(|_| retry.record_failure(now));
        assert_eq!(retry.not_before().as_second(), 120);
        retry.record_success();
        assert_eq!(retry, Retry::default());
    }
}

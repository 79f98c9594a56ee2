//! When nodes are written: in bursts at aligned times.
//!
//! Each write of a Node makes kube-scheduler retry every pod that an extender rejected, once for all writes during that
//! retry. So a thousand writes within seconds cost hardly more than one, and the same writes spread over a minute cost
//! hundreds of rounds.

use jiff::{SignedDuration, Timestamp};

/// The longest time between two writes of nodes that crossed a limit, in milliseconds. With 100 rejected pods on 5,000 nodes, each
/// write causes one to two hundred Filter calls, so a budget of 600 a minute allows three or four.
const SOON: i64 = 23_000;

/// The times of bursts: multiples of the interval since the epoch, so they do not depend on the start of the process.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bursts {
    /// In whole seconds.
    interval: i64,
    next: Timestamp,
}

impl Bursts {
    /// Bursts at this interval; `None` if each poll writes its own readings.
    pub(super) fn new(interval: Option<SignedDuration>) -> Option<Self> {
        let interval = interval?.as_secs().max(1);
        Some(Self { interval, next: Timestamp::MAX })
    }

    /// Sets the next burst if there is none, or if the clock was set back.
    pub(super) fn start(&mut self, now: Timestamp) {
        self.next = self.next.min(self.after(now));
    }

    /// The time of the next burst; it may be past.
    pub(super) fn next(self) -> Timestamp {
        self.next
    }

    /// The next time of a write that can wait for some seconds. These times divide the interval into equal parts, so bursts are among
    /// them. It may be `now`.
    pub(super) fn soon(self, now: Timestamp) -> Timestamp {
        let (interval, now) = (self.interval * 1000, now.as_millisecond());
        let part = interval / ((interval + SOON - 1) / SOON);
        let since_burst = now.rem_euclid(interval);
        let parts = (since_burst + part - 1) / part;
        let soon = Timestamp::from_millisecond(now - since_burst + parts * part);
        soon.unwrap_or(Timestamp::MAX).min(self.next)
    }

    /// Whether a burst is due at `now`. If so, moves the next one an interval later.
    pub(super) fn take(&mut self, now: Timestamp) -> bool {
        let is_due = self.next <= now;
        if is_due {
            self.next = self.after(now);
        }
        is_due
    }

    /// The first aligned time after `now`.
    fn after(self, now: Timestamp) -> Timestamp {
        let second = now.as_second();
        let next = second - second.rem_euclid(self.interval) + self.interval;
        Timestamp::from_second(next).unwrap_or(Timestamp::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn bursts_are_aligned_whenever_the_program_starts() {
        let mut bursts = Bursts::new(Some(SignedDuration::from_secs(45))).unwrap();
        assert!(!bursts.take(at(900)));
        bursts.start(at(903));
        assert_eq!(bursts.next(), at(945));
        bursts.start(at(944));
        assert!(!bursts.take(at(944)) && bursts.take(at(945)));
        assert_eq!(bursts.next(), at(990));
        // Late by more than an interval: one burst, not two.
        assert!(bursts.take(at(1100)) && !bursts.take(at(1101)));
        bursts.start(at(20));
        assert_eq!(bursts.next(), at(45));
    }

    #[test]
    fn what_can_wait_for_some_seconds_goes_in_the_burst_or_at_equal_parts_between_two() {
        for (interval, now, soon) in [
            (45, 946, 967_500),
            (45, 968, 990_000),
            (20, 962, 980_000),
            (120, 961, 980_000),
            (120, 980, 980_000),
            (120, 1079, 1_080_000),
        ] {
            let mut bursts = Bursts::new(Some(SignedDuration::from_secs(interval))).unwrap();
            bursts.start(at(now));
            let soon = Timestamp::from_millisecond(soon).unwrap();
            assert_eq!(bursts.soon(at(now)), soon, "{interval} {now}");
        }
    }
}

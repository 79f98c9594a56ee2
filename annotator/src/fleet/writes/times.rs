//! When nodes are written: in bursts at aligned times.
//!
//! Each write of a Node makes kube-scheduler retry every pod that an extender rejected, once for all writes during that
//! retry. So a thousand writes within seconds cost hardly more than one, and the same writes spread over a minute cost
//! hundreds of rounds.

use jiff::{SignedDuration, Timestamp};
use placement::publish::Urgency;

/// The longest time between two writes of nodes that crossed a limit, in milliseconds. With 100 rejected pods on 5,000
/// nodes, each write causes one to two hundred Filter calls, so a budget of 600 a minute allows three or four.
const SOON: i64 = 23_000;

/// The times of writes, for all nodes. Bursts are at multiples of the interval since the epoch, so they do not depend
/// on the start of the process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WriteTimes {
    /// The time between two bursts in whole seconds; `None` if each poll writes its own readings.
    interval: Option<i64>,
    next_burst: Timestamp,
}

impl WriteTimes {
    /// Bursts at this interval, if any.
    pub(crate) fn new(interval: Option<SignedDuration>) -> Self {
        Self { interval: interval.map(|span| span.as_secs().max(1)), next_burst: Timestamp::MAX }
    }

    /// Sets the next burst if there is none, or if the clock was set back.
    pub(crate) fn start(&mut self, now: Timestamp) {
        if let Some(interval) = self.interval {
            self.next_burst = self.next_burst.min(aligned_after(now, interval));
        }
    }

    /// The time of the next burst, which may be past; `None` if each poll writes its own readings.
    pub(crate) fn next_burst(self) -> Option<Timestamp> {
        self.interval.map(|_| self.next_burst)
    }

    /// Whether a burst is due at `now`. If so, moves the next one an interval later.
    pub(crate) fn take_burst(&mut self, now: Timestamp) -> bool {
        let Some(interval) = self.interval else { return false };
        if self.next_burst > now {
            return false;
        }
        self.next_burst = aligned_after(now, interval);
        true
    }

    /// The least urgent reason for which the job that polled a node writes it at once.
    pub(crate) fn least_urgent_at_once(self) -> Urgency {
        if self.interval.is_some() { Urgency::AtOnce } else { Urgency::NextBurst }
    }

    /// The next time of a write that can wait for some seconds; `None` without bursts. These times divide the interval
    /// into equal parts, so bursts are among them. It may be `now`.
    pub(crate) fn soon(self, now: Timestamp) -> Option<Timestamp> {
        let interval = self.interval? * 1000;
        let part = interval / ((interval + SOON - 1) / SOON);
        let millis = now.as_millisecond();
        let since_burst = millis.rem_euclid(interval);
        let parts = (since_burst + part - 1) / part;
        let soon = Timestamp::from_millisecond(millis - since_burst + parts * part);
        Some(soon.unwrap_or(Timestamp::MAX).min(self.next_burst))
    }
}

/// The first multiple of `interval` after `now`.
fn aligned_after(now: Timestamp, interval: i64) -> Timestamp {
    let second = now.as_second();
    let next = second - second.rem_euclid(interval) + interval;
    Timestamp::from_second(next).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn bursts_every(seconds: i64) -> WriteTimes {
        WriteTimes::new(Some(SignedDuration::from_secs(seconds)))
    }

    #[test]
    fn bursts_are_aligned_whenever_the_program_starts() {
        let mut times = bursts_every(45);
        assert!(!times.take_burst(at(900)));
        times.start(at(903));
        assert_eq!(times.next_burst(), Some(at(945)));
        times.start(at(944));
        assert!(!times.take_burst(at(944)) && times.take_burst(at(945)));
        assert_eq!(times.next_burst(), Some(at(990)));
        // Late by more than an interval: one burst, not two.
        assert!(times.take_burst(at(1100)) && !times.take_burst(at(1101)));
        times.start(at(20));
        assert_eq!(times.next_burst(), Some(at(45)));
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
            let mut times = bursts_every(interval);
            times.start(at(now));
            let soon = Timestamp::from_millisecond(soon).unwrap();
            assert_eq!(times.soon(at(now)), Some(soon), "{interval} {now}");
        }
    }

    #[test]
    fn without_bursts_no_write_waits() {
        let mut times = WriteTimes::new(None);
        times.start(at(903));
        assert!(!times.take_burst(at(945)));
        assert_eq!((times.next_burst(), times.soon(at(903))), (None, None));
        assert_eq!(times.least_urgent_at_once(), Urgency::NextBurst);
    }
}

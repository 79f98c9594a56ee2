//! Rates of the kernel's counters.

use crate::series::{Interval, Moment};

/// A counter, with the time and value of its last sample.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counter {
    before: Option<(Moment, u64)>,
}

impl Counter {
    /// The growth per second since the last sample. `None` for the first sample, after a pause of more than three intervals
    /// (a mean over it says nothing about now), and when the counter was reset.
    pub(super) fn rate(&mut self, interval: Interval, now: Moment, value: u64) -> Option<f64> {
        let (at, before) = self.before.replace((now, value))?;
        let seconds = now.since(at).as_secs_f64();
        let grown = value.checked_sub(before)?;
        (seconds > 0.0 && !interval.is_stale(at, now)).then(|| grown as f64 / seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_rate_needs_two_samples_that_are_close_and_do_not_step_back() {
        let interval = "10s".parse().unwrap();
        let mut counter = Counter::default();
        let mut rate =
            |seconds, value| counter.rate(interval, Moment(Duration::from_secs(seconds)), value);
        assert_eq!(rate(10, 100), None);
        assert_eq!(rate(20, 150), Some(5.0));
        assert_eq!(rate(30, 40), None, "reset");
        assert_eq!(rate(40, 60), Some(2.0));
        assert_eq!(rate(80, 100), None, "a long pause");
        assert_eq!(rate(80, 100), None, "no time has passed");
    }
}

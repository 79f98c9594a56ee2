//! Rates of the kernel's counters.

use crate::series::{Interval, Moment};

/// A counter, with the time and value of its last sample.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counter {
    before: Option<(Moment, u64)>,
}

impl Counter {
    /// The growth per second since the last sample. `None` for the first sample, after a pause of more than three
    /// intervals (a mean over it says nothing about now), and when the counter was reset.
    pub(super) fn rate(&mut self, interval: Interval, now: Moment, value: u64) -> Option<f64> {
        let (at, before) = self.before.replace((now, value))?;
        let seconds = now.since(at).as_secs_f64();
        let grown = value.checked_sub(before)?;
        (seconds > 0.0 && !interval.is_stale(at, now)).then(|| grown as f64 / seconds)
    }
}

/// The values of all devices. `None` if one is not known, since a sum without it would be another number, or there are
/// none.
pub(super) fn all_known(values: impl Iterator<Item = Option<f64>>) -> Option<Vec<f64>> {
    values.collect::<Option<Vec<f64>>>().filter(|values| !values.is_empty())
}

/// The sum over all devices, if [`all_known`].
pub(super) fn sum_of_all(values: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    all_known(values).map(|values| values.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_needs_the_values_of_all_devices() {
        assert_eq!(all_known([Some(1.0), Some(2.0)].into_iter()), Some(vec![1.0, 2.0]));
        assert_eq!(all_known([Some(1.0), None].into_iter()), None);
        assert_eq!(all_known([].into_iter()), None);
    }

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

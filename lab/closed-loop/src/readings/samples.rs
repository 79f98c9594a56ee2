//! Samples of the last while, and aggregates of them.

use std::collections::VecDeque;

use crate::time::Step;

/// The samples of one signal within a window; times without a sample are gaps.
#[derive(Debug, Clone)]
pub struct Samples {
    window: Step,
    samples: VecDeque<(Step, f64)>,
}

impl Samples {
    /// Keeps samples of the last `window` steps.
    pub fn new(window: Step) -> Self {
        Self { window, samples: VecDeque::with_capacity(window as usize + 1) }
    }

    /// Adds the sample of step `at`.
    pub fn push(&mut self, at: Step, value: f64) {
        self.samples.push_back((at, value));
        self.forget(at);
    }

    /// Drops what is older than the window at `now`: a window of 5 minutes at t holds the samples later than t − 5
    /// minutes.
    pub fn forget(&mut self, now: Step) {
        while self.samples.front().is_some_and(|(at, _)| now - at >= self.window) {
            self.samples.pop_front();
        }
    }

    /// Drops all samples: the sampling process began anew.
    pub fn clear(&mut self) {
        self.samples.clear();
    }

    /// How many samples there are.
    pub fn len(&self) -> usize {
        self.samples.len()
    }

    /// Whether there is no sample.
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// The mean, or `None` without samples.
    pub fn mean(&self) -> Option<f64> {
        let sum: f64 = self.samples.iter().map(|(_, value)| value).sum();
        (!self.is_empty()).then(|| sum / self.len() as f64)
    }

    /// Mean and population standard deviation, as Prometheus's `stddev_over_time` has it.
    pub fn mean_and_deviation(&self) -> Option<(f64, f64)> {
        let mean = self.mean()?;
        let squares: f64 = self.samples.iter().map(|(_, value)| (value - mean).powi(2)).sum();
        Some((mean, (squares / self.len() as f64).sqrt()))
    }

    /// The `q` quantile by nearest rank (⌈q·n⌉-th smallest), or `None` without samples.
    pub fn quantile(&self, q: f64) -> Option<f64> {
        let mut values: Vec<f64> = self.samples.iter().map(|(_, value)| *value).collect();
        let rank = ((q * values.len() as f64).ceil() as usize).max(1) - 1;
        (rank < values.len()).then(|| *values.select_nth_unstable_by(rank, f64::total_cmp).1)
    }
}

/// The maximum of a signal within a window, at constant cost a sample.
#[derive(Debug, Clone)]
pub struct SlidingMax {
    window: Step,
    /// Values that no later one exceeds, so falling.
    falling: VecDeque<(Step, f64)>,
}

impl SlidingMax {
    /// Over the last `window` steps.
    pub fn new(window: Step) -> Self {
        Self { window, falling: VecDeque::new() }
    }

    /// Adds the value of step `at`.
    pub fn push(&mut self, at: Step, value: f64) {
        while self.falling.back().is_some_and(|(_, last)| *last <= value) {
            self.falling.pop_back();
        }
        self.falling.push_back((at, value));
    }

    /// The largest value within the window at `now`.
    pub fn max(&mut self, now: Step) -> Option<f64> {
        while self.falling.front().is_some_and(|(at, _)| now - at >= self.window) {
            self.falling.pop_front();
        }
        self.falling.front().map(|(_, value)| *value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aggregates_of_what_the_window_holds() {
        let mut samples = Samples::new(4);
        [9.0, 1.0, 2.0, 3.0, 6.0].iter().zip(0..).for_each(|(value, at)| samples.push(at, *value));
        assert_eq!(samples.mean(), Some(3.0));
        // Deviations of 1, 2, 3, 6 from 3: 4 + 1 + 0 + 9 = 14, by 4.
        assert_eq!(samples.mean_and_deviation(), Some((3.0, 3.5_f64.sqrt())));
        assert_eq!((samples.quantile(0.95), samples.quantile(0.5)), (Some(6.0), Some(2.0)));
        samples.forget(7);
        assert_eq!((samples.len(), samples.mean()), (1, Some(6.0)));
        samples.clear();
        assert_eq!((samples.mean(), samples.quantile(0.95)), (None, None));
    }

    #[test]
    fn sliding_maximum_is_the_maximum_of_the_window() {
        let mut sliding = SlidingMax::new(10);
        for now in 0..500 {
            sliding.push(now, value(now));
            let plain = (now.saturating_sub(9)..=now).map(value).fold(f64::MIN, f64::max);
            assert_eq!(sliding.max(now), Some(plain));
        }
    }

    fn value(at: Step) -> f64 {
        f64::from(at * 7919 % 101)
    }
}

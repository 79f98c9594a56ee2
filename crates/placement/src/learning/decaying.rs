//! A histogram in which newer values weigh more.
//!
//! Invariant: no counter overflows, since all are halved before one would. Old counts are not changed as time passes;
//! instead the weight of new values grows.

use crate::estimate::Distribution;
use hdrhistogram::Histogram;

/// A bucket is at most 1/16 as wide as its values are large.
const SIGNIFICANT_DIGITS: u8 = 1;

/// Counts of a pod-minute in a new histogram.
const FIRST_WEIGHT: f32 = 16.0;

/// The counts of a histogram that is made from statistics. They fit into one counter, and a hundredth is more than one.
const RESTORED: f64 = 200.0;

/// The largest addition of one observation to its counter, so that the other counts stay significant.
const MOST_AT_ONCE: f32 = 64.0;

/// Values of 0 to `high`, in units that the caller chooses.
#[derive(Debug, Clone)]
pub(crate) struct Decaying {
    counts: Histogram<u8>,
    /// Counts of a pod-minute that is recorded now.
    weight: f32,
}

impl Decaying {
    /// An empty histogram of values up to `high`, which is at least 2.
    pub(crate) fn new(high: u64) -> Self {
        match Histogram::new_with_bounds(1, high, SIGNIFICANT_DIGITS) {
            Ok(counts) => Self { counts, weight: FIRST_WEIGHT },
            Err(_) => unreachable!("the bounds are those of a histogram"),
        }
    }

    /// A histogram of values up to `high`, which is at least 2, with about these statistics, in `unit`s. All of it
    /// weighs as much as `minutes` that are recorded now.
    pub(crate) fn restored(high: u64, from: &Distribution, unit: f64, minutes: f32) -> Self {
        let p50 = from.p50 / unit;
        let p90 = p50.max(from.p90 / unit);
        let p95 = p90.max(from.p95 / unit);
        let p99 = p95.max(from.p99 / unit);
        // Some counts at each quantile, and the others between two.
        let at = [(p50, 4), (p90, 4), (p95, 4), (p99, 3)];
        let between = [(0.0, p50, 98), (p50, p90, 76), (p90, p95, 6), (p95, p99, 4)];
        let mut least: f64 = at.iter().map(|(value, count)| value * f64::from(*count)).sum();
        least += between.iter().map(|(low, _, count)| low * f64::from(*count)).sum::<f64>();
        let range: f64 =
            between.iter().map(|(low, high, count)| (high - low) * f64::from(*count)).sum();
        // All between two quantiles are the same part of the way from one to the other, so that the mean is right. If
        // that is not enough, the last count is as far above as it takes.
        let mean = from.mean / unit * RESTORED - p99;
        let part = if range > 0.0 { ((mean - least) / range).clamp(0.0, 1.0) } else { 0.0 };
        let top = p99 + (mean - least - part * range).max(0.0);
        let mut restored = Self { weight: RESTORED as f32 / minutes, ..Self::new(high) };
        let inside = between.map(|(low, high, count)| (low + part * (high - low), count));
        for (value, count) in at.into_iter().chain(inside).chain([(top, 1)]) {
            restored.counts.saturating_record_n(value.round() as u64, count);
        }
        restored
    }

    /// The weight of what is recorded from now on grows by this factor, which is at least 1.
    pub(crate) fn age(&mut self, growth: f32) {
        // 2^40 is more than any observation can be ahead of those before it.
        self.weight = (self.weight * growth).min(FIRST_WEIGHT * 2_f32.powi(40));
    }

    /// Limits the weight of all recorded values to that of `minutes` that are recorded now.
    pub(crate) fn reduce_to(&mut self, minutes: f32) {
        self.weight = self.weight.max(self.counts.len() as f32 / minutes);
    }

    /// Adds `minutes` of pods that used `value`. `draw`, from 0 up to 1, decides about the fraction of a count. A value
    /// beyond the highest counts as that.
    pub(crate) fn record(&mut self, value: u64, minutes: f32, draw: f32) {
        while self.weight * minutes > MOST_AT_ONCE {
            self.halve();
        }
        let count = (self.weight * minutes + draw) as u8;
        if count == 0 {
            return;
        }
        while self.counts.count_at(value.min(self.counts.high())).checked_add(count).is_none() {
            self.halve();
        }
        self.counts.saturating_record_n(value, count);
    }

    /// Halves every counter and with them the weight. The half of an odd count goes to the next odd one, so that the
    /// sum stays.
    fn halve(&mut self) {
        self.weight /= 2.0;
        if self.counts.is_empty() {
            return;
        }
        let recorded: Vec<_> = self.recorded().collect();
        self.counts.reset();
        let mut left = 0;
        for (value, count) in recorded {
            let both = count.saturating_add(left);
            left = both % 2;
            self.counts.saturating_record_n(value, both / 2);
        }
    }

    /// The recorded pod-minutes, weighted as if recorded now.
    pub(crate) fn minutes(&self) -> f32 {
        self.counts.len() as f32 / self.weight
    }

    /// Its statistics, multiplied by `unit`; `None` if it is empty.
    pub(crate) fn distribution(&self, unit: f64) -> Option<Distribution> {
        if self.counts.is_empty() {
            return None;
        }
        let sum: f64 =
            self.recorded().map(|(value, count)| self.middle(value) * f64::from(count)).sum();
        Some(Distribution {
            mean: sum / self.counts.len() as f64 * unit,
            p50: self.quantile(0.5) * unit,
            p90: self.quantile(0.9) * unit,
            p95: self.quantile(0.95) * unit,
            p99: self.quantile(0.99) * unit,
        })
    }

    fn quantile(&self, quantile: f64) -> f64 {
        self.middle(self.counts.value_at_quantile(quantile))
    }

    /// The middle of a value's bucket.
    fn middle(&self, value: u64) -> f64 {
        self.counts.median_equivalent(value) as f64
    }

    /// The lowest value of each bucket that is not empty, and its count. hdrhistogram's own iterators compute more.
    fn recorded(&self) -> impl Iterator<Item = (u64, u8)> + '_ {
        let counts = &self.counts;
        let most = counts.max();
        let all = std::iter::successors(Some(0), move |value| {
            Some(counts.next_non_equivalent(*value)).filter(|next| *next <= most)
        });
        all.map(|value| (value, counts.count_at(value))).filter(|(_, count)| *count > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(values: impl IntoIterator<Item = u64>) -> Decaying {
        let mut histogram = Decaying::new(1 << 20);
        values.into_iter().for_each(|value| histogram.record(value, 1.0, 0.5));
        histogram
    }

    #[test]
    fn halving_keeps_the_sum_and_the_order() {
        let mut histogram = filled([1, 2, 3, 500, 70_000]);
        for _ in 0..3 {
            let before = histogram.counts.len();
            histogram.halve();
            assert!(before / 2 - histogram.counts.len() <= 1);
        }
        assert_eq!(histogram.minutes(), 5.0);
    }

    #[test]
    fn a_counter_that_is_full_keeps_its_part_of_the_whole() {
        let mut histogram = filled((0..10_000).map(|n| if n % 4 == 0 { 9000 } else { 1000 }));
        let share = |low, high| {
            histogram.counts.count_between(low, high) as f64 / histogram.counts.len() as f64
        };
        assert!((share(500, 2000) - 0.75).abs() < 0.03, "{}", share(500, 2000));
        histogram.record(9000, 1e30, 0.0);
        assert!((32..=64).contains(&histogram.counts.len()));
    }

    #[test]
    fn an_empty_histogram_has_no_statistics() {
        assert_eq!(Decaying::new(16).distribution(1.0), None);
        assert_eq!(filled([0]).distribution(1.0).map(|d| (d.mean, d.p99)), Some((0.0, 0.0)));
    }
}

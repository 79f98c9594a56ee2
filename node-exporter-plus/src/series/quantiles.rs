//! The quantiles of a series, interpolated as Prometheus's `quantile_over_time` does.
//!
//! They are the only aggregates that need all samples of their window: selected once a sample, if they are read at all.

use super::aggregate::{Aggregate, Function};
use super::interval::{Interval, Slot, first_of};
use super::ring::Ring;

/// The quantiles of a series, by window.
#[derive(Debug)]
pub(super) struct Quantiles {
    windows: Vec<WindowQuantiles>,
    /// The slot at which the values below were selected.
    selected: Option<Slot>,
}

/// The quantiles of one window.
#[derive(Debug)]
struct WindowQuantiles {
    /// The window's length.
    slots: u32,
    /// In rising order.
    percents: Vec<u8>,
    /// One for each of `percents`; empty without samples.
    values: Vec<f64>,
}

impl Quantiles {
    /// Those that `aggregates` names, none of them selected.
    pub(super) fn new(interval: Interval, aggregates: &[Aggregate]) -> Self {
        let mut windows: Vec<WindowQuantiles> = Vec::new();
        for aggregate in aggregates {
            if let Function::Quantile(percent) = aggregate.function {
                add(&mut windows, interval.slots(aggregate.window.duration()), percent);
            }
        }
        windows.shrink_to_fit();
        Self { windows, selected: None }
    }

    /// The bytes that they take at most, which is where each has a window of its own.
    pub(super) fn bytes(aggregates: &[Aggregate]) -> usize {
        let is_quantile =
            |aggregate: &&Aggregate| matches!(aggregate.function, Function::Quantile(_));
        let quantiles = aggregates.iter().filter(is_quantile).count();
        // A vector's first allocation has room for 8 bytes or 4 numbers.
        quantiles * (2 * size_of::<WindowQuantiles>() + 8 + 4 * size_of::<f64>())
    }

    /// Selects the quantiles of the windows that end at `end`, unless that was done. `scratch` is reused memory for the
    /// samples of a window.
    pub(super) fn select(&mut self, ring: &Ring, end: Slot, scratch: &mut Vec<f32>) {
        if self.selected.replace(end) == Some(end) {
            return;
        }
        for window in &mut self.windows {
            let first = first_of(end, window.slots);
            scratch.clear();
            scratch.reserve_exact(window.slots as usize);
            scratch.extend(ring.run(first..=end));
            window.values = quantiles(scratch, &window.percents);
        }
    }

    /// The quantile of the window of `slots` that ends at `end`. `None` without samples, and where the values were
    /// selected at another slot.
    pub(super) fn get(&self, slots: u32, percent: u8, end: Slot) -> Option<f64> {
        if self.selected != Some(end) {
            return None;
        }
        let window = self.windows.iter().find(|window| window.slots == slots)?;
        let index = window.percents.binary_search(&percent).ok()?;
        window.values.get(index).copied()
    }
}

fn add(windows: &mut Vec<WindowQuantiles>, slots: u32, percent: u8) {
    let index = windows.iter().position(|window| window.slots == slots).unwrap_or_else(|| {
        windows.push(WindowQuantiles { slots, percents: Vec::new(), values: Vec::new() });
        windows.len() - 1
    });
    let percents = &mut windows[index].percents;
    if let Err(index) = percents.binary_search(&percent) {
        percents.insert(index, percent);
    }
}

/// The quantiles of `samples` for `percents` in rising order. Reorders the samples; empty without any.
fn quantiles(samples: &mut [f32], percents: &[u8]) -> Vec<f64> {
    let mut sorted = 0;
    percents
        .iter()
        .map_while(|percent| {
            let value = quantile(samples, sorted, *percent)?;
            sorted = lower_rank(samples.len(), *percent);
            Some(value)
        })
        .collect()
}

/// The index of the last sample, in sorted order, that is not above the quantile.
fn lower_rank(count: usize, percent: u8) -> usize {
    (count.saturating_sub(1)) * usize::from(percent) / 100
}

/// One quantile. The samples before index `sorted` are known to be no greater than the rest, so only the rest is
/// searched.
fn quantile(samples: &mut [f32], sorted: usize, percent: u8) -> Option<f64> {
    let count = samples.len();
    let lower = lower_rank(count, percent);
    let rest = samples.get_mut(sorted..).filter(|rest| !rest.is_empty())?;
    let (_, value, above) = rest.select_nth_unstable_by(lower - sorted, f32::total_cmp);
    let value = f64::from(*value);
    let next = above.iter().copied().min_by(f32::total_cmp).map_or(value, f64::from);
    let rank = (count - 1) as f64 * f64::from(percent) / 100.0;
    let weight = rank - lower as f64;
    Some(value * (1.0 - weight) + next * weight)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_median_between_two_samples_is_their_mean() {
        assert_eq!(quantiles(&mut [1.0, 4.0, 2.0, 3.0], &[50]), [2.5]);
        assert_eq!(quantiles(&mut [3.0, 1.0, 2.0], &[50]), [2.0]);
        assert_eq!(quantiles(&mut [7.0], &[1, 99]), [7.0, 7.0]);
        assert_eq!(quantiles(&mut [], &[50]), [0.0; 0]);
    }

    proptest! {
        #[test]
        fn selection_gives_what_sorting_gives(
            samples in prop::collection::vec(-1e3f32..1e3, 1..200),
            mut percents in prop::collection::vec(1u8..100, 1..6),
        ) {
            percents.sort_unstable();
            let mut sorted = samples.clone();
            sorted.sort_by(f32::total_cmp);
            let naive = |percent: &u8| {
                let rank = f64::from(*percent) / 100.0 * (sorted.len() - 1) as f64;
                let lower = rank.floor() as usize;
                let upper = rank.ceil() as usize;
                let weight = rank - rank.floor();
                f64::from(sorted[lower]) * (1.0 - weight) + f64::from(sorted[upper]) * weight
            };
            let ours = quantiles(&mut samples.clone(), &percents);
            for (ours, naive) in ours.iter().zip(percents.iter().map(naive)) {
                prop_assert!((ours - naive).abs() < 1e-6, "{} {}", ours, naive);
            }
        }
    }
}

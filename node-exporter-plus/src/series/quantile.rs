//! Quantiles of the samples themselves, interpolated as Prometheus's `quantile_over_time` does.

/// The quantiles of `samples`, for `percents` in rising order. Reorders the samples; empty without any.
pub(super) fn quantiles(samples: &mut [f32], percents: &[u8]) -> Vec<f64> {
    let mut sorted = 0;
    let mut one = |percent: &u8| {
        let value = quantile(samples, sorted, *percent)?;
        sorted = lower_rank(samples.len(), *percent);
        Some(value)
    };
    percents.iter().map_while(&mut one).collect()
}

fn lower_rank(count: usize, percent: u8) -> usize {
    (count.saturating_sub(1)) * usize::from(percent) / 100
}

/// Everything before `sorted` is known to be in its place or before it, so that each selection searches less.
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
                let (lower, upper) = (rank.floor() as usize, rank.ceil() as usize);
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

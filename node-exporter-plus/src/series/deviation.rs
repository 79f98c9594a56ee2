//! The standard deviation of a window, computed from its samples: nothing is kept for it.

/// The population standard deviation, by Welford's method: one pass, without the cancellation of a sum of squares, and
/// exactly 0 for samples that are all equal. `None` without samples.
pub(super) fn deviation(samples: impl Iterator<Item = f32>) -> Option<f64> {
    let mut count = 0.0;
    let mut mean = 0.0;
    let mut squares = 0.0;
    for sample in samples.map(f64::from) {
        count += 1.0;
        let from_mean = sample - mean;
        mean += from_mean / count;
        squares += from_mean * (sample - mean);
    }
    (count > 0.0).then(|| (squares / count).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(samples: &[f32]) -> Option<f64> {
        deviation(samples.iter().copied())
    }

    #[test]
    fn it_is_that_of_the_population() {
        assert_eq!(of(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]), Some(2.0));
        assert_eq!(of(&[7.5]), Some(0.0));
        assert_eq!(of(&[]), None);
    }

    fn around(level: f32) -> f64 {
        of(&[level - 64.0, level, level + 64.0]).unwrap()
    }

    #[test]
    fn equal_samples_have_none_and_a_high_level_hides_none() {
        assert_eq!(of(&[0.1; 90]), Some(0.0));
        assert!((around(1e9) - around(0.0)).abs() < 1e-6, "{}", around(1e9));
    }
}

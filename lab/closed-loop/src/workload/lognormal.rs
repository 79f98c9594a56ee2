//! Lognormal numbers, and the mean of those that are cut at a maximum.

use rand::Rng;
use rand_distr::{Distribution, StandardNormal};

/// A lognormal number with mean 1.
pub(super) fn with_mean_1(rng: &mut impl Rng, sigma: f64) -> f64 {
    with_median_1(rng, sigma) * (-sigma * sigma / 2.0).exp()
}

/// A lognormal number with median 1.
pub(super) fn with_median_1(rng: &mut impl Rng, sigma: f64) -> f64 {
    let normal: f64 = StandardNormal.sample(rng);
    (sigma * normal).exp()
}

/// The mean of lognormal numbers with that median, each cut to `most`: an integral over the normal density.
pub(super) fn mean_cut(median: f64, sigma: f64, most: f64) -> f64 {
    const STEPS: i32 = 4_000;
    let mut sum = 0.0;
    let mut weights = 0.0;
    for i in -STEPS..=STEPS {
        let z = f64::from(i) * 8.0 / f64::from(STEPS);
        let weight = (-z * z / 2.0).exp();
        sum += weight * (median * (sigma * z).exp()).min(most);
        weights += weight;
    }
    sum / weights
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_of_cut_numbers() {
        // Without a cut: median · exp(sigma²/2).
        assert!((mean_cut(8.0, 1.0, f64::MAX) - 8.0 * 0.5_f64.exp()).abs() < 1e-3);
        // 8 h cut to 120 h: 13.190·Φ(1.7081) + 120·(1 − Φ(2.7081)) = 13.190·0.95618 + 120·0.00338 = 13.018.
        assert!((mean_cut(8.0, 1.0, 120.0) - 13.018).abs() < 0.01);
    }
}

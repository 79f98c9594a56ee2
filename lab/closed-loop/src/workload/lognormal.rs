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

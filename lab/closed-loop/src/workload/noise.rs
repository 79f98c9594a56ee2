//! Noise as a function of a key and a step, so that it does not depend on who asks or in which order.

use rand::SeedableRng;
use rand::rngs::Xoshiro256PlusPlus;

use super::lognormal;
use crate::time::{STEP_SECONDS, Step};

/// An autoregressive process of order 1 with mean 0, one value a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ar1 {
    sigma: f32,
    keep: f32,
    push: f32,
}

impl Ar1 {
    /// Standard deviation `sigma`, and a correlation that falls to 1/e after `seconds`.
    pub fn new(sigma: f64, seconds: f64) -> Self {
        let keep = (-f64::from(STEP_SECONDS) / seconds).exp();
        let push = sigma * (1.0 - keep * keep).sqrt();
        Self { sigma: sigma as f32, keep: keep as f32, push: push as f32 }
    }

    /// The value at the first step, drawn from all values that the process takes.
    pub fn first(&self, key: u64) -> f32 {
        self.sigma * nearly_normal(mix(!key))
    }

    /// The value at `step` that follows `value`.
    pub fn next(&self, value: f32, key: u64, step: Step) -> f32 {
        self.keep * value + self.push * nearly_normal(mix(key ^ (u64::from(step) << 32)))
    }
}

/// What an app's ratio is multiplied by on its `day`: lognormal with mean 1.
pub(super) fn daily_ratio(key: u64, day: u32, sigma: f64) -> f64 {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(mix(key.wrapping_add(u64::from(day) + 1)));
    lognormal::with_mean_1(&mut rng, sigma)
}

/// Scrambles a number: the output function of SplitMix64 (Steele, Lea and Flood, 2014).
pub fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A number of mean 0 and variance 1: the sum of four uniform numbers of 16 bits. An [`Ar1`] adds up many of them, so
/// its values are as good as normal.
fn nearly_normal(bits: u64) -> f32 {
    const SQRT_3: f32 = 1.732_050_8;
    let sum = (bits & 0xffff) + ((bits >> 16) & 0xffff) + ((bits >> 32) & 0xffff) + (bits >> 48);
    (sum as f32 / 65_536.0 - 2.0) * SQRT_3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_has_its_deviation_and_correlation() {
        let ar1 = Ar1::new(0.3, 300.0);
        let mut sum = 0.0_f64;
        let mut squares = 0.0_f64;
        let mut lagged = 0.0_f64;
        let keys = 400;
        let steps = 2_000;
        let lag = 30;
        for key in 0..keys {
            let mut values = vec![ar1.first(key)];
            for step in 1..steps {
                values.push(ar1.next(values[step as usize - 1], key, step));
            }
            for (i, value) in values.iter().enumerate() {
                sum += f64::from(*value);
                squares += f64::from(value * value);
                lagged += values.get(i + lag).map_or(0.0, |later| f64::from(value * later));
            }
        }
        let count = (keys * u64::from(steps)) as f64;
        assert!((sum / count).abs() < 0.01);
        assert!(((squares / count).sqrt() - 0.3).abs() < 0.01);
        let correlation = lagged / squares * f64::from(steps) / f64::from(steps - lag as u32);
        assert!((correlation - (-1.0_f64).exp()).abs() < 0.03, "{correlation}");
    }
}

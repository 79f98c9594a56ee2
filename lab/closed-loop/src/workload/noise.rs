//! Noise as a function of a key and a step, so that it does not depend on who asks or in which order.

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

//! How good a node is for a pod: 0 (worst) to 100.

use crate::policy::Scale;

/// A score from 0 to 100.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Score(u8);

impl Score {
    /// The worst.
    pub const ZERO: Self = Self(0);

    /// `points` cut off to whole ones (crane truncates) and clamped to 0..=100.
    pub fn truncated(points: f64) -> Self {
        // A cast of a float saturates, and takes NaN to 0.
        Self((points as i64).clamp(0, 100) as u8)
    }

    /// The bare number, 0 to 100.
    pub fn get(self) -> u8 {
        self.0
    }

    /// The mean of two scores, rounded down.
    #[must_use]
    pub fn mean(self, other: Self) -> Self {
        Self((self.0 + other.0) / 2)
    }

    /// What kube-scheduler is answered: the score on that scale, rounded half up.
    pub fn on(self, scale: Scale) -> i64 {
        (i64::from(self.0) * i64::from(scale.highest()) + 50) / 100
    }
}

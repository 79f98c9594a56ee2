//! How good a node is, by its load: 0 (worst) to 100.
//!
//! crane's formula: trunc(Σ over fresh metrics of 100·w·(1−u) ÷ Σ of all w) − 10·hot, clamped. A
//! metric without a fresh reading keeps its weight in the divisor, so not knowing costs points.

use jiff::Timestamp;

use super::NodeLoad;
use crate::policy::{LoadPolicy, Weight};
use crate::units::{MetricName, Ratio};

/// Points that one degree of heat costs.
const POINTS_PER_DEGREE: f64 = 10.0;

/// A score from 0 to 100.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Percent(u8);

impl Percent {
    /// `points` cut off to whole ones (crane truncates) and clamped to 0..=100.
    pub fn truncated(points: f64) -> Self {
        // A cast of a float saturates, and takes NaN to 0.
        Self((points as i64).clamp(0, 100) as u8)
    }

    /// The bare number, 0 to 100.
    pub fn get(self) -> u8 {
        self.0
    }

    /// The mean of two scores.
    #[must_use]
    pub fn mean(self, other: Self) -> Self {
        Self((self.0 + other.0) / 2)
    }

    /// On the scale of kube-scheduler's extenders, 0 to 10, rounded half up.
    pub fn for_extender(self) -> i64 {
        i64::from((self.0 + 5) / 10)
    }
}

/// What one metric brought to a score.
#[derive(Debug, Clone, PartialEq)]
pub struct Term {
    /// The metric.
    pub metric: MetricName,
    /// Its share of all weights, 0 to 1.
    pub share: f64,
    /// Its reading's value, where there is a fresh one.
    pub value: Option<Ratio>,
    /// Points out of 100 that it added.
    pub points: f64,
}

/// A score with its reasons.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadScore {
    /// What each metric brought.
    pub terms: Vec<Term>,
    /// Degrees of heat, each costing 10 points.
    pub hot: u64,
    /// The outcome.
    pub score: Percent,
}

/// The node's score.
pub fn score(policy: &LoadPolicy, node: &NodeLoad, now: Timestamp) -> Percent {
    let total = total_weight(policy);
    let points = policy.weights.iter().map(|w| points(w, total, node, now).1).sum();
    finish(points, node.hot_value(&policy.hot, now))
}

/// The node's score, and what each metric brought to it.
pub fn explain(policy: &LoadPolicy, node: &NodeLoad, now: Timestamp) -> LoadScore {
    let total = total_weight(policy);
    let term = |weight: &Weight| {
        let (value, points) = points(weight, total, node, now);
        let metric = policy.metrics[weight.slot].clone();
        Term { metric, share: share(weight, total), value, points }
    };
    let terms: Vec<Term> = policy.weights.iter().map(term).collect();
    let hot = node.hot_value(&policy.hot, now);
    let score = finish(terms.iter().map(|term| term.points).sum(), hot);
    LoadScore { terms, hot, score }
}

fn total_weight(policy: &LoadPolicy) -> f64 {
    policy.weights.iter().map(|weight| weight.weight).sum()
}

fn share(weight: &Weight, total: f64) -> f64 {
    if total > 0.0 { weight.weight / total } else { 0.0 }
}

fn points(weight: &Weight, total: f64, node: &NodeLoad, now: Timestamp) -> (Option<Ratio>, f64) {
    let value = node.fresh(weight.slot, weight.max_age, now).map(|reading| reading.value);
    let points = value.map_or(0.0, |value| 100.0 * share(weight, total) * (1.0 - value.get()));
    (value, points)
}

fn finish(points: f64, hot: u64) -> Percent {
    // Dividing before adding leaves rounding dust below a whole point, which truncation would turn
    // into a lost point.
    let load = (points + 1e-9).trunc();
    Percent::truncated(load - POINTS_PER_DEGREE * hot as f64)
}

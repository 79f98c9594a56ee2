//! A policy made ready for decisions: metrics as numbers, shares of weights, reasons as texts.

use std::sync::Arc;

use jiff::SignedDuration;

use super::{MetricId, MetricTable};
use crate::policy::{HotRule, LoadPolicy};
use crate::units::MetricName;

/// A policy whose metrics are resolved against one [`MetricTable`].
#[derive(Debug, Clone, PartialEq)]
pub struct ResolvedPolicy {
    /// The policy as it was parsed.
    pub policy: LoadPolicy,
    /// Its limits, in the same order.
    pub limits: Vec<ResolvedLimit>,
    /// Its weights, in the same order.
    pub weights: Vec<ResolvedWeight>,
}

/// A limit, ready to be checked.
#[derive(Debug, Clone, PartialEq)]
pub struct ResolvedLimit {
    /// The metric's name.
    pub metric: MetricName,
    /// The metric's number.
    pub id: MetricId,
    /// The largest fraction that is still accepted.
    pub max: f64,
    /// For how long a reading counts; `None` where nothing fetches the metric.
    pub max_age: Option<SignedDuration>,
    /// Why a node over this limit takes no pod. The same for every node and every value, since
    /// kube-scheduler groups nodes by it; without `%`, since kube-scheduler uses it as a format.
    pub reason: Arc<str>,
}

/// A weight, ready to be added up.
#[derive(Debug, Clone, PartialEq)]
pub struct ResolvedWeight {
    /// The metric's name.
    pub metric: MetricName,
    /// The metric's number.
    pub id: MetricId,
    /// Its part of all weights, 0 to 1.
    pub share: f64,
    /// For how long a reading counts; `None` where nothing fetches the metric.
    pub max_age: Option<SignedDuration>,
}

impl ResolvedPolicy {
    /// Resolves `policy`; its metrics get numbers in `table`.
    pub fn new(policy: LoadPolicy, table: &mut MetricTable) -> Self {
        let total: f64 = policy.weights.iter().map(|weight| weight.weight).sum();
        let limits = policy.limits.iter().map(|limit| ResolvedLimit {
            metric: limit.metric.clone(),
            id: table.of_policy(&limit.metric),
            max: limit.max,
            max_age: limit.max_age,
            reason: format!("Load[{}] is too high, over {}", limit.metric, limit.max).into(),
        });
        let limits = limits.collect();
        let weights = policy.weights.iter().map(|weight| ResolvedWeight {
            metric: weight.metric.clone(),
            id: table.of_policy(&weight.metric),
            share: if total > 0.0 { weight.weight / total } else { 0.0 },
            max_age: weight.max_age,
        });
        let weights = weights.collect();
        Self { policy, limits, weights }
    }

    /// How recent bindings count.
    pub fn hot(&self) -> &[HotRule] {
        &self.policy.hot
    }
}

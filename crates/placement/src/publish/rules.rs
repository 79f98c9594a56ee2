//! What of a policy bears on writes.

use std::sync::Arc;

use jiff::SignedDuration;

use crate::policy::{GRACE, Limit, LoadPolicy, Weight};
use crate::selector::{LabelSelector, Labels};
use crate::taint::cool;
use crate::units::MetricName;

/// When nodes are written under a policy.
#[derive(Debug, Clone, PartialEq)]
pub struct WriteRules {
    /// For nodes of no pool.
    common: Arc<NodeWriteRules>,
    /// In the policy's order.
    pools: Vec<(LabelSelector, Arc<NodeWriteRules>)>,
}

/// When the nodes of one node pool are written.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeWriteRules {
    /// The policy's sync rules, one a metric.
    pub(super) metrics: Vec<MetricRule>,
    pub(super) dead_band: DeadBand,
}

/// One metric.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct MetricRule {
    pub(super) metric: MetricName,
    /// The largest fractions that are still accepted.
    pub(super) limits: Vec<f64>,
    /// Below these a node that was over a limit loses its taint.
    pub(super) cool: Vec<f64>,
    /// For how long each of its readers honours a reading.
    pub(super) max_age: SignedDuration,
    /// Whether a limit or a weight reads it.
    pub(super) is_used: bool,
}

/// How far a value may move from what is written: a fraction of a whole, and of the value where that is above 1, as a load
/// average can be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct DeadBand(f64);

impl DeadBand {
    pub(super) fn is_left(self, written: f64, polled: f64) -> bool {
        // The difference of two infinities is no number, and no move.
        (polled - written).abs() > self.0 * written.max(1.0)
    }
}

impl WriteRules {
    /// The rules under `policy`. A value that moves by at most `dead_band`, a fraction from 0 to 1, is not written for that.
    /// `taint_margin` is that of the taint of hot nodes, where they carry one: it goes by what is written.
    #[must_use]
    pub fn new(policy: &LoadPolicy, dead_band: f64, taint_margin: Option<f64>) -> Self {
        let rules = |limits: &[Limit], weights: &[Weight]| {
            let dead_band = DeadBand(dead_band);
            Arc::new(NodeWriteRules::new(policy, limits, weights, dead_band, taint_margin))
        };
        let pools = policy.pools.iter();
        let pools =
            pools.map(|pool| (pool.selector.clone(), rules(&pool.limits, &pool.weights))).collect();
        Self { common: rules(&policy.limits, &policy.weights), pools }
    }

    /// The rules for a node with these labels: those of the first pool that it is of.
    #[must_use]
    pub fn of(&self, labels: &Labels) -> &Arc<NodeWriteRules> {
        let pool = self.pools.iter().find(|(selector, _)| selector.matches(labels));
        pool.map_or(&self.common, |(_, rules)| rules)
    }
}

impl NodeWriteRules {
    fn new(
        policy: &LoadPolicy,
        limits: &[Limit],
        weights: &[Weight],
        dead_band: DeadBand,
        taint_margin: Option<f64>,
    ) -> Self {
        let mut metrics: Vec<MetricRule> = Vec::with_capacity(policy.sync.len());
        for rule in &policy.sync {
            // Of several rules for one metric the first counts, as in crane.
            if metrics.iter().any(|known| known.metric == rule.metric) {
                continue;
            }
            let limits = || limits.iter().filter(|limit| limit.metric == rule.metric);
            let weights = weights.iter().filter(|weight| weight.metric == rule.metric);
            let ages = weights.map(|weight| weight.max_age);
            let shortest = ages.chain(limits().map(|limit| limit.max_age)).flatten().min();
            let cool = |margin| limits().map(move |limit| cool(limit.max, margin));
            metrics.push(MetricRule {
                metric: rule.metric.clone(),
                limits: limits().map(|limit| limit.max).collect(),
                cool: taint_margin.into_iter().flat_map(cool).collect(),
                max_age: shortest.unwrap_or_else(|| rule.period.saturating_add(GRACE)),
                is_used: shortest.is_some(),
            });
        }
        Self { metrics, dead_band }
    }
}

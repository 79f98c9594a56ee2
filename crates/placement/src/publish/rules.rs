//! The parts of a policy that decide when nodes are written.

use std::sync::Arc;

use jiff::SignedDuration;

use crate::policy::{GRACE, Limit, LoadPolicy, Weight};
use crate::selector::{LabelSelector, Labels};
use crate::taint::clear_line;
use crate::units::MetricName;

/// When nodes are written under a policy.
#[derive(Debug, Clone, PartialEq)]
pub struct WriteRules {
    /// For nodes that belong to no pool.
    common: Arc<NodeWriteRules>,
    /// The pools' rules, in the policy's order.
    pools: Vec<(LabelSelector, Arc<NodeWriteRules>)>,
}

/// When the nodes of one node pool are written.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeWriteRules {
    /// The policy's sync rules, one a metric.
    pub(super) metrics: Vec<MetricRule>,
    pub(super) dead_band: DeadBand,
}

/// When one metric is written.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct MetricRule {
    pub(super) metric: MetricName,
    /// The largest fractions that limits accept.
    pub(super) limits: Vec<f64>,
    /// At or below these fractions a node that was over a limit loses its taint.
    pub(super) taint_clear_lines: Vec<f64>,
    /// The shortest time that a reading counts for a limit, weight or demand.
    pub(super) max_age: SignedDuration,
    /// Whether a limit or a weight reads it. What is read for a demand is written when it expires, or with others:
    /// bytes a second have no fraction of the node by which they move.
    pub(super) is_used: bool,
}

/// How far a value may differ from the written one without a write: a fraction, times the written value if that is
/// above 1, as a load average can be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct DeadBand(f64);

impl DeadBand {
    pub(super) fn is_exceeded(self, written: f64, polled: f64) -> bool {
        // The difference of two infinities is NaN, and no change.
        (polled - written).abs() > self.0 * written.max(1.0)
    }
}

impl WriteRules {
    /// The rules under `policy`. A value that changes by at most `dead_band`, a fraction from 0 to 1, is no reason to
    /// write. `taint_margin` is the margin of the taint of overloaded nodes, if they get one: the taint follows the
    /// written values.
    #[must_use]
    pub fn new(policy: &LoadPolicy, dead_band: f64, taint_margin: Option<f64>) -> Self {
        let band = DeadBand(dead_band);
        let rules = |limits: &[Limit], weights: &[Weight]| {
            Arc::new(NodeWriteRules::new(policy, limits, weights, band, taint_margin))
        };
        let mut pools = Vec::with_capacity(policy.pools.len());
        for pool in &policy.pools {
            pools.push((pool.selector.clone(), rules(&pool.limits, &pool.weights)));
        }
        Self { common: rules(&policy.limits, &policy.weights), pools }
    }

    /// The rules for a node with these labels: those of the first pool that it matches, or the common ones.
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
            // If several rules name one metric, the first counts, as in crane.
            if metrics.iter().any(|known| known.metric == rule.metric) {
                continue;
            }
            let (mut largest, mut ages) = (Vec::new(), Vec::new());
            for limit in limits.iter().filter(|limit| limit.metric == rule.metric) {
                largest.push(limit.max);
                ages.extend(limit.max_age);
            }
            for weight in weights.iter().filter(|weight| weight.metric == rule.metric) {
                ages.extend(weight.max_age);
            }
            let is_used = !ages.is_empty();
            for read in policy.demand.read().filter(|read| read.metric == rule.metric) {
                ages.push(read.max_age);
            }
            let shortest = ages.into_iter().min();
            let clear_lines = |margin| largest.iter().map(|max| clear_line(*max, margin)).collect();
            metrics.push(MetricRule {
                metric: rule.metric.clone(),
                taint_clear_lines: taint_margin.map_or_else(Vec::new, clear_lines),
                limits: largest,
                max_age: shortest.unwrap_or_else(|| rule.period.saturating_add(GRACE)),
                is_used,
            });
        }
        Self { metrics, dead_band }
    }
}

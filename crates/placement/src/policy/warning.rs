//! What a policy says that is valid and probably not meant.

use super::LoadPolicy;
use crate::units::MetricName;

/// One thing in a policy that probably is not meant.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PolicyWarning {
    /// A limit on a metric that nothing fetches.
    #[error(
        "spec.predicate: the limit on `{0}` never applies, since no syncPolicy entry fetches it: add one with its period"
    )]
    LimitNotFetched(MetricName),
    /// A weight of a metric that nothing fetches.
    #[error(
        "spec.priority: `{0}` takes its weight from every node's score and adds nothing, since no syncPolicy entry fetches it: add one with its period"
    )]
    WeightNotFetched(MetricName),
    /// A fetched metric that nothing reads.
    #[error(
        "spec.syncPolicy: `{0}` is fetched and written on every node, and no predicate or priority reads it"
    )]
    NotRead(MetricName),
    /// A metric that is fetched by two rules.
    #[error(
        "spec.syncPolicy: `{0}` has several entries: the first one decides how long its readings count"
    )]
    FetchedTwice(MetricName),
    /// A limit that no usage can reach.
    #[error(
        "spec.predicate: the limit {max} on `{metric}` is above 1, which no usage reaches: for {max}% write {}",
        max / 100.0
    )]
    LimitAboveOne {
        /// The metric.
        metric: MetricName,
        /// The limit.
        max: f64,
    },
}

/// All of them, in the order of the policy's lists.
pub(super) fn warnings(policy: &LoadPolicy) -> Vec<PolicyWarning> {
    let mut warnings = Vec::new();
    for (position, rule) in policy.sync.iter().enumerate() {
        let metric = &rule.metric;
        if policy.sync[..position].iter().any(|earlier| earlier.metric == *metric) {
            warnings.push(PolicyWarning::FetchedTwice(metric.clone()));
        } else if !policy.metrics().contains(&metric) {
            warnings.push(PolicyWarning::NotRead(metric.clone()));
        }
    }
    for limit in &policy.limits {
        let metric = limit.metric.clone();
        if limit.max_age.is_none() {
            warnings.push(PolicyWarning::LimitNotFetched(metric));
        } else if limit.max > 1.0 {
            warnings.push(PolicyWarning::LimitAboveOne { metric, max: limit.max });
        }
    }
    let unfetched = policy.weights.iter().filter(|weight| weight.max_age.is_none());
    warnings.extend(unfetched.map(|weight| PolicyWarning::WeightNotFetched(weight.metric.clone())));
    warnings
}

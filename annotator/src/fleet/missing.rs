//! The metrics of the policy that exporters do not provide.
//!
//! A metric can be missing from one exporter for good reasons: a node without GPUs has no `gpu_usage`. One that is
//! missing from all of them is probably misspelt, or not in the exporters' configuration. It is reported once.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use placement::policy::LoadPolicy;
use placement::units::MetricName;

/// How long a maximum of means may be missing: an exporter provides one only after its first mean over five minutes.
const MAXIMUM_GRACE: SignedDuration = SignedDuration::from_mins(5);

/// The nodes that lack one metric of the policy.
#[derive(Debug, Clone, Default)]
struct Lack {
    /// The number of nodes whose last answer did not have it.
    nodes: usize,
    /// The time since which `nodes` is above 0.
    since: Option<Timestamp>,
    reported: bool,
}

/// The number of nodes that lack each metric.
#[derive(Debug, Clone, Default)]
pub(super) struct MissingMetrics(BTreeMap<MetricName, Lack>);

impl MissingMetrics {
    /// The metrics of a policy's sync rules, each missing from no node.
    pub(super) fn new(policy: &LoadPolicy) -> Self {
        Self(policy.sync.iter().map(|rule| (rule.metric.clone(), Lack::default())).collect())
    }

    /// The set of metrics that one node lacks changes from `before` to `after`.
    pub(super) fn update(
        &mut self,
        before: &BTreeSet<MetricName>,
        after: &BTreeSet<MetricName>,
        now: Timestamp,
    ) {
        for metric in after.difference(before) {
            let Some(lack) = self.0.get_mut(metric) else { continue };
            lack.nodes += 1;
            lack.since.get_or_insert(now);
        }
        for metric in before.difference(after) {
            let Some(lack) = self.0.get_mut(metric) else { continue };
            lack.nodes -= 1;
            if lack.nodes == 0 {
                *lack = Lack::default();
            }
        }
    }

    /// How many nodes lack each metric of the policy.
    pub(super) fn nodes(&self) -> BTreeMap<MetricName, usize> {
        self.0.iter().map(|(metric, lack)| (metric.clone(), lack.nodes)).collect()
    }

    /// The metrics that all of the `answered` nodes lack and that were not reported before.
    pub(super) fn report(&mut self, answered: usize, now: Timestamp) -> Vec<MetricName> {
        let mut metrics = Vec::new();
        for (metric, lack) in &mut self.0 {
            let is_maximum = metric.as_str().contains("_max_avg_");
            let grace = if is_maximum { MAXIMUM_GRACE } else { SignedDuration::ZERO };
            let is_past_grace =
                lack.since.is_some_and(|since| now.duration_since(since).abs() >= grace);
            if lack.nodes == answered && !lack.reported && is_past_grace {
                lack.reported = true;
                metrics.push(metric.clone());
            }
        }
        metrics
    }
}

//! The metrics of the policy that exporters do not provide.
//!
//! A metric can be missing from one exporter for good reasons: a node without GPUs has no `gpu_usage`. One that is missing
//! from all of them is probably misspelt, or not in the exporters' configuration. It is reported once.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use placement::policy::LoadPolicy;
use placement::units::MetricName;

/// How long a maximum of means may be missing: an exporter provides one only after its first mean over five minutes.
const MAXIMUM_GRACE: SignedDuration = SignedDuration::from_mins(5);

/// One metric of the policy.
#[derive(Debug, Clone, Default)]
struct Entry {
    /// The number of nodes whose last answer did not have it.
    nodes: usize,
    /// The time since which `nodes` is above 0.
    since: Option<Timestamp>,
    reported: bool,
}

/// The number of nodes that lack each metric.
#[derive(Debug, Clone, Default)]
pub(super) struct MissingMetrics(BTreeMap<MetricName, Entry>);

impl MissingMetrics {
    /// The metrics of a policy's sync rules, each missing from no node.
    pub(super) fn new(policy: &LoadPolicy) -> Self {
        Self(policy.sync.iter().map(|rule| (rule.metric.clone(), Entry::default())).collect())
    }

    /// The set of metrics that one node lacks changes from `before` to `after`.
    pub(super) fn update(
        &mut self,
        before: &BTreeSet<MetricName>,
        after: &BTreeSet<MetricName>,
        now: Timestamp,
    ) {
        for metric in after.difference(before) {
            let Some(entry) = self.0.get_mut(metric) else { continue };
            entry.nodes += 1;
            entry.since.get_or_insert(now);
        }
        for metric in before.difference(after) {
            let Some(entry) = self.0.get_mut(metric) else { continue };
            entry.nodes -= 1;
            if entry.nodes == 0 {
                *entry = Entry::default();
            }
        }
    }

    /// How many nodes lack each metric of the policy.
    pub(super) fn nodes(&self) -> BTreeMap<MetricName, usize> {
        self.0.iter().map(|(metric, entry)| (metric.clone(), entry.nodes)).collect()
    }

    /// The metrics that all of the `answering` nodes lack and that were not reported before.
    pub(super) fn report(&mut self, answering: usize, now: Timestamp) -> Vec<MetricName> {
        let is_new = |(metric, entry): &(&MetricName, &mut Entry)| {
            let is_maximum = metric.as_str().contains("_max_avg_");
            let grace = if is_maximum { MAXIMUM_GRACE } else { SignedDuration::ZERO };
            answering > 0
                && entry.nodes == answering
                && !entry.reported
                && entry.since.is_some_and(|since| now.duration_since(since) >= grace)
        };
        let reported = |(metric, entry): (&MetricName, &mut Entry)| {
            entry.reported = true;
            metric.clone()
        };
        self.0.iter_mut().filter(is_new).map(reported).collect()
    }
}

//! The load policy: crane's `DynamicSchedulerPolicy` or our `SchedulingPolicy`, parsed strictly.
//!
//! Invariant: every [`LoadPolicy`] is valid. An error names the field, the line and what is expected. Nothing is
//! silently ignored: what is valid and probably not meant is a [warning](LoadPolicy::warnings).

mod demand;
mod exported;
mod fields;
mod gpu;
mod kind;
pub(crate) mod metric;
mod model;
mod overload;
mod rules;
mod scheduling_policy;
mod schema;
mod source;
mod warning;

use std::collections::BTreeSet;

use jiff::SignedDuration;

pub(crate) use self::demand::shows_demand_after;
pub use self::demand::{DemandRule, DemandRules, FetchedMetric, LINK_SPEED};
pub use self::exported::Exported;
pub use self::gpu::{BeyondUnitsName, BeyondUnitsRule, GpuRules, UnmanagedMemory};
pub use self::kind::PolicyKind;
pub use self::metric::{MetricMeaning, WindowStatistic};
pub use self::model::{Direction, Model, Scale, Scoring};
pub use self::overload::{Overload, WhenAllOverloaded};
pub use self::rules::{NamespaceRule, NodePool, Unknown};
pub use self::scheduling_policy::json_schema;
pub use self::source::ReadingSource;
pub use self::warning::PolicyWarning;
use crate::estimate::EstimateRules;
use crate::units::MetricName;

/// How much longer than its period a reading stays valid: crane's 5 minutes.
pub const GRACE: SignedDuration = SignedDuration::from_mins(5);

/// How long after its creation a node without readings counts as one that is not measured yet. The first mean over 5
/// minutes comes once half of its window has samples, and is written at the next poll.
pub(crate) const NOT_MEASURED_YET: SignedDuration = SignedDuration::from_mins(5);

/// Metrics of a `SchedulingPolicy`, at most. Exporters serve at most so many different values, too.
pub const MAX_METRICS: usize = 100;

/// Which metrics of nodes are fetched, and how they count when pods are placed.
///
/// # Examples
///
/// ```
/// use placement::policy::LoadPolicy;
///
/// let policy = LoadPolicy::from_yaml(
///     "
/// apiVersion: scheduler.policy.crane.io/v1alpha1
/// kind: DynamicSchedulerPolicy
/// spec:
///   syncPolicy: [{name: cpu_usage_avg_5m, period: 3m}]
///   predicate:  [{name: cpu_usage_avg_5m, maxLimitPecent: 0.65}]
///   priority:   [{name: cpu_usage_avg_5m, weight: 1}]
/// ",
/// )?;
/// assert_eq!(policy.limits[0].max, 0.65);
/// assert!(policy.warnings().is_empty());
/// # Ok::<(), placement::policy::PolicyError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct LoadPolicy {
    /// Which metrics are fetched, and how often.
    pub sync: Vec<SyncRule>,
    /// Limits over which a node takes no new pod.
    pub limits: Vec<Limit>,
    /// How much each metric counts in a node's score.
    pub weights: Vec<Weight>,
    /// How recent bindings count against a node.
    pub hot: Vec<HotRule>,
    /// How the metrics become a score.
    pub scoring: Scoring,
    /// What happens when all nodes are over limits, and which pods are exempt.
    pub overload: Overload,
    /// How the use of pods is estimated that no reading shows yet; `None` if estimates do not count.
    pub estimates: Option<EstimateRules>,
    /// How what pods declare of network and disk counts.
    pub demand: DemandRules,
    /// Node pools with limits and weights of their own; a node belongs to the first pool whose selector it matches.
    pub pools: Vec<NodePool>,
    /// Namespaces whose pods go to certain nodes only.
    pub namespaces: Vec<NamespaceRule>,
    /// How pods that request GPU memory are placed.
    pub gpu: GpuRules,
}

/// Fetch `metric` every `period`.
#[derive(Debug, Clone, PartialEq)]
pub struct SyncRule {
    /// The metric's name.
    pub metric: MetricName,
    /// How often it is fetched; above 0.
    pub period: SignedDuration,
}

/// Reject a node whose fresh reading of `metric` is over `max`.
#[derive(Debug, Clone, PartialEq)]
pub struct Limit {
    /// The metric.
    pub metric: MetricName,
    /// The largest fraction that is still accepted; above 0. Above 1 it never rejects a usage.
    pub max: f64,
    /// How long a reading counts, by default the metric's sync period and 5 minutes. `None` if no rule fetches the
    /// metric; the limit then never applies.
    pub max_age: Option<SignedDuration>,
    /// What happens if the reading is too old.
    pub when_stale: Unknown,
    /// What happens without a reading: the node is not measured, or only a small part of the metric's window is.
    pub when_missing: Unknown,
}

/// A metric's weight in the score.
#[derive(Debug, Clone, PartialEq)]
pub struct Weight {
    /// The metric.
    pub metric: MetricName,
    /// Finite and not negative; only ratios between weights matter.
    pub weight: f64,
    /// As [`Limit::max_age`]; without it the metric adds nothing, but keeps its weight.
    pub max_age: Option<SignedDuration>,
    /// As [`Limit::when_stale`].
    pub when_stale: Unknown,
    /// As [`Limit::when_missing`].
    pub when_missing: Unknown,
}

/// Every `count` bindings within `range` add 1 to a node's hot value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HotRule {
    /// How far back bindings count; above 0.
    pub range: SignedDuration,
    /// Bindings that add 1; above 0.
    pub count: u32,
}

/// Why a policy is refused: its first fault, with line and field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {field}: {problem}")]
pub struct PolicyError {
    /// The line of the YAML text, from 1; 0 for the text as a whole.
    pub line: u64,
    /// Path of the field, e.g. `spec.predicate[1].maxLimitPecent`.
    pub field: String,
    /// What is wrong, and what is expected.
    pub problem: String,
}

impl LoadPolicy {
    /// Parses and validates a policy.
    ///
    /// # Errors
    ///
    /// The first fault, by field and line.
    pub fn from_yaml(text: &str) -> Result<Self, PolicyError> {
        match PolicyKind::of(text)? {
            PolicyKind::Crane => schema::parse(text),
            PolicyKind::Plimsoll => scheduling_policy::parse(text),
        }
    }

    /// The policy as YAML of our own kind, with all fields, defaults included. A policy of our kind parses back
    /// unchanged. One of crane's decides as before: of several entries for one metric, the strictest limit and the
    /// first period are kept, and weights are added up.
    #[must_use]
    pub fn to_yaml(&self) -> String {
        scheduling_policy::to_yaml(self)
    }

    /// [`to_yaml`](Self::to_yaml) as JSON, which [`from_yaml`](Self::from_yaml) reads too.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        serde_saphyr::from_str(&self.to_yaml()).unwrap_or_default()
    }

    /// What is valid and probably not meant, if readings come from exporters.
    pub fn warnings(&self) -> Vec<PolicyWarning> {
        self.warnings_with(&ReadingSource::Exporters)
    }

    /// What is valid and probably not meant, if readings come from `source`.
    pub fn warnings_with(&self, source: &ReadingSource) -> Vec<PolicyWarning> {
        warning::warnings(self, source)
    }

    /// What is valid and probably not meant, wherever readings come from.
    pub fn warnings_of_any_source(&self) -> Vec<PolicyWarning> {
        let mut warnings = self.warnings();
        warnings.retain(|warning| !matches!(warning, PolicyWarning::NotExported(_)));
        warnings
    }

    /// Every metric that a limit, a weight or a demand reads, of any pool, once each, limits first.
    pub fn metrics(&self) -> Vec<&MetricName> {
        let mut metrics: Vec<&MetricName> = Vec::new();
        for limit in self.limits.iter().chain(self.pools.iter().flat_map(|pool| &pool.limits)) {
            metrics.push(&limit.metric);
        }
        for weight in self.weights.iter().chain(self.pools.iter().flat_map(|pool| &pool.weights)) {
            metrics.push(&weight.metric);
        }
        metrics.extend(self.demand.read().map(|read| &read.metric));
        let mut seen = BTreeSet::new();
        metrics.retain(|metric| seen.insert(*metric));
        metrics
    }

    /// How long readings of a metric count; `None` if no limit, weight or demand reads it, or if nothing fetches it.
    pub fn max_age(&self, metric: &MetricName) -> Option<SignedDuration> {
        self.max_ages().find_map(|(other, age)| if other == metric { age } else { None })
    }

    /// The metric and the age of every limit, weight and demand, of pools first.
    fn max_ages(&self) -> impl Iterator<Item = (&MetricName, Option<SignedDuration>)> {
        let pools = self.pools.iter().map(|pool| (&pool.limits, &pool.weights));
        let all = pools.chain([(&self.limits, &self.weights)]).flat_map(|(limits, weights)| {
            let of_limits = limits.iter().map(|limit| (&limit.metric, limit.max_age));
            of_limits.chain(weights.iter().map(|weight| (&weight.metric, weight.max_age)))
        });
        all.chain(self.demand.read().map(|read| (&read.metric, Some(read.max_age))))
    }

    /// How long a binding adds to the hot value, at most.
    pub fn hot_horizon(&self) -> SignedDuration {
        self.hot.iter().map(|rule| rule.range).max().unwrap_or(SignedDuration::ZERO)
    }

    /// How long a binding or the start of a pod counts in decisions, at most: in the hot value, because a fresh reading
    /// does not show the pod fully yet, or because its node has just joined and has no reading.
    pub fn binding_horizon(&self) -> SignedDuration {
        if self.estimates.is_none() {
            return self.hot_horizon();
        }
        let of_pods = self.max_ages().filter_map(|(metric, age)| metric_horizon(metric, age)).max();
        of_pods.unwrap_or_default().max(NOT_MEASURED_YET).max(self.hot_horizon())
    }
}

/// How long a binding counts beside readings of a metric, at most; `None` if no reading of it shows what a pod uses.
fn metric_horizon(metric: &MetricName, max_age: Option<SignedDuration>) -> Option<SignedDuration> {
    let visible_after = MetricMeaning::of(metric).visible_after?;
    Some(max_age?.saturating_add(visible_after))
}

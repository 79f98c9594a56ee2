//! The load policy: crane's `DynamicSchedulerPolicy` or our `SchedulingPolicy`, parsed strictly.
//!
//! Invariant: a [`LoadPolicy`] that exists is valid. Every error names the field and the line, and
//! says what would be right; nothing is silently ignored: what is valid and probably not meant is
//! a [warning](LoadPolicy::warnings).

mod exported;
mod fields;
mod gpu;
mod kind;
mod metric;
mod model;
mod overload;
mod rules;
mod scheduling_policy;
mod schema;
mod source;
mod warning;

use jiff::SignedDuration;

pub use self::exported::Exported;
pub use self::gpu::{GpuRules, UnmanagedMemory};
pub use self::kind::PolicyKind;
pub use self::metric::{Measure, MetricMeaning};
pub use self::model::{Direction, Model, Scale, Scoring};
pub use self::overload::{Overload, WhenAllOverloaded};
pub use self::rules::{NamespaceRule, NodePool, Unknown};
pub use self::scheduling_policy::json_schema;
pub use self::source::ReadingSource;
pub use self::warning::PolicyWarning;
use crate::estimate::EstimateRules;
use crate::units::MetricName;

/// How much longer than its period a reading stays valid: crane's 5 minutes.
pub(crate) const GRACE: SignedDuration = SignedDuration::from_mins(5);

/// Metrics of a `SchedulingPolicy`, at most. Exporters serve at most so many different values, too.
pub const MAX_METRICS: usize = 100;

/// How node load bears on placement.
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
    /// How a score is made of the metrics.
    pub scoring: Scoring,
    /// What limits do.
    pub overload: Overload,
    /// How pods are estimated that no reading shows yet; `None` where they do not count by what they use.
    pub estimates: Option<EstimateRules>,
    /// Node pools with limits and weights of their own; a node is of the first whose selector it matches.
    pub pools: Vec<NodePool>,
    /// Which namespaces' pods go to which nodes alone.
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
    /// For how long a reading counts, by default the metric's sync period and 5 minutes. `None` where nothing fetches the
    /// metric; the limit then never applies.
    pub max_age: Option<SignedDuration>,
    /// What is done where the reading is too old.
    pub when_stale: Unknown,
    /// What is done where there is none: the node is not measured, or too little of the metric's window.
    pub when_missing: Unknown,
}

/// A metric's weight in the score.
#[derive(Debug, Clone, PartialEq)]
pub struct Weight {
    /// The metric.
    pub metric: MetricName,
    /// Finite and not negative; only ratios between weights matter.
    pub weight: f64,
    /// As [`Limit::max_age`]; without it the metric adds nothing, yet keeps its weight.
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

/// Why a policy was refused: the first fault found, with its place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {field}: {problem}")]
pub struct PolicyError {
    /// 1-based line of the YAML text; 0 where the text as a whole is meant.
    pub line: u64,
    /// Path of the field, e.g. `spec.predicate[1].maxLimitPecent`.
    pub field: String,
    /// What is wrong, and what would be right.
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

    /// The policy as one of our own kind, with every field that it has, defaults included. A policy of our kind parses from
    /// it unchanged. One of crane's decides as before; of several entries for one metric the strictest limit and the
    /// first period are left, and weights are added up.
    #[must_use]
    pub fn to_yaml(&self) -> String {
        scheduling_policy::to_yaml(self)
    }

    /// What is valid and probably not meant, where readings come from exporters.
    pub fn warnings(&self) -> Vec<PolicyWarning> {
        self.warnings_with(&ReadingSource::Exporters)
    }

    /// What is valid and probably not meant, where readings come from `source`.
    pub fn warnings_with(&self, source: &ReadingSource) -> Vec<PolicyWarning> {
        warning::warnings(self, source)
    }

    /// What is valid and probably not meant, wherever readings come from.
    pub fn warnings_of_any_source(&self) -> Vec<PolicyWarning> {
        let mut warnings = self.warnings();
        warnings.retain(|warning| !matches!(warning, PolicyWarning::NotExported(_)));
        warnings
    }

    /// Every metric that a limit or a weight reads, of any pool, once each, limits first.
    pub fn metrics(&self) -> Vec<&MetricName> {
        let mut metrics: Vec<&MetricName> = Vec::new();
        let limits = self.limits.iter().chain(self.pools.iter().flat_map(|pool| &pool.limits));
        let weights = self.weights.iter().chain(self.pools.iter().flat_map(|pool| &pool.weights));
        let limits = limits.map(|limit| &limit.metric);
        for metric in limits.chain(weights.map(|weight| &weight.metric)) {
            if !metrics.contains(&metric) {
                metrics.push(metric);
            }
        }
        metrics
    }

    /// The longest time back that a binding still adds to the hot value.
    pub fn hot_horizon(&self) -> SignedDuration {
        self.hot.iter().map(|rule| rule.range).max().unwrap_or(SignedDuration::ZERO)
    }

    /// The longest time back that a binding bears on a decision: by the hot value, or since a reading that counts was
    /// taken before its pod showed in it fully.
    pub fn binding_horizon(&self) -> SignedDuration {
        let of = |metric: &MetricName, max_age: Option<SignedDuration>| {
            let unseen = MetricMeaning::of(metric).unseen_for?;
            Some(max_age?.saturating_add(unseen))
        };
        let rules = self.pools.iter().map(|pool| (&pool.limits, &pool.weights));
        let rules =
            rules.chain([(&self.limits, &self.weights)]).filter(|_| self.estimates.is_some());
        let unseen = rules.flat_map(|(limits, weights)| {
            let limits = limits.iter().map(move |limit| of(&limit.metric, limit.max_age));
            limits.chain(weights.iter().map(move |weight| of(&weight.metric, weight.max_age)))
        });
        unseen.flatten().fold(self.hot_horizon(), SignedDuration::max)
    }
}

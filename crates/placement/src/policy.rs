//! The load policy: crane's `DynamicSchedulerPolicy`, parsed strictly.
//!
//! Invariant: a [`LoadPolicy`] that exists is valid. Every error names the field and the line, and
//! says what would be right; nothing is silently ignored.

mod schema;

use jiff::SignedDuration;

use crate::units::MetricName;

/// How much longer than its period a reading stays valid: crane's 5 minutes.
const GRACE: SignedDuration = SignedDuration::from_mins(5);

/// How node load bears on placement. Parse one with [`LoadPolicy::from_yaml`].
#[derive(Debug, Clone, PartialEq)]
pub struct LoadPolicy {
    /// Every metric that a limit or a weight reads, once each. Limits and weights name a metric by
    /// its slot here, so that a decision costs no look-up by name.
    pub metrics: Vec<MetricName>,
    /// Which metrics are fetched, and how often.
    pub sync: Vec<SyncRule>,
    /// Limits over which a node takes no new pod.
    pub limits: Vec<Limit>,
    /// How much each metric weighs in a node's score.
    pub weights: Vec<Weight>,
    /// How recent bindings count against a node.
    pub hot: Vec<HotRule>,
}

/// Fetch `metric` every `period`.
#[derive(Debug, Clone, PartialEq)]
pub struct SyncRule {
    /// The metric's name.
    pub metric: MetricName,
    /// How often it is fetched; never zero.
    pub period: SignedDuration,
}

/// Reject a node whose fresh reading of `metric` is over `max`.
#[derive(Debug, Clone, PartialEq)]
pub struct Limit {
    /// The metric, as an index into [`LoadPolicy::metrics`].
    pub slot: usize,
    /// Largest fraction that is still accepted.
    pub max: f64,
    /// How long a reading counts; `None` where no sync rule fetches the metric, and the limit then
    /// never applies.
    pub max_age: Option<SignedDuration>,
}

/// A metric's weight in the score.
#[derive(Debug, Clone, PartialEq)]
pub struct Weight {
    /// The metric, as an index into [`LoadPolicy::metrics`].
    pub slot: usize,
    /// Not negative; only ratios between weights matter.
    pub weight: f64,
    /// As [`Limit::max_age`]; without it the metric adds nothing, yet keeps its weight.
    pub max_age: Option<SignedDuration>,
}

/// `count` bindings within `range` make a node one degree hotter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HotRule {
    /// How far back bindings count.
    pub range: SignedDuration,
    /// Bindings to a degree; never zero.
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
        schema::parse(text)
    }

    /// The longest time back that a binding can still make a node hot.
    pub fn hot_horizon(&self) -> SignedDuration {
        self.hot.iter().map(|rule| rule.range).max().unwrap_or(SignedDuration::ZERO)
    }
}

//! The answer of `plimsoll policy check --json`: a load policy as the programs read it, or why they refuse it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A checked policy.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PolicyCheck {
    /// Whether the programs accept it.
    pub valid: bool,
    /// Why they refuse it; absent where they accept it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Fault>,
    /// Every metric that it names, once each: first those that are fetched, in the policy's order.
    pub metrics: Vec<Metric>,
    /// How recent bindings count.
    pub hot_value: Vec<HotRule>,
    /// What is accepted and probably not meant, as texts for people.
    pub warnings: Vec<String>,
}

/// The first fault of a policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Fault {
    /// The line, from 1; 0 where the text as a whole is meant.
    pub line: u64,
    /// The field, as in `spec.predicate[1].maxLimitPecent`.
    pub field: String,
    /// What is wrong, and what would be right.
    pub problem: String,
}

/// What a policy says of one metric.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Metric {
    /// Its name, as in `cpu_usage_avg_5m`.
    pub name: String,
    /// Seconds between two writes of its reading; absent where no rule fetches it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub period_seconds: Option<f64>,
    /// Seconds for which a reading counts after it was taken; absent where no limit and no weight reads it, or no rule
    /// fetches it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_age_seconds: Option<f64>,
    /// The largest reading, as a fraction, with which a node still takes pods; absent where there is no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<f64>,
    /// Its weight in the score; absent where it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<f64>,
    /// Its part of all weights, 0 to 1: how much of the score a fresh reading of 0 gives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub score_share: Option<f64>,
}

/// How bindings within one time span count.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HotRule {
    /// Seconds that it looks back.
    pub time_range_seconds: f64,
    /// Bindings that cost a node 10 of 100 points.
    pub count: u32,
}

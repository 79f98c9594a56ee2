//! The answer of `plimsoll policy check --json` and of `GET /v1/policy`: a load policy as the programs read it, or why
//! they refuse it.

mod effective;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::effective::effective;

/// A checked policy.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PolicyCheck {
    /// Whether the programs accept it.
    pub valid: bool,
    /// Why they refuse it; absent if they accept it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Fault>,
    /// Why the newest version of an extender's policy file is refused, with line and field: this policy, the one
    /// before, stays in force. Absent if it is not refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// Its kind, as in `SchedulingPolicy`; absent if it is refused, and for the policy in force of an extender.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Every metric that it names, once each: first those that are fetched, in the policy's order.
    pub metrics: Vec<Metric>,
    /// How metrics with weights become a score; absent if the policy is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scoring: Option<Scoring>,
    /// What happens when all nodes are over limits, and which pods are exempt; absent if the policy is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    /// How the use of pods is estimated that no reading shows yet; absent if estimates do not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimates: Option<Estimates>,
    /// The demands that count for the pods that declare them; empty if none does.
    #[serde(default)]
    pub demand: Vec<Demand>,
    /// How recent bindings count.
    pub hot_value: Vec<HotRule>,
    /// Nodes with limits and weights of their own.
    #[serde(default)]
    pub node_pools: Vec<NodePool>,
    /// Namespaces whose pods go to certain nodes only.
    #[serde(default)]
    pub namespaces: Vec<Namespaces>,
    /// How pods that request GPU memory are placed; absent if the policy is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<Gpu>,
    /// Warnings about what is valid and probably not meant.
    pub warnings: Vec<String>,
}

/// The first fault of a policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Fault {
    /// The line, from 1; 0 for the text as a whole.
    pub line: u64,
    /// The field, as in `spec.predicate[1].maxLimitPecent`.
    pub field: String,
    /// What is wrong, and what is expected.
    pub problem: String,
}

/// One metric of a policy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Metric {
    /// Its name, as in `cpu_usage_avg_5m`.
    pub name: String,
    /// Seconds between two writes of its reading; absent if no rule fetches it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub period_seconds: Option<f64>,
    /// Seconds for which a reading counts after it was taken; absent if no limit and no weight reads it, or no rule
    /// fetches it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_age_seconds: Option<f64>,
    /// The largest reading, as a fraction, with which a node still takes pods; absent if there is no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<f64>,
    /// Its weight in the score; absent if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<f64>,
    /// Its part of all weights, 0 to 1, or under a model that scores by the most loaded resource, of the weights of its
    /// resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub score_share: Option<f64>,
    /// What happens if the reading is too old, as in `penalise`; absent if no limit and no weight reads it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when_stale: Option<String>,
    /// What happens without a reading; absent if no limit and no weight reads it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when_missing: Option<String>,
    /// Whether node-exporter-plus serves it: `by-default`, `when-configured` or `never`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exported: Option<String>,
}

/// How what pods declare of network or disk counts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Demand {
    /// Its field in the policy: `ingress`, `egress`, `diskRead` or `diskWrite`.
    pub name: String,
    /// Its name as a metric, as in `egress_demand`.
    pub metric: String,
    /// The largest part of a node's speed that its pods may declare or use; absent if there is no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<f64>,
    /// Its weight in the score; absent if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<f64>,
    /// The metric that measures it; absent if only what pods declare counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<String>,
}

/// How bindings within one time span count.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HotRule {
    /// The length of the time span, in seconds.
    pub time_range_seconds: f64,
    /// Bindings that cost a node 10 of 100 points.
    pub count: u32,
}

/// How metrics with weights become a score.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Scoring {
    /// The formula: `aboveTypical` or `craneLinear`.
    pub model: String,
    /// `spread` or `pack`.
    pub direction: String,
    /// The highest score, 1 to 100.
    pub scale: u8,
}

/// How pods that request GPU memory are placed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Gpu {
    /// How nodes and cards are chosen: `least-fragmentation`, `pack` or `spread`.
    pub placement: String,
    /// Whether memory in use beyond what pods hold counts as not free: `count` or `ignore`.
    pub unmanaged_memory: String,
    /// Namespaces whose pods may take more of cards than their units.
    #[serde(default)]
    pub beyond_units: Vec<BeyondUnits>,
}

/// What pods of some namespaces may take of cards beyond their units.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BeyondUnits {
    /// The namespaces; `*` for all.
    pub namespaces: Vec<String>,
    /// What they may take: `exclusive`, `cores`, `memoryLimit`.
    pub allow: Vec<String>,
}

/// What happens when all nodes are over limits, and which pods are exempt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Limits {
    /// What happens if every node is over a limit. `soft`: the least loaded nodes pass. `hard`: the pod waits.
    pub mode: String,
    /// Seconds after which a waiting pod may go to the least loaded nodes; absent if it keeps waiting, or limits are
    /// soft.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_wait_seconds: Option<f64>,
    /// Priority classes whose pods are exempt from limits.
    pub exempt_priority_classes: Vec<String>,
}

/// How the use of pods is estimated that no reading shows yet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Estimates {
    /// Whether estimates use what the running pods of the workload use.
    pub learned: bool,
}

/// Nodes with limits and weights of their own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodePool {
    /// Its name.
    pub name: String,
    /// Selects its nodes, except those that belong to an earlier pool.
    pub selector: String,
    /// Every metric with a limit or a weight on its nodes.
    pub metrics: Vec<Metric>,
}

/// Namespaces whose pods go to certain nodes only.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Namespaces {
    /// The namespaces.
    pub names: Vec<String>,
    /// Their nodes.
    pub node_selector: String,
}

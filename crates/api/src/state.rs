//! The answer of `GET /v1/state[?since=VERSION]`: the load of every node and every GPU, by columns.
//!
//! A column has one value for each row, so that a name is written once and equal values lie side by side: 5,000 nodes
//! with 40,000 GPUs take less than 200 kB with gzip. The answer has all nodes, or with `since` those that have
//! changed.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// All nodes and GPUs, or those that have changed since an earlier answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct State {
    /// The version of this answer, for `since` in the next request. Opaque.
    pub version: String,
    /// The version that this answer adds to: it has only nodes that have changed since. Absent if it has all nodes,
    /// also where `since` was given and is not known any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// When it was made, RFC 3339.
    #[schemars(with = "String")]
    pub time: Timestamp,
    /// The replica that it is from.
    pub replica: Replica,
    /// The metrics of the policy in force: first those of limits, in the policy's order, then those of weights alone.
    pub metrics: Vec<Metric>,
    /// The policy's node pools, whose nodes have limits of their own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<Pool>,
    /// The models that `gpus.model` names by their position here.
    pub models: Vec<String>,
    /// The zones that `nodes.zone` names by their position here.
    pub zones: Vec<String>,
    /// Nodes by name.
    pub nodes: Nodes,
    /// The GPUs of these nodes: those of the first node, of the second, and so on.
    #[serde(rename = "cards")]
    pub gpus: GpuColumns,
    /// Nodes that are gone since.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<String>,
}

/// The replica of the extender that answers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Replica {
    /// Its name in the Lease, which begins with its pod's name; empty for an extender without a Lease.
    pub name: String,
    /// The program's version.
    pub program: String,
    /// Whether it leads. Another one does not know which GPUs are set aside for pods that are being bound.
    pub leads: bool,
    /// The replica that leads, where another does; absent if none does, or that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader: Option<String>,
    /// Whether all nodes and pods were listed since it started. Before that, GPUs may look emptier than they are.
    pub complete: bool,
}

/// A metric of the policy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Metric {
    /// Its name.
    pub name: String,
    /// Its limit for nodes of no pool, 0 to 1; absent if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<f64>,
    /// Its part of all weights for nodes of no pool, 0 to 1; absent if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<f64>,
}

/// A node pool of the policy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Pool {
    /// Its name.
    pub name: String,
    /// For each of `metrics` its limit on this pool's nodes, 0 to 1; `null` if it has none.
    pub max: Vec<Option<f64>>,
}

/// Nodes, by columns. Loads are in thousandths of the node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Nodes {
    /// The names.
    pub name: Vec<String>,
    /// The load by the limit that is nearest, with pods in flight, in thousandths of that limit: over 1,000 the node is
    /// over its limit. `null` if no limit's reading is known.
    pub limit_ratio: Vec<Option<u32>>,
    /// The metric of that limit, by its position in `metrics`.
    pub limit: Vec<Option<u32>>,
    /// The score by load of a pod that uses nothing, 0 to 100.
    pub score: Vec<u8>,
    /// For each metric a column: the reading in thousandths; `null` if there is no fresh one.
    pub readings: Vec<Vec<Option<u32>>>,
    /// For each metric a column: what is added for pods that the reading does not show yet, in thousandths; below 0 for
    /// pods that have ended and that the reading still shows.
    pub in_flight: Vec<Vec<i32>>,
    /// When the oldest reading that counts was taken, in seconds since 1970; `null` if none counts.
    pub read_at: Vec<Option<i64>>,
    /// How many metrics of the policy have no fresh reading.
    pub missing: Vec<u32>,
    /// The zone, by its position in `zones`; `null` without the label.
    pub zone: Vec<Option<u32>>,
    /// The node's pool, by its position in `pools`; `null` for a node of none. Empty without pools.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pool: Vec<Option<u32>>,
    /// How many GPUs.
    #[serde(rename = "cards")]
    pub gpus: Vec<u32>,
    /// Units that pods hold and that are on no GPU yet.
    pub unplaced: Vec<u32>,
    /// Whether the node takes no GPU pods for a while, because its kubelet refused several.
    pub backed_off: Vec<bool>,
}

/// GPUs, by columns.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "Gpus")]
pub struct GpuColumns {
    /// The index on the node.
    pub index: Vec<u32>,
    /// The model, by its position in `models`.
    pub model: Vec<u32>,
    /// Units that pods can request.
    pub units: Vec<u32>,
    /// Units that are charged to pods, or to memory in use that belongs to no pod.
    pub held: Vec<u32>,
    /// Percent of the compute that is charged.
    pub held_cores: Vec<u32>,
    /// How many pods are charged.
    pub pods: Vec<u32>,
    /// Memory, in MiB.
    pub memory: Vec<u64>,
    /// Percent of the memory that is in use, as last measured, as an even number; `null` if it is not measured.
    pub used: Vec<Option<u8>>,
    /// Positions in these columns of the GPUs that are reported unhealthy.
    pub unhealthy: Vec<u32>,
    /// Positions in these columns of the healthy GPUs that take no new pods.
    pub closed: Vec<u32>,
}

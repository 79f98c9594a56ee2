//! `POST /v1/capacity`: how many more pods of some sizes fit on the GPUs of nodes, by model and in all.
//!
//! By GPUs alone, as Filter decides about one pod after the other: CPU, memory, taints and load may let fewer in.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::state::Replica;

/// The request. The answer is a list of one [`Capacity`] for each size.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Question {
    /// Units that such a pod asks for on each GPU, at least 1; at most 32 sizes, and one of pods with
    /// several GPUs.
    pub sizes: Vec<u32>,
    /// On how many GPUs of one node, 1 to 64.
    #[serde(default = "one")]
    pub count: u32,
    /// Percent of each GPU's compute that it asks for, 0 to 100, as a pod of a namespace that may take compute beyond
    /// its units.
    #[serde(default)]
    pub cores: u32,
    /// The nodes; absent for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_names: Option<Vec<String>>,
}

fn one() -> u32 {
    1
}

/// What fits of one size.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Capacity {
    /// When the answer was made, RFC 3339.
    #[schemars(with = "String")]
    pub time: Timestamp,
    /// The replica that it is from: another than the leader, or one that has not listed everything yet, does not know
    /// all.
    pub replica: Replica,
    /// As asked.
    pub size: u32,
    /// As asked.
    pub count: u32,
    /// As asked.
    pub cores: u32,
    /// By model.
    pub models: Vec<Room>,
    /// On all GPUs, of whatever model.
    pub total: Room,
    /// GPUs that are unhealthy, closed, or of a node that takes no GPU pods for a while.
    pub left_out: u64,
}

/// What fits on the GPUs of one model, or on all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Room {
    /// The product's name; `all` for all GPUs.
    pub model: String,
    /// GPUs that take pods.
    #[serde(rename = "cards")]
    pub gpus: u64,
    /// Units of these that are charged to no pod.
    pub free_units: u64,
    /// How many more pods; of pods with several GPUs at most 128 on a node.
    pub pods: u64,
    /// The largest size that fits for as many GPUs.
    pub largest: u32,
}

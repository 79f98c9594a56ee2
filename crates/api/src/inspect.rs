//! The answer of `GET /gpushare-scheduler/inspect[/NODE]`, in the JSON of Aliyun's extender, which existing tools read.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Nodes with their GPUs and the pods on them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Inspected {
    /// Nodes that report GPUs, by name.
    pub nodes: Vec<InspectedNode>,
    /// Why the request failed; absent if it did not.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub error: String,
}

/// One node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Node")]
pub struct InspectedNode {
    /// Its name.
    pub name: String,
    /// Units of all its GPUs.
    #[serde(rename = "totalGPU")]
    pub total: u64,
    /// Units that pods hold.
    #[serde(rename = "usedGPU")]
    pub used: u64,
    /// Its GPUs, by index.
    pub devs: Vec<Device>,
}

/// One GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Device {
    /// Its index.
    pub id: u32,
    /// Its units.
    #[serde(rename = "totalGPU")]
    pub total: u32,
    /// Units that pods hold.
    #[serde(rename = "usedGPU")]
    pub used: u32,
    /// The pods that hold them.
    pub pods: Vec<InspectedPod>,
    /// Whether it takes no pods because it is not healthy. Aliyun's extender does not have this field.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unhealthy: bool,
}

/// A pod on a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Pod")]
pub struct InspectedPod {
    /// Its name, or its UID if only the node's report shows the pod.
    pub name: String,
    /// Its namespace; empty if only the node's report shows the pod.
    pub namespace: String,
    /// Units that it holds on this GPU.
    #[serde(rename = "usedGPU")]
    pub used: u32,
}

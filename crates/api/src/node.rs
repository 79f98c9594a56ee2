//! The answers of `GET /v1/nodes/NODE` and of `GET /v1/cards`: everything about one node, and the GPUs of all.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::explain::{Basis, Load};
use crate::gpus::Closed;
use crate::state::Replica;

/// What the extender knows of one node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeDetail {
    /// When the answer was made, RFC 3339.
    #[schemars(with = "String")]
    pub time: Timestamp,
    /// The replica that it is from.
    pub replica: Replica,
    /// Its name.
    pub name: String,
    /// The pool of the policy that it belongs to; absent if none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// The limits and the score for an ordinary pod that uses nothing; absent if only pods' claims name the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<Load>,
    /// Pods that were bound recently, or are being bound, and count beside the readings.
    pub recent_pods: u32,
    /// Cores that its pods request; absent if that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_cpu: Option<f64>,
    /// Its cores; absent if the Node does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<f64>,
    /// Its bytes of memory; absent if the Node does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<f64>,
    /// Its bands, 0 to 7, of which pods of other schedulers prefer lower ones; absent if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bands: Option<Bands>,
    /// Whether it takes no GPU pods of some or all namespaces for a while, because its kubelet refused several.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub backed_off: bool,
    /// Its GPUs, by index.
    #[serde(rename = "cards")]
    pub gpus: Vec<ChargedGpu>,
}

/// A node's bands, by its labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Bands {
    /// For pods without GPUs; absent if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<u8>,
    /// For pods with GPUs; absent if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u8>,
}

/// The GPUs of all nodes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AllGpus {
    /// When the answer was made, RFC 3339.
    #[schemars(with = "String")]
    pub time: Timestamp,
    /// The replica that it is from.
    pub replica: Replica,
    /// The nodes that report GPUs, by name.
    pub nodes: Vec<NodeGpus>,
}

/// The GPUs of one node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NodeGpus {
    /// The node's name.
    pub name: String,
    /// Its GPUs, by index.
    #[serde(rename = "cards")]
    pub gpus: Vec<ChargedGpu>,
}

/// One GPU, and what is charged on it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "Gpu")]
pub struct ChargedGpu {
    /// Its index on the node.
    pub index: u32,
    /// Its UUID.
    pub uuid: String,
    /// The product's name.
    pub model: String,
    /// Units that pods can request.
    pub units: u32,
    /// Units that are charged to no pod.
    pub free: u32,
    /// Percent of its compute that is charged to no pod.
    pub free_cores: u32,
    /// Its memory, in MiB.
    pub memory: u64,
    /// Memory in use, in MiB, as last measured; absent if it is not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<u64>,
    /// Whether it is reported healthy.
    pub healthy: bool,
    /// Why it takes no new pods, by its node's report; absent if it takes some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed: Option<Closed>,
    /// How the pods on it share it; absent without pods, or where that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sharing: Option<Sharing>,
    /// Clients of NVIDIA's MPS on it, with pods that may be; absent where no pod is one for certain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mps_clients: Option<u16>,
    /// The most clients of MPS that it serves; absent if its node does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most_mps_clients: Option<u16>,
    /// What is charged, by UID.
    pub charges: Vec<Charge>,
}

/// How the pods on a GPU share it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Sharing {
    /// As clients of NVIDIA's MPS: it takes no other pods.
    Mps,
    /// By turns: it takes no clients of MPS.
    Turns,
    /// Some as clients and some by turns: it takes neither.
    Mixed,
    /// In a way of a newer writer.
    #[serde(other)]
    Other,
}

/// What one pod or ResourceClaim is charged on a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Charge {
    /// The namespace of the pod or ResourceClaim; empty if only the node's report shows the pod, and for memory that
    /// belongs to no pod.
    pub namespace: String,
    /// The name of the pod or ResourceClaim, or the pod's UID if only the node's report shows the pod; empty for memory
    /// that belongs to no pod.
    pub name: String,
    /// Whether it is a ResourceClaim, which kube-scheduler has allocated.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub resource_claim: bool,
    /// Its units. For a ResourceClaim rounded up.
    pub units: u32,
    /// The ResourceClaim's memory, in MiB; absent for pods, and where the allocation does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// Percent of the GPU's compute.
    pub cores: u32,
    /// Why it counts on this GPU.
    pub basis: Basis,
}

//! `POST /v1/simulate`: which of some pods would fit on a new node, by what Filter decides and what GPUs Bind chooses.
//!
//! Taints, requests of CPU and memory, affinity, and all else that kube-scheduler decides by itself, are not judged.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::explain::{ExplainedGpu, Pod};

/// The most pods of a request.
pub const MAX_PODS: usize = 1_000;

/// The request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SimulateRequest {
    /// The pods, as v1 Pods with their namespaces, in the order in which they are tried: each beside those before it
    /// that fit. Their UIDs and nodes do not matter.
    #[schemars(length(max = MAX_PODS))]
    pub pods: Vec<Value>,
    /// The node, as a v1 Node, which may be a copy of another one: it has no pods and no readings. Its GPUs are those
    /// of the annotation `gpu-cards`, all healthy, and closed for what follows from how nodes are set up. Without it,
    /// its allocatable units are on as many GPUs of one size as its allocatable `aliyun.com/gpu-count` says.
    pub node: Value,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Simulation {
    /// When it was made, RFC 3339.
    #[schemars(with = "String")]
    pub time: Timestamp,
    /// The pods, in the order of the request.
    pub pods: Vec<SimulatedPod>,
}

/// What would become of one pod.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SimulatedPod {
    /// The pod, as in the request.
    pub pod: Pod,
    /// Whether it fits.
    pub outcome: PodOutcome,
    /// Why it does not fit, in the constant texts that Filter returns, one for each cause; or why it is not judged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
    /// Why no node may take it, with the values: its GPU request cannot be read, or no node can ever fulfil it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    /// Indexes of the GPUs that it gets; absent if it requests none, or does not fit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub chosen: Vec<u32>,
    /// Of a pod that does not fit and requests GPU memory, the GPUs as it finds them, by index; without UUIDs and
    /// charges. Absent if the node has none.
    #[serde(default, rename = "cards", skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<ExplainedGpu>,
}

/// Whether a pod fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PodOutcome {
    /// It fits, and is on the node for those after it.
    Fits,
    /// It does not fit.
    Rejected,
    /// It depends on what is not known of a new node; it is not on the node for those after it.
    NotJudged,
}

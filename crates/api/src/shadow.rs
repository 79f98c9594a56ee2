//! The answer of `GET /shadow`: what a second policy would have decided for the pods of the last hour.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::explain::Pod;

/// What both policies decided.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Shadow {
    /// When this was asked, RFC 3339.
    #[schemars(with = "String")]
    pub time: Timestamp,
    /// The pods that were decided about within the last hour under the two policies now in force, the newest first; at most
    /// 1,000.
    pub pods: Vec<ShadowedPod>,
}

/// One pod, as both policies decided about it when kube-scheduler last asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ShadowedPod {
    /// The pod.
    pub pod: Pod,
    /// When kube-scheduler asked, RFC 3339.
    #[schemars(with = "String")]
    pub time: Timestamp,
    /// The node that it is on; absent where it has none, or none is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// How many nodes kube-scheduler asked about.
    pub nodes: u32,
    /// What the policy in force decided.
    pub policy: Choice,
    /// What the shadow policy would have decided.
    pub shadow: Choice,
    /// In what they differ; empty where they agree.
    pub differs: Vec<Difference>,
}

/// What one policy makes of the nodes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Choice {
    /// How many nodes it rejects.
    pub rejected: u32,
    /// How many of them the other policy accepts.
    pub rejected_alone: u32,
    /// How many of the accepted nodes share the best score.
    pub best_nodes: u32,
    /// The first of these in the order of their names, at most 3.
    pub best: Vec<String>,
    /// Their score, 0 (worst) to 100; absent where every node is rejected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best_score: Option<u8>,
}

/// In what two policies differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Difference {
    /// One rejects a node that the other accepts.
    Filter,
    /// No node is best for both.
    Score,
}

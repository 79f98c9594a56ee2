//! The answer of `GET /shadow`: what a second policy would have decided for the pods of the last hour.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::explain::Pod;

/// What both policies decided.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Shadow {
    /// The time of the request, RFC 3339.
    #[schemars(with = "String")]
    pub time: Timestamp,
    /// Other replicas that gave no answer, by their address: their pods are missing here. Empty if all answered.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
    /// The pods of the last hour's decisions under the current policy and shadow policy, the newest first; at most
    /// 1,000.
    pub pods: Vec<ShadowedPod>,
}

/// The decisions of both policies for one pod, at kube-scheduler's last Filter request for it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ShadowedPod {
    /// The pod.
    pub pod: Pod,
    /// The time of that request, RFC 3339.
    #[schemars(with = "String")]
    pub time: Timestamp,
    /// The node that it is on; absent if it has none, or that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// How many nodes the request had.
    pub nodes: u32,
    /// What the policy in force decided.
    pub policy: Choice,
    /// What the shadow policy would have decided.
    pub shadow: Choice,
    /// In what they differ; empty if they agree.
    pub differs: Vec<Difference>,
}

/// The decision of one policy about the nodes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Choice {
    /// How many nodes it rejects.
    pub rejected: u32,
    /// How many of these the other policy accepts.
    pub rejected_alone: u32,
    /// How many of the accepted nodes share the best score.
    pub best_nodes: u32,
    /// The first of these in the order of their names, at most 3.
    pub best: Vec<String>,
    /// Their score, 0 (worst) to 100; absent if every node is rejected.
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

//! The answers of `GET /v1/decisions` and of `GET /v1/pending`: what was decided about the last pods, in short.
//!
//! `POST /explain` has everything about one of them.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::explain::Pod;
use crate::state::Replica;

/// The last decision about each of the last pods, at most 1,000. `/v1/pending` has those that have no node yet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Decisions {
    /// When the answer was made, RFC 3339.
    #[schemars(with = "String")]
    pub time: Timestamp,
    /// The replica that it is from; the decisions are those of all replicas.
    pub replica: Replica,
    /// Other replicas that gave no answer, by their address: their decisions are missing here. Empty if all answered.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
    /// The newest first.
    pub decisions: Vec<Decided>,
}

/// What was decided about one pod, at kube-scheduler's last Filter request for it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Decided {
    /// The pod.
    pub pod: Pod,
    /// The kind of its controller: Deployment, StatefulSet, Job or another; absent if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<Controller>,
    /// When it was decided, RFC 3339.
    #[schemars(with = "String")]
    pub time: Timestamp,
    /// How long the pod had been waiting for a node, in seconds.
    pub waited_seconds: i64,
    /// The node that it is on; absent if it has none, or that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Indexes of the GPUs that it is charged for on that node; empty if it has none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[serde(rename = "cards")]
    pub gpus: Vec<u32>,
    /// What it asks of GPUs; absent if it asks for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asks: Option<Asks>,
    /// Why no node may take the pod, with the values: its GPU request cannot be read, or no node can ever fulfil it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    /// How many nodes kube-scheduler asked about.
    pub nodes: u32,
    /// How many of them may take it.
    pub accepted: u32,
    /// Why the others may not, with the number of nodes, most frequent first. A node can have several reasons; this is
    /// its first.
    pub reasons: Vec<Reason>,
    /// Its node's score, 0 to 100; absent without a node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub score: Option<u8>,
    /// How many accepted nodes had a better score than its node; absent without a node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub better: Option<u32>,
    /// The best accepted nodes beside its own, the best first, at most 3.
    pub best: Vec<ScoredNode>,
    /// What is nearest to accepting the pod, if no node does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nearest: Option<Nearest>,
    /// What would have to change there, in words; absent where `nearest` is, and from an older extender.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fits_if: Option<String>,
}

/// The controller of pods.
#[derive(
    Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[schemars(rename = "Workload")]
pub struct Controller {
    /// Its kind.
    pub kind: String,
    /// Its name; of a ReplicaSet that of its Deployment.
    pub name: String,
}

/// What a pod asks of GPUs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Asks {
    /// Units on one GPU; of several GPUs the most.
    pub units: u32,
    /// Whether it asks by ResourceClaims, and units are MiB.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub in_mib: bool,
    /// How many GPUs.
    pub count: u32,
    /// Percent of a GPU's compute; 0 if it asks for none.
    pub cores: u32,
    /// Whether it asks for whole GPUs.
    pub exclusive: bool,
}

/// A reason, and how many nodes it rejects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Reason {
    /// The text that Filter returns.
    pub reason: String,
    /// How many nodes.
    pub nodes: u32,
}

/// A node and its score.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ScoredNode {
    /// The node's name.
    pub node: String,
    /// 0 to 100.
    pub score: u8,
}

/// What would have to change for a node to accept the pod, at the node where that is least.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case", rename_all_fields = "camelCase")]
pub enum Nearest {
    /// No GPU fits; this one has most free units.
    #[serde(rename = "card")]
    Gpu {
        /// Its node.
        node: String,
        /// Its index.
        index: u32,
        /// Its free units.
        free: u32,
        /// What it lacks.
        #[serde(default, skip_serializing_if = "Lack::is_units")]
        lack: Lack,
    },
    /// Too few GPUs of one node fit; this node has most that do.
    #[serde(rename = "cards")]
    Gpus {
        /// The node.
        node: String,
        /// How many of its GPUs fit.
        fit: u32,
        /// What the others lack.
        #[serde(default, skip_serializing_if = "Lack::is_units")]
        lack: Lack,
    },
    /// Every node is over a limit; this one is least over.
    Limit {
        /// The node.
        node: String,
        /// The limit's metric.
        metric: String,
        /// The load with the pod, 0 idle to 1 full.
        load: f64,
        /// The limit.
        max: f64,
    },
}

/// What a GPU lacks to fit a pod.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Lack {
    /// Free units.
    #[default]
    Units,
    /// That no pod is on it: the pod asks for whole GPUs.
    Empty,
    /// Nothing by itself: the free units of its node are needed for pods that have no GPU yet.
    Unplaced,
    /// A reason of a newer writer.
    #[serde(other)]
    Other,
}

impl Lack {
    fn is_units(&self) -> bool {
        *self == Self::Units
    }
}

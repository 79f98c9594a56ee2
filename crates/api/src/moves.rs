//! The answer of `GET /v1/moves`: which pods to move so that a shape finds cards on one node.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::state::Replica;

/// The fewest moves that make room for a shape.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Moves {
    /// When the answer was made, RFC 3339.
    #[schemars(with = "String")]
    pub time: Timestamp,
    /// The replica that it is from.
    pub replica: Replica,
    /// The shape that was asked about.
    pub asked: Shape,
    /// What makes room; absent if no moves do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proposal: Option<Proposal>,
    /// Nodes of which the pods were looked at, those with the fewest pods on the cards first.
    pub nodes: u32,
    /// The pods of these nodes that are not moved, counted by the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub staying: Vec<Staying>,
}

/// Cards of one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Shape {
    /// How many cards.
    pub cards: u32,
    /// Units of each.
    pub units: u32,
    /// The priority of the pod that needs the room; absent: any pods may be moved for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
}

/// What makes room.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Proposal {
    /// The node that has room then.
    pub node: String,
    /// The indices of the cards there.
    pub cards: Vec<u32>,
    /// The pods to move; none where there is room as it is.
    pub moves: Vec<Move>,
}

/// A pod to move, and where its successor fits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Move {
    /// The pod's namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its controller: `Deployment/web`.
    pub workload: String,
    /// Its priority.
    pub priority: i32,
    /// Its units on all its cards.
    pub units: u32,
    /// The indices of its cards.
    pub from_cards: Vec<u32>,
    /// The node that its successor fits: another, or the same with other cards.
    pub to: String,
    /// The indices of the cards there.
    pub to_cards: Vec<u32>,
}

/// Pods that are not moved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Staying {
    /// Why.
    pub reason: StayReason,
    /// How many.
    pub pods: u32,
}

/// Why a pod is not moved.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "camelCase")]
pub enum StayReason {
    /// No controller would make a successor.
    NoController,
    /// A DaemonSet's pod belongs to its node.
    DaemonSet,
    /// A Job would begin anew, and what another controller does is not known; the annotation `safe-to-evict` allows it.
    Controller,
    /// Its annotation `cluster-autoscaler.kubernetes.io/safe-to-evict` is `"false"`.
    Annotation,
    /// It has a persistent volume.
    Volume,
    /// It takes a port of its node.
    HostPort,
    /// It requires other pods near it, or not near it.
    OtherPods,
    /// Its rules about nodes cannot be checked.
    NodeRules,
    /// It has claims of dynamic resource allocation.
    ResourceClaims,
    /// What it asks for cannot be read.
    Request,
    /// It is ending.
    Ending,
    /// PodDisruptionBudgets allow no eviction of it, or several cover it.
    Budget,
    /// It is as important as the pod that needs the room, or more.
    Priority,
    /// A pod of its workload was moved a short time ago.
    Moved,
    /// It is a client of NVIDIA's MPS beside others, and nothing terminates it before it is killed: a kill with work in
    /// flight would end the others.
    MpsClient,
    /// Any other reason, of a newer version.
    #[serde(other)]
    Other,
}

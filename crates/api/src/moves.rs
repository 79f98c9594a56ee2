//! The answer of `GET /v1/moves`: which pods to move so that a shape finds GPUs on one node.

use jiff::Timestamp;
pub use placement::moves::StayReason;
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
    /// Nodes of which the pods were looked at, those with the fewest pods on the GPUs first.
    pub nodes: u32,
    /// The pods of these nodes that are not moved, counted by the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub staying: Vec<Staying>,
}

/// GPUs of one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Shape {
    /// How many GPUs.
    #[serde(rename = "cards")]
    pub gpus: u32,
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
    /// The indices of the GPUs there.
    #[serde(rename = "cards")]
    pub gpus: Vec<u32>,
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
    /// Its units on all its GPUs.
    pub units: u32,
    /// The indices of its GPUs.
    #[serde(rename = "fromCards")]
    pub from_gpus: Vec<u32>,
    /// The node that its successor fits: another, or the same with other GPUs.
    pub to: String,
    /// The indices of the GPUs there.
    #[serde(rename = "toCards")]
    pub to_gpus: Vec<u32>,
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

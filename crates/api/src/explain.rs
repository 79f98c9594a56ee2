//! The answer of `POST /explain`: for each node, everything that follows for one pod.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What the extender decides for one pod at one time, node by node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Explanation {
    /// The pod that was asked about.
    pub pod: Pod,
    /// When this was decided, RFC 3339.
    #[schemars(with = "String")]
    pub time: Timestamp,
    /// The nodes that were asked about in that order, or all by name.
    pub nodes: Vec<Node>,
}

/// A pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Pod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
}

/// What is decided for one node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Whether the extender knows the node. One that it does not know is accepted for its load, scores 0 and has no cards.
    pub known: bool,
    /// Whether the node may take the pod, by load and by cards.
    pub accepted: bool,
    /// Why it may not: the constant texts that Filter answers, one for each cause.
    pub reasons: Vec<String>,
    /// 0 (worst) to 100: the load's score, or for a GPU pod its mean with the cards'.
    pub score: u8,
    /// What Prioritize answers, 0 to 10.
    pub extender_score: i64,
    /// What follows from the node's load; absent where the node is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<Load>,
    /// What follows from its cards; absent where the pod asks for no GPU memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cards: Option<Cards>,
}

/// What follows from a node's load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Load {
    /// Every limit of the policy, in its order.
    pub limits: Vec<Limit>,
    /// Every term of the score, in the order of the policy's weights.
    pub terms: Vec<Term>,
    /// Each 1 costs 10 of 100 points.
    pub hot_value: f64,
    /// 0 to 100.
    pub score: u8,
}

/// One limit, and what came of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Limit {
    /// The metric.
    pub metric: String,
    /// The largest fraction that is accepted.
    pub max: f64,
    /// What came of it.
    pub outcome: LimitOutcome,
    /// What it was held against.
    pub reading: Reading,
}

/// What came of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LimitOutcome {
    /// The reading is at or below it.
    Met,
    /// The reading is over it: the node is rejected.
    Exceeded,
    /// There is no fresh reading, which rejects no node.
    Unknown,
    /// There is no fresh reading, and the policy rejects the node for it.
    UnknownRejected,
    /// Limits do not apply to this pod: a DaemonSet owns it.
    Exempt,
}

/// What one metric adds to the score.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Term {
    /// The metric.
    pub metric: String,
    /// Its part of all weights, 0 to 1.
    pub share: f64,
    /// Points of 100 that it adds; absent where the reading is infinite.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub points: Option<f64>,
    /// What they were computed from.
    pub reading: Reading,
}

/// A metric's reading on the node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Reading {
    /// Whether it counts.
    pub status: ReadingStatus,
    /// The value as a fraction: 0 idle, 1 full. Absent where there is none, or it is infinite.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<f64>,
    /// When it was taken, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub time: Option<Timestamp>,
    /// How long ago that was; negative where it lies ahead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age_seconds: Option<i64>,
}

/// Whether a reading counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ReadingStatus {
    /// It counts.
    Fresh,
    /// It is too old, or too far ahead.
    Stale,
    /// There is none, or it was refused.
    Missing,
    /// No `syncPolicy` entry of the policy fetches the metric.
    NotFetched,
}

/// What follows from a node's cards.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Cards {
    /// Units that the pod needs on one card.
    pub asked: u32,
    /// Index of the card that Bind would choose; absent where none fits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chosen: Option<u32>,
    /// The cards by index; empty where the node reports none.
    pub cards: Vec<Card>,
    /// 0 to 100: how tightly the pod fills the chosen card.
    pub score: u8,
}

/// One card, and whether the pod fits on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Card {
    /// Its index.
    pub index: u32,
    /// Its UUID.
    pub uuid: String,
    /// Its units.
    pub units: u32,
    /// Units that no pod is charged.
    pub free: u32,
    /// Whether the pod fits on it.
    pub outcome: CardOutcome,
    /// What the other units are charged to, by UID.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub charges: Vec<Charge>,
}

/// What one pod is charged on a card.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Charge {
    /// The pod's UID.
    pub pod: String,
    /// Its units.
    pub units: u32,
    /// Why it counts on this card.
    pub basis: Basis,
}

/// Why a pod counts on a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Basis {
    /// The kubelet's records place it there.
    Recorded,
    /// Bind chose the card; the kubelet's records do not place the pod yet.
    Chosen,
    /// Its claim names the card, or did; the kubelet's records do not place the pod yet.
    Claimed,
    /// Its card is unknown: it counts on each of the node's.
    UnknownPlace,
    /// Its claim names another card, and nothing else is known of the pod: it counts on each of the node's.
    UnprovenClaim,
}

/// Whether a pod fits on a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CardOutcome {
    /// It does.
    Fits,
    /// Too few units are free.
    TooLittleFree,
    /// The card is reported unhealthy.
    Unhealthy,
}

//! `POST /explain`: a question about one pod, and for each node everything that follows for it.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A question about a pod by its name. Instead, a body may hold the pod itself under `Pod`, as kube-scheduler sends it to
/// Filter, and names of nodes under `NodeNames`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    /// The pod's namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Whether to answer what would be decided now, also for a pod that has a node.
    #[serde(default)]
    pub fresh: bool,
    /// The nodes to answer for, at most 100,000; all where absent. Each is decided about among all nodes, whichever are answered for: of a
    /// decision those that kube-scheduler asked about, else all that are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_names: Option<Vec<String>>,
}

/// What the extender decides for one pod at one time, node by node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Explanation {
    /// The pod that was asked about.
    pub pod: Pod,
    /// At which time this is the decision, RFC 3339.
    #[schemars(with = "String")]
    pub time: Timestamp,
    /// What it is decided by.
    #[serde(default)]
    pub basis: DecisionBasis,
    /// The node that the pod is on; absent where it has none, or none is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// What the pod will probably use; absent where the policy does not estimate pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimate: Option<Estimate>,
    /// Why no node may take the pod, with the values: what it asks of GPU cards cannot be read, or cannot be met anywhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    /// The nodes of the question in its order; where it names none, all that are known by name, or of a decision those that
    /// kube-scheduler asked about in its order.
    pub nodes: Vec<Node>,
}

/// What an explanation is made from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DecisionBasis {
    /// What was known when kube-scheduler last asked about the pod, under the policy of that time.
    Decision,
    /// What is known now.
    #[default]
    Now,
}

/// What a pod will probably use, before any reading shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Estimate {
    /// CPU, in cores.
    pub cpu: EstimatedAmount,
    /// Memory, in bytes.
    pub memory: EstimatedAmount,
}

/// An estimate of one resource.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EstimatedAmount {
    /// Cores, or bytes.
    pub amount: f64,
    /// What it was made from.
    pub source: EstimateSource,
}

/// What an estimate was made from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum EstimateSource {
    /// The pod's own annotation.
    Annotation,
    /// What its workload was seen to use.
    Learned,
    /// Its request, and what workloads of its namespace use of theirs.
    Namespace,
    /// Its request, or its limit where that is higher; of a limit, four times the request at most.
    Request,
    /// The policy's default: it names neither.
    Fallback,
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
    /// Whether it may although it is over a limit: one of the least loaded where every node is over one, and limits are soft
    /// or the pod has waited long enough.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub passes_over_limit: bool,
    /// Why it may not, or is over a limit: the constant texts that Filter answers, one for each cause.
    pub reasons: Vec<String>,
    /// 0 (worst) to 100: the load's score, or for a GPU pod its mean with the cards'; for another, less the part that
    /// [`cost_to_cards`](Self::cost_to_cards) takes.
    pub score: u8,
    /// What Prioritize answers: 0 to 10, or to 100 by the policy's scale.
    pub extender_score: i64,
    /// What follows from the node's load; absent where the node is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<Load>,
    /// What a pod that asks for no GPU memory makes useless of the node's cards by the CPU that it takes, in millionths of a card; absent where
    /// that is nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_to_cards: Option<i64>,
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
    /// What the node's CPU uses beside its requests; absent where the policy does not pair pods by it, where the pod uses as much of its
    /// request as pods do on average, and where it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub surplus: Option<Surplus>,
    /// 0 to 100.
    pub score: u8,
}

/// What a node's CPU uses beside its requests, as fractions of the node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Surplus {
    /// What the node's pods request, with the pod to be placed.
    pub requested: f64,
    /// What pods of all nodes use of each requested core.
    pub average: f64,
    /// The load with the pod, less what such requests use on average.
    pub surplus: f64,
    /// The part of that which scores count on top of the load: of the same sign for a pod that uses more of its request than others, of the
    /// other one for a pod that uses less.
    pub counted: f64,
}

/// One limit, and what came of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Limit {
    /// The metric.
    pub metric: String,
    /// The largest fraction that is accepted.
    pub max: f64,
    /// What came of it.
    pub outcome: LimitOutcome,
    /// What it was held against.
    pub reading: Reading,
    /// What is added to the reading for pods that were bound of late, or are on their way, and do not show in it yet, as a
    /// fraction of the node; absent where the policy estimates no pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<f64>,
    /// What is added for the pod itself, likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<f64>,
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
#[serde(rename_all = "camelCase")]
pub struct Term {
    /// The metric.
    pub metric: String,
    /// Its part of all weights, 0 to 1.
    pub share: f64,
    /// Points of 100 that it adds; absent where the reading is infinite, and under a model that adds none up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub points: Option<f64>,
    /// What they were computed from.
    pub reading: Reading,
    /// As of a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<f64>,
    /// As of a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<f64>,
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
    /// How long ago that was at the time of the decision; negative where it lies ahead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age_seconds: Option<i64>,
    /// The time span that it sums up, by the metric's name; absent where the name tells none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_seconds: Option<i64>,
    /// Whether it was kept from the pod's decision; otherwise it is what is known now.
    #[serde(default)]
    pub cached: bool,
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
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Cards {
    /// Units that the pod needs on one card; of several the most.
    pub asked: u32,
    /// Percent of that card's compute that it needs.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub asked_cores: u32,
    /// Whether it wants its cards for itself.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub exclusive: bool,
    /// Cards that it needs.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub count: u32,
    /// Indexes of the cards that Bind would choose; empty where too few fit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub chosen: Vec<u32>,
    /// The cards by index; empty where the node reports none.
    pub cards: Vec<Card>,
    /// 0 to 100: how tightly the pod fills the chosen cards; the other way round where it asks to be spread. Where nodes compare by cost,
    /// by the rank of this one: 100, 50, 25 and so on.
    pub score: u8,
    /// What the placement costs, in millionths of a card that become useless for pods to come; absent where nodes do not compare by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<i64>,
    /// Cores of the node that no pod has asked for; absent where that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free_cpu: Option<f64>,
}

/// One card, and whether the pod fits on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Card {
    /// Its index.
    pub index: u32,
    /// Its UUID.
    pub uuid: String,
    /// The product's name.
    pub model: String,
    /// Its units.
    pub units: u32,
    /// Units that no pod is charged.
    pub free: u32,
    /// Percent of its compute that no pod is charged.
    pub free_cores: u32,
    /// Whether the pod fits on it.
    pub outcome: CardOutcome,
    /// What the other units are charged to, by UID.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub charges: Vec<Charge>,
}

/// What one pod is charged on a card.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Charge {
    /// The pod's UID; empty where it is no pod's.
    pub pod: String,
    /// Its units.
    pub units: u32,
    /// Percent of the card's compute.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cores: u32,
    /// Why it counts on this card.
    pub basis: Basis,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn one() -> u32 {
    1
}

fn is_one(number: &u32) -> bool {
    *number == 1
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
    /// It holds nothing yet: pods were evicted for it, and it is to be bound here.
    Nominated,
    /// No pod's: memory that is in use beyond what pods hold.
    Unmanaged,
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
    /// The pod accepts neither this model nor this UUID.
    NotAccepted,
    /// Too little of its compute is free.
    TooFewCores,
    /// The pod wants the card for itself, and another pod is on it.
    InUse,
}

//! `POST /explain`: the request for one pod, and the decision for each node with its inputs.

use jiff::Timestamp;
pub use placement::gpu::Basis;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::gpus::Closed;

/// A request to explain a pod, by its name. Instead, a body may have the Pod itself under `Pod`, as kube-scheduler
/// sends it to Filter, and names of nodes under `NodeNames`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    /// The pod's namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Whether to return what would be decided now, even for a pod that has a node.
    #[serde(default)]
    pub fresh: bool,
    /// The nodes to return, at most 100,000; all if absent. This does not change the decision, which is always made
    /// among all nodes: those of kube-scheduler's request, or all known nodes for what would be decided now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_names: Option<Vec<String>>,
}

/// What the extender decides for one pod at one time, node by node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Explanation {
    /// The pod.
    pub pod: Pod,
    /// The time of the decision, RFC 3339.
    #[schemars(with = "String")]
    pub time: Timestamp,
    /// What the decision is based on.
    #[serde(default)]
    pub basis: DecisionBasis,
    /// The node that the pod is on; absent if it has none, or that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// What the pod will probably use; absent if estimates do not count in the policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimate: Option<Estimate>,
    /// Why no node may take the pod, with the values: its GPU request cannot be read, or no node can ever fulfil it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    /// Annotations of the pod that cannot be read and count as absent: key and fault of each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ignored: Vec<String>,
    /// The nodes of the request in its order. If it names none: the nodes of kube-scheduler's request in its order, or
    /// all known nodes by name for what would be decided now.
    pub nodes: Vec<Node>,
}

/// What an explanation is based on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DecisionBasis {
    /// The data and the policy of kube-scheduler's last Filter request for the pod.
    Decision,
    /// The current data and policy.
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
    /// Its source.
    pub source: EstimateSource,
}

/// The source of an estimate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum EstimateSource {
    /// The pod's own annotation.
    Annotation,
    /// What its workload was seen to use.
    Learned,
    /// Its request times the use by request of workloads in its namespace.
    Namespace,
    /// Its request, or its limit if that is higher, but at most four times the request.
    Request,
    /// The policy's default: it has neither request nor limit.
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

/// The decision for one node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Whether the extender knows the node. A node that it does not know is accepted by load, scores 0 and has no
    /// GPUs.
    pub known: bool,
    /// Whether the node may take the pod, by load and by GPUs.
    pub accepted: bool,
    /// Whether the node may take the pod although it is over a limit: every node is over a limit, this is one of the
    /// least loaded, and limits are soft or the pod has waited long enough.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub passes_over_limit: bool,
    /// Why it may not, or which limits it is over: the constant texts that Filter returns, one for each cause.
    pub reasons: Vec<String>,
    /// 0 (worst) to 100. For a GPU pod the mean of the scores by load and by GPUs; for another pod the score by load,
    /// less the part that `costToCards` takes.
    pub score: u8,
    /// The score that Prioritize returns: 0 to the policy's scale, 0 to 100 for GPU pods.
    pub extender_score: i64,
    /// The decision by the node's load; absent if the node is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<Load>,
    /// What a pod without a GPU request makes useless of the node's GPUs by the CPU that it takes, beyond what it
    /// would on the node where that is least, in millionths of a GPU; absent if that is 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(rename = "costToCards")]
    pub cost_to_gpus: Option<i64>,
    /// The decision by its GPUs; absent if the pod requests no GPU memory, or its ResourceClaims have it already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(rename = "cards")]
    pub gpus: Option<ExplainedGpus>,
}

/// The decision by a node's load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Load {
    /// Every limit of the policy, in its order.
    pub limits: Vec<Limit>,
    /// Every term of the score, in the order of the policy's weights.
    pub terms: Vec<Term>,
    /// What costs points whatever the pod is; absent if nothing does.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub costs: Vec<NodeCost>,
    /// 0 to 100.
    pub score: u8,
}

/// What a rule costs a node, whatever the pod is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NodeCost {
    /// The rule, by the name of its field in policies.
    pub name: String,
    /// What the rule measures.
    pub value: f64,
    /// Points of 100.
    pub points: f64,
    /// What costs them.
    pub text: String,
}

/// One limit, and whether it is met.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Limit {
    /// The metric.
    pub metric: String,
    /// The largest fraction that is accepted.
    pub max: f64,
    /// Whether it is met.
    pub outcome: LimitOutcome,
    /// The reading that it was compared with.
    pub reading: Reading,
    /// What is added to the reading for recently bound and in-flight pods that it does not show yet, as a fraction of
    /// the node; absent if estimates do not count in the policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<f64>,
    /// What is added for the pod itself, as `inFlight`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<f64>,
}

/// Whether a limit is met.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LimitOutcome {
    /// The load is at or below it.
    Met,
    /// The pod alone is over it, as it would be on an empty node; the load without the pod is at or below it.
    MetWithoutPod,
    /// The load is over it: the node is rejected.
    Exceeded,
    /// There is no fresh reading, which rejects no node.
    Unknown,
    /// There is no fresh reading, and the policy rejects the node for it.
    UnknownRejected,
    /// Limits do not apply to this pod.
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
    /// Points of 100 that it adds; absent if the reading is infinite, and under a model that does not add terms up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub points: Option<f64>,
    /// The load that is typical of the nodes that the pod could go to, of the metric's resource and without the pod:
    /// only what the node would be above it costs points. Absent under a model that adds terms up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub typical: Option<f64>,
    /// The reading that they were computed from.
    pub reading: Reading,
    /// As in a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<f64>,
    /// As in a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<f64>,
}

/// A metric's reading on the node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Reading {
    /// Whether it counts.
    pub status: ReadingStatus,
    /// The value as a fraction: 0 idle, 1 full. Absent if there is no reading, or it is infinite.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<f64>,
    /// When it was taken, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub time: Option<Timestamp>,
    /// How long before the decision that was, in seconds; negative if it is later than the decision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age_seconds: Option<i64>,
    /// The length of its window in seconds, by the metric's name; absent if the name has no window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_seconds: Option<i64>,
    /// Whether it was recorded with the pod's decision; otherwise it is the current one.
    #[serde(default)]
    pub cached: bool,
}

/// Whether a reading counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ReadingStatus {
    /// It counts.
    Fresh,
    /// It is too old, or too far in the future.
    Stale,
    /// There is no reading, or it was refused.
    Missing,
    /// No `syncPolicy` entry of the policy fetches the metric.
    NotFetched,
}

/// The decision by a node's GPUs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "Gpus")]
pub struct ExplainedGpus {
    /// Units that the pod requests on one GPU; of several GPUs the most.
    pub asked: u32,
    /// Whether it requests them by ResourceClaims, and all units here are MiB.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub in_mib: bool,
    /// Percent of that GPU's compute that it requests.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub asked_cores: u32,
    /// Whether it requests exclusive GPUs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub exclusive: bool,
    /// How many GPUs it requests.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub count: u32,
    /// Indexes of the GPUs that Bind would choose; empty if too few fit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub chosen: Vec<u32>,
    /// Whether NVLink connects all chosen GPUs with each other; absent for fewer than two, and where the node reports
    /// no NVLink.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub linked: Option<bool>,
    /// The GPUs by index; empty if the node reports none.
    #[serde(rename = "cards")]
    pub gpus: Vec<ExplainedGpu>,
    /// 0 to 100: how full the chosen GPUs are with the pod, or how empty if pods are spread. If nodes are compared by
    /// cost, it follows from this node's rank: 100, 50, 25 and so on.
    pub score: u8,
    /// The part of a GPU that the placement makes useless for future pods, in millionths; absent if nodes are not
    /// compared by cost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<i64>,
    /// Cores of the node that no pod requests; absent if that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free_cpu: Option<f64>,
}

/// One GPU, and whether the pod fits on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "Gpu")]
pub struct ExplainedGpu {
    /// Its index.
    pub index: u32,
    /// Its UUID.
    pub uuid: String,
    /// The product's name.
    pub model: String,
    /// Its units.
    pub units: u32,
    /// Units that are charged to no pod.
    pub free: u32,
    /// Percent of its compute that is charged to no pod.
    pub free_cores: u32,
    /// Whether the pod fits on it.
    pub outcome: GpuOutcome,
    /// Why the GPU takes no new pods, by its node's report; absent if it takes some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed: Option<Closed>,
    /// What pods are charged, by UID.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub charges: Vec<ExplainedCharge>,
}

/// What one pod or ResourceClaim is charged on a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "Charge")]
pub struct ExplainedCharge {
    /// The pod's UID; empty for a ResourceClaim, and for unmanaged memory, which belongs to no pod.
    pub pod: String,
    /// The ResourceClaim, as `NAMESPACE/NAME`; absent for pods and unmanaged memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_claim: Option<String>,
    /// Its units.
    pub units: u32,
    /// Percent of the GPU's compute.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cores: u32,
    /// Why it counts on this GPU.
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

/// Whether a pod fits on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum GpuOutcome {
    /// It fits.
    Fits,
    /// Too few units are free.
    TooLittleFree,
    /// The GPU is reported unhealthy.
    Unhealthy,
    /// The GPU takes no new pods: `closed` says why.
    Closed,
    /// The node cannot enforce the isolation that the pod requires, or does not report that it can.
    WeakIsolation,
    /// The pod accepts neither this model nor this UUID.
    NotAccepted,
    /// Too little of its compute is free.
    TooFewCores,
    /// The pod requests the GPU exclusively, and another pod is on it.
    InUse,
    /// The pod would take more of the GPU than its units are of it, without a right to that.
    BeyondUnits,
    /// The pod shares GPUs by NVIDIA's MPS and pods on the GPU do not, or the other way round.
    OtherSharing,
    /// The GPU does not serve as many more clients of MPS.
    TooManyClients,
}

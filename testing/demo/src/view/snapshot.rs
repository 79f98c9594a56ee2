//! What is shown of the cluster, as plain values: one row a node, one row a pod with the reason for its place.
//!
//! Made anew each time from API objects and the two schedulers' decisions.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::Value;
use sim::scheduler::Decision;

use super::reason::{BaselineChoice, Reason, Rejections};
use crate::baseline::Choices;
use crate::checker::Counts;
use crate::cluster::{gpu_units, is_reading_old};
use crate::model::nodes::{FLEET, NodePlan};
use crate::model::objects::{
    annotated_load, asks_gpu, is_daemon, name, peak_units, text, uid, waiting_reason,
};
use crate::model::policy::{Overload, Policy};

/// Everything that is shown at one time.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Snapshot {
    /// Seconds since the start.
    pub(crate) seconds: u64,
    /// What the scenario is doing.
    pub(crate) caption: String,
    /// The policy in force.
    pub(crate) policy: Policy,
    /// In the order of the fleet.
    pub(crate) nodes: Vec<NodeRow>,
    /// In the order of their creation.
    pub(crate) pods: Vec<PodRow>,
    pub(crate) counts: Counts,
    /// The address of the extender's page; empty where there is none.
    pub(crate) page: String,
}

/// One node.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct NodeRow {
    pub(crate) name: String,
    /// CPU load as annotated, a fraction; `None` where there is no reading.
    pub(crate) cpu: Option<f64>,
    /// The same of memory.
    pub(crate) memory: Option<f64>,
    /// Which limits of the policy in force it is over.
    pub(crate) over: Overload,
    /// Whether the readings are old, because the exporter is silent.
    pub(crate) silent: bool,
    /// Whether it has GPUs, but no device plugin that offers them.
    pub(crate) plugin_missing: bool,
}

/// One pod.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PodRow {
    pub(crate) uid: String,
    pub(crate) name: String,
    /// Units of GPU memory.
    pub(crate) units: u64,
    pub(crate) place: Place,
    /// Why it is there, and what kube-scheduler would have done by itself. `None` where the scheduler did not place it,
    /// and until both are known.
    pub(crate) reason: Option<(Reason, BaselineChoice)>,
}

/// Where a pod is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// Not bound, for this reason.
    Waiting(String),
    /// Bound to a node, and for a GPU pod to the GPU of this index.
    On { node: String, gpu: Option<usize> },
    /// Refused by its node's kubelet, with this message.
    Failed(String),
}

/// A decision of the scheduler, and why the extender rejected nodes.
#[derive(Debug)]
pub(crate) struct Decided {
    pub(crate) decision: Decision,
    pub(crate) rejections: Rejections,
}

/// The newest decision about each pod, by the pod's UID.
pub(crate) type Decisions = BTreeMap<String, Decided>;

/// What a snapshot is made of.
pub(crate) struct SnapshotInputs<'a> {
    pub(crate) nodes: &'a [Value],
    pub(crate) pods: &'a [Value],
    pub(crate) decisions: &'a Decisions,
    pub(crate) choices: &'a Choices,
    pub(crate) policy: Policy,
    pub(crate) now: Timestamp,
}

impl Snapshot {
    /// The rows of nodes and pods. Time, caption and counts are left empty.
    pub(crate) fn new(inputs: &SnapshotInputs<'_>) -> Self {
        let SnapshotInputs { decisions, choices, policy, .. } = *inputs;
        let mut pods: Vec<&Value> = inputs.pods.iter().collect();
        pods.sort_by_key(|pod| creation_number(pod));
        Self {
            policy,
            nodes: FLEET.iter().filter_map(|plan| node_row(plan, inputs)).collect(),
            pods: pods.iter().map(|pod| pod_row(pod, decisions, choices)).collect(),
            ..Self::default()
        }
    }
}

fn node_row(plan: &NodePlan, inputs: &SnapshotInputs<'_>) -> Option<NodeRow> {
    let object = inputs.nodes.iter().find(|node| name(node) == plan.name)?;
    let (cpu, memory) = annotated_load(object);
    Some(NodeRow {
        name: plan.name.to_owned(),
        cpu,
        memory,
        over: inputs.policy.limits().exceeded_by(cpu, memory),
        silent: is_reading_old(object, inputs.now),
        plugin_missing: plan.gpus > 0 && gpu_units(object) == 0,
    })
}

/// The API server's stand-in numbers UIDs in the order of creation, in hexadecimal digits at the end.
fn creation_number(pod: &Value) -> u64 {
    let last = uid(pod).rsplit('-').next();
    last.and_then(|last| u64::from_str_radix(last, 16).ok()).unwrap_or(0)
}

/// Units of GPU memory: as Bind has written them, before that as the pod asks.
fn units(pod: &Value) -> u64 {
    let bound = text(&pod["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_POD"]).parse().ok();
    bound.unwrap_or_else(|| peak_units(pod))
}

fn pod_row(pod: &Value, decisions: &Decisions, choices: &Choices) -> PodRow {
    let decided = decisions.get(uid(pod));
    PodRow {
        uid: uid(pod).to_owned(),
        name: name(pod).to_owned(),
        units: if asks_gpu(pod) { units(pod) } else { 0 },
        place: place(pod),
        reason: decided.zip(choices.get(uid(pod))).and_then(|(decided, choice)| {
            let Decided { decision, rejections } = decided;
            let reason = Reason::of(decision, *rejections, is_daemon(pod))?;
            Some((reason, BaselineChoice::of(decision, choice.as_ref())))
        }),
    }
}

fn place(pod: &Value) -> Place {
    let node = text(&pod["spec"]["nodeName"]);
    let gpu = text(&pod["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_IDX"]).parse().ok();
    if pod["status"]["phase"] == "Failed" {
        Place::Failed(text(&pod["status"]["message"]).to_owned())
    } else if node.is_empty() {
        Place::Waiting(waiting_reason(pod).to_owned())
    } else {
        Place::On { node: node.to_owned(), gpu }
    }
}

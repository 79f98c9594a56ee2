//! What is shown of the cluster, as plain values: one row a node, one row a pod with the reason for its place.
//!
//! Made anew for each frame from API objects and the two schedulers' decisions.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::Value;
use sim::scheduler::Decision;

use super::reason::{BaselineChoice, Reason, Rejections};
use crate::baseline::Choices;
use crate::checker::Counts;
use crate::cluster::{gpu_units, is_reading_old};
use crate::model::nodes::{CARD_UNITS, FLEET, NodePlan, card_uuid};
use crate::model::objects::{
    annotated_load, asks_gpu, claim, has_ended, hot_value, is_daemon, is_running, name, peak_units,
    requested_cpu, text, uid, waiting_reason,
};
use crate::model::policy::{Overload, Policy};

/// Everything that one frame shows.
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
    /// The part of its CPU that its pods request, in percent: what kube-scheduler goes by.
    pub(crate) requested: u64,
    /// crane's measure of recent pods; 0 where the annotator has not written it.
    pub(crate) hot_value: u64,
    /// Pods on the node that have not ended.
    pub(crate) pods: usize,
    pub(crate) cards: Vec<CardRow>,
    /// Whether it has cards, but no device plugin that offers them.
    pub(crate) plugin_missing: bool,
}

/// One card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CardRow {
    /// Letter and units of each of its pods.
    pub(crate) pods: Vec<(char, u64)>,
    /// Units of the whole card.
    pub(crate) units: u64,
}

impl CardRow {
    /// Units that its pods hold together.
    pub(crate) fn used(&self) -> u64 {
        self.pods.iter().map(|(_, units)| units).sum()
    }
}

/// One pod.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PodRow {
    pub(crate) uid: String,
    pub(crate) name: String,
    /// Stands for the pod on its card; blank for a pod without GPU memory.
    pub(crate) letter: char,
    /// Units of GPU memory.
    pub(crate) units: u64,
    pub(crate) place: Place,
    /// Why it is there, and what kube-scheduler would have done by itself. `None` where the scheduler did not place it,
    /// and until both are known.
    pub(crate) reason: Option<(Reason, BaselineChoice)>,
    /// The nodes that the extender rejected at the scheduler's newest attempt; zero before the first one.
    pub(crate) rejections: Rejections,
}

/// Where a pod is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// Not bound, for this reason.
    Waiting(String),
    /// Bound to a node, and for a GPU pod to the card of this index.
    On { node: String, card: Option<usize>, running: bool },
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

/// The letters of GPU pods. A pod keeps its letter for its life.
#[derive(Debug, Default)]
pub(crate) struct Letters {
    /// By UID.
    given: BTreeMap<String, char>,
    count: usize,
}

impl Letters {
    /// Gives each GPU pod without a letter the next one: a to z, A to Z, and from the beginning.
    fn give(&mut self, pods: &[&Value]) {
        for pod in pods.iter().filter(|pod| asks_gpu(pod)) {
            let next = ('a'..='z').chain('A'..='Z').cycle().nth(self.count % 52).unwrap_or('?');
            if !self.given.contains_key(uid(pod)) {
                self.given.insert(uid(pod).to_owned(), next);
                self.count += 1;
            }
        }
    }

    fn of(&self, pod: &Value) -> char {
        self.given.get(uid(pod)).copied().unwrap_or(' ')
    }
}

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
    pub(crate) fn new(inputs: &SnapshotInputs<'_>, letters: &mut Letters) -> Self {
        let SnapshotInputs { nodes, decisions, choices, policy, now, .. } = *inputs;
        let mut pods: Vec<&Value> = inputs.pods.iter().collect();
        pods.sort_by_key(|pod| creation_number(pod));
        letters.give(&pods);
        let mut rows = Vec::new();
        for (index, plan) in FLEET.iter().enumerate() {
            let Some(object) = nodes.iter().find(|node| name(node) == plan.name) else { continue };
            let mut here = pods.clone();
            here.retain(|pod| pod["spec"]["nodeName"] == plan.name && !has_ended(pod));
            let cards = (0..plan.cards)
                .map(|card| card_row(&here, &card_uuid(index, card), letters))
                .collect();
            let (cpu, memory) = annotated_load(object);
            rows.push(NodeRow {
                name: plan.name.to_owned(),
                cpu,
                memory,
                over: policy.limits().exceeded_by(cpu, memory),
                silent: is_reading_old(object, now),
                requested: requested_percent(&here, plan),
                hot_value: hot_value(object).unwrap_or(0),
                pods: here.len(),
                cards,
                plugin_missing: plan.cards > 0 && gpu_units(object) == 0,
            });
        }
        Self {
            policy,
            nodes: rows,
            pods: pods.iter().map(|pod| pod_row(pod, decisions, choices, letters)).collect(),
            ..Self::default()
        }
    }
}

/// The part of a node's CPU that these pods request, in percent.
fn requested_percent(pods: &[&Value], plan: &NodePlan) -> u64 {
    let thousandths: u64 = pods.iter().map(|pod| requested_cpu(pod)).sum();
    thousandths * 100 / (u64::from(plan.cpus) * 1000)
}

/// The API server's stand-in numbers UIDs in the order of creation, in hexadecimal digits at the end.
fn creation_number(pod: &Value) -> u64 {
    let last = uid(pod).rsplit('-').next();
    last.and_then(|last| u64::from_str_radix(last, 16).ok()).unwrap_or(0)
}

/// A card with those of the node's pods that claim it.
fn card_row(pods: &[&Value], card: &str, letters: &Letters) -> CardRow {
    let holders = pods.iter().filter(|pod| claims_card(pod, card));
    CardRow { pods: holders.map(|pod| (letters.of(pod), units(pod))).collect(), units: CARD_UNITS }
}

fn claims_card(pod: &Value, card: &str) -> bool {
    claim(pod).values().any(|cards| cards.contains(card))
}

/// Units of GPU memory: as Bind has written them, before that as the pod asks.
fn units(pod: &Value) -> u64 {
    let bound = text(&pod["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_POD"]).parse().ok();
    bound.unwrap_or_else(|| peak_units(pod))
}

fn pod_row(pod: &Value, decisions: &Decisions, choices: &Choices, letters: &Letters) -> PodRow {
    let decided = decisions.get(uid(pod));
    PodRow {
        uid: uid(pod).to_owned(),
        name: name(pod).to_owned(),
        letter: letters.of(pod),
        units: if asks_gpu(pod) { units(pod) } else { 0 },
        place: place(pod),
        reason: decided.zip(choices.get(uid(pod))).and_then(|(decided, choice)| {
            let Decided { decision, rejections } = decided;
            let reason = Reason::of(decision, *rejections, is_daemon(pod))?;
            Some((reason, BaselineChoice::of(decision, choice.as_ref())))
        }),
        rejections: decided.map(|decided| decided.rejections).unwrap_or_default(),
    }
}

fn place(pod: &Value) -> Place {
    let node = text(&pod["spec"]["nodeName"]);
    let card = text(&pod["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_IDX"]).parse().ok();
    if pod["status"]["phase"] == "Failed" {
        Place::Failed(text(&pod["status"]["message"]).to_owned())
    } else if node.is_empty() {
        Place::Waiting(waiting_reason(pod).to_owned())
    } else {
        Place::On { node: node.to_owned(), card, running: is_running(pod) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::pods::{gpu, plain};

    fn pod(mut pod: Value, uid: &str) -> Value {
        pod["metadata"]["uid"] = uid.into();
        pod
    }

    #[test]
    fn a_pod_keeps_its_letter_when_another_goes() {
        let first = pod(gpu("a", &[1]), "u-1");
        let second = pod(gpu("b", &[1]), "u-3");
        let web = pod(plain("w"), "u-2");
        let mut letters = Letters::default();
        assert_eq!(shown(&[first.clone(), second.clone(), web], &mut letters), "a b");
        assert_eq!(shown(std::slice::from_ref(&second), &mut letters), "b");
    }

    fn shown(pods: &[Value], letters: &mut Letters) -> String {
        let inputs = SnapshotInputs {
            nodes: &[],
            pods,
            decisions: &Decisions::new(),
            choices: &Choices::new(),
            policy: Policy::Shipped,
            now: Timestamp::UNIX_EPOCH,
        };
        Snapshot::new(&inputs, letters).pods.iter().map(|pod| pod.letter).collect()
    }
}

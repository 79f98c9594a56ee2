//! What is to be seen, as plain values: one line a node, one line a pod with the reasons for its place.
//!
//! Made anew for each frame from API objects and the scheduler's decisions; it decides nothing.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use sim::scheduler::{Candidate, Decision, Verdict};

use super::fleet::{CARD_MIB, FLEET, GPU_MEM, UNIT_MIB, uuid};
use super::scenario::{asks_gpu, reason};

/// One node.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct NodeLine {
    pub(super) name: String,
    /// As annotated; `None` where nothing is known.
    pub(super) cpu: Option<f64>,
    pub(super) memory: Option<f64>,
    /// Whether its exporter has fallen silent: the load is what it said last.
    pub(super) old: bool,
    pub(super) hot: u64,
    pub(super) pods: usize,
    /// For each card, its pods with their units, and all its units.
    pub(super) cards: Vec<CardLine>,
}

/// One card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CardLine {
    pub(super) pods: Vec<(String, u64)>,
    pub(super) units: u64,
}

/// One pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PodLine {
    pub(super) uid: String,
    pub(super) name: String,
    /// Units of GPU memory.
    pub(super) units: u64,
    pub(super) place: Place,
    pub(super) why: String,
    /// What kube-scheduler would have done by itself.
    pub(super) by_default: String,
}

/// Where a pod is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    /// Nowhere yet; why.
    Waits(String),
    /// On a node, and on which card of it.
    On { node: String, card: Option<usize>, running: bool },
    /// Refused by its node.
    Failed(String),
}

/// Everything that is to be seen of the cluster.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Scene {
    pub(super) nodes: Vec<NodeLine>,
    /// In the order of their creation.
    pub(super) pods: Vec<PodLine>,
}

/// The scheduler's last word on each pod, by UID.
pub(super) type Decisions = BTreeMap<String, Decision>;

/// The scene now.
pub(super) fn scene(
    nodes: &[Value],
    pods: &[Value],
    decisions: &Decisions,
    now: Timestamp,
) -> Scene {
    let node = |plan: &super::fleet::NodePlan| {
        let object = nodes.iter().find(|node| node["metadata"]["name"] == plan.name);
        object.map(|object| node_line(object, pods, now))
    };
    let mut lines: Vec<(u64, PodLine)> =
        pods.iter().map(|pod| (age_order(pod), pod_line(pod, decisions, nodes))).collect();
    lines.sort_by_key(|(order, _)| *order);
    Scene {
        nodes: FLEET.iter().filter_map(node).collect(),
        pods: lines.into_iter().map(|(_, line)| line).collect(),
    }
}

/// The stand-in numbers UIDs in the order of creation.
fn age_order(pod: &Value) -> u64 {
    let uid = text(&pod["metadata"]["uid"]);
    uid.rsplit('-').next().and_then(|last| u64::from_str_radix(last, 16).ok()).unwrap_or(0)
}

fn node_line(node: &Value, pods: &[Value], now: Timestamp) -> NodeLine {
    let name = text(&node["metadata"]["name"]);
    let place = FLEET.iter().position(|plan| plan.name == name).unwrap_or_default();
    let here: Vec<&Value> =
        pods.iter().filter(|pod| pod["spec"]["nodeName"] == name && !is_over(pod)).collect();
    let card = |card: usize| CardLine {
        pods: here.iter().filter_map(|pod| on_card(pod, &uuid(place, card))).collect(),
        units: CARD_MIB / UNIT_MIB,
    };
    NodeLine {
        name: name.to_owned(),
        cpu: reading(node, "cpu_usage_active"),
        memory: reading(node, "mem_usage_active"),
        old: is_old(node, now),
        hot: reading(node, "node_hot_value").map_or(0, |hot| hot as u64),
        pods: here.len(),
        cards: (0..FLEET.get(place).map_or(0, |plan| plan.cards)).map(card).collect(),
    }
}

/// A pod's name and units, if its claim is on this card.
fn on_card(pod: &Value, card: &str) -> Option<(String, u64)> {
    let claim = text(&pod["metadata"]["annotations"]["plimsoll.dev/gpu-claim"]);
    claim.contains(card).then(|| (text(&pod["metadata"]["name"]).to_owned(), units(pod)))
}

/// What a pod holds, as the extender wrote it.
fn units(pod: &Value) -> u64 {
    let total = text(&pod["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_POD"]).parse().ok();
    let containers = pod["spec"]["containers"].as_array().into_iter().flatten();
    let asked =
        containers.filter_map(|c| c["resources"]["limits"][GPU_MEM].as_str()?.parse::<u64>().ok());
    total.unwrap_or_else(|| asked.sum())
}

/// Readings come every two seconds.
const OLD: SignedDuration = SignedDuration::from_secs(7);

fn is_old(node: &Value, now: Timestamp) -> bool {
    let annotation = text(&node["metadata"]["annotations"]["cpu_usage_active"]);
    let at = annotation.split(',').nth(1).and_then(|at| at.parse::<Timestamp>().ok());
    at.is_some_and(|at| now.duration_since(at) > OLD)
}

fn reading(node: &Value, metric: &str) -> Option<f64> {
    text(&node["metadata"]["annotations"][metric]).split(',').next()?.parse().ok()
}

fn pod_line(pod: &Value, decisions: &Decisions, nodes: &[Value]) -> PodLine {
    let uid = text(&pod["metadata"]["uid"]).to_owned();
    let decision = decisions.get(&uid);
    PodLine {
        name: text(&pod["metadata"]["name"]).to_owned(),
        units: if asks_gpu(pod) { units(pod) } else { 0 },
        place: place(pod),
        why: decision.map(why).unwrap_or_default(),
        by_default: decision.map(|decision| by_default(decision, nodes)).unwrap_or_default(),
        uid,
    }
}

fn place(pod: &Value) -> Place {
    let node = text(&pod["spec"]["nodeName"]);
    let card = text(&pod["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_IDX"]).parse().ok();
    match text(&pod["status"]["phase"]) {
        "Failed" => Place::Failed(text(&pod["status"]["message"]).to_owned()),
        _ if node.is_empty() => Place::Waits(reason(pod).to_owned()),
        phase => Place::On { node: node.to_owned(), card, running: phase == "Running" },
    }
}

/// Why a pod landed where it did.
fn why(decision: &Decision) -> String {
    let Ok(node) = &decision.outcome else { return String::new() };
    let fits = || decision.candidates.iter().filter(|c| c.verdict == Verdict::Fits);
    let points = |candidate: &Candidate| candidate.extra / 30;
    let own = fits().find(|candidate| candidate.node == *node).map_or(0, points);
    let next = fits().filter(|candidate| candidate.node != *node).map(points).max();
    let place = match next {
        None => "only one left".to_owned(),
        Some(next) => format!("{own}/10, next {next}"),
    };
    let turned_away = |of: fn(&str) -> bool| {
        let away = |candidate: &&Candidate| matches!(&candidate.verdict, Verdict::TurnedAway(why) if of(why));
        decision.candidates.iter().filter(away).count()
    };
    let hot = turned_away(is_about_load);
    let split = turned_away(|why| !is_about_load(why));
    let not = [(hot, "hot"), (split, "full")];
    let not =
        not.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}"));
    let not = not.collect::<Vec<_>>().join(", ");
    if not.is_empty() { place } else { format!("{place}; {not}") }
}

fn is_about_load(why: &str) -> bool {
    why.starts_with("Load[")
}

/// What kube-scheduler alone would have done, and what is wrong with it.
fn by_default(decision: &Decision, nodes: &[Value]) -> String {
    let Some(node) = &decision.without_extenders else { return "nowhere".to_owned() };
    if decision.outcome.as_ref() == Ok(node) {
        return "the same".to_owned();
    }
    let verdict = decision.candidates.iter().find(|c| c.node == *node).map(|c| &c.verdict);
    match verdict {
        Some(Verdict::TurnedAway(why)) if why.starts_with("Load[mem") => {
            format!("{node}: memory full")
        }
        Some(Verdict::TurnedAway(why)) if is_about_load(why) => format!("{node}: overloaded"),
        Some(Verdict::TurnedAway(_)) => format!("{node}: no card fits"),
        _ => {
            let object = nodes.iter().find(|object| object["metadata"]["name"] == node.as_str());
            let cpu = object.and_then(|object| reading(object, "cpu_usage_active"));
            cpu.map_or_else(|| node.clone(), |cpu| format!("{node}, {:.0}% busy", cpu * 100.0))
        }
    }
}

fn is_over(pod: &Value) -> bool {
    matches!(text(&pod["status"]["phase"]), "Failed" | "Succeeded")
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

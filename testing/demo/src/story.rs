//! What is to be seen, as plain values: one line a node, one line a pod with the reasons for its place.
//!
//! Made anew for each frame from API objects and the scheduler's decisions; it decides nothing.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::Value;
use sim::scheduler::Decision;

use crate::alone::Choices;
use crate::evidence::{is_daemon, reading, text};
use crate::fleet::{CARD_MIB, FLEET, GPU_MEM, UNIT_MIB, uuid};
use crate::motive::{ByDefault, Motive};
use crate::pods::{asks_gpu, reason};
use crate::sight;

/// One node.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct NodeLine {
    pub(crate) name: String,
    /// As annotated; `None` where nothing is known.
    pub(crate) cpu: Option<f64>,
    pub(crate) memory: Option<f64>,
    /// Whether its exporter has fallen silent: the load is what it said last.
    pub(crate) old: bool,
    pub(crate) hot: u64,
    pub(crate) pods: usize,
    pub(crate) cards: Vec<CardLine>,
    /// Whether its cards cannot be had, since its device plugin is away.
    pub(crate) plugin_away: bool,
}

/// One card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CardLine {
    /// Its pods' letters, with their units.
    pub(crate) pods: Vec<(char, u64)>,
    /// All its units.
    pub(crate) units: u64,
}

/// One pod.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PodLine {
    pub(crate) uid: String,
    pub(crate) name: String,
    /// Which stands for it on its card; blank for a pod without GPU memory.
    pub(crate) letter: char,
    /// Units of GPU memory.
    pub(crate) units: u64,
    pub(crate) place: Place,
    /// Why it is there, and what kube-scheduler would have done by itself; unknown where somebody else
    /// placed it, and until both are known.
    pub(crate) motive: Option<(Motive, ByDefault)>,
}

/// Where a pod is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// Nowhere yet; why.
    Waits(String),
    /// On a node, and on which card of it.
    On { node: String, card: Option<usize>, running: bool },
    /// Refused by its node.
    Failed(String),
}

/// Everything that is to be seen of the cluster.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Scene {
    pub(crate) nodes: Vec<NodeLine>,
    /// In the order of their creation.
    pub(crate) pods: Vec<PodLine>,
}

/// The scheduler's last word on each pod, by UID.
pub(crate) type Decisions = BTreeMap<String, Decision>;

/// A letter for each GPU pod, in turn, for as long as it lives.
#[derive(Debug, Default)]
pub(crate) struct Letters {
    given: BTreeMap<String, char>,
    count: usize,
}

impl Letters {
    /// Gives each pod its letter, old ones first.
    fn give(&mut self, pods: &[&Value]) {
        for pod in pods.iter().filter(|pod| asks_gpu(pod)) {
            let next = ('a'..='z').chain('A'..='Z').cycle().nth(self.count % 52).unwrap_or('?');
            let uid = text(&pod["metadata"]["uid"]);
            if !self.given.contains_key(uid) {
                self.given.insert(uid.to_owned(), next);
                self.count += 1;
            }
        }
    }

    fn of(&self, pod: &Value) -> char {
        self.given.get(text(&pod["metadata"]["uid"])).copied().unwrap_or(' ')
    }
}

/// The scene now.
pub(crate) fn scene(
    nodes: &[Value],
    pods: &[Value],
    (decisions, choices): (&Decisions, &Choices),
    letters: &mut Letters,
    now: Timestamp,
) -> Scene {
    let mut pods: Vec<&Value> = pods.iter().collect();
    pods.sort_by_key(|pod| age_order(pod));
    letters.give(&pods);
    let node = |plan: &crate::fleet::NodePlan| {
        let object = nodes.iter().find(|node| node["metadata"]["name"] == plan.name);
        object.map(|object| node_line(object, &pods, letters, now))
    };
    Scene {
        nodes: FLEET.iter().filter_map(node).collect(),
        pods: pods.iter().map(|pod| pod_line(pod, decisions, choices, letters)).collect(),
    }
}

/// The stand-in numbers UIDs in the order of creation.
fn age_order(pod: &Value) -> u64 {
    let uid = text(&pod["metadata"]["uid"]);
    uid.rsplit('-').next().and_then(|last| u64::from_str_radix(last, 16).ok()).unwrap_or(0)
}

fn node_line(node: &Value, pods: &[&Value], letters: &Letters, now: Timestamp) -> NodeLine {
    let name = text(&node["metadata"]["name"]);
    let place = FLEET.iter().position(|plan| plan.name == name).unwrap_or_default();
    let is_here = |pod: &&&Value| pod["spec"]["nodeName"] == name && !is_over(pod);
    let here: Vec<&&Value> = pods.iter().filter(is_here).collect();
    let card = |card: usize| CardLine {
        pods: here
            .iter()
            .filter(|pod| is_on_card(pod, &uuid(place, card)))
            .map(|pod| (letters.of(pod), units(pod)))
            .collect(),
        units: CARD_MIB / UNIT_MIB,
    };
    NodeLine {
        name: name.to_owned(),
        cpu: reading(node, "cpu_usage_active"),
        memory: reading(node, "mem_usage_active"),
        old: sight::is_old(node, now),
        hot: reading(node, "node_hot_value").map_or(0, |hot| hot as u64),
        pods: here.len(),
        cards: (0..FLEET.get(place).map_or(0, |plan| plan.cards)).map(card).collect(),
        plugin_away: FLEET.get(place).is_some_and(|plan| plan.cards > 0) && sight::units(node) == 0,
    }
}

/// Whether a pod's claim is on this card.
fn is_on_card(pod: &Value, card: &str) -> bool {
    text(&pod["metadata"]["annotations"]["plimsoll.dev/gpu-claim"]).contains(card)
}

/// What a pod holds, as the extender wrote it.
fn units(pod: &Value) -> u64 {
    let total = text(&pod["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_POD"]).parse().ok();
    let containers = pod["spec"]["containers"].as_array().into_iter().flatten();
    let asked =
        containers.filter_map(|c| c["resources"]["limits"][GPU_MEM].as_str()?.parse::<u64>().ok());
    total.unwrap_or_else(|| asked.sum())
}

fn pod_line(pod: &Value, decisions: &Decisions, choices: &Choices, letters: &Letters) -> PodLine {
    let uid = text(&pod["metadata"]["uid"]).to_owned();
    let decision = decisions.get(&uid);
    PodLine {
        name: text(&pod["metadata"]["name"]).to_owned(),
        letter: letters.of(pod),
        units: if asks_gpu(pod) { units(pod) } else { 0 },
        place: place(pod),
        motive: decision.zip(choices.get(&uid)).and_then(|(decision, choice)| {
            let motive = Motive::of(decision, is_daemon(pod))?;
            Some((motive, ByDefault::of(decision, choice.as_ref())))
        }),
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

fn is_over(pod: &Value) -> bool {
    matches!(text(&pod["status"]["phase"]), "Failed" | "Succeeded")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::{gpu, plain};

    fn pod(mut pod: Value, uid: &str) -> Value {
        pod["metadata"]["uid"] = uid.into();
        pod
    }

    #[test]
    fn a_pod_keeps_its_letter_when_another_goes() {
        let (first, second) = (pod(gpu("a", &[1]), "u-1"), pod(gpu("b", &[1]), "u-3"));
        let web = pod(plain("w"), "u-2");
        let mut letters = Letters::default();
        let mut shown = |pods: &[Value]| {
            let nothing = (&Decisions::new(), &Choices::new());
            let scene = scene(&[], pods, nothing, &mut letters, Timestamp::UNIX_EPOCH);
            scene.pods.iter().map(|pod| pod.letter).collect::<String>()
        };
        assert_eq!(shown(&[first.clone(), second.clone(), web]), "a b");
        assert_eq!(shown(std::slice::from_ref(&second)), "b");
    }
}

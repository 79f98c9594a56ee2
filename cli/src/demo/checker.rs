//! The judge. It knows the machines' truth (which cards there are, what nodes really carry), reads API
//! objects and what processes see, and counts what must never happen.
//!
//! It shares no code with what it judges: it parses claims and adds up demands by itself. Invariant:
//! a count never goes down.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::Value;
use sim::kubelet::{Process, ProcessEvent};

use super::fleet::{self, CARD_MIB, GPU_MEM, UNIT_MIB};
use super::loads::Loads;

/// From the moment at which a node is overloaded until nobody may be placed there any more: the
/// exporter samples every second, the annotator polls every two, and this machine may be busy.
const NOTICE: Duration = Duration::from_secs(8);

/// The counts, which are the demo's last line.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct Tally {
    /// Created in the whole run.
    pub(super) pods: usize,
    /// Of these, how many were bound.
    pub(super) bound: usize,
    /// Of these, how many ran.
    pub(super) running: usize,
    /// Neither bound nor gone.
    pub(super) pending: usize,
    /// MiB that were promised beyond what a card has, at worst, over all cards.
    pub(super) double_booked_mib: u64,
    /// Containers that saw another card than their claim's, or none, or more.
    pub(super) card_mismatches: usize,
    /// Pods placed on nodes that were overloaded.
    pub(super) hot_node_placements: usize,
}

impl Tally {
    /// Whether every invariant held.
    pub(super) fn is_clean(&self) -> bool {
        (self.double_booked_mib, self.card_mismatches, self.hot_node_placements) == (0, 0, 0)
    }
}

/// What is known of one pod.
#[derive(Debug, Default)]
struct Book {
    node: Option<String>,
    ran: bool,
    gone: bool,
}

/// The judge's books.
pub(super) struct Checker {
    loads: Loads,
    books: BTreeMap<String, Book>,
    /// MiB by card and pod: by the claims of bound pods, and by the cards that processes see.
    claimed: BTreeMap<String, BTreeMap<String, u64>>,
    seen: BTreeMap<String, BTreeMap<String, u64>>,
    /// The most that was ever promised of a card beyond its memory.
    worst: BTreeMap<String, u64>,
    card_mismatches: usize,
    hot_node_placements: usize,
    /// What went wrong, in words.
    pub(super) complaints: Vec<String>,
}

impl Checker {
    pub(super) fn new(loads: Loads) -> Self {
        Self {
            loads,
            books: BTreeMap::new(),
            claimed: BTreeMap::new(),
            seen: BTreeMap::new(),
            worst: BTreeMap::new(),
            card_mismatches: 0,
            hot_node_placements: 0,
            complaints: Vec::new(),
        }
    }

    /// A pod is there, or has changed.
    pub(super) fn pod_applied(&mut self, pod: &Value, now: Instant) {
        let uid = text(&pod["metadata"]["uid"]);
        let node = text(&pod["spec"]["nodeName"]);
        let phase = text(&pod["status"]["phase"]);
        let book = self.books.entry(uid.to_owned()).or_default();
        book.ran |= phase == "Running";
        if node.is_empty() {
            return;
        }
        let newly_bound = book.node.replace(node.to_owned()).is_none();
        if newly_bound {
            self.judge_load(pod, node, now);
        }
        if matches!(phase, "Failed" | "Succeeded") {
            self.release(uid);
        } else {
            self.charge_claim(pod, uid);
        }
    }

    /// A pod is gone.
    pub(super) fn pod_gone(&mut self, pod: &Value) {
        let uid = text(&pod["metadata"]["uid"]);
        self.books.entry(uid.to_owned()).or_default().gone = true;
        self.release(uid);
    }

    /// A process began or ended. `pod` is its pod as the API shows it now.
    pub(super) fn process(&mut self, event: &ProcessEvent, pod: Option<&Value>) {
        match event {
            ProcessEvent::Ended { uid } => {
                self.seen.values_mut().for_each(|pods| pods.retain(|pod, _| pod != uid));
            }
            ProcessEvent::Started(process) => {
                if let Some(pod) = pod.filter(|pod| pod["metadata"]["uid"] == process.uid.as_str())
                {
                    self.judge_cards(process, pod);
                }
            }
        }
    }

    fn judge_load(&mut self, pod: &Value, node: &str, now: Instant) {
        let since = self.loads.over_since(node);
        let Some(long) = since.map(|since| now.duration_since(since)) else { return };
        if long > NOTICE && !is_daemon(pod) {
            self.hot_node_placements += 1;
            let (name, seconds) = (text(&pod["metadata"]["name"]), long.as_secs());
            self.complain(format!("{name} was placed on {node}, overloaded for {seconds} s"));
        }
    }

    fn charge_claim(&mut self, pod: &Value, uid: &str) {
        let mib = demand(pod) * UNIT_MIB;
        let cards: BTreeSet<String> = claim(pod).into_values().flatten().collect();
        for card in cards {
            self.claimed.entry(card.clone()).or_default().insert(uid.to_owned(), mib);
            self.judge_room(&card);
        }
    }

    fn judge_cards(&mut self, process: &Process, pod: &Value) {
        let claimed = claim(pod).remove(&process.container).unwrap_or_default();
        let mut cards: BTreeSet<String> =
            process.devices.iter().map(|device| named(process, device)).collect();
        cards.extend(process.env.get("PLIMSOLL_GPU_UUID").cloned());
        for card in &cards {
            let mib = demand(pod) * UNIT_MIB;
            self.seen.entry(card.clone()).or_default().insert(process.uid.clone(), mib);
            self.judge_room(card);
        }
        // Whoever runs NVIDIA's hook beside CDI must not be told of more cards by the pod itself.
        let visible = process.env.get("NVIDIA_VISIBLE_DEVICES").map(String::as_str);
        let shut = claimed.is_empty() || visible == Some("void");
        if cards != claimed || !shut {
            self.card_mismatches += 1;
            let Process { pod, container, node, .. } = process;
            self.complain(format!(
                "{pod}/{container} on {node} claims {claimed:?} and sees {cards:?} (visible: {visible:?})"
            ));
        }
    }

    fn judge_room(&mut self, card: &str) {
        let sum = |books: &BTreeMap<String, BTreeMap<String, u64>>| {
            books.get(card).map_or(0, |pods| pods.values().sum::<u64>())
        };
        let promised = sum(&self.claimed).max(sum(&self.seen));
        let over = promised.saturating_sub(CARD_MIB);
        let worst = self.worst.entry(card.to_owned()).or_default();
        if over > *worst {
            *worst = over;
            self.complain(format!("card {card}: {promised} MiB promised of {CARD_MIB}"));
        }
    }

    fn release(&mut self, uid: &str) {
        self.claimed.values_mut().for_each(|pods| pods.retain(|pod, _| pod != uid));
    }

    fn complain(&mut self, words: String) {
        self.complaints.push(words);
    }

    /// The counts so far.
    pub(super) fn tally(&self) -> Tally {
        let count = |is: fn(&Book) -> bool| self.books.values().filter(|book| is(book)).count();
        Tally {
            pods: self.books.len(),
            bound: count(|book| book.node.is_some()),
            running: count(|book| book.ran),
            pending: count(|book| book.node.is_none() && !book.gone),
            double_booked_mib: self.worst.values().sum(),
            card_mismatches: self.card_mismatches,
            hot_node_placements: self.hot_node_placements,
        }
    }
}

/// A device node's card, by the truth about the process's node.
fn named(process: &Process, device: &str) -> String {
    let place = fleet::FLEET.iter().position(|plan| plan.name == process.node).unwrap_or_default();
    let cards = fleet::FLEET.get(place).map_or(0, |plan| plan.cards);
    let card = (0..cards).find(|card| fleet::device(*card) == device);
    card.map_or_else(|| device.to_owned(), |card| fleet::uuid(place, card))
}

/// The cards of each container by the pod's claim: `{"<container>": {"<uuid>": units}}`.
fn claim(pod: &Value) -> BTreeMap<String, BTreeSet<String>> {
    let text = text(&pod["metadata"]["annotations"]["plimsoll.dev/gpu-claim"]);
    let parsed: Value = serde_json::from_str(text).unwrap_or_default();
    let containers = parsed.as_object().into_iter().flatten();
    let cards = |cards: &Value| {
        cards.as_object().into_iter().flatten().map(|(card, _)| card.clone()).collect()
    };
    containers.map(|(container, of)| (container.clone(), cards(of))).collect()
}

/// Units that a pod holds at most at one time: its app containers together, or its largest init
/// container. (No pod here has sidecars.)
fn demand(pod: &Value) -> u64 {
    let units = |container: &Value| -> u64 {
        text(&container["resources"]["limits"][GPU_MEM]).parse().unwrap_or(0)
    };
    let list = |part: &str| pod["spec"][part].as_array().cloned().unwrap_or_default();
    let apps: u64 = list("containers").iter().map(units).sum();
    let init = list("initContainers").iter().map(units).max().unwrap_or(0);
    apps.max(init)
}

fn is_daemon(pod: &Value) -> bool {
    let owners = pod["metadata"]["ownerReferences"].as_array();
    owners.into_iter().flatten().any(|owner| owner["kind"] == "DaemonSet")
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

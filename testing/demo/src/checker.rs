//! The judge. It knows the machines' truth (which cards there are, what nodes really carry), reads API
//! objects and what processes see, and counts what must never happen.
//!
//! It shares no code with what it judges ([`crate::evidence`]). Invariants: a count never goes down; what
//! is wrong and has no count of its own is a complaint, and one complaint is a failure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::Value;
use sim::kubelet::{Process, ProcessEvent};
use sim::scheduler::{Decision, Verdict};

use crate::evidence::{card_of, claim, demand, is_daemon, meant_for, reading, text};
use crate::fleet::{CARD_MIB, UNIT_MIB};
use crate::loads::{LIMIT, Loads};

/// From the moment at which a node is overloaded until nobody may be placed there any more: the
/// exporter samples every second, the annotator polls every two, and this machine may be busy.
const NOTICE: Duration = Duration::from_secs(8);
/// The same from the moment at which the overload stands in the node's annotations.
pub(crate) const TOLD: Duration = Duration::from_secs(2);

/// From the making of a pod that fits until it runs, at worst.
const START: Duration = Duration::from_secs(20);

/// The counts, which are the demo's last line.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Tally {
    /// Created in the whole run.
    pub(crate) pods: usize,
    /// Of these, how many were bound.
    pub(crate) bound: usize,
    /// Of these, how many ran, also where they have ended since.
    pub(crate) running: usize,
    /// Neither bound nor gone.
    pub(crate) pending: usize,
    /// MiB that were promised beyond what a card has, at worst, over all cards.
    pub(crate) double_booked_mib: u64,
    /// Containers that saw another card than their claim's, or none, or more.
    pub(crate) card_mismatches: usize,
    /// Pods placed on nodes that were overloaded.
    pub(crate) hot_node_placements: usize,
}

impl Tally {
    /// Whether nothing was counted that must never happen.
    pub(crate) fn is_clean(&self) -> bool {
        (self.double_booked_mib, self.card_mismatches, self.hot_node_placements) == (0, 0, 0)
    }
}

/// What is known of one pod.
#[derive(Debug, Default)]
struct Book {
    name: String,
    since: Option<Instant>,
    node: Option<String>,
    ran: bool,
    ended: bool,
    gone: bool,
    failed: Option<String>,
}

/// The judge's books.
pub(crate) struct Checker {
    loads: Loads,
    books: BTreeMap<String, Book>,
    /// Since when each overloaded node's annotations say so.
    told: BTreeMap<String, Instant>,
    /// MiB by card and pod: by the claims of bound pods, and by the cards that processes see.
    claimed: BTreeMap<String, BTreeMap<String, u64>>,
    seen: BTreeMap<String, BTreeMap<String, u64>>,
    /// The most that was ever promised of a card beyond its memory.
    worst: BTreeMap<String, u64>,
    card_mismatches: usize,
    hot_node_placements: usize,
    /// Containers with GPU memory whose cards were looked at.
    pub(crate) containers: usize,
    /// What went wrong, in words.
    pub(crate) complaints: Vec<String>,
}

impl Checker {
    pub(crate) fn new(loads: Loads) -> Self {
        Self {
            loads,
            books: BTreeMap::new(),
            told: BTreeMap::new(),
            claimed: BTreeMap::new(),
            seen: BTreeMap::new(),
            worst: BTreeMap::new(),
            card_mismatches: 0,
            hot_node_placements: 0,
            containers: 0,
            complaints: Vec::new(),
        }
    }

    /// A node is there, or has changed.
    pub(crate) fn node_applied(&mut self, node: &Value, now: Instant) {
        let name = text(&node["metadata"]["name"]);
        let over = |metric| reading(node, metric).is_some_and(|load| load > LIMIT);
        if over("cpu_usage_active") || over("mem_usage_active") {
            self.told.entry(name.to_owned()).or_insert(now);
        } else {
            self.told.remove(name);
        }
    }

    /// A pod is there, or has changed.
    pub(crate) fn pod_applied(&mut self, pod: &Value, now: Instant) {
        let uid = text(&pod["metadata"]["uid"]);
        let node = text(&pod["spec"]["nodeName"]);
        let phase = text(&pod["status"]["phase"]);
        let book = self.books.entry(uid.to_owned()).or_default();
        text(&pod["metadata"]["name"]).clone_into(&mut book.name);
        book.since.get_or_insert(now);
        book.ran |= phase == "Running";
        if phase == "Failed" {
            book.failed = Some(text(&pod["status"]["message"]).to_owned());
        }
        if node.is_empty() {
            return;
        }
        let newly_bound = book.node.replace(node.to_owned()).is_none();
        if newly_bound {
            self.judge_place(pod, node, now);
        }
        if matches!(phase, "Failed" | "Succeeded") {
            self.release(uid);
        } else {
            self.charge_claim(pod, uid);
        }
    }

    /// A pod is gone.
    pub(crate) fn pod_gone(&mut self, pod: &Value) {
        let uid = text(&pod["metadata"]["uid"]);
        self.books.entry(uid.to_owned()).or_default().gone = true;
        self.release(uid);
    }

    /// A process began or ended. `pod` is its pod as the API shows it now.
    pub(crate) fn process(&mut self, event: &ProcessEvent, pod: Option<&Value>) {
        match event {
            ProcessEvent::Ended { uid } => {
                self.books.entry(uid.clone()).or_default().ended = true;
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

    /// The scheduler has decided: where it had a choice, somebody must have told it of loads.
    pub(crate) fn decided(&mut self, decision: &Decision) {
        let fits: Vec<i64> = decision
            .candidates
            .iter()
            .filter(|candidate| candidate.verdict == Verdict::Fits)
            .map(|candidate| candidate.extra)
            .collect();
        if decision.outcome.is_ok() && fits.len() > 1 && fits.iter().all(|points| *points == 0) {
            let pod = &decision.pod;
            self.complain(format!("{pod} was placed though no node had a point for its load"));
        }
    }

    fn judge_place(&mut self, pod: &Value, node: &str, now: Instant) {
        let name = text(&pod["metadata"]["name"]);
        if is_daemon(pod) {
            if meant_for(pod) != Some(node) {
                self.complain(format!("{name} of a DaemonSet was placed on {node}"));
            }
            return;
        }
        let real = self.loads.over_since(node).map(|since| now.duration_since(since));
        let told = self.told.get(node).map(|since| now.duration_since(*since));
        if real.is_some_and(|long| long > NOTICE) || told.is_some_and(|long| long > TOLD) {
            self.hot_node_placements += 1;
            let seconds = real.or(told).unwrap_or_default().as_secs();
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
            process.devices.iter().map(|device| card_of(process, device)).collect();
        cards.extend(process.env.get("PLIMSOLL_GPU_UUID").cloned());
        for card in &cards {
            let mib = demand(pod) * UNIT_MIB;
            self.seen.entry(card.clone()).or_default().insert(process.uid.clone(), mib);
            self.judge_room(card);
        }
        self.containers += usize::from(demand(pod) > 0);
        // Whoever runs NVIDIA's hook beside CDI must not be told of more cards by the pod itself.
        let visible = process.env.get("NVIDIA_VISIBLE_DEVICES").map(String::as_str);
        let shut = claimed.is_empty() || visible == Some("void");
        if cards != claimed || !shut || (demand(pod) > 0 && claimed.is_empty()) {
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

    pub(crate) fn complain(&mut self, words: String) {
        self.complaints.push(words);
    }

    /// What keeps the run from being whole: every one of `made` pods must have run, and run still unless
    /// it was deleted; but for `waiting`, which must not have been placed.
    pub(crate) fn missing(&self, made: usize, waiting: &str) -> Vec<String> {
        let count = self.books.len();
        let lost = (count != made).then(|| format!("{made} pods were made, {count} were seen"));
        lost.into_iter()
            .chain(self.books.values().filter_map(|book| wrong(book, waiting)))
            .collect()
    }

    /// Complains of what is wrong with the pods now, where some have come only of late: of those `made`,
    /// each must run unless it was deleted; but for `waiting`, which must not have been placed.
    pub(crate) fn take_leave(&mut self, made: &BTreeSet<String>, waiting: &str, now: Instant) {
        let late = |book: &Book| book.since.is_some_and(|since| now.duration_since(since) > START);
        // Others' pods are their own affair.
        let ours = self.books.values().filter(|book| made.contains(&book.name) && !book.gone);
        let due = ours.filter(|book| book.ran || book.failed.is_some() || late(book));
        let wrongs: Vec<String> = due.filter_map(|book| wrong(book, waiting)).collect();
        wrongs.into_iter().for_each(|wrong| self.complain(wrong));
    }

    /// The counts so far.
    pub(crate) fn tally(&self) -> Tally {
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

fn wrong(book: &Book, waiting: &str) -> Option<String> {
    match book.name == waiting {
        true => book.node.as_ref().map(|node| format!("{waiting} was placed, on {node}")),
        false => lacks(book),
    }
}

fn lacks(book: &Book) -> Option<String> {
    let Book { name, node, ran, ended, gone, failed, .. } = book;
    let node = node.as_deref().unwrap_or("no node");
    if let Some(why) = failed {
        Some(format!("{name} was refused by {node}: {why}"))
    } else if !ran {
        Some(format!("{name} is on {node} and did not run"))
    } else if *ended && !gone {
        Some(format!("{name} ended on {node}, though nobody deleted it"))
    } else {
        None
    }
}

#[cfg(test)]
#[path = "checker_tests.rs"]
mod tests;

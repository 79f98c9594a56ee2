//! Which [bands](placement::bands) nodes are in, and the next writes of bands. Pure decisions: no I/O, and `now` is a
//! parameter.
//!
//! Each write of a Node makes kube-scheduler retry the pods that wait, and hundreds at once hardly more often than one.
//! So all nodes whose load has moved them are written in one burst, every [`ROUND`], by the mean of their load since
//! the last one; a node without its bands at once.
//!
//! Invariants: the Nodes are the only record of bands, so a new leader or a restarted process goes on from them, and
//! clears them if they are disabled, or on nodes that are not selected any more; an unknown load moves no node.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use cluster::{CallError, NodeFacts};
use jiff::{SignedDuration, Timestamp};
use placement::bands::{Band, Shape};
use placement::load::{
    Evaluation, MetricTable, NodeLoad, PodToPlace, Readings, ResolvedPolicy, typical_load,
};
use placement::names::Names;
use placement::policy::LoadPolicy;
use placement::resources::PerResource;
use placement::units::NodeName;

use crate::readings_channel::SharedReadings;

/// The time between two bursts of nodes whose load has moved them.
const ROUND: SignedDuration = SignedDuration::from_mins(30);
/// The time between two looks at the nodes' loads, and at a node whose write was refused.
const LOOK: SignedDuration = SignedDuration::from_mins(5);
/// Writes at the same time.
const IN_FLIGHT: usize = 16;
/// Pause after a write that failed.
const PAUSE: SignedDuration = SignedDuration::from_secs(10);

/// One write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BandChange {
    pub node: NodeName,
    /// The Node's UID.
    pub uid: String,
    /// The labels by key; `None` clears one.
    pub labels: BTreeMap<String, Option<String>>,
}

/// The bands of one node; `None` where it is to have none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Bands {
    gpu: Option<Band>,
    cpu: Option<Band>,
}

/// All selected nodes, and the others that carry bands.
#[derive(Debug)]
pub(crate) struct NodeBands {
    is_enabled: bool,
    /// The labels' keys.
    gpu_key: String,
    cpu_key: String,
    policy: Arc<LoadPolicy>,
    readings: SharedReadings,
    nodes: HashMap<NodeName, BandedNode>,
    queue: BTreeMap<NodeName, BandChange>,
    in_flight: HashMap<NodeName, BandChange>,
    look_at: Timestamp,
    /// `None` before the first look.
    burst_at: Option<Timestamp>,
    not_before: Timestamp,
}

#[derive(Debug)]
struct BandedNode {
    uid: String,
    /// Whether the node is selected; otherwise no bands are wanted.
    is_selected: bool,
    /// By the last GPUs that could be read; `None` if none could.
    shape: Option<Shape>,
    capacity: PerResource<Option<f64>>,
    labels: Arc<BTreeMap<String, String>>,
    is_to_be_removed: bool,
    /// Whether its GPUs or its CPU have changed since the last burst, so that its band for pods without GPUs is wrong.
    is_reshaped: bool,
    above: Mean,
    /// The earliest next write after a refusal.
    not_before: Timestamp,
}

/// The mean of how far a node's load was above what is typical since the last burst.
#[derive(Debug, Clone, Copy, Default)]
struct Mean {
    sum: f64,
    count: u32,
}

impl Mean {
    fn get(self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / f64::from(self.count))
    }
}

impl NodeBands {
    /// A value without nodes.
    pub(crate) fn new(
        is_enabled: bool,
        names: &Names,
        policy: Arc<LoadPolicy>,
        readings: SharedReadings,
    ) -> Self {
        Self {
            is_enabled,
            gpu_key: names.gpu_band(),
            cpu_key: names.cpu_band(),
            policy,
            readings,
            nodes: HashMap::new(),
            queue: BTreeMap::new(),
            in_flight: HashMap::new(),
            look_at: Timestamp::MIN,
            burst_at: None,
            not_before: Timestamp::MIN,
        }
    }

    /// Another policy is in force.
    pub(crate) fn set_policy(&mut self, policy: Arc<LoadPolicy>) {
        self.policy = policy;
        self.nodes.values_mut().for_each(|node| node.above = Mean::default());
    }

    /// This replica begins to lead, or the clock was set back: the next burst comes a [`ROUND`] later.
    pub(crate) fn begin_anew(&mut self) {
        self.look_at = Timestamp::MIN;
        self.burst_at = None;
        self.not_before = Timestamp::MIN;
        for node in self.nodes.values_mut() {
            node.above = Mean::default();
            node.not_before = Timestamp::MIN;
        }
        // What another replica has written meanwhile is right, but for nodes without their bands.
        self.queue_all(|_, _| None);
    }

    /// Fills the queue with the nodes that need a write, by the load of each above what is typical.
    fn queue_all(&mut self, above: impl Fn(&NodeName, &BandedNode) -> Option<f64>) {
        self.queue.clear();
        for (name, node) in &self.nodes {
            if let Some(change) = self.change(name, above(name, node)) {
                self.queue.insert(name.clone(), change);
            }
        }
    }

    /// Applies a complete list of nodes. `is_selected` is that of [`NodeBands::apply`].
    pub(crate) fn replace(
        &mut self,
        nodes: &[NodeFacts],
        is_selected: impl Fn(&NodeFacts) -> bool,
    ) {
        let present: HashSet<&NodeName> = nodes.iter().map(|facts| &facts.name).collect();
        self.nodes.retain(|name, _| present.contains(name));
        self.queue.retain(|name, _| present.contains(name));
        for facts in nodes {
            self.apply(facts, is_selected(facts));
        }
    }

    /// A node is new or has changed. `is_selected`: whether it may have bands.
    pub(crate) fn apply(&mut self, facts: &NodeFacts, is_selected: bool) {
        let is_wanted = self.is_enabled && is_selected;
        let has_any =
            [&self.gpu_key, &self.cpu_key].iter().any(|key| facts.labels.contains_key(*key));
        if !is_wanted && !has_any {
            return self.remove(&facts.name);
        }
        let cores = facts.allocatable_cpu.map(|thousandths| thousandths as f64 / 1000.0);
        let gpus = facts.gpus.as_ref().map_or(Some(0), |gpus| gpus.as_ref().ok().map(Vec::len));
        let known = self.nodes.get(&facts.name).filter(|known| known.uid == facts.uid);
        let read = gpus.map(|gpus| Shape { gpus, cores });
        let shape = read.or_else(|| known.and_then(|known| known.shape));
        let differ = |(old, new): (Shape, Shape)| old.band(&facts.name) != new.band(&facts.name);
        let is_reshaped =
            |known: &BandedNode| known.is_reshaped || known.shape.zip(shape).is_some_and(differ);
        let node = BandedNode {
            uid: facts.uid.clone(),
            is_selected,
            shape,
            capacity: facts.capacity,
            labels: Arc::new(facts.labels.clone()),
            is_to_be_removed: facts.taints.is_deletion_candidate(),
            is_reshaped: known.is_some_and(is_reshaped),
            above: known.map(|known| known.above).unwrap_or_default(),
            not_before: known.map_or(Timestamp::MIN, |known| known.not_before),
        };
        self.nodes.insert(facts.name.clone(), node);
        let Some(change) = self.change(&facts.name, None) else { return };
        let is_queued = self.queue.get(&facts.name).is_some_and(|queued| queued.uid == facts.uid);
        if !is_queued && self.in_flight.get(&facts.name) != Some(&change) {
            self.queue.insert(facts.name.clone(), change);
        }
    }

    /// A node was deleted.
    pub(crate) fn remove(&mut self, name: &NodeName) {
        self.nodes.remove(name);
        self.queue.remove(name);
    }

    /// When the next write may be due; it may be past.
    pub(crate) fn next(&self) -> Option<Timestamp> {
        if self.in_flight.len() >= IN_FLIGHT || self.nodes.is_empty() {
            return None;
        }
        let work_at = if self.next_queued().is_none() { self.look_at } else { Timestamp::MIN };
        Some(work_at.max(self.not_before))
    }

    /// A node in the queue of which no write is in flight.
    fn next_queued(&self) -> Option<NodeName> {
        self.queue.keys().find(|name| !self.in_flight.contains_key(*name)).cloned()
    }

    /// The next write at `now`; it must be ended with [`NodeBands::finish`].
    pub(crate) fn take(&mut self, now: Timestamp) -> Option<BandChange> {
        if self.in_flight.len() >= IN_FLIGHT || now < self.not_before {
            return None;
        }
        if now >= self.look_at {
            self.look(now);
        }
        while let Some(name) = self.next_queued() {
            let change = self.queue.remove(&name)?;
            let is_due = |node: &BandedNode| node.uid == change.uid && now >= node.not_before;
            if self.nodes.get(&name).is_some_and(is_due) {
                self.in_flight.insert(name, change.clone());
                return Some(change);
            }
        }
        None
    }

    /// A write has ended; `None` where it was not begun.
    pub(crate) fn finish(
        &mut self,
        change: BandChange,
        outcome: Option<&Result<(), CallError>>,
        now: Timestamp,
    ) {
        self.in_flight.remove(&change.node);
        let later = |span| now.checked_add(span).unwrap_or(Timestamp::MAX);
        match outcome {
            Some(Ok(()) | Err(CallError::NotFound(_))) => return,
            Some(Err(CallError::Refused { .. })) => {
                if let Some(node) = self.nodes.get_mut(&change.node) {
                    node.not_before = later(LOOK);
                }
                return;
            }
            Some(Err(_)) => self.not_before = later(PAUSE),
            None => {}
        }
        // What was queued meanwhile is newer.
        self.queue.entry(change.node.clone()).or_insert(change);
    }

    /// Takes the loads down, and begins a burst where one is due.
    fn look(&mut self, now: Timestamp) {
        let above = self.loads_above_typical(now);
        for (name, above) in &above {
            if let Some(node) = self.nodes.get_mut(name) {
                node.above.sum += above;
                node.above.count += 1;
            }
        }
        let later = |span| now.checked_add(span).unwrap_or(Timestamp::MAX);
        self.look_at = later(LOOK);
        if now >= *self.burst_at.get_or_insert(later(ROUND)) {
            self.burst_at = Some(later(ROUND));
            self.begin_burst(&above);
        }
    }

    /// Fills the queue with all nodes that are not in the bands where they belong. A load counts if it is known `now`.
    fn begin_burst(&mut self, now: &HashMap<NodeName, f64>) {
        self.queue_all(|name, node| node.above.get().filter(|_| now.contains_key(name)));
        for node in self.nodes.values_mut() {
            node.above = Mean::default();
            node.is_reshaped = false;
        }
        if !self.queue.is_empty() {
            let of = self.nodes.len();
            tracing::info!(nodes = self.queue.len(), of, "nodes change their bands");
        }
    }

    /// How far the load of each node is above what is typical of all, by the resource of which that is most; without
    /// nodes whose load is unknown.
    fn loads_above_typical(&self, now: Timestamp) -> HashMap<NodeName, f64> {
        if !self.is_enabled {
            return HashMap::new();
        }
        let mut table = MetricTable::default();
        let policy = ResolvedPolicy::new(LoadPolicy::clone(&self.policy), &mut table);
        let mut loads: Vec<(&NodeName, NodeLoad)> = Vec::new();
        let polled = self.readings.lock();
        for (name, node) in self.nodes.iter().filter(|(_, node)| node.is_selected) {
            let Some(readings) = polled.of(name) else { continue };
            let load = NodeLoad {
                readings: Arc::new(Readings::new(&mut table, readings.iter().cloned())),
                capacity: node.capacity,
                labels: Arc::clone(&node.labels),
                is_to_be_removed: node.is_to_be_removed,
                ..NodeLoad::default()
            };
            loads.push((name, load));
        }
        drop(polled);
        let mut above: HashMap<NodeName, f64> = HashMap::new();
        for group in 0..policy.groups() {
            let mut known = Vec::new();
            for (name, node) in &loads {
                let evaluation =
                    Evaluation { policy: &policy, node, pod: PodToPlace::ORDINARY, now };
                known.extend(evaluation.present_load(group).map(|load| (*name, load)));
            }
            let mut of_all: Vec<f64> = known.iter().map(|(_, load)| *load).collect();
            let typical = typical_load(&mut of_all);
            for (name, load) in known {
                let most = above.entry(name.clone()).or_insert(f64::NEG_INFINITY);
                *most = most.max(load - typical);
            }
        }
        above
    }

    /// The write that a node needs. `above` is its load less what is typical, where that is known.
    fn change(&self, name: &NodeName, above: Option<f64>) -> Option<BandChange> {
        let node = self.nodes.get(name)?;
        let wanted = self.wanted(name, node, above);
        let mut labels = BTreeMap::new();
        for (key, band) in [(&self.gpu_key, wanted.gpu), (&self.cpu_key, wanted.cpu)] {
            let text = band.map(|band| band.to_string());
            if node.labels.get(key) != text.as_ref() {
                labels.insert(key.clone(), text);
            }
        }
        let change = BandChange { node: name.clone(), uid: node.uid.clone(), labels };
        (!change.labels.is_empty()).then_some(change)
    }

    fn wanted(&self, name: &NodeName, node: &BandedNode, above: Option<f64>) -> Bands {
        if !self.is_enabled || !node.is_selected {
            return Bands::default();
        }
        let found = self.found(node);
        let Some(shape) = node.shape else { return found };
        let gpu = (shape.gpus > 0).then(|| Band::of_gpus(name));
        let cpu = found.cpu.filter(|_| !node.is_reshaped);
        Bands { gpu, cpu: Some(Band::of_cpu(shape.band(name), above, cpu)) }
    }

    /// The bands that are on the Node.
    fn found(&self, node: &BandedNode) -> Bands {
        let read = |key| node.labels.get(key).and_then(|text| Band::parse(text));
        Bands { gpu: read(&self.gpu_key), cpu: read(&self.cpu_key) }
    }
}

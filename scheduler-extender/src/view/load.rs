//! Every node's load, laid out for the policy in force.
//!
//! Readers take the [`Board`] and are done; writers go one at a time. The policy and the readings
//! laid out for it are one value, so that no reader ever sees one without the other.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::{ArcSwap, Guard};
use cluster::{Annotations, NodeFacts};
use jiff::Timestamp;
use placement::load::{Bindings, NodeLoad};
use placement::policy::LoadPolicy;
use placement::reading::ReadingCodec;
use placement::units::{NodeName, PodUid};

use super::expected::{Expected, Guess};

/// What Filter and Prioritize read.
pub struct Board {
    /// The policy in force.
    pub policy: Arc<LoadPolicy>,
    nodes: HashMap<NodeName, Slot>,
}

/// One node's load; swapped in place, so that a change of one node copies nothing of the others.
type Slot = Arc<ArcSwap<NodeLoad>>;

impl Board {
    /// A node's load, where the node is known.
    pub fn node(&self, name: &str) -> Option<Guard<Arc<NodeLoad>>> {
        self.nodes.get(name).map(|slot| slot.load())
    }

    /// How many nodes are known.
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }
}

/// The board and what it is made from.
pub struct LoadBoard {
    board: ArcSwap<Board>,
    codec: ReadingCodec,
    sources: Mutex<Sources>,
}

#[derive(Default)]
struct Sources {
    /// The annotations that can be readings, by node.
    nodes: HashMap<NodeName, Annotations>,
    bindings: HashMap<NodeName, Bindings>,
    /// Pods whose binding is counted, and when they were bound: each counts once, however often the
    /// watch shows it.
    counted: HashMap<PodUid, Timestamp>,
    /// When `counted` was last rid of what is over.
    swept_at: usize,
    expected: Expected,
}

impl LoadBoard {
    /// A board without nodes.
    #[must_use]
    pub fn new(policy: LoadPolicy, codec: ReadingCodec) -> Self {
        let board = Board { policy: Arc::new(policy), nodes: HashMap::new() };
        Self { board: ArcSwap::from_pointee(board), codec, sources: Mutex::default() }
    }

    /// What is known now.
    pub fn read(&self) -> Guard<Arc<Board>> {
        self.board.load()
    }

    /// Puts another policy in force, and lays every node out for it.
    pub fn set_policy(&self, policy: LoadPolicy) {
        self.publish(&self.sources(), Arc::new(policy));
    }

    /// Takes over the list of all nodes.
    pub fn set_nodes(&self, nodes: impl IntoIterator<Item = NodeFacts>) {
        let mut sources = self.sources();
        sources.nodes =
            nodes.into_iter().map(|node| (node.name, readings(node.annotations))).collect();
        let Sources { nodes, bindings, .. } = &mut *sources;
        bindings.retain(|name, _| nodes.contains_key(name));
        self.publish(&sources, Arc::clone(&self.board.load().policy));
    }

    /// Takes over one node, new or changed.
    pub fn set_node(&self, node: NodeFacts) {
        let mut sources = self.sources();
        let (name, readings) = (node.name, readings(node.annotations));
        let before = sources.nodes.insert(name.clone(), readings);
        // Most changes of a node are its kubelet's heartbeats.
        if before.as_ref() != sources.nodes.get(&name) {
            self.refresh(&sources, &name);
        }
    }

    /// Forgets a node.
    pub fn remove_node(&self, name: &NodeName) {
        let mut sources = self.sources();
        sources.bindings.remove(name);
        if sources.nodes.remove(name).is_some() {
            self.publish(&sources, Arc::clone(&self.board.load().policy));
        }
    }

    /// Notes that a pod was bound; the node is hotter from now on. A pod counts once.
    pub fn record_binding(&self, pod: &PodUid, node: &NodeName, at: Timestamp) {
        let horizon = self.board.load().policy.hot_horizon();
        let mut sources = self.sources();
        if !sources.count(pod, at, horizon) {
            return;
        }
        if let Some(guess) = sources.expected.settle(pod) {
            self.take_back(&mut sources, &guess);
        }
        let bindings = sources.bindings.entry(node.clone()).or_default();
        bindings.record(at, horizon);
        self.refresh(&sources, node);
    }

    /// Counts a pod nowhere: it is being asked about again, and does not stand in its own way.
    pub fn expect_nowhere(&self, pod: &PodUid) {
        let mut sources = self.sources();
        if let Some(guess) = sources.expected.settle(pod) {
            self.take_back(&mut sources, &guess);
        }
    }

    /// Counts a pod on the node where it will probably go, until its binding is known. A pod whose
    /// binding is known already is only being asked about again.
    pub fn expect(&self, pod: &PodUid, node: &NodeName, now: Timestamp) {
        let horizon = self.board.load().policy.hot_horizon();
        let mut sources = self.sources();
        if horizon.is_zero() || sources.counted.contains_key(pod) {
            return;
        }
        for guess in sources.expected.expect(pod, node, now) {
            self.take_back(&mut sources, &guess);
        }
        sources.bindings.entry(node.clone()).or_default().record(now, horizon);
        self.refresh(&sources, node);
    }

    fn take_back(&self, sources: &mut Sources, (node, at): &Guess) {
        if let Some(bindings) = sources.bindings.get_mut(node) {
            bindings.forget(*at);
            self.refresh(sources, node);
        }
    }

    /// Whether a binding at `at` still makes its node hot at `now`.
    pub fn is_recent(&self, at: Timestamp, now: Timestamp) -> bool {
        now.duration_since(at) < self.board.load().policy.hot_horizon()
    }

    /// Lays out one node anew; the whole board where the node is new to it.
    fn refresh(&self, sources: &Sources, name: &NodeName) {
        let board = self.board.load();
        let known = sources.nodes.get(name).zip(board.nodes.get(name));
        if let Some((readings, slot)) = known {
            slot.store(Arc::new(self.lay_out(sources, name, readings, &board.policy)));
        } else if sources.nodes.contains_key(name) {
            self.publish(sources, Arc::clone(&board.policy));
        }
    }

    fn publish(&self, sources: &Sources, policy: Arc<LoadPolicy>) {
        let slot = |(name, readings): (&NodeName, &Annotations)| {
            let load = self.lay_out(sources, name, readings, &policy);
            (name.clone(), Arc::new(ArcSwap::from_pointee(load)))
        };
        let nodes = sources.nodes.iter().map(slot).collect();
        self.board.store(Arc::new(Board { policy, nodes }));
    }

    fn lay_out(
        &self,
        sources: &Sources,
        node: &NodeName,
        readings: &Annotations,
        policy: &LoadPolicy,
    ) -> NodeLoad {
        let refused = |key: &str, error| {
            tracing::debug!(%node, key, %error, "reading refused, counts as missing");
        };
        let annotation = |key: &str| readings.get(key).map(String::as_str);
        let mut load = NodeLoad::from_annotations(policy, &self.codec, annotation, refused);
        if let Some(bindings) = sources.bindings.get(node) {
            load.bindings = bindings.clone();
        }
        load
    }

    // Whoever panicked with this lock left whole entries behind, and the next event repeats them.
    fn sources(&self) -> MutexGuard<'_, Sources> {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A metric's name has no domain; what has one cannot be a reading.
fn readings(mut annotations: Annotations) -> Annotations {
    annotations.retain(|key, _| !key.contains('/'));
    annotations
}

impl Sources {
    /// Whether this binding is news.
    fn count(&mut self, pod: &PodUid, at: Timestamp, horizon: jiff::SignedDuration) -> bool {
        let news = self.counted.insert(pod.clone(), at).is_none();
        // Swept when it has doubled: a constant cost for each binding.
        if self.counted.len() > 2 * self.swept_at.max(512) {
            let newest = self.counted.values().max().copied().unwrap_or(at);
            self.counted.retain(|_, at| newest.duration_since(*at) < horizon);
            self.swept_at = self.counted.len();
        }
        news
    }
}

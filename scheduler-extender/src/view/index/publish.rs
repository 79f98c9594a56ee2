//! Makes the next snapshot from the nodes that have changed.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Index;
use super::measure::LearnedMeasure;
use super::nodes::Node;
use crate::view::Current;
use crate::view::snapshot::{
    CHUNK, Chunk, NodeNames, NodeSet, NodeState, Prepared, PreparedChunk, Snapshot,
};

/// What has changed since the last snapshot beside nodes.
#[derive(Debug, Clone, Default)]
pub(super) struct Changes {
    /// Whether anything but nodes has changed: the policy, a measure, back-offs, learned use.
    pub(super) others: bool,
    /// Whether prepared values may be too old.
    pub(super) too_old: bool,
    /// The last version of a node's GPUs.
    pub(super) last_version: u64,
}

impl Index {
    /// The first snapshot.
    pub(crate) fn first(&mut self) -> Current {
        self.changes.others = true;
        let snapshot = Arc::new(Snapshot::empty(&self.policy));
        let empty = Current {
            snapshot,
            prepared: Prepared::default(),
            in_flight: Arc::default(),
            deleted_may_hold: false,
            has_groups: false,
            learned: self.learned.clone(),
            shadow_estimates: None,
        };
        self.publish(&empty).unwrap_or(empty)
    }

    /// The snapshot after `last`; `None` where nothing has changed, as after most watch events of a node: its kubelet's
    /// heartbeats.
    pub(crate) fn publish(&mut self, last: &Current) -> Option<Current> {
        let states = self.changed_states(&last.snapshot);
        let is_same = states.is_empty() && !self.nodes.has_other_names && !self.changes.others;
        let (in_flight, deleted_may_hold) = (self.loads.in_flight.uids(), self.deleted_may_hold());
        let has_groups = !self.grouped.is_empty();
        let are_same_pods = Arc::ptr_eq(in_flight, &last.in_flight)
            && deleted_may_hold == last.deleted_may_hold
            && has_groups == last.has_groups;
        if is_same && are_same_pods && !self.changes.too_old {
            return None;
        }
        let in_flight = Arc::clone(in_flight);
        let (chunks, changed) = self.next_chunks(&last.snapshot, states);
        let prepared = self.prepare(&last.prepared, &chunks, &changed);
        let snapshot = if is_same {
            Arc::clone(&last.snapshot)
        } else {
            Arc::new(Snapshot {
                policy: Arc::clone(&self.policy),
                measures: self.measures.each_ref().map(LearnedMeasure::current),
                back_offs: self.back_offs.nodes(),
                names: self.names(last),
                chunks: chunks.into(),
            })
        };
        self.nodes.has_other_names = false;
        self.changes.others = false;
        self.changes.too_old = false;
        let learned = self.learned.clone();
        let shadow_estimates = self.shadow_estimates;
        Some(Current {
            snapshot,
            prepared,
            in_flight,
            deleted_may_hold,
            has_groups,
            learned,
            shadow_estimates,
        })
    }

    /// The states of the changed nodes that differ from the last ones, by slot.
    fn changed_states(&mut self, last: &Snapshot) -> Vec<(usize, NodeState)> {
        let unknown = NodeState::default();
        let mut states = Vec::new();
        for slot in std::mem::take(&mut self.nodes.changed) {
            let before = last.in_slot(slot).unwrap_or(&unknown);
            let node = &self.nodes.slots()[slot];
            if let Some(next) = next_state(node, before, &mut self.changes.last_version) {
                states.push((slot, next));
            }
        }
        states
    }

    /// The last chunks with these states. Also returns the nodes that differ, by chunk.
    fn next_chunks(
        &mut self,
        last: &Snapshot,
        states: Vec<(usize, NodeState)>,
    ) -> (Vec<Arc<Chunk>>, BTreeMap<usize, NodeSet>) {
        let mut chunks = last.chunks.to_vec();
        let slots = self.nodes.slots().len();
        chunks.resize(slots.div_ceil(CHUNK), Arc::default());
        let mut changed: BTreeMap<usize, NodeSet> = BTreeMap::new();
        for (slot, state) in states {
            let (chunk, node) = (slot / CHUNK, slot % CHUNK);
            Arc::make_mut(&mut chunks[chunk]).nodes[node] = Arc::new(state);
            *changed.entry(chunk).or_default() |= 1 << node;
        }
        self.nodes.trim();
        chunks.truncate(self.nodes.slots().len().div_ceil(CHUNK));
        (chunks, changed)
    }

    /// The prepared values of the chunks. Those of unchanged nodes are taken over.
    fn prepare(
        &self,
        last: &Prepared,
        chunks: &[Arc<Chunk>],
        changed: &BTreeMap<usize, NodeSet>,
    ) -> Prepared {
        let mut prepared = Vec::with_capacity(chunks.len());
        for (number, chunk) in chunks.iter().enumerate() {
            let known = last.chunks.get(number).filter(|known| known.is_under(&self.policy));
            let changed_nodes = changed.get(&number).copied().unwrap_or_default();
            prepared.push(match known {
                None => Arc::new(PreparedChunk::new(&self.policy, chunk, self.now)),
                Some(known) if self.has_to_renew(known, changed_nodes) => {
                    Arc::new(known.renewed(chunk, changed_nodes, self.now))
                }
                Some(known) => Arc::clone(known),
            });
        }
        Prepared { chunks: prepared.into() }
    }

    fn has_to_renew(&self, known: &PreparedChunk, changed: NodeSet) -> bool {
        changed != 0 || self.changes.too_old && !known.is_valid(&self.policy, self.now)
    }

    fn names(&self, last: &Current) -> Arc<NodeNames> {
        if !self.nodes.has_other_names {
            return Arc::clone(&last.snapshot.names);
        }
        let name = |node: &Node| node.is_shown().then(|| node.name.clone());
        Arc::new(NodeNames::new(self.nodes.slots().iter().map(name)))
    }
}

/// The node's state, if it differs from the last one.
fn next_state(node: &Node, last: &NodeState, last_version: &mut u64) -> Option<NodeState> {
    let gpus = (!node.ledger.is_empty()).then(|| Arc::clone(node.ledger.read()));
    let are_same_gpus = match (&gpus, &last.gpus) {
        (Some(gpus), Some(before)) => Arc::ptr_eq(gpus, before),
        (None, None) => true,
        _ => false,
    };
    if are_same_gpus && node.load == last.load {
        return None;
    }
    let gpus_version = match &gpus {
        Some(_) if are_same_gpus => last.gpus_version,
        Some(_) => {
            *last_version += 1;
            *last_version
        }
        None => 0,
    };
    Some(NodeState { load: node.load.clone(), gpus, gpus_version })
}

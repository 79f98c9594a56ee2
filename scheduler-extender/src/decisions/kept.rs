//! A decision in the log: a bit for each node of the cluster in place of the list of the request's nodes, a thirtieth
//! of its size.
//!
//! Invariant: what is decided does not depend on the order of the nodes, so the restored decision is the same.

use std::sync::{Arc, OnceLock};

use api::decisions::Decided;
use jiff::Timestamp;
use placement::units::NodeName;

use super::summary::summary;
use super::{DecidedPod, Decision};
use crate::node_request::CandidateNodes;
use crate::view::{NodeNames, Place, Snapshot};

/// Bytes of the entry of an unknown node, without the text of its name.
pub(super) const UNKNOWN_NAME: usize = size_of::<NodeName>();

/// Bytes of a container that requests GPUs.
const CONTAINER: usize = 128;

/// A decision without the order of its nodes.
#[derive(Debug)]
pub(super) struct KeptDecision {
    /// The decision, between no nodes.
    decision: Decision,
    nodes: KeptNodes,
    /// The decision in short, once it was asked for: before the pod's node was known, and after.
    summaries: [OnceLock<Box<Decided>>; 2],
}

impl KeptDecision {
    /// What is kept of a decision.
    pub(super) fn new(decision: &Decision) -> Self {
        Self {
            decision: decision.between(CandidateNodes::default()),
            nodes: KeptNodes::new(decision.nodes()),
            summaries: Default::default(),
        }
    }

    /// The decision, with its nodes in the order of their names, each once, and unknown nodes last.
    pub(super) fn restored(&self) -> Decision {
        self.decision.between(self.nodes.by_name(self.snapshot().names()))
    }

    /// The decision in short.
    pub(super) fn summary(&self) -> &Decided {
        let has_node = self.pod().node().is_some();
        self.summaries[usize::from(has_node)].get_or_init(|| Box::new(summary(&self.restored())))
    }

    /// The pod.
    pub(super) fn pod(&self) -> &DecidedPod {
        &self.decision.pod
    }

    /// When it was made.
    pub(super) fn time(&self) -> Timestamp {
        self.decision.time
    }

    /// The state of the cluster that was decided by.
    pub(super) fn snapshot(&self) -> &Arc<Snapshot> {
        self.decision.snapshot()
    }

    /// Bytes of this decision alone, without the snapshot.
    pub(super) fn own_bytes(&self) -> usize {
        let request = self.decision.request.as_ref();
        let containers = request.map_or(0, |request| request.containers().len());
        size_of::<Self>() + self.nodes.bytes() + containers * CONTAINER
    }
}

/// Nodes without their order.
#[derive(Debug)]
struct KeptNodes {
    /// A bit for each place.
    places: Box<[u64]>,
    /// The names of nodes without a place.
    unknown: Box<[NodeName]>,
}

impl KeptNodes {
    fn new(nodes: &CandidateNodes) -> Self {
        let mut places = Vec::new();
        for place in nodes.places().iter().flatten() {
            let (word, bit) = (place.index() / 64, place.index() % 64);
            if places.len() <= word {
                places.resize(word + 1, 0_u64);
            }
            places[word] |= 1 << bit;
        }
        Self { places: places.into(), unknown: nodes.unknown().cloned().collect() }
    }

    /// In the order of their names, unknown nodes last.
    fn by_name(&self, names: &NodeNames) -> CandidateNodes {
        let mut known = Vec::new();
        for (word, bits) in self.places.iter().enumerate() {
            for bit in (0..64).filter(|bit| bits >> bit & 1 == 1) {
                known.extend(Place::new(word * 64 + bit));
            }
        }
        known.sort_unstable_by_key(|place| names.rank(*place));
        CandidateNodes::of_places(known, &self.unknown)
    }

    fn bytes(&self) -> usize {
        let text: usize = self.unknown.iter().map(|name| name.as_str().len()).sum();
        size_of_val(&*self.places) + self.unknown.len() * UNKNOWN_NAME + text
    }
}

//! What the writer computes for the verbs with each snapshot: nodes' loads under the policy in force, prepared for any
//! pod.
//!
//! Invariant: a prepared value is what the plain computation returns from the snapshot that it was made with. A value
//! past its time is not used; the verbs then compute it plainly. What it buys: bench/RESULTS.md.

use std::sync::Arc;

use jiff::Timestamp;
use placement::load::{NodeLoad, PreparedNodes, ResolvedPolicy};

use super::chunk::{CHUNK, Chunk, NodeSet};
use super::{Place, Snapshot};

/// Prepared values for the nodes of one snapshot.
#[derive(Debug, Clone, Default)]
pub struct Prepared {
    pub(in crate::view) chunks: Box<[Arc<PreparedChunk>]>,
}

/// Prepared values for the nodes of one chunk.
#[derive(Debug)]
pub(in crate::view) struct PreparedChunk {
    pub(super) loads: PreparedNodes,
    gpus: ChunkGpus,
}

/// What a cache of ratings needs of the GPUs of one chunk, without the GPUs themselves.
#[derive(Debug)]
pub(crate) struct ChunkGpus {
    /// The versions of the nodes' GPUs; 0 without GPUs.
    pub(crate) versions: Box<[u64]>,
    /// The nodes on which GPUs are set aside for a pod by its UID.
    pub(crate) set_aside: NodeSet,
}

impl PreparedChunk {
    pub(in crate::view) fn new(
        policy: &Arc<ResolvedPolicy>,
        chunk: &Chunk,
        now: Timestamp,
    ) -> Self {
        let loads =
            PreparedNodes::new(policy, chunk.nodes.iter().map(|node| node.load.as_ref()), now);
        Self::with_loads(loads, chunk)
    }

    /// The values of the same chunk after these nodes have changed, and after others have got too old.
    pub(in crate::view) fn renewed(&self, chunk: &Chunk, changed: NodeSet, now: Timestamp) -> Self {
        let loads = self.loads.renewed(
            |node| changed & (1 << node) != 0,
            |node| chunk.nodes[node].load.as_ref(),
            now,
        );
        Self::with_loads(loads, chunk)
    }

    fn with_loads(loads: PreparedNodes, chunk: &Chunk) -> Self {
        let versions = chunk.nodes.iter().map(|node| node.gpus_version).collect();
        let mut set_aside = 0;
        for (node, state) in chunk.nodes.iter().enumerate() {
            let gpus = state.gpus.as_ref();
            if gpus.is_some_and(|gpus| gpus.pods_with_set_aside_gpus().next().is_some()) {
                set_aside |= 1 << node;
            }
        }
        Self { loads, gpus: ChunkGpus { versions, set_aside } }
    }

    /// Whether all loads are those under `policy` at `now`.
    pub(in crate::view) fn is_valid(&self, policy: &Arc<ResolvedPolicy>, now: Timestamp) -> bool {
        self.loads.are_valid(policy, now)
    }

    /// Whether the loads were prepared under `policy`.
    pub(in crate::view) fn is_under(&self, policy: &Arc<ResolvedPolicy>) -> bool {
        self.loads.are_under(policy)
    }
}

/// What is prepared of one chunk at the time of a decision, with the nodes to compute plainly where it is too old.
#[derive(Clone, Copy)]
pub struct PreparedLoads<'a> {
    policy: &'a Arc<ResolvedPolicy>,
    now: Timestamp,
    chunk: &'a Chunk,
    loads: &'a PreparedNodes,
    are_valid: bool,
}

impl<'a> PreparedLoads<'a> {
    /// All loads of the chunk, where each of them is valid.
    pub fn all(&self) -> Option<&'a PreparedNodes> {
        self.are_valid.then_some(self.loads)
    }

    /// The prepared loads, if that of the node at a position is valid; otherwise its load, from which its value is
    /// computed plainly.
    pub fn of(&self, node: usize) -> Result<&'a PreparedNodes, Option<&'a NodeLoad>> {
        if self.are_valid || self.loads.is_valid(self.policy, node, self.now) {
            Ok(self.loads)
        } else {
            Err(self.chunk.nodes[node].load.as_ref())
        }
    }
}

impl Prepared {
    /// The GPUs of a chunk.
    pub(crate) fn gpus_in(&self, chunk: usize) -> &ChunkGpus {
        &self.chunks[chunk].gpus
    }

    fn loads<'a>(
        &'a self,
        snapshot: &'a Snapshot,
        chunk: usize,
        now: Timestamp,
    ) -> PreparedLoads<'a> {
        let (policy, loads) = (&snapshot.policy, &self.chunks[chunk].loads);
        let are_valid = loads.are_valid(policy, now);
        PreparedLoads { policy, now, chunk: &snapshot.chunks[chunk], loads, are_valid }
    }

    /// Applies `of` to the prepared loads of each place and the node's position in them. `unknown` for a node without a
    /// place. `of_all` may return one value for all nodes of a chunk.
    pub fn of_each<T: Copy + PartialEq>(
        &self,
        (snapshot, now): (&Snapshot, Timestamp),
        places: &[Option<Place>],
        unknown: T,
        of_all: impl Fn(&PreparedNodes) -> Option<T>,
        of: impl Fn(PreparedLoads<'_>, usize) -> T,
    ) -> Vec<T> {
        if places.len() < snapshot.names.len() / 2 {
            let of_one = |place: Place| {
                of(self.loads(snapshot, place.index() / CHUNK, now), place.index() % CHUNK)
            };
            return places.iter().map(|place| place.map_or(unknown, of_one)).collect();
        }
        // In the order of places, unlike that of requests, memory is read sequentially.
        let mut all = Vec::with_capacity(self.chunks.len() * CHUNK);
        let mut differ = false;
        for chunk in 0..self.chunks.len() {
            let loads = self.loads(snapshot, chunk, now);
            if let Some(each) = loads.all().and_then(&of_all) {
                differ |= each != unknown;
                all.resize(all.len() + CHUNK, each);
            } else {
                differ = true;
                all.extend((0..CHUNK).map(|node| of(loads, node)));
            }
        }
        if differ {
            places.iter().map(|at| at.map_or(unknown, |at| all[at.index()])).collect()
        } else {
            vec![unknown; places.len()]
        }
    }
}

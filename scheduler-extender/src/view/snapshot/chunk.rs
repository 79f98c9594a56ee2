//! Nodes that are copied together when one of them changes.

use std::sync::Arc;

use placement::gpu::NodeGpus;
use placement::load::NodeLoad;

/// The number of nodes in a chunk. 5,000 nodes are 79 chunks.
pub(crate) const CHUNK: usize = 64;

/// A set of nodes of a chunk: one bit for each.
pub(crate) type NodeSet = u64;

const _: () = assert!(CHUNK == NodeSet::BITS as usize);

/// What is known of one node at one time.
#[derive(Debug, Default)]
pub struct NodeState {
    /// Its load; `None` where the watch has not shown the node.
    pub load: Option<NodeLoad>,
    /// Its GPUs; `None` where it reports none and no pod is charged there.
    pub gpus: Option<Arc<NodeGpus>>,
    /// The number of this value of `gpus`: no other value has it, of no node. 0 without GPUs.
    pub gpus_version: u64,
}

/// The nodes of [`CHUNK`] places. A place that no node has is empty.
#[derive(Debug, Clone)]
pub(crate) struct Chunk {
    pub(in crate::view) nodes: Box<[Arc<NodeState>]>,
}

impl Chunk {
    pub(crate) fn nodes(&self) -> &[Arc<NodeState>] {
        &self.nodes
    }
}

impl Default for Chunk {
    fn default() -> Self {
        let empty = Arc::<NodeState>::default();
        Self { nodes: vec![empty; CHUNK].into() }
    }
}

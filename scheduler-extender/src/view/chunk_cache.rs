//! A cache of values that readers compute from the nodes of a chunk.
//!
//! Invariant: a cached value was computed from the same nodes at an earlier time, and is stored with the set of nodes that have
//! changed since. The cache of a replaced chunk is empty: the decision log holds replaced chunks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwapOption;

/// The number of nodes in a chunk, which are copied together. 5,000 nodes are 79 chunks.
pub(super) const CHUNK: usize = 64;

/// A set of nodes of a chunk: one bit for each.
pub(super) type NodeSet = u64;

const _: () = assert!(CHUNK == NodeSet::BITS as usize);

/// The set of one node.
pub(super) fn only(node: usize) -> NodeSet {
    1 << node
}

/// Whether a node is in the set.
pub(super) fn has(set: NodeSet, node: usize) -> bool {
    set & only(node) != 0
}

/// The cached value of a chunk.
#[derive(Debug)]
pub(super) struct ChunkCache<T> {
    cached: ArcSwapOption<Cached<T>>,
    is_retired: AtomicBool,
}

#[derive(Debug)]
struct Cached<T> {
    value: Arc<T>,
    changed: NodeSet,
}

impl<T> Default for ChunkCache<T> {
    fn default() -> Self {
        Self { cached: ArcSwapOption::empty(), is_retired: AtomicBool::new(false) }
    }
}

impl<T> ChunkCache<T> {
    /// The cached value, and the nodes that have changed since.
    pub(super) fn get(&self) -> Option<(Arc<T>, NodeSet)> {
        self.cached.load().as_ref().map(|cached| (Arc::clone(&cached.value), cached.changed))
    }

    /// Caches a value that was computed from the chunk's current nodes.
    pub(super) fn set(&self, value: Arc<T>) {
        self.cached.store(Some(Arc::new(Cached { value, changed: 0 })));
        // Checked after the store, so that either this thread or `retire` in another one clears the cache.
        if self.is_retired.load(Ordering::SeqCst) {
            self.cached.store(None);
        }
    }

    /// The cache of the next chunk, in which one node has changed.
    pub(super) fn with_changed(&self, node: usize) -> Self {
        let still = self.get().map(|(value, changed)| {
            let changed = changed | only(node);
            Arc::new(Cached { value, changed })
        });
        Self { cached: ArcSwapOption::new(still), is_retired: AtomicBool::new(false) }
    }

    /// Empties the cache for good, after another chunk has replaced this one.
    pub(super) fn retire(&self) {
        self.is_retired.store(true, Ordering::SeqCst);
        self.cached.store(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cached_value_outlives_a_change_of_a_node_with_that_node_in_the_set() {
        let first = ChunkCache::default();
        assert_eq!(first.get(), None);
        first.set(Arc::new("a"));
        let second = first.with_changed(3).with_changed(63);
        assert_eq!(second.get(), Some((Arc::new("a"), only(3) | only(63))));
        second.set(Arc::new("b"));
        assert_eq!(second.get(), Some((Arc::new("b"), 0)));
        assert!(has(only(63), 63) && !has(only(63), 3));
    }

    #[test]
    fn the_cache_of_a_replaced_chunk_stays_empty() {
        let cache = ChunkCache::default();
        cache.set(Arc::new("a"));
        let next = cache.with_changed(0);
        cache.retire();
        cache.set(Arc::new("b"));
        assert_eq!((cache.get(), next.get()), (None, Some((Arc::new("a"), only(0)))));
    }
}

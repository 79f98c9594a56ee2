//! What readers have derived from the nodes of a chunk, kept for the next reader.
//!
//! Invariant: what is kept was derived from the same nodes at an earlier time, and says which of them have changed since. A chunk
//! that another has taken the place of keeps nothing: decisions that are kept for explanations hold the chunks of their time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwapOption;

/// Nodes of a chunk, which are copied together. With 5,000 nodes there are 79 chunks.
pub(super) const CHUNK: usize = 64;

/// Nodes of a chunk, a bit each.
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

/// What was derived from a chunk.
#[derive(Debug)]
pub(super) struct Derived<T> {
    kept: ArcSwapOption<Kept<T>>,
    is_past: AtomicBool,
}

#[derive(Debug)]
struct Kept<T> {
    value: Arc<T>,
    changed: NodeSet,
}

impl<T> Default for Derived<T> {
    fn default() -> Self {
        Self { kept: ArcSwapOption::empty(), is_past: AtomicBool::new(false) }
    }
}

impl<T> Derived<T> {
    /// What was derived last, and the nodes that have changed since.
    pub(super) fn get(&self) -> Option<(Arc<T>, NodeSet)> {
        self.kept.load().as_ref().map(|kept| (Arc::clone(&kept.value), kept.changed))
    }

    /// Keeps what was derived from the nodes as they are.
    pub(super) fn set(&self, value: Arc<T>) {
        self.kept.store(Some(Arc::new(Kept { value, changed: 0 })));
        // After the store, so that one of two threads sees what the other does.
        if self.is_past.load(Ordering::SeqCst) {
            self.kept.store(None);
        }
    }

    /// For the chunk in which that node is another.
    pub(super) fn after(&self, node: usize) -> Self {
        let still = self.get().map(|(value, changed)| {
            let changed = changed | only(node);
            Arc::new(Kept { value, changed })
        });
        Self { kept: ArcSwapOption::new(still), is_past: AtomicBool::new(false) }
    }

    /// Keeps nothing any more, once another chunk has taken the place of this one.
    pub(super) fn retire(&self) {
        self.is_past.store(true, Ordering::SeqCst);
        self.kept.store(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_derived_outlives_a_change_of_a_node_and_says_so() {
        let first = Derived::default();
        assert_eq!(first.get(), None);
        first.set(Arc::new("a"));
        let second = first.after(3).after(63);
        assert_eq!(second.get(), Some((Arc::new("a"), only(3) | only(63))));
        second.set(Arc::new("b"));
        assert_eq!(second.get(), Some((Arc::new("b"), 0)));
        assert!(has(only(63), 63) && !has(only(63), 3));
    }

    #[test]
    fn a_chunk_of_the_past_keeps_nothing() {
        let derived = Derived::default();
        derived.set(Arc::new("a"));
        let next = derived.after(0);
        derived.retire();
        derived.set(Arc::new("b"));
        assert_eq!((derived.get(), next.get()), (None, Some((Arc::new("a"), only(0)))));
    }
}

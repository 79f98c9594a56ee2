//! The ledgers of all nodes, and what readers see of them.
//!
//! Invariants: readers take no lock; a node's cards are an immutable value, swapped as a whole. A ledger changes under its
//! node's own lock, and is published before that lock is let go. A node without cards and without pods has no ledger.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::{ArcSwap, Guard};
use placement::gpu::{Choice, GpuRequest, NoFit, NodeCards, NodeLedger, Stage};
use placement::units::{NodeName, PodUid};

/// Every node's cards, as Filter, Prioritize, preempt and explain read them.
#[derive(Debug, Default)]
pub struct CardIndex {
    nodes: HashMap<NodeName, Arc<NodeEntry>>,
}

impl CardIndex {
    /// A node's cards; `None` where it reports none and no pod is charged there.
    pub fn node(&self, node: &str) -> Option<Guard<Arc<NodeCards>>> {
        self.nodes.get(node).map(|entry| entry.cards.load())
    }

    /// The card of a node that a pod would go to, or that Bind chose for it.
    ///
    /// # Errors
    ///
    /// Why no card fits.
    pub fn fit(&self, node: &str, pod: &PodUid, request: &GpuRequest) -> Result<Choice, NoFit> {
        self.node(node).map_or(Err(NoFit::NoCards), |cards| cards.fit(pod, request))
    }

    /// As [`CardIndex::fit`], if the pods that `gone` names held nothing any more.
    ///
    /// # Errors
    ///
    /// Why no card fits even then.
    pub fn fit_without(
        &self,
        node: &str,
        gone: impl Fn(&PodUid) -> bool,
        pod: &PodUid,
        request: &GpuRequest,
    ) -> Result<Choice, NoFit> {
        let cards = self.node(node).ok_or(NoFit::NoCards)?;
        cards.fit_without(gone, pod, request)
    }

    /// Every node with a ledger, in no order.
    pub fn nodes(&self) -> impl Iterator<Item = (&NodeName, Guard<Arc<NodeCards>>)> {
        self.nodes.iter().map(|(name, entry)| (name, entry.cards.load()))
    }
}

#[derive(Debug, Default)]
struct NodeEntry {
    ledger: Mutex<Ledger>,
    /// As of the ledger's last change.
    cards: ArcSwap<NodeCards>,
}

#[derive(Debug, Default)]
struct Ledger {
    ledger: NodeLedger,
    /// It is in the index no more: a change would be lost.
    dropped: bool,
}

impl NodeEntry {
    // Every change of a ledger is whole before the lock is let go, also where a panic lets it go.
    fn lock(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The index and what changes it.
#[derive(Debug, Default)]
pub(super) struct Ledgers {
    index: ArcSwap<CardIndex>,
    /// Held while a node enters or leaves the index. Taken before a node's lock.
    writer: Mutex<()>,
}

impl Ledgers {
    pub(super) fn read(&self) -> Guard<Arc<CardIndex>> {
        self.index.load()
    }

    /// Changes one node's ledger under its lock, and publishes the outcome.
    pub(super) fn change<T>(
        &self,
        node: &NodeName,
        change: impl FnOnce(&mut NodeLedger) -> T,
    ) -> T {
        loop {
            let entry = self.entry(node);
            let mut locked = entry.lock();
            if locked.dropped {
                continue;
            }
            let outcome = change(&mut locked.ledger);
            entry.cards.store(Arc::clone(locked.ledger.read()));
            let is_empty = locked.ledger.is_empty();
            drop(locked);
            if is_empty {
                self.drop_empty(node);
            }
            return outcome;
        }
    }

    /// How far a pod's claim has come on a node.
    pub(super) fn stage(&self, node: &NodeName, pod: &PodUid) -> Option<Stage> {
        let index = self.index.load();
        index.nodes.get(node).and_then(|entry| entry.lock().ledger.stage(pod))
    }

    fn entry(&self, node: &NodeName) -> Arc<NodeEntry> {
        if let Some(entry) = self.index.load().nodes.get(node) {
            return Arc::clone(entry);
        }
        let _writer = self.writer();
        let index = self.index.load();
        if let Some(entry) = index.nodes.get(node) {
            return Arc::clone(entry);
        }
        let entry = Arc::<NodeEntry>::default();
        let mut nodes = index.nodes.clone();
        nodes.insert(node.clone(), Arc::clone(&entry));
        self.index.store(Arc::new(CardIndex { nodes }));
        entry
    }

    fn drop_empty(&self, node: &NodeName) {
        let _writer = self.writer();
        let index = self.index.load();
        let Some(entry) = index.nodes.get(node) else { return };
        let mut locked = entry.lock();
        if locked.ledger.is_empty() {
            locked.dropped = true;
            let mut nodes = index.nodes.clone();
            nodes.remove(node);
            self.index.store(Arc::new(CardIndex { nodes }));
        }
    }

    fn writer(&self) -> MutexGuard<'_, ()> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use placement::gpu::Card;
    use placement::units::{MiB, Units};

    use super::*;

    fn card() -> Card {
        Card {
            uuid: "GPU-0".into(),
            index: 0,
            model: "NVIDIA A10".to_owned(),
            memory: MiB(16384),
            units: Units(16),
            numa_node: None,
            healthy: true,
            pods: [].into(),
        }
    }

    #[test]
    fn readers_take_no_lock_that_a_change_holds() {
        let (ledgers, node) = (Ledgers::default(), NodeName::from("a"));
        let request = GpuRequest::single("main", Units(10)).unwrap();
        let fits = || ledgers.read().fit("a", &"q".into(), &request).map(|choice| choice.left);
        ledgers.change(&node, |ledger| ledger.set_cards(vec![card()]));
        ledgers.change(&node, |ledger| {
            ledger.reserve(&"p".into(), &request).unwrap();
            // Not published yet.
            assert_eq!(fits(), Ok(Units(6)));
        });
        assert_eq!(fits(), Err(NoFit::NoRoom));
    }

    #[test]
    fn a_node_that_goes_stays_in_an_index_that_is_being_read() {
        let (ledgers, node) = (Ledgers::default(), NodeName::from("a"));
        ledgers.change(&node, |ledger| ledger.set_cards(vec![card()]));
        let held = ledgers.read();
        ledgers.change(&node, |ledger| ledger.set_cards(Vec::new()));
        assert!(ledgers.read().node("a").is_none());
        assert_eq!(held.nodes().count(), 1);
    }
}

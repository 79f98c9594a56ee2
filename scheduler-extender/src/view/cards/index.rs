//! The ledgers of all nodes, and what readers see of them.
//!
//! Invariants: readers take no lock; all nodes' cards are one immutable value, swapped as a whole. A ledger changes under its
//! node's own lock, and is published before that lock is let go. A node without cards and without pods has no ledger. A change of one
//! node copies its chunk and the list of chunks, and shares all else with the value before.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::{ArcSwap, ArcSwapOption, Guard};
use placement::gpu::{Card, Choice, ChoiceRule, GpuRequest, NoFit, NodeCards, NodeLedger, Stage};
use placement::units::{NodeName, PodUid};

use crate::view::board::{NodeNames, Place};

/// Nodes that are copied together.
const CHUNK: usize = 64;

/// Every node's cards, as Filter, Prioritize, preempt and explain read them.
#[derive(Debug, Default)]
pub struct CardIndex {
    nodes: Arc<Ledgered>,
    /// By the nodes' numbers.
    cards: Box<[Arc<[Arc<NodeCards>]>]>,
}

/// The nodes with a ledger. Another value takes its place as one gets its ledger or loses it.
#[derive(Debug, Default)]
struct Ledgered {
    numbers: HashMap<NodeName, usize>,
    /// By number.
    nodes: Vec<(NodeName, Arc<Mutex<Ledger>>)>,
}

impl CardIndex {
    /// A node's cards; `None` where it reports none and no pod is charged there.
    pub fn node(&self, node: &str) -> Option<&Arc<NodeCards>> {
        self.nodes.numbers.get(node).map(|number| self.cards(*number))
    }

    /// The card of a node that a pod would go to, or that Bind chose for it.
    ///
    /// # Errors
    ///
    /// Why no card fits.
    pub fn fit(
        &self,
        node: &str,
        pod: &PodUid,
        request: &GpuRequest,
        rule: &ChoiceRule,
    ) -> Result<Choice, NoFit> {
        self.node(node).map_or(Err(NoFit::NoCards), |cards| cards.fit(pod, request, rule))
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
        rule: &ChoiceRule,
    ) -> Result<Choice, NoFit> {
        let cards = self.node(node).ok_or(NoFit::NoCards)?;
        cards.fit_without(gone, pod, request, rule)
    }

    /// Every node with a ledger, in no order.
    pub fn nodes(&self) -> impl Iterator<Item = (&NodeName, &Arc<NodeCards>)> {
        self.nodes.nodes.iter().map(|(name, _)| name).zip(self.all())
    }

    fn all(&self) -> impl Iterator<Item = &Arc<NodeCards>> {
        self.cards.iter().flat_map(|chunk| chunk.iter())
    }

    fn cards(&self, number: usize) -> &Arc<NodeCards> {
        &self.cards[number / CHUNK][number % CHUNK]
    }

    fn ledger(&self, node: &NodeName) -> Option<&Arc<Mutex<Ledger>>> {
        self.nodes.numbers.get(node).map(|number| &self.nodes.nodes[*number].1)
    }

    /// The same nodes, one with other cards.
    fn with(&self, node: &NodeName, cards: &Arc<NodeCards>) -> Self {
        let mut chunks = self.cards.clone();
        if let Some(number) = self.nodes.numbers.get(node) {
            let chunk = &mut chunks[number / CHUNK];
            let copy = |(at, known)| Arc::clone(if at == number % CHUNK { cards } else { known });
            *chunk = chunk.iter().enumerate().map(copy).collect();
        }
        Self { nodes: Arc::clone(&self.nodes), cards: chunks }
    }

    /// Other nodes with their cards.
    fn of(nodes: impl Iterator<Item = (NodeName, Arc<Mutex<Ledger>>, Arc<NodeCards>)>) -> Self {
        let (mut ledgered, mut cards) = (Ledgered::default(), Vec::new());
        for (name, ledger, of_node) in nodes {
            ledgered.numbers.insert(name.clone(), cards.len());
            ledgered.nodes.push((name, ledger));
            cards.push(of_node);
        }
        Self { nodes: Arc::new(ledgered), cards: cards.chunks(CHUNK).map(Arc::from).collect() }
    }

    /// All nodes with their ledgers and cards.
    fn parts(&self) -> impl Iterator<Item = (NodeName, Arc<Mutex<Ledger>>, Arc<NodeCards>)> {
        let part = |((name, ledger), cards): (&(NodeName, Arc<Mutex<Ledger>>), &Arc<NodeCards>)| {
            (name.clone(), Arc::clone(ledger), Arc::clone(cards))
        };
        self.nodes.nodes.iter().zip(self.all()).map(part)
    }
}

/// All nodes' cards at one time, found by the places of one board.
#[derive(Debug, Clone)]
pub struct CardsOnBoard {
    index: Arc<CardIndex>,
    numbers: Arc<Numbers>,
}

/// The numbers of a board's nodes in the index.
#[derive(Debug)]
struct Numbers {
    names: Arc<NodeNames>,
    nodes: Arc<Ledgered>,
    by_place: Vec<Option<u32>>,
}

impl Numbers {
    fn new(names: &Arc<NodeNames>, nodes: &Arc<Ledgered>) -> Self {
        let number = |name: &NodeName| u32::try_from(*nodes.numbers.get(name)?).ok();
        let by_place = names.iter().map(number).collect();
        Self { names: Arc::clone(names), nodes: Arc::clone(nodes), by_place }
    }
}

impl CardsOnBoard {
    /// The cards of the node at a place, or of that name where it has none; `None` where it has no cards.
    pub fn node<'n>(
        &self,
        place: Option<Place>,
        name: impl FnOnce() -> &'n NodeName,
    ) -> Option<&Arc<NodeCards>> {
        match place {
            Some(place) => {
                let number = self.numbers.by_place[place.index()]?;
                Some(self.index.cards(number as usize))
            }
            None => self.index.node(name().as_str()),
        }
    }

    /// The cards that neither the book's newest value, but by this one, nor any other of those before holds; and bytes of lists.
    pub fn unshared(&self) -> (usize, impl Iterator<Item = &Arc<NodeCards>>) {
        // The book and this hold an index that is of no other.
        let is_new = Arc::strong_count(&self.index) <= 2;
        let chunks =
            self.index.cards.iter().filter(move |chunk| is_new && Arc::strong_count(chunk) == 1);
        let list = if is_new { size_of_val(&*self.index.cards) } else { 0 };
        (list, chunks.flat_map(|chunk| chunk.iter()))
    }
}

#[derive(Debug, Default)]
struct Ledger {
    ledger: NodeLedger,
    /// It is in the index no more: a change would be lost.
    dropped: bool,
}

/// The index and what changes it.
#[derive(Debug, Default)]
pub(super) struct Ledgers {
    index: ArcSwap<CardIndex>,
    /// As it was asked for last.
    numbers: ArcSwapOption<Numbers>,
    /// Held while a node enters or leaves the index. Taken before a node's lock.
    writer: Mutex<()>,
}

impl Ledgers {
    pub(super) fn read(&self) -> Guard<Arc<CardIndex>> {
        self.index.load()
    }

    /// All cards, to be found by the places of a board with these names.
    pub(super) fn on(&self, names: &Arc<NodeNames>) -> CardsOnBoard {
        let index = self.index.load_full();
        let is_it = |known: &Arc<Numbers>| {
            Arc::ptr_eq(&known.names, names) && Arc::ptr_eq(&known.nodes, &index.nodes)
        };
        let known = self.numbers.load_full().filter(is_it);
        let numbers = known.unwrap_or_else(|| {
            let new = Arc::new(Numbers::new(names, &index.nodes));
            self.numbers.store(Some(Arc::clone(&new)));
            new
        });
        CardsOnBoard { index, numbers }
    }

    /// Changes one node's ledger under its lock, and publishes the outcome.
    pub(super) fn change<T>(
        &self,
        node: &NodeName,
        change: impl FnOnce(&mut NodeLedger) -> T,
    ) -> T {
        loop {
            let ledger = self.ledger(node);
            let mut locked = lock(&ledger);
            if locked.dropped {
                continue;
            }
            let outcome = change(&mut locked.ledger);
            let cards = locked.ledger.read();
            self.index.rcu(|index| match index.node(node.as_str()) {
                Some(known) if Arc::ptr_eq(known, cards) => Arc::clone(index),
                _ => Arc::new(index.with(node, cards)),
            });
            let is_empty = locked.ledger.is_empty();
            drop(locked);
            if is_empty {
                self.drop_empty(node);
            }
            return outcome;
        }
    }

    /// The cards that a node reported; none where it has no ledger.
    pub(super) fn cards(&self, node: &NodeName) -> Vec<Card> {
        let index = self.index.load();
        index.ledger(node).map_or_else(Vec::new, |ledger| lock(ledger).ledger.cards().to_vec())
    }

    /// How far a pod's claim has come on a node.
    pub(super) fn stage(&self, node: &NodeName, pod: &PodUid) -> Option<Stage> {
        let index = self.index.load();
        index.ledger(node).and_then(|ledger| lock(ledger).ledger.stage(pod))
    }

    fn ledger(&self, node: &NodeName) -> Arc<Mutex<Ledger>> {
        if let Some(ledger) = self.index.load().ledger(node) {
            return Arc::clone(ledger);
        }
        let _writer = self.writer();
        if let Some(ledger) = self.index.load().ledger(node) {
            return Arc::clone(ledger);
        }
        let (ledger, cards) = (Arc::<Mutex<Ledger>>::default(), Arc::<NodeCards>::default());
        let joins = || (node.clone(), Arc::clone(&ledger), Arc::clone(&cards));
        self.index.rcu(|index| CardIndex::of(index.parts().chain([joins()])));
        ledger
    }

    fn drop_empty(&self, node: &NodeName) {
        let _writer = self.writer();
        let Some(ledger) = self.index.load().ledger(node).map(Arc::clone) else { return };
        let mut locked = lock(&ledger);
        if locked.ledger.is_empty() {
            locked.dropped = true;
            self.index.rcu(|index| CardIndex::of(index.parts().filter(|(name, ..)| name != node)));
        }
    }

    fn writer(&self) -> MutexGuard<'_, ()> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// Every change of a ledger is whole before the lock is let go, also where a panic lets it go.
fn lock(ledger: &Mutex<Ledger>) -> MutexGuard<'_, Ledger> {
    ledger.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use placement::units::Units;

    use super::*;
    use crate::view::cards::fixtures::card;

    #[test]
    fn readers_take_no_lock_that_a_change_holds() {
        let (ledgers, node) = (Ledgers::default(), NodeName::from("a"));
        let request = GpuRequest::single("main", Units(10)).unwrap();
        let rule = ChoiceRule::default();
        let fits = || {
            ledgers.read().fit("a", &"q".into(), &request, &rule).map(|choice| choice.cards[0].left)
        };
        ledgers.change(&node, |ledger| ledger.set_cards(vec![card()]));
        ledgers.change(&node, |ledger| {
            ledger.reserve(&"p".into(), &request, &rule).unwrap();
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

    #[test]
    fn cards_by_place_are_those_by_name_whatever_joins_or_leaves() {
        let (ledgers, all) = (Ledgers::default(), ["a", "b", "c", "d"].map(NodeName::from));
        let boards = [&all[..], &all[1..3], &[]];
        let boards = boards.map(|names| Arc::new(names.iter().cloned().collect::<NodeNames>()));
        let has = |ledgers: &Ledgers, wanted: [bool; 4]| {
            // The first is asked about twice in a row, with a change between.
            for board in boards.iter().chain(&boards[..1]) {
                let cards = ledgers.on(board);
                for (node, wanted) in all.iter().zip(wanted) {
                    let found = cards.node(board.place(node.as_str()), || node);
                    let index = ledgers.read();
                    assert_eq!(found.is_some(), wanted, "{node}");
                    let same = |(one, other)| Arc::ptr_eq(one, other);
                    assert!(found.zip(index.node(node.as_str())).is_none_or(same));
                }
            }
        };
        let set = |node: usize, cards| ledgers.change(&all[node], |l| l.set_cards(cards));
        has(&ledgers, [false; 4]);
        (0..4).rev().for_each(|node| set(node, vec![card()]));
        has(&ledgers, [true; 4]);
        set(2, Vec::new());
        has(&ledgers, [true, true, false, true]);
        set(1, vec![Card { healthy: false, ..card() }]);
        set(2, vec![card(), Card { uuid: "GPU-1".into(), index: 1, ..card() }]);
        has(&ledgers, [true; 4]);
        set(3, Vec::new());
        has(&ledgers, [true, true, true, false]);
    }
}

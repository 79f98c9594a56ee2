//! The ledgers of all nodes, and the index of their cards that readers use.
//!
//! Invariants: readers take no lock; the index is one immutable value, swapped as a whole. A ledger changes under its
//! node's own lock, and is published in the index before that lock is released. A node without cards and pods has no ledger. A change
//! of one node copies its chunk and the list of chunks, and shares the rest with the previous value.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::{ArcSwap, ArcSwapOption, Guard};
use placement::gpu::{
    Card, Choice, ChoiceRule, GpuRequest, NoFit, NodeCards, NodeLedger, Rating, Stage,
};
use placement::units::{NodeName, PodUid};

use super::ratings::{self, PodHashes, REQUESTS, RatedRequest, Ratings};
use crate::view::board::{NodeNames, Place};
use crate::view::chunk_cache::{CHUNK, has};

/// Every node's cards, as Filter, Prioritize, preempt and explain read them.
#[derive(Debug, Default)]
pub struct CardIndex {
    nodes: Arc<LedgerNodes>,
    /// The cards, by the nodes' numbers.
    chunks: Box<[Arc<Chunk>]>,
}

/// Nodes that are copied together.
#[derive(Debug)]
struct Chunk {
    cards: Box<[Arc<NodeCards>]>,
    pod_hashes: PodHashes,
    ratings: Ratings,
}

impl Chunk {
    fn new(cards: &[Arc<NodeCards>]) -> Arc<Self> {
        let pod_hashes = PodHashes::new(cards);
        Arc::new(Self { cards: cards.into(), pod_hashes, ratings: Ratings::default() })
    }

    /// The same nodes, one with other cards.
    fn with(&self, node: usize, cards: &Arc<NodeCards>) -> Arc<Self> {
        let (mut all, mut pod_hashes) = (self.cards.clone(), self.pod_hashes.clone());
        all[node] = Arc::clone(cards);
        pod_hashes.set(node, cards);
        Arc::new(Self { cards: all, pod_hashes, ratings: self.ratings.with_changed(node) })
    }

    /// Bytes beside the cards.
    fn bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.cards) + PodHashes::BYTES
    }
}

/// The nodes with a ledger. Replaced when a node gets or loses its ledger.
#[derive(Debug, Default)]
struct LedgerNodes {
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

    /// As [`CardIndex::fit`], without the pods for which `gone` returns true.
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
        self.chunks.iter().flat_map(|chunk| chunk.cards.iter())
    }

    fn cards(&self, number: usize) -> &Arc<NodeCards> {
        &self.chunks[number / CHUNK].cards[number % CHUNK]
    }

    fn ledger(&self, node: &NodeName) -> Option<&Arc<Mutex<Ledger>>> {
        self.nodes.numbers.get(node).map(|number| &self.nodes.nodes[*number].1)
    }

    /// The same nodes, one with other cards.
    fn with(&self, node: &NodeName, cards: &Arc<NodeCards>) -> Self {
        let mut chunks = self.chunks.clone();
        if let Some(number) = self.nodes.numbers.get(node) {
            let chunk = &mut chunks[number / CHUNK];
            *chunk = chunk.with(number % CHUNK, cards);
        }
        Self { nodes: Arc::clone(&self.nodes), chunks }
    }

    /// Drops the cached ratings of the node's chunk, or of all chunks, after this index was replaced.
    fn retire(&self, node: Option<&NodeName>) {
        let number = node.and_then(|node| self.nodes.numbers.get(node));
        let chunks = match number.map(|number| number / CHUNK) {
            Some(chunk) => &self.chunks[chunk..=chunk],
            None => &self.chunks,
        };
        chunks.iter().for_each(|chunk| chunk.ratings.retire());
    }

    /// Other nodes with their cards.
    fn of(nodes: impl Iterator<Item = (NodeName, Arc<Mutex<Ledger>>, Arc<NodeCards>)>) -> Self {
        let (mut ledgers, mut cards) = (LedgerNodes::default(), Vec::new());
        for (name, ledger, of_node) in nodes {
            ledgers.numbers.insert(name.clone(), cards.len());
            ledgers.nodes.push((name, ledger));
            cards.push(of_node);
        }
        Self { nodes: Arc::new(ledgers), chunks: cards.chunks(CHUNK).map(Chunk::new).collect() }
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
    /// The pod's GPU request; `None` where it has none.
    request: Option<Arc<RatedRequest>>,
}

/// The numbers of a board's nodes in the index.
#[derive(Debug)]
struct Numbers {
    names: Arc<NodeNames>,
    nodes: Arc<LedgerNodes>,
    by_place: Vec<Option<u32>>,
}

impl Numbers {
    fn new(names: &Arc<NodeNames>, nodes: &Arc<LedgerNodes>) -> Self {
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

    /// Whether most nodes are rated already. Otherwise [`NodeCards::check`] is the faster way to check whether each fits.
    pub fn are_rated(&self) -> bool {
        self.request.as_ref().is_some_and(|request| request.is_rated())
    }

    /// The results of [`NodeCards::rate`] for a pod with this value's request and the nodes at these places; `None` for nodes without
    /// cards or without a place.
    pub fn ratings(
        &self,
        pod: &PodUid,
        places: &[Option<Place>],
    ) -> Vec<Option<Result<Rating, NoFit>>> {
        let Some(request) = &self.request else { return vec![None; places.len()] };
        let number = |place: &Option<Place>| self.numbers.by_place[(*place)?.index()];
        let chunks = &self.index.chunks;
        if places.len() < self.index.nodes.nodes.len() / 2 {
            let rate = |number: u32| request.rate(pod, self.index.cards(number as usize));
            return places.iter().map(|place| number(place).map(rate)).collect();
        }
        let of_chunk = |chunk: &Arc<Chunk>| {
            let outcomes = ratings::outcomes(&chunk.ratings, request, &chunk.cards);
            (outcomes, chunk.pod_hashes.nodes(pod))
        };
        let of_chunks: Vec<_> = chunks.iter().map(of_chunk).collect();
        request.set_rated();
        let outcome = |number: u32| {
            let (chunk, node) = (number as usize / CHUNK, number as usize % CHUNK);
            let (outcomes, may_know) = &of_chunks[chunk];
            match has(*may_know, node) {
                true => request.rate(pod, &chunks[chunk].cards[node]),
                false => outcomes[node],
            }
        };
        places.iter().map(|place| number(place).map(outcome)).collect()
    }

    /// The bytes of lists, and the cards, that no earlier value holds.
    pub fn unshared(&self) -> (usize, impl Iterator<Item = &Arc<NodeCards>>) {
        // Two references: the `CardBook`'s and this one's.
        let is_new = Arc::strong_count(&self.index) <= 2;
        let is_unshared = move |chunk: &&Arc<Chunk>| is_new && Arc::strong_count(chunk) == 1;
        let chunks = || self.index.chunks.iter().filter(is_unshared);
        let list = if is_new { size_of_val(&*self.index.chunks) } else { 0 };
        let lists = list + chunks().map(|chunk| chunk.bytes()).sum::<usize>();
        (lists, chunks().flat_map(|chunk| chunk.cards.iter()))
    }
}

#[derive(Debug, Default)]
struct Ledger {
    ledger: NodeLedger,
    /// It was removed from the index, so a change would be lost.
    dropped: bool,
}

/// The index and what changes it.
#[derive(Debug, Default)]
pub(super) struct Ledgers {
    index: ArcSwap<CardIndex>,
    /// The numbers for the last board.
    numbers: ArcSwapOption<Numbers>,
    /// The last requests, the newest first.
    requests: ArcSwap<Vec<Arc<RatedRequest>>>,
    /// Held while a node enters or leaves the index. Taken before a node's lock.
    writer: Mutex<()>,
}

impl Ledgers {
    pub(super) fn read(&self) -> Guard<Arc<CardIndex>> {
        self.index.load()
    }

    /// All cards, by the places of a board with these names, for a pod with that request.
    pub(super) fn on(
        &self,
        names: &Arc<NodeNames>,
        request: Option<&GpuRequest>,
        rule: &ChoiceRule,
    ) -> CardsOnBoard {
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
        let request = request.map(|request| self.rated_request(request, rule));
        CardsOnBoard { index, numbers, request }
    }

    /// The entry of an equal recent request, or a new one. Moves it to the front.
    fn rated_request(&self, request: &GpuRequest, rule: &ChoiceRule) -> Arc<RatedRequest> {
        let last = self.requests.load();
        let known = last.iter().position(|rated| rated.is(request, rule));
        if known == Some(0) {
            return Arc::clone(&last[0]);
        }
        let new = || Arc::new(RatedRequest::new(request, rule));
        let newest = known.map_or_else(new, |at| Arc::clone(&last[at]));
        let others = last.iter().filter(|rated| !Arc::ptr_eq(rated, &newest)).cloned();
        // Of two concurrent calls, the entry of one may be lost; it is created again later.
        let all = [Arc::clone(&newest)].into_iter().chain(others).take(REQUESTS).collect();
        self.requests.store(Arc::new(all));
        newest
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
            let mut is_changed = false;
            let before = self.index.rcu(|index| {
                is_changed = !index.node(node.as_str()).is_some_and(|it| Arc::ptr_eq(it, cards));
                if is_changed { Arc::new(index.with(node, cards)) } else { Arc::clone(index) }
            });
            if is_changed {
                before.retire(Some(node));
            }
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

    /// The stage of a pod on a node.
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
        self.index.rcu(|index| CardIndex::of(index.parts().chain([joins()]))).retire(None);
        ledger
    }

    fn drop_empty(&self, node: &NodeName) {
        let _writer = self.writer();
        let Some(ledger) = self.index.load().ledger(node).map(Arc::clone) else { return };
        let mut locked = lock(&ledger);
        if locked.ledger.is_empty() {
            locked.dropped = true;
            let stays = |(name, ..): &(NodeName, _, _)| name != node;
            self.index.rcu(|index| CardIndex::of(index.parts().filter(stays))).retire(None);
        }
    }

    fn writer(&self) -> MutexGuard<'_, ()> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// Every change of a ledger is complete when the lock is released, also by a panic.
fn lock(ledger: &Mutex<Ledger>) -> MutexGuard<'_, Ledger> {
    ledger.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use placement::gpu;
    use placement::gpu::fragmentation::{Measure, NodeClass, PodShape, TypicalPods};
    use placement::units::Units;
    use proptest::prelude::*;

    use super::*;
    use crate::view::cards::fixtures::card;

    /// More than one chunk.
    const NODES: usize = 70;

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

    proptest! {
        #[test]
        fn ratings_are_those_of_each_node_now(
            steps in prop::collection::vec((0..NODES, 0..4_usize, kind(), 0..5_usize, 0..6_u8), 1..40),
        ) {
            let names: Vec<_> = (0..NODES).map(|at| NodeName::from(format!("n{at}"))).collect();
            let board = Arc::new(names.iter().cloned().collect::<NodeNames>());
            let places: Vec<_> = names.iter().rev().map(|name| board.place(name.as_str())).collect();
            let (ledgers, rules) = (Ledgers::default(), rules());
            // One node has no cards.
            for name in &names[1..] {
                ledgers.change(name, |ledger| ledger.set_cards(vec![card()]));
            }
            for (node, pod, (units, cpu), rule, act) in steps {
                let request = GpuRequest::single("main", Units(units)).unwrap().with_cpu(cpu);
                let (uid, rule) = (PodUid::from(format!("p{pod}")), &rules[rule]);
                ledgers.change(&names[node], |ledger| match (act, ledger.stage(&uid)) {
                    (0 | 1, Some(_)) => ledger.cancel(&uid),
                    (0 | 1, None) => drop(ledger.reserve(&uid, &request, rule)),
                    (2, _) => ledger.set_cpu(Some(cpu)),
                    (3, _) => ledger.nominate(&uid, &request, &["GPU-0".into()]),
                    (4, _) => ledger.end_nomination(&uid),
                    _ => ledger.set_cards(Vec::new()),
                });
                let requested = if act > 0 { &places[..] } else { &places[..10] };
                let ratings = ledgers.on(&board, Some(&request), rule).ratings(&uid, requested);
                let index = ledgers.read();
                for (name, rating) in names.iter().rev().zip(ratings) {
                    let cards = index.node(name.as_str());
                    prop_assert_eq!(rating, cards.map(|cards| cards.rate(&uid, &request, rule)));
                    let check = cards.map(|cards| cards.check(&uid, &request));
                    prop_assert_eq!(rating.map(|rating| rating.map(|_| ())), check);
                }
            }
        }
    }

    /// Units and CPU, of more kinds than are kept.
    fn kind() -> impl Strategy<Value = (u32, u64)> {
        (prop::sample::select(vec![1, 4, 5, 16]), prop::sample::select(vec![0, 500, 4_000]))
            .boxed()
            .prop_union((1..17_u32, 0..3_u64).boxed())
    }

    /// Without a measure, and with one of two.
    fn rules() -> [ChoiceRule; 5] {
        let measured = |units: u32| {
            let mut typical = TypicalPods::default();
            let typically = GpuRequest::single("main", Units(units)).unwrap().with_cpu(1_000);
            (0..50).for_each(|_| typical.observe(&PodShape::of(&typically)));
            let (model, card) = ("NVIDIA A10".to_owned(), Units(16));
            let class = NodeClass { count: NODES, cpu: Some(4_000), model, cards: 1, units: card };
            let measure = Some(Arc::new(Measure::new(&typical, &[class])));
            ChoiceRule { strategy: gpu::Strategy::LeastFragmentation, measure }
        };
        let plain = |strategy| ChoiceRule { strategy, measure: None };
        let [least, pack, spread] = gpu::Strategy::ALL.map(plain);
        [least, pack, spread, measured(4), measured(16)]
    }

    #[test]
    fn a_request_is_rated_once_it_was_and_the_one_asked_for_last_is_kept() {
        let (ledgers, node) = (Ledgers::default(), NodeName::from("a"));
        ledgers.change(&node, |ledger| ledger.set_cards(vec![card()]));
        let board = Arc::new([node].into_iter().collect::<NodeNames>());
        let on = |units: u32| {
            let request = GpuRequest::single("main", Units(units)).unwrap();
            ledgers.on(&board, Some(&request), &ChoiceRule::default())
        };
        // Filter and Filter again, without a rating between.
        assert!(!on(1).are_rated() && !on(1).are_rated());
        on(1).ratings(&"p".into(), &[board.place("a")]);
        assert!(on(1).are_rated());
        for units in 2..100 {
            on(units);
            assert!(on(1).are_rated());
        }
        (2..40).for_each(|units| drop(on(units)));
        assert!(!on(1).are_rated());
    }

    #[test]
    fn an_index_of_the_past_keeps_no_ratings() {
        let (ledgers, node) = (Ledgers::default(), NodeName::from("a"));
        ledgers.change(&node, |ledger| ledger.set_cards(vec![card()]));
        let board = Arc::new([node.clone()].into_iter().collect::<NodeNames>());
        let (request, rule) =
            (GpuRequest::single("main", Units(4)).unwrap(), ChoiceRule::default());
        let before = ledgers.on(&board, Some(&request), &rule);
        let rate = |cards: &CardsOnBoard| cards.ratings(&"p".into(), &[board.place("a")]);
        let keeps = |cards: &CardsOnBoard| cards.index.chunks[0].ratings.get().is_some();
        let rated = rate(&before);
        assert!(rated[0].is_some_and(|rating| rating.is_ok()) && keeps(&before));
        ledgers.change(&node, |ledger| ledger.reserve(&"q".into(), &request, &rule).is_ok());
        let after = ledgers.on(&board, Some(&request), &rule);
        assert!(!keeps(&before) && keeps(&after));
        assert!(rate(&before) == rated && !keeps(&before));
        assert_ne!(rate(&after), rated);
    }

    #[test]
    fn cards_by_place_are_those_by_name_whatever_joins_or_leaves() {
        let (ledgers, all) = (Ledgers::default(), ["a", "b", "c", "d"].map(NodeName::from));
        let boards = [&all[..], &all[1..3], &[]];
        let boards = boards.map(|names| Arc::new(names.iter().cloned().collect::<NodeNames>()));
        let has = |ledgers: &Ledgers, wanted: [bool; 4]| {
            // The first is requested twice in a row, with a change between.
            for board in boards.iter().chain(&boards[..1]) {
                let cards = ledgers.on(board, None, &ChoiceRule::default());
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

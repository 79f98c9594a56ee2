//! The names and loads of all known nodes at one time, as immutable values.
//!
//! Invariant: a [`Place`] is good for every [`NodeLoads`] of the same [`NodeNames`]. A change of one node copies its chunk and the
//! list of chunks, and shares all else with the value before: what was known at a decision is kept by keeping one pointer.

use std::hash::BuildHasher;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use arc_swap::ArcSwapOption;
use foldhash::fast::RandomState;
use jiff::Timestamp;
use placement::load::{NodeLoad, PreparedNodes, ResolvedPolicy};
use placement::units::NodeName;

/// Nodes that are copied together. With 5,000 nodes there are 79 chunks.
const CHUNK: usize = 64;

/// A node's number in one [`NodeNames`]; from 1, so that a list of `Option<Place>` takes 4 bytes a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place(NonZeroU32);

impl Place {
    fn new(index: usize) -> Option<Self> {
        u32::try_from(index + 1).ok().and_then(NonZeroU32::new).map(Self)
    }

    /// From 0.
    pub fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// The names of all known nodes. Another value takes its place as a node joins or leaves.
#[derive(Debug, Default)]
pub struct NodeNames {
    names: Vec<NodeName>,
    /// All names as JSON texts, and where each ends.
    json: Vec<u8>,
    ends: Vec<u32>,
    /// Places by the hash of the JSON text. At most half of it is taken.
    table: Vec<Slot>,
    hasher: RandomState,
    /// Which node follows each in requests, a guess: kube-scheduler names nodes in nearly the same order each time. With
    /// [`CONFIRMED`] where it has been right of late.
    next: Vec<AtomicU32>,
    /// Requests in a row that named nodes in another order than was expected.
    disorder: AtomicU32,
}

/// A slot of the table: free where there is no place.
#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    place: Option<Place>,
    /// Bits of the hash that do not choose the slot: most other names differ here already.
    tag: u32,
}

/// So many such requests are learned from; then every so manieth, in which the order may be another again.
const LEARNED_FROM: u32 = 4;
const TRIED_AGAIN: u32 = 16;

/// A bit beside a place.
const CONFIRMED: u32 = 1 << 31;

impl FromIterator<NodeName> for NodeNames {
    /// A name that comes twice has the place of the first. Names beyond 2^31 bytes are left out: no cluster has so many.
    fn from_iter<I: IntoIterator<Item = NodeName>>(names: I) -> Self {
        let names: Vec<_> = names.into_iter().collect();
        let table = vec![Slot::default(); (names.len() * 2).next_power_of_two()];
        let mut all = Self { table, ..Self::default() };
        names.into_iter().for_each(|name| all.push(name));
        let following = |next| AtomicU32::new(Place::new(next).map_or(0, |next| next.0.get()));
        all.next = (1..=all.names.len()).map(following).collect();
        all
    }
}

impl NodeNames {
    fn push(&mut self, name: NodeName) {
        let begin = self.json.len();
        // A text: serialising it into memory cannot fail.
        let _ = serde_json::to_writer(&mut self.json, name.as_str());
        let end = u32::try_from(self.json.len()).ok().filter(|end| *end < CONFIRMED);
        let hash = self.hash(&self.json[begin..]);
        let slot = self.slot(&self.json[begin..], hash);
        let slot = slot.filter(|slot| self.table[*slot].place.is_none());
        let (Some(slot), Some(end)) = (slot, end) else { return self.json.truncate(begin) };
        self.table[slot] = Slot { place: Place::new(self.names.len()), tag: tag(hash) };
        self.ends.push(end);
        self.names.push(name);
    }

    fn hash(&self, json: &[u8]) -> u64 {
        self.hasher.hash_one(json)
    }

    /// The slot of the table that has the name of this JSON text, or the free one where it belongs. `None` in an empty table.
    fn slot(&self, json: &[u8], hash: u64) -> Option<usize> {
        let mask = self.table.len().checked_sub(1)?;
        let first = hash as usize & mask;
        let is_it = |slot: &usize| match self.table[*slot] {
            Slot { place: None, .. } => true,
            Slot { place: Some(place), tag: of } => of == tag(hash) && self.json(place) == json,
        };
        (first..=first + mask).map(|slot| slot & mask).find(is_it)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Bytes that it takes beside the names themselves, which others share.
    pub fn bytes(&self) -> usize {
        let each = size_of::<NodeName>() + size_of::<u32>() + size_of::<AtomicU32>();
        self.len() * each + self.json.len() + size_of_val(&*self.table)
    }

    /// All names, in the order of their places.
    pub fn iter(&self) -> impl Iterator<Item = &NodeName> {
        self.names.iter()
    }

    /// The node's place, where it is known.
    pub fn place(&self, name: &str) -> Option<Place> {
        // A text: serialising it into memory cannot fail.
        self.place_of_json(&serde_json::to_vec(name).unwrap_or_default())
    }

    /// As [`NodeNames::place`], by the name as a JSON text that is not escaped further than it has to be.
    pub fn place_of_json(&self, json: &[u8]) -> Option<Place> {
        self.table[self.slot(json, self.hash(json))?].place
    }

    /// The name of the node at a place.
    pub fn name(&self, place: Place) -> &NodeName {
        &self.names[place.index()]
    }

    /// The name as a JSON text, quotes included.
    pub fn json(&self, place: Place) -> &[u8] {
        let begin = place.index().checked_sub(1).map_or(0, |before| self.ends[before] as usize);
        &self.json[begin..self.ends[place.index()] as usize]
    }

    /// The first node; `None` where there is none.
    pub fn first(&self) -> Option<Place> {
        Place::new(0).filter(|_| !self.is_empty())
    }

    /// The node that follows this one in requests, if the guess is right.
    pub fn next(&self, place: Place) -> Option<Place> {
        let next = self.next[place.index()].load(Ordering::Relaxed) & !CONFIRMED;
        let next = NonZeroU32::new(next).map(Place);
        next.filter(|next| next.index() < self.len())
    }

    /// Whether a request probably names nodes in an order that is worth guessing.
    pub fn is_ordered(&self) -> bool {
        let disorder = self.disorder.load(Ordering::Relaxed);
        disorder < LEARNED_FROM || disorder.is_multiple_of(TRIED_AGAIN)
    }

    /// A request named nodes in the order that was expected, or another one.
    pub fn note_order(&self, is_expected: bool) {
        if !is_expected {
            self.disorder.fetch_add(1, Ordering::Relaxed);
        } else if self.disorder.load(Ordering::Relaxed) > 0 {
            self.disorder.store(0, Ordering::Relaxed);
        }
    }

    /// The guess of what follows `place` was right.
    pub fn confirm_next(&self, place: Place) {
        let next = &self.next[place.index()];
        let guess = next.load(Ordering::Relaxed);
        if guess & CONFIRMED == 0 {
            next.store(guess | CONFIRMED, Ordering::Relaxed);
        }
    }

    /// `next` came after `place` in a request, and was not expected. Several workers of kube-scheduler name nodes in turns, so
    /// what has been right before stays until it fails twice.
    pub fn learn_next(&self, place: Place, next: Place) {
        let guess = &self.next[place.index()];
        let before = guess.load(Ordering::Relaxed);
        let after = if before & CONFIRMED == 0 { next.0.get() } else { before & !CONFIRMED };
        guess.store(after, Ordering::Relaxed);
    }
}

/// The upper half of a hash, whose lower half chooses the slot.
fn tag(hash: u64) -> u32 {
    (hash >> 32) as u32
}

/// Nodes that change together.
#[derive(Debug, Default)]
struct Chunk {
    loads: Vec<Arc<NodeLoad>>,
    /// Their loads as they were made ready last.
    prepared: ArcSwapOption<PreparedNodes>,
}

impl Clone for Chunk {
    fn clone(&self) -> Self {
        Self { loads: self.loads.clone(), prepared: ArcSwapOption::empty() }
    }
}

/// The loads of all known nodes, by place.
#[derive(Debug, Clone, Default)]
pub struct NodeLoads(Box<[Arc<Chunk>]>);

impl FromIterator<Arc<NodeLoad>> for NodeLoads {
    fn from_iter<I: IntoIterator<Item = Arc<NodeLoad>>>(loads: I) -> Self {
        let loads: Vec<_> = loads.into_iter().collect();
        let chunk = |loads: &[_]| Arc::new(Chunk { loads: loads.to_vec(), ..Chunk::default() });
        Self(loads.chunks(CHUNK).map(chunk).collect())
    }
}

impl NodeLoads {
    /// The load of the node at a place.
    pub fn get(&self, place: Place) -> &Arc<NodeLoad> {
        &self.0[place.index() / CHUNK].loads[place.index() % CHUNK]
    }

    /// These loads with another one at that place.
    #[must_use]
    pub fn with(&self, place: Place, load: Arc<NodeLoad>) -> Self {
        let mut chunks = self.0.clone();
        // Never unique: the value before holds it too.
        let chunk = Arc::make_mut(&mut chunks[place.index() / CHUNK]);
        chunk.loads[place.index() % CHUNK] = load;
        Self(chunks)
    }

    /// All loads, in the order of their places.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<NodeLoad>> {
        self.0.iter().flat_map(|chunk| chunk.loads.iter())
    }

    /// What `of` makes of each node's load, made ready for decisions under `policy` at `now`: each chunk as it is asked for, unless
    /// a decision before has done so. `unknown` where there is no place.
    pub fn of_each<T: Copy>(
        &self,
        places: &[Option<Place>],
        (policy, now): (&Arc<ResolvedPolicy>, Timestamp),
        unknown: T,
        of: impl Fn(&PreparedNodes, usize) -> T,
    ) -> Vec<T> {
        let mut ready = vec![None; self.0.len()];
        let mut of = |place: usize| {
            let (chunk, node) = (place / CHUNK, place % CHUNK);
            of(ready[chunk].get_or_insert_with(|| prepare(&self.0[chunk], policy, now)), node)
        };
        let nodes: usize = self.0.iter().map(|chunk| chunk.loads.len()).sum();
        if places.len() < nodes / 2 {
            let of = |place: &Option<Place>| place.map_or(unknown, |place| of(place.index()));
            return places.iter().map(of).collect();
        }
        // Requests may name nodes in any order. In that of places, memory is read from its begin to its end.
        let all: Vec<T> = (0..nodes).map(of).collect();
        places.iter().map(|place| place.map_or(unknown, |place| all[place.index()])).collect()
    }

    /// Bytes of the list of chunks.
    pub fn list_bytes(&self) -> usize {
        size_of_val(&*self.0)
    }

    /// The chunks that no other value holds.
    pub fn unshared(&self) -> impl Iterator<Item = &[Arc<NodeLoad>]> {
        self.0.iter().filter(|chunk| Arc::strong_count(chunk) == 1).map(|chunk| &*chunk.loads)
    }
}

fn prepare(chunk: &Chunk, policy: &Arc<ResolvedPolicy>, now: Timestamp) -> Arc<PreparedNodes> {
    if let Some(ready) = chunk.prepared.load_full().filter(|ready| ready.hold(policy, now)) {
        return ready;
    }
    let ready = Arc::new(PreparedNodes::new(policy, chunk.loads.iter().map(|load| &**load), now));
    chunk.prepared.store(Some(Arc::clone(&ready)));
    ready
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(count: usize) -> NodeNames {
        (0..count).map(|number| NodeName::from(format!("n{number}"))).collect()
    }

    fn loads(count: usize) -> NodeLoads {
        (0..count).map(|_| Arc::<NodeLoad>::default()).collect()
    }

    #[test]
    fn each_name_has_a_place_and_its_json() {
        let names: NodeNames = ["a", "b\"", "a", "c"].map(NodeName::from).into_iter().collect();
        let found =
            |name| names.place(name).map(|place| (names.name(place).as_str(), names.json(place)));
        assert_eq!(found("a"), Some(("a", &b"\"a\""[..])));
        assert_eq!(found("b\""), Some(("b\"", &br#""b\"""#[..])));
        assert_eq!((found("c"), found("d")), (Some(("c", &b"\"c\""[..])), None));
        assert_eq!(names.len(), 3);
    }

    #[test]
    fn a_name_that_hashes_to_a_taken_slot_is_found() {
        let names = names(1_000);
        let found = |number: usize| names.place(&format!("n{number}")).map(Place::index);
        assert!((0..1_000).all(|number| found(number) == Some(number)));
        assert!((1_000..3_000).all(|number| found(number).is_none()));
        assert_eq!(NodeNames::default().place("n0"), None);
    }

    #[test]
    fn a_guess_that_was_right_stays_until_it_fails_twice() {
        let names = names(3);
        let [first, second, last] = ["n0", "n1", "n2"].map(|name| names.place(name).unwrap());
        assert_eq!((names.next(first), names.next(last)), (Some(second), None));
        names.confirm_next(first);
        names.learn_next(first, last);
        assert_eq!(names.next(first), Some(second));
        names.learn_next(first, last);
        assert_eq!(names.next(first), Some(last));
        names.learn_next(last, first);
        assert_eq!(names.next(last), Some(first));
    }

    #[test]
    fn an_order_that_cannot_be_learned_is_guessed_now_and_then_until_there_is_one() {
        let names = names(3);
        let guessed = |requests: u32| {
            let guess = |_: &u32| {
                let is_ordered = names.is_ordered();
                names.note_order(false);
                is_ordered
            };
            (0..requests).filter(guess).count()
        };
        assert_eq!((guessed(4), guessed(12), guessed(16)), (4, 0, 1));
        names.note_order(true);
        assert!(names.is_ordered());
    }

    #[test]
    fn a_change_shares_every_other_chunk() {
        let (names, before) = (names(200), loads(200));
        let place = names.place("n70").unwrap();
        let changed = Arc::new(NodeLoad { capacity: Default::default(), ..NodeLoad::default() });
        let after = before.with(place, Arc::clone(&changed));
        assert!(
            Arc::ptr_eq(after.get(place), &changed) && !Arc::ptr_eq(before.get(place), &changed)
        );
        assert_eq!(after.unshared().count(), 1);
        assert!(Arc::ptr_eq(&before.0[0], &after.0[0]) && !Arc::ptr_eq(&before.0[1], &after.0[1]));
        drop(before);
        assert_eq!(after.unshared().count(), 4);
    }
}

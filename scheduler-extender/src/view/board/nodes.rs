//! The names and loads of all known nodes at one time, as immutable values.
//!
//! Invariant: a [`Place`] is good for every [`NodeLoads`] of the same [`NodeNames`]. A change of one node copies its chunk and the
//! list of chunks, and shares all else with the value before: what was known at a decision is kept by keeping one pointer.

use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use arc_swap::ArcSwapOption;
use foldhash::fast::RandomState;
use jiff::Timestamp;
use placement::load::{NodeLoad, PreparedNodes, ResolvedPolicy};
use placement::units::NodeName;

/// Nodes that are copied together. With 5,000 nodes there are 79 chunks.
const CHUNK: usize = 64;

/// A node's number in one [`NodeNames`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place(u32);

impl Place {
    fn index(self) -> usize {
        self.0 as usize
    }
}

/// The names of all known nodes. Another value takes its place as a node joins or leaves.
#[derive(Debug, Default)]
pub struct NodeNames {
    names: Vec<NodeName>,
    /// All names as JSON texts, and where each ends.
    json: Vec<u8>,
    ends: Vec<u32>,
    /// Places by the hash of the JSON text; [`FREE`] where there is none. At most half of it is taken.
    table: Vec<u32>,
    hasher: RandomState,
    /// Which node follows each in requests, a guess: kube-scheduler names nodes in nearly the same order each time. With
    /// [`CONFIRMED`] where it has been right of late.
    next: Vec<AtomicU32>,
}

/// No place: there are fewer nodes.
const FREE: u32 = u32::MAX;

/// A bit beside a place.
const CONFIRMED: u32 = 1 << 31;

impl FromIterator<NodeName> for NodeNames {
    /// A name that comes twice has the place of the first. Names beyond 2^31 bytes are left out: no cluster has so many.
    fn from_iter<I: IntoIterator<Item = NodeName>>(names: I) -> Self {
        let names: Vec<_> = names.into_iter().collect();
        let mut all =
            Self { table: vec![FREE; (names.len() * 2).next_power_of_two()], ..Self::default() };
        names.into_iter().for_each(|name| all.push(name));
        all.next = (1..=all.names.len()).map(|next| AtomicU32::new(next as u32)).collect();
        all
    }
}

impl NodeNames {
    fn push(&mut self, name: NodeName) {
        let begin = self.json.len();
        // A text: serialising it into memory cannot fail.
        let _ = serde_json::to_writer(&mut self.json, name.as_str());
        let end = u32::try_from(self.json.len()).ok().filter(|end| *end < CONFIRMED);
        let slot = self.slot(&self.json[begin..]).filter(|slot| self.table[*slot] == FREE);
        let (Some(slot), Some(end)) = (slot, end) else { return self.json.truncate(begin) };
        self.table[slot] = self.names.len() as u32;
        self.ends.push(end);
        self.names.push(name);
    }

    /// The slot of the table that has the name of this JSON text, or the free one where it belongs. `None` in an empty table.
    fn slot(&self, json: &[u8]) -> Option<usize> {
        let mask = self.table.len().checked_sub(1)?;
        let first = self.hasher.hash_one(json) as usize;
        let is_it = |slot: &usize| match self.table[*slot] {
            FREE => true,
            place => self.json(Place(place)) == json,
        };
        (first..=first.saturating_add(mask)).map(|slot| slot & mask).find(is_it)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
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
        let place = self.table[self.slot(json)?];
        (place != FREE).then_some(Place(place))
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
        (!self.is_empty()).then_some(Place(0))
    }

    /// The node that follows this one in requests, if the guess is right.
    pub fn next(&self, place: Place) -> Option<Place> {
        let next = self.next[place.index()].load(Ordering::Relaxed) & !CONFIRMED;
        ((next as usize) < self.len()).then_some(Place(next))
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
        let after = if before & CONFIRMED == 0 { next.0 } else { before & !CONFIRMED };
        guess.store(after, Ordering::Relaxed);
    }
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

    /// The loads made ready for decisions under `policy` at `now`.
    pub fn ready<'a>(&'a self, policy: &'a Arc<ResolvedPolicy>, now: Timestamp) -> ReadyLoads<'a> {
        ReadyLoads { loads: self, policy, now, chunks: vec![None; self.0.len()] }
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

/// The loads of all known nodes, made ready for decisions under one policy at one time: each chunk as it is asked for, unless a
/// decision before has done so.
pub struct ReadyLoads<'a> {
    loads: &'a NodeLoads,
    policy: &'a Arc<ResolvedPolicy>,
    now: Timestamp,
    chunks: Vec<Option<Arc<PreparedNodes>>>,
}

impl ReadyLoads<'_> {
    /// The loads that have the node at a place, and its position there.
    pub fn get(&mut self, place: Place) -> (&PreparedNodes, usize) {
        let (number, position) = (place.index() / CHUNK, place.index() % CHUNK);
        let ready = self.chunks[number]
            .get_or_insert_with(|| prepare(&self.loads.0[number], self.policy, self.now));
        (ready, position)
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

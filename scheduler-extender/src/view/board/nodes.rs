//! The names and loads of all known nodes at one time, as immutable values.
//!
//! Invariant: a [`Place`] is valid for every [`NodeLoads`] of the same [`NodeNames`]. A change of one node copies its chunk and the
//! list of chunks, and shares the rest with the previous value, so a decision keeps its data by one pointer.

use std::hash::BuildHasher;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use foldhash::fast::RandomState;
use jiff::Timestamp;
use placement::load::{CpuUse, NodeLoad, PreparedNodes, ResolvedPolicy};
use placement::units::NodeName;

use crate::view::chunk_cache::{CHUNK, ChunkCache, has};

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

/// The names of all known nodes. Replaced when a node joins or leaves.
#[derive(Debug, Default)]
pub struct NodeNames {
    names: Vec<NodeName>,
    /// All names as JSON strings, and the end offset of each.
    json: Vec<u8>,
    ends: Vec<u32>,
    /// Hash table of places, by the hash of the JSON string. At most half of the slots are taken.
    table: Vec<Slot>,
    hasher: RandomState,
    /// The predicted successor of each node in requests: kube-scheduler lists nodes in nearly the same order each time. With
    /// the bit [`CONFIRMED`] if the last prediction was right.
    next: Vec<AtomicU32>,
    /// Consecutive requests whose order was not the predicted one.
    disorder: AtomicU32,
    /// The rank of each name in the order of names, computed on first use.
    ranks: OnceLock<Box<[u32]>>,
}

/// A slot of the table: free where there is no place.
#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    place: Option<Place>,
    /// Bits of the hash that do not choose the slot, compared before the names.
    tag: u32,
}

/// Consecutive disordered requests after which prediction stops.
const MAX_DISORDER: u32 = 4;

/// After that, one in this number of requests is predicted again, since the order may have settled.
const RETRY_EVERY: u32 = 16;

/// The bit of a confirmed prediction, next to the place.
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

    /// The slot of the name with this JSON string, or the free slot where it belongs. `None` for an empty table.
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

    /// Bytes that it takes, without the names themselves, which are shared.
    pub fn bytes(&self) -> usize {
        // A place's end, follower and rank.
        let each = size_of::<NodeName>() + 3 * size_of::<u32>();
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

    /// As [`NodeNames::place`], by the name as a JSON string with the necessary escapes only.
    pub fn place_of_json(&self, json: &[u8]) -> Option<Place> {
        self.table[self.slot(json, self.hash(json))?].place
    }

    /// The name of the node at a place.
    pub fn name(&self, place: Place) -> &NodeName {
        &self.names[place.index()]
    }

    /// The rank of the name in the order of names.
    pub fn rank(&self, place: Place) -> u32 {
        self.ranks.get_or_init(|| self.ranked())[place.index()]
    }

    fn ranked(&self) -> Box<[u32]> {
        let mut order: Vec<usize> = (0..self.len()).collect();
        order.sort_unstable_by_key(|at| &self.names[*at]);
        let mut ranks = vec![0; order.len()].into_boxed_slice();
        // There are fewer names than 2^31.
        (0..).zip(order).for_each(|(rank, at)| ranks[at] = rank);
        ranks
    }

    /// The name as a JSON string, quotes included.
    pub fn json(&self, place: Place) -> &[u8] {
        let begin = place.index().checked_sub(1).map_or(0, |before| self.ends[before] as usize);
        &self.json[begin..self.ends[place.index()] as usize]
    }

    /// The first node; `None` where there is none.
    pub fn first(&self) -> Option<Place> {
        Place::new(0).filter(|_| !self.is_empty())
    }

    /// The predicted successor of this node in requests.
    pub fn next(&self, place: Place) -> Option<Place> {
        let next = self.next[place.index()].load(Ordering::Relaxed) & !CONFIRMED;
        let next = NonZeroU32::new(next).map(Place);
        next.filter(|next| next.index() < self.len())
    }

    /// Whether the next request's order should be predicted.
    pub fn is_ordered(&self) -> bool {
        let disorder = self.disorder.load(Ordering::Relaxed);
        disorder < MAX_DISORDER || disorder.is_multiple_of(RETRY_EVERY)
    }

    /// Records whether a request had the predicted order.
    pub fn note_order(&self, is_expected: bool) {
        if !is_expected {
            self.disorder.fetch_add(1, Ordering::Relaxed);
        } else if self.disorder.load(Ordering::Relaxed) > 0 {
            self.disorder.store(0, Ordering::Relaxed);
        }
    }

    /// Records that the predicted successor of `place` was right.
    pub fn confirm_next(&self, place: Place) {
        let next = &self.next[place.index()];
        let guess = next.load(Ordering::Relaxed);
        if guess & CONFIRMED == 0 {
            next.store(guess | CONFIRMED, Ordering::Relaxed);
        }
    }

    /// Records that `next` came after `place` in a request, against the prediction. kube-scheduler's workers list nodes in turns, so
    /// a confirmed prediction is replaced only after it fails twice.
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

/// Nodes that are copied together.
#[derive(Debug)]
struct Chunk {
    loads: Vec<Arc<NodeLoad>>,
    /// Their loads, prepared for decisions.
    ready: ChunkCache<PreparedNodes>,
}

impl Chunk {
    fn new(loads: &[Arc<NodeLoad>]) -> Arc<Self> {
        Arc::new(Self { loads: loads.to_vec(), ready: ChunkCache::default() })
    }

    /// The same nodes, one with another load.
    fn with(&self, node: usize, load: Arc<NodeLoad>) -> Arc<Self> {
        let mut loads = self.loads.clone();
        loads[node] = load;
        Arc::new(Self { loads, ready: self.ready.with_changed(node) })
    }

    /// The loads prepared for decisions under `policy` at `now`.
    fn prepared(&self, policy: &Arc<ResolvedPolicy>, now: Timestamp) -> Arc<PreparedNodes> {
        let nodes = match self.ready.get().filter(|(ready, _)| ready.are_under(policy)) {
            Some((ready, 0)) if ready.are_valid(policy, now) => return ready,
            Some((ready, changed)) => {
                ready.renewed(|node| has(changed, node), |node| &self.loads[node], now)
            }
            None => PreparedNodes::new(policy, self.loads.iter().map(|load| &**load), now),
        };
        let nodes = Arc::new(nodes);
        self.ready.set(Arc::clone(&nodes));
        nodes
    }
}

/// The loads of all known nodes, by place.
#[derive(Debug, Clone, Default)]
pub struct NodeLoads(Box<[Arc<Chunk>]>);

impl FromIterator<Arc<NodeLoad>> for NodeLoads {
    fn from_iter<I: IntoIterator<Item = Arc<NodeLoad>>>(loads: I) -> Self {
        let loads: Vec<_> = loads.into_iter().collect();
        Self(loads.chunks(CHUNK).map(Chunk::new).collect())
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
        let chunk = &mut chunks[place.index() / CHUNK];
        *chunk = chunk.with(place.index() % CHUNK, load);
        Self(chunks)
    }

    /// Drops the prepared loads of the chunk of that place, after this value was replaced.
    pub fn retire(&self, place: Place) {
        self.0[place.index() / CHUNK].ready.retire();
    }

    /// As [`NodeLoads::retire`], for all nodes.
    pub fn retire_all(&self) {
        self.0.iter().for_each(|chunk| chunk.ready.retire());
    }

    /// All loads, in the order of their places.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<NodeLoad>> {
        self.0.iter().flat_map(|chunk| chunk.loads.iter())
    }

    /// Applies `of` to the load of each place, prepared for decisions under `policy` at `now`. A chunk is prepared on first use.
    /// `unknown` for a node without a place. `of_all` may return one value for all nodes of a chunk.
    pub fn of_each<T: Copy + PartialEq>(
        &self,
        places: &[Option<Place>],
        (policy, now): (&Arc<ResolvedPolicy>, Timestamp),
        unknown: T,
        of_all: impl Fn(&PreparedNodes) -> Option<T>,
        of: impl Fn(&PreparedNodes, usize) -> T,
    ) -> Vec<T> {
        let nodes: usize = self.0.iter().map(|chunk| chunk.loads.len()).sum();
        if places.len() < nodes / 2 {
            let mut ready = vec![None; self.0.len()];
            let of = |place: &Option<Place>| {
                let Some(place) = place else { return unknown };
                let (chunk, node) = (place.index() / CHUNK, place.index() % CHUNK);
                of(ready[chunk].get_or_insert_with(|| self.0[chunk].prepared(policy, now)), node)
            };
            return places.iter().map(of).collect();
        }
        // In the order of places, unlike that of requests, memory is read sequentially.
        let mut all = Vec::with_capacity(nodes);
        let mut differ = false;
        for chunk in &self.0 {
            let ready = chunk.prepared(policy, now);
            match of_all(&ready) {
                Some(each) => {
                    differ |= each != unknown;
                    all.resize(all.len() + chunk.loads.len(), each);
                }
                None => {
                    differ = true;
                    all.extend((0..chunk.loads.len()).map(|node| of(&ready, node)));
                }
            }
        }
        match differ {
            true => places.iter().map(|at| at.map_or(unknown, |at| all[at.index()])).collect(),
            false => vec![unknown; places.len()],
        }
    }

    /// What all nodes use and what their pods request, of those of which `policy` tells both at `now`.
    pub fn cpu_use(&self, policy: &Arc<ResolvedPolicy>, now: Timestamp) -> CpuUse {
        self.0.iter().map(|chunk| chunk.prepared(policy, now).cpu_use()).sum()
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
    fn ranks_are_in_the_order_of_names() {
        let names: NodeNames = ["c", "a10", "a2", "b"].map(NodeName::from).into_iter().collect();
        let rank = |name| names.rank(names.place(name).unwrap());
        assert_eq!(["c", "a10", "a2", "b"].map(rank), [3, 0, 1, 2]);
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

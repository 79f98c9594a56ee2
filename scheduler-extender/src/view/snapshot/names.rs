//! The names of all nodes at one time, and the place of each.
//!
//! Invariant: a node has one place from its first event until it is gone, and another node can have that place only
//! afterwards. The names are one immutable value, built anew when a node joins or leaves.

use std::hash::BuildHasher;
use std::num::NonZeroU32;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use foldhash::fast::RandomState;
use placement::units::NodeName;

/// A node's number; from 1, so that a list of `Option<Place>` takes 4 bytes a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place(NonZeroU32);

impl Place {
    /// `None` for an index that no node can have.
    pub fn new(index: usize) -> Option<Self> {
        u32::try_from(index + 1).ok().and_then(NonZeroU32::new).map(Self)
    }

    /// From 0.
    pub fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// The names of all nodes.
#[derive(Debug, Default)]
pub struct NodeNames {
    /// By place; empty for a place that no node has.
    names: Vec<NodeName>,
    /// The places of the nodes, ascending.
    places: Vec<Place>,
    /// All names as JSON strings, and the end offset of each.
    json: Vec<u8>,
    ends: Vec<u32>,
    /// Hash table of places, by the hash of the JSON string. At most half of the slots are taken.
    table: Vec<Slot>,
    hasher: RandomState,
    /// The predicted successor of each node in requests: kube-scheduler lists nodes in nearly the same order each time.
    /// With the bit [`CONFIRMED`] if the last prediction was right.
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

impl NodeNames {
    /// The names by place; `None` for a place that no node has. Of nodes with one name the first is found by it. Names
    /// beyond 2^31 bytes are left out: no cluster has so many.
    pub fn new(names: impl IntoIterator<Item = Option<NodeName>>) -> Self {
        let given: Vec<Option<NodeName>> = names.into_iter().collect();
        let mut all = Self {
            table: vec![Slot::default(); (given.len() * 2).next_power_of_two()],
            ..Self::default()
        };
        for name in given {
            all.push(name);
        }
        // The next place that a node has; none after the last one.
        let mut next = vec![0; all.names.len()];
        for two in all.places.windows(2) {
            next[two[0].index()] = two[1].0.get();
        }
        all.next = next.into_iter().map(AtomicU32::new).collect();
        all
    }

    fn push(&mut self, name: Option<NodeName>) {
        let begin = self.json.len();
        let place = Place::new(self.names.len());
        if let (Some(name), Some(place)) = (&name, place) {
            self.insert(name, place);
        }
        // `insert` adds no name beyond the largest offset.
        self.ends.push(u32::try_from(self.json.len()).unwrap_or(CONFIRMED));
        let is_in = self.json.len() > begin;
        self.names.push(match name {
            Some(name) if is_in => name,
            _ => NodeName::from(""),
        });
    }

    fn insert(&mut self, name: &NodeName, place: Place) {
        let begin = self.json.len();
        // A text: serialising it into memory cannot fail.
        let _ = serde_json::to_writer(&mut self.json, name.as_str());
        let hash = self.hash(&self.json[begin..]);
        let slot = self.slot(&self.json[begin..], hash);
        match slot.filter(|slot| self.table[*slot].place.is_none()) {
            Some(slot) if self.json.len() < CONFIRMED as usize => {
                self.table[slot] = Slot { place: Some(place), tag: tag(hash) };
                self.places.push(place);
            }
            _ => self.json.truncate(begin),
        }
    }

    fn hash(&self, json: &[u8]) -> u64 {
        self.hasher.hash_one(json)
    }

    /// The slot of the name with this JSON string, or the free slot where it belongs. `None` for an empty table.
    fn slot(&self, json: &[u8], hash: u64) -> Option<usize> {
        let mask = self.table.len().checked_sub(1)?;
        let first = hash as usize & mask;
        (first..=first + mask).map(|slot| slot & mask).find(|slot| match self.table[*slot] {
            Slot { place: None, .. } => true,
            Slot { place: Some(place), tag: of } => of == tag(hash) && self.json(place) == json,
        })
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Bytes that it takes, without the names themselves, which are shared.
    pub fn bytes(&self) -> usize {
        // A place, its end, follower and rank.
        let each = size_of::<NodeName>() + 4 * size_of::<u32>();
        self.names.len() * each + self.json.len() + size_of_val(&*self.table)
    }

    /// The places of all nodes, ascending.
    pub fn places(&self) -> &[Place] {
        &self.places
    }

    /// All names, in the order of their places.
    pub fn iter(&self) -> impl Iterator<Item = &NodeName> {
        self.places.iter().map(|place| self.name(*place))
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
        let mut order = self.places.clone();
        order.sort_unstable_by_key(|place| self.name(*place));
        let mut ranks = vec![0; self.names.len()].into_boxed_slice();
        // There are fewer names than 2^31.
        for (rank, place) in (0..).zip(order) {
            ranks[place.index()] = rank;
        }
        ranks
    }

    /// The name as a JSON string, quotes included.
    pub fn json(&self, place: Place) -> &[u8] {
        let begin = place.index().checked_sub(1).map_or(0, |before| self.ends[before] as usize);
        &self.json[begin..self.ends[place.index()] as usize]
    }

    /// The first node; `None` where there is none.
    pub fn first(&self) -> Option<Place> {
        self.places.first().copied()
    }

    /// The predicted successor of this node in requests.
    pub fn next(&self, place: Place) -> Option<Place> {
        let next = self.next[place.index()].load(Ordering::Relaxed) & !CONFIRMED;
        NonZeroU32::new(next).map(Place)
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

    /// Records that `next` came after `place` in a request, against the prediction. kube-scheduler's workers list nodes
    /// in turns, so a confirmed prediction is replaced only after it fails twice.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn named(names: &[&str]) -> NodeNames {
        NodeNames::new(names.iter().map(|name| Some(NodeName::from(*name))))
    }

    fn numbered(count: usize) -> NodeNames {
        NodeNames::new((0..count).map(|number| Some(NodeName::from(format!("n{number}")))))
    }

    #[test]
    fn each_name_has_a_place_and_its_json() {
        let names = named(&["a", "b\"", "a", "c"]);
        let found =
            |name| names.place(name).map(|place| (names.name(place).as_str(), names.json(place)));
        assert_eq!(found("a"), Some(("a", &b"\"a\""[..])));
        assert_eq!(found("b\""), Some(("b\"", &br#""b\"""#[..])));
        assert_eq!((found("c"), found("d")), (Some(("c", &b"\"c\""[..])), None));
        assert_eq!(names.len(), 3);
    }

    #[test]
    fn a_place_that_no_node_has_changes_no_other() {
        let names =
            NodeNames::new(["a", "", "c"].map(|name| (!name.is_empty()).then(|| name.into())));
        let place = |name| names.place(name).map(Place::index);
        assert_eq!((place("a"), place("c"), place(""), names.len()), (Some(0), Some(2), None, 2));
        assert_eq!(names.iter().map(NodeName::as_str).collect::<Vec<_>>(), ["a", "c"]);
        let [first, last] = ["a", "c"].map(|name| names.place(name).unwrap());
        assert_eq!(
            (names.first(), names.next(first), names.next(last)),
            (Some(first), Some(last), None)
        );
        assert_eq!((names.json(last), names.rank(last)), (&b"\"c\""[..], 1));
    }

    #[test]
    fn a_name_that_hashes_to_a_taken_slot_is_found() {
        let names = numbered(1_000);
        let found = |number: usize| names.place(&format!("n{number}")).map(Place::index);
        assert!((0..1_000).all(|number| found(number) == Some(number)));
        assert!((1_000..3_000).all(|number| found(number).is_none()));
        assert_eq!(NodeNames::default().place("n0"), None);
    }

    #[test]
    fn ranks_are_in_the_order_of_names() {
        let names = named(&["c", "a10", "a2", "b"]);
        let rank = |name| names.rank(names.place(name).unwrap());
        assert_eq!(["c", "a10", "a2", "b"].map(rank), [3, 0, 1, 2]);
    }

    #[test]
    fn a_guess_that_was_right_stays_until_it_fails_twice() {
        let names = numbered(3);
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
        let names = numbered(3);
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
}

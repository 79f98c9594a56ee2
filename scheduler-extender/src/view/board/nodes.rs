//! The names and loads of all known nodes at one time, as immutable values.
//!
//! Invariant: a [`Place`] is good for every [`NodeLoads`] of the same [`NodeNames`]. A change of one node copies its chunk and the
//! list of chunks, and shares all else with the value before: what was known at a decision is kept by keeping one pointer.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use placement::load::NodeLoad;
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
    places: HashMap<NodeName, Place, foldhash::fast::RandomState>,
    /// All names as JSON texts, and where each ends.
    json: Vec<u8>,
    ends: Vec<usize>,
    /// Which node followed each in a request, a guess: kube-scheduler names nodes in nearly the same order each time.
    next: Vec<AtomicU32>,
}

impl FromIterator<NodeName> for NodeNames {
    /// A name that comes twice has the place of the first.
    fn from_iter<I: IntoIterator<Item = NodeName>>(names: I) -> Self {
        let mut all = Self::default();
        names.into_iter().for_each(|name| all.push(name));
        all.next = (1..=all.names.len()).map(|next| AtomicU32::new(next as u32)).collect();
        all
    }
}

impl NodeNames {
    fn push(&mut self, name: NodeName) {
        let place = Place(u32::try_from(self.names.len()).unwrap_or(u32::MAX));
        if self.places.contains_key(&name) || place.0 == u32::MAX {
            return;
        }
        // A text: serialising it into memory cannot fail.
        let _ = serde_json::to_writer(&mut self.json, name.as_str());
        self.ends.push(self.json.len());
        self.places.insert(name.clone(), place);
        self.names.push(name);
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
        self.places.get(name).copied()
    }

    /// The name of the node at a place.
    pub fn name(&self, place: Place) -> &NodeName {
        &self.names[place.index()]
    }

    /// The name as a JSON text, quotes included.
    pub fn json(&self, place: Place) -> &[u8] {
        let begin = place.index().checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.json[begin..self.ends[place.index()]]
    }

    /// The first node; `None` where there is none.
    pub fn first(&self) -> Option<Place> {
        (!self.is_empty()).then_some(Place(0))
    }

    /// The node that followed this one in a request, if the guess is right.
    pub fn next(&self, place: Place) -> Option<Place> {
        let next = self.next[place.index()].load(Ordering::Relaxed);
        ((next as usize) < self.len()).then_some(Place(next))
    }

    /// Notes that `next` followed `place` in a request.
    pub fn set_next(&self, place: Place, next: Place) {
        self.next[place.index()].store(next.0, Ordering::Relaxed);
    }
}

/// The loads of all known nodes, by place.
#[derive(Debug, Clone, Default)]
pub struct NodeLoads(Box<[Arc<[Arc<NodeLoad>]>]>);

impl FromIterator<Arc<NodeLoad>> for NodeLoads {
    fn from_iter<I: IntoIterator<Item = Arc<NodeLoad>>>(loads: I) -> Self {
        let loads: Vec<_> = loads.into_iter().collect();
        Self(loads.chunks(CHUNK).map(Arc::from).collect())
    }
}

impl NodeLoads {
    /// The load of the node at a place.
    pub fn get(&self, place: Place) -> &Arc<NodeLoad> {
        &self.0[place.index() / CHUNK][place.index() % CHUNK]
    }

    /// These loads with another one at that place.
    #[must_use]
    pub fn with(&self, place: Place, load: Arc<NodeLoad>) -> Self {
        let mut chunks = self.0.clone();
        Arc::make_mut(&mut chunks[place.index() / CHUNK])[place.index() % CHUNK] = load;
        Self(chunks)
    }

    /// All loads, in the order of their places.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<NodeLoad>> {
        self.0.iter().flat_map(|chunk| chunk.iter())
    }

    /// Bytes of the list of chunks.
    pub fn list_bytes(&self) -> usize {
        size_of_val(&*self.0)
    }

    /// The chunks that no other value holds.
    pub fn unshared(&self) -> impl Iterator<Item = &[Arc<NodeLoad>]> {
        self.0.iter().filter(|chunk| Arc::strong_count(chunk) == 1).map(|chunk| &**chunk)
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
    fn the_last_node_is_followed_by_none_until_a_request_shows_one() {
        let names = names(2);
        let [first, last] = ["n0", "n1"].map(|name| names.place(name).unwrap());
        assert_eq!((names.next(first), names.next(last)), (Some(last), None));
        names.set_next(last, first);
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

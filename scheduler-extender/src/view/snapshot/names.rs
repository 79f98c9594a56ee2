//! The names of all nodes at one time, and the place of each.
//!
//! Invariant: a node has one place from its first event until it is gone, and another node can have that place only
//! afterwards. The names are one immutable value, built anew when a node joins or leaves.

use std::hash::BuildHasher;
use std::num::NonZeroU32;
use std::sync::OnceLock;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
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
    /// All names as JSON strings by place, as requests have them, and the end offset of each. One after the other:
    /// requests name nodes in nearly this order.
    json: Vec<u8>,
    ends: Vec<u32>,
    /// The places by the hash of the JSON string.
    by_json: HashTable<Place>,
    hasher: RandomState,
    /// The rank of each name in the order of names, computed on first use.
    ranks: OnceLock<Box<[u32]>>,
}

impl NodeNames {
    /// The names by place; `None` for a place that no node has. Of nodes with one name the first is found by it.
    pub fn new(names: impl IntoIterator<Item = Option<NodeName>>) -> Self {
        let none = NodeName::from("");
        let mut all = Self::default();
        for name in names {
            let place = Place::new(all.names.len());
            all.names.push(none.clone());
            if let (Some(name), Some(place)) = (name, place) {
                all.insert(name, place);
            }
            // `insert` adds no name beyond the largest offset.
            all.ends.push(u32::try_from(all.json.len()).unwrap_or(u32::MAX));
        }
        all
    }

    /// Gives a node the last place, unless its name has one.
    fn insert(&mut self, name: NodeName, place: Place) {
        let json = json(name.as_str());
        let is_in = u32::try_from(self.json.len() + json.len()).is_ok();
        if !is_in || self.place_of_json(&json).is_some() {
            return;
        }
        self.json.extend_from_slice(&json);
        let Self { json: all, ends, by_json, hasher, .. } = self;
        let hash_of = |place: &Place| hasher.hash_one(json_at(all, ends, *place));
        by_json.insert_unique(hasher.hash_one(&*json), place, hash_of);
        self.places.push(place);
        self.names[place.index()] = name;
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
        // A name's place, end and rank, and its entry with a byte of the table.
        let each = size_of::<NodeName>() + 3 * size_of::<u32>();
        let entry = size_of::<Place>() + 1;
        self.names.len() * each + self.by_json.capacity() * entry + self.json.len()
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
        self.place_of_json(&json(name))
    }

    /// As [`NodeNames::place`], by the name as a JSON string with the necessary escapes only.
    pub fn place_of_json(&self, json: &[u8]) -> Option<Place> {
        let is_it = |place: &Place| json_at(&self.json, &self.ends, *place) == json;
        self.by_json.find(self.hasher.hash_one(json), is_it).copied()
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
        // A place has 32 bits.
        for (rank, place) in (0..).zip(order) {
            ranks[place.index()] = rank;
        }
        ranks
    }
}

/// The name of a place as a JSON string. The last place has no end until it is filled.
fn json_at<'j>(all: &'j [u8], ends: &[u32], place: Place) -> &'j [u8] {
    let begin = place.index().checked_sub(1).map_or(0, |before| ends[before] as usize);
    let end = ends.get(place.index()).map_or(all.len(), |end| *end as usize);
    &all[begin..end]
}

fn json(name: &str) -> Vec<u8> {
    // A text: serialising it into memory cannot fail.
    serde_json::to_vec(name).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(names: &[&str]) -> NodeNames {
        NodeNames::new(names.iter().map(|name| Some(NodeName::from(*name))))
    }

    #[test]
    fn each_name_has_a_place_and_is_found_by_its_json() {
        let names = named(&["a", "b\"", "a", "c"]);
        let place = |name| names.place(name).map(Place::index);
        assert_eq!(["a", "b\"", "c", "d"].map(place), [Some(0), Some(1), Some(3), None]);
        assert_eq!(names.name(names.place("b\"").unwrap()).as_str(), "b\"");
        let by_json = |json: &str| names.place_of_json(json.as_bytes()).map(Place::index);
        let found = [r#""a""#, r#""b\"""#, "a", r#""b""#, r#""\u0061""#].map(by_json);
        assert_eq!(found, [Some(0), Some(1), None, None, None]);
        assert_eq!(names.len(), 3);
    }

    #[test]
    fn a_place_that_no_node_has_changes_no_other() {
        let names =
            NodeNames::new(["a", "", "c"].map(|name| (!name.is_empty()).then(|| name.into())));
        let place = |name| names.place(name).map(Place::index);
        assert_eq!((place("a"), place("c"), place(""), names.len()), (Some(0), Some(2), None, 2));
        assert_eq!(names.iter().map(NodeName::as_str).collect::<Vec<_>>(), ["a", "c"]);
        assert_eq!(names.rank(names.place("c").unwrap()), 1);
    }

    #[test]
    fn ranks_are_in_the_order_of_names() {
        let names = named(&["c", "a10", "a2", "b"]);
        let rank = |name| names.rank(names.place(name).unwrap());
        assert_eq!(["c", "a10", "a2", "b"].map(rank), [3, 0, 1, 2]);
    }
}

//! Bounded tables in which each namespace has a share, so that what one namespace's pods fill displaces no others'.
//!
//! Invariant: while a table is full, a namespace that has an equal part of it or more displaces its own entries; one
//! that has less displaces those of the namespace with the most.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
use std::ops::Bound;
use std::sync::Arc;

/// The namespace that loses an entry of a full table, with room for `most` entries, to a new one of `namespace`.
/// `counts` are the entries of each namespace that has some. `None` for a table without entries.
pub fn gives_way<'n>(
    most: usize,
    counts: impl Iterator<Item = (&'n Arc<str>, usize)> + Clone,
    namespace: &str,
) -> Option<&'n Arc<str>> {
    let share = most / counts.clone().count().max(1);
    let own = counts.clone().find(|(name, count)| &***name == namespace && *count >= share);
    let largest = || counts.max_by_key(|(_, count)| *count);
    own.or_else(largest).map(|(name, _)| name)
}

/// A table with room for a number of entries, of which each namespace has a share.
///
/// # Examples
///
/// ```
/// use placement::shares::SharedTable;
///
/// let mut table = SharedTable::new(4);
/// for pod in ["a0", "a1", "a2", "a3"] {
///     assert_eq!(table.insert("large", pod, ()), None);
/// }
/// assert_eq!(table.insert("small", "b0", ()), Some(("a0", ())));
/// // It has more than half of the room: its own oldest entry goes.
/// assert_eq!(table.insert("large", "a4", ()), Some(("a1", ())));
/// assert!(table.get(&"b0").is_some());
/// ```
#[derive(Debug, Clone)]
pub struct SharedTable<K, V> {
    most: usize,
    entries: HashMap<K, TableEntry<V>>,
    /// The keys by the numbers of their entries, the oldest first.
    order: BTreeMap<u64, K>,
    /// The numbers of each namespace's entries.
    namespaces: BTreeMap<Arc<str>, BTreeSet<u64>>,
    next: u64,
    /// The namespace that had the last turn.
    turn: Arc<str>,
}

#[derive(Debug, Clone)]
struct TableEntry<V> {
    namespace: Arc<str>,
    number: u64,
    value: V,
}

impl<K: Clone + Eq + Hash, V> SharedTable<K, V> {
    /// An empty table with room for `most` entries.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self {
            most,
            entries: HashMap::new(),
            order: BTreeMap::new(),
            namespaces: BTreeMap::new(),
            next: 0,
            turn: Arc::from(""),
        }
    }

    /// The number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The value of a key.
    pub fn get(&self, key: &K) -> Option<&V> {
        self.entries.get(key).map(|entry| &entry.value)
    }

    /// The value of a key.
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.entries.get_mut(key).map(|entry| &mut entry.value)
    }

    /// The namespace that loses an entry when a new key of `namespace` is added; `None` while there is room.
    #[must_use]
    pub fn gives_way_to(&self, namespace: &str) -> Option<&Arc<str>> {
        if self.len() < self.most { None } else { self.loses_to(namespace, self.most) }
    }

    fn loses_to(&self, namespace: &str, most: usize) -> Option<&Arc<str>> {
        gives_way(most, self.namespaces.iter().map(|(name, all)| (name, all.len())), namespace)
    }

    /// Adds an entry, or replaces that of the key, as the newest. Returns the replaced or displaced entry: the oldest
    /// of the namespace that gives way.
    pub fn insert(&mut self, namespace: &str, key: K, value: V) -> Option<(K, V)> {
        let mut lost = self.remove(&key).map(|value| (key.clone(), value));
        if let Some(name) = self.gives_way_to(namespace).cloned() {
            lost = self.remove_oldest_of(&name);
        }
        let namespace = match self.namespaces.get_key_value(namespace) {
            Some((name, _)) => Arc::clone(name),
            None => Arc::from(namespace),
        };
        let number = self.next;
        self.next += 1;
        self.order.insert(number, key.clone());
        self.namespaces.entry(Arc::clone(&namespace)).or_default().insert(number);
        self.entries.insert(key, TableEntry { namespace, number, value });
        lost
    }

    /// Removes the entry of a key.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        let TableEntry { namespace, number, value } = self.entries.remove(key)?;
        self.order.remove(&number);
        if let Some(numbers) = self.namespaces.get_mut(&namespace) {
            numbers.remove(&number);
            if numbers.is_empty() {
                self.namespaces.remove(&namespace);
            }
        }
        Some(value)
    }

    /// Removes an entry although there may be room, as if one of `namespace` had been added to a table that is full.
    pub fn make_room_for(&mut self, namespace: &str) -> Option<(K, V)> {
        let name = self.loses_to(namespace, self.len()).cloned()?;
        self.remove_oldest_of(&name)
    }

    fn remove_oldest_of(&mut self, namespace: &str) -> Option<(K, V)> {
        let oldest = self.namespaces.get(namespace)?.first()?;
        let key = self.order.get(oldest)?.clone();
        let value = self.remove(&key)?;
        Some((key, value))
    }

    /// Removes and returns the oldest entry of the namespace whose turn it is: each has one after the other.
    pub fn take_in_turn(&mut self) -> Option<(K, V)> {
        let name = self.in_turn().next().cloned()?;
        self.had_turn(&name);
        self.remove_oldest_of(&name)
    }

    /// The namespaces with entries, that whose turn it is first.
    pub fn in_turn(&self) -> impl Iterator<Item = &Arc<str>> {
        let after = (Bound::Excluded(Arc::clone(&self.turn)), Bound::Unbounded);
        let until = (Bound::Unbounded, Bound::Included(Arc::clone(&self.turn)));
        let ranges = [self.namespaces.range(after), self.namespaces.range(until)];
        ranges.into_iter().flatten().map(|(name, _)| name)
    }

    /// The namespace has had its turn: the next is that of the one after it.
    pub fn had_turn(&mut self, namespace: &Arc<str>) {
        self.turn = Arc::clone(namespace);
    }

    /// The entries of a namespace, the oldest first.
    pub fn of(&self, namespace: &str) -> impl DoubleEndedIterator<Item = (&K, &V)> {
        let numbers = self.namespaces.get(namespace);
        numbers.into_iter().flatten().filter_map(|number| self.entry(self.order.get(number)?))
    }

    /// All entries, the oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&K, &V)> {
        self.order.values().filter_map(|key| self.entry(key))
    }

    fn entry<'t>(&'t self, key: &'t K) -> Option<(&'t K, &'t V)> {
        Some((key, self.get(key)?))
    }

    /// Removes the entries for which `keep` returns false.
    pub fn retain(&mut self, mut keep: impl FnMut(&K, &V) -> bool) {
        let drop: Vec<K> = self
            .iter()
            .filter(|(key, value)| !keep(key, value))
            .map(|(key, _)| key.clone())
            .collect();
        for key in &drop {
            self.remove(key);
        }
    }

    /// Removes and returns all entries, the oldest first.
    pub fn take_all(&mut self) -> Vec<(K, V)> {
        let keys: Vec<K> = self.order.values().cloned().collect();
        keys.into_iter().filter_map(|key| self.remove(&key).map(|value| (key, value))).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_namespace_has_one_turn_after_the_other() {
        let mut table = SharedTable::new(9);
        for (namespace, key) in [("b", 0), ("b", 1), ("b", 2), ("a", 3), ("c", 4)] {
            table.insert(namespace, key, ());
        }
        let mut taken = Vec::new();
        while let Some((key, ())) = table.take_in_turn() {
            taken.push(key);
            if key == 4 {
                table.insert("a", 5, ());
            }
        }
        assert_eq!(taken, [3, 0, 4, 5, 1, 2]);
    }

    #[test]
    fn a_key_that_is_added_again_is_the_newest_and_displaces_none() {
        let mut table = SharedTable::new(2);
        table.insert("a", 0, 'x');
        table.insert("a", 1, 'x');
        assert_eq!(table.insert("a", 0, 'y'), Some((0, 'x')));
        assert_eq!(table.iter().collect::<Vec<_>>(), [(&1, &'x'), (&0, &'y')]);
        assert_eq!(table.take_all(), [(1, 'x'), (0, 'y')]);
        assert!(table.is_empty() && table.namespaces.is_empty() && table.order.is_empty());
    }

    proptest! {
        #[test]
        fn no_namespace_loses_what_is_within_its_share(
            steps in proptest::collection::vec((0_usize..4, 0_u32..200), 0..400),
            most in 1_usize..40,
        ) {
            let names = ["a", "b", "c", "d"];
            let mut table = SharedTable::new(most);
            for (at, key) in steps {
                let (namespace, key) = (names[at], (at, key));
                let before: Vec<usize> = names.map(|name| table.of(name).count()).to_vec();
                let lost = table.insert(namespace, key, ());
                prop_assert!(table.len() <= most && table.get(&key).is_some());
                prop_assert_eq!(names.map(|name| table.of(name).count()).iter().sum::<usize>(), table.len());
                let Some(((of, _), ())) = lost.filter(|(lost, ())| *lost != key) else { continue };
                let present = before.iter().filter(|count| **count > 0).count();
                prop_assert!(before[of] >= most / present.max(1));
                prop_assert!(of == at || before[of] == *before.iter().max().unwrap());
            }
        }
    }
}

//! What is known of each card over time: readings and errors in, [`Cards`] out.
//!
//! Invariants: a card once listed stays listed, healthy or not, since the kubelet crashes when an id
//! disappears while its Allocate is in flight (devicemanager/manager.go:923 in v1.36.2). A card whose
//! memory is unknown is not listed.

use std::collections::BTreeMap;

use nvml::XidEvent;
use placement::units::{CardId, MiB, Units};

use super::{Card, Cards, ids};

/// Good readings in a row after which a card that stopped answering counts as healthy again.
const GOOD_READINGS: u32 = 3;

/// The cards that were ever seen, and the health of each.
#[derive(Debug)]
pub struct Inventory {
    unit: MiB,
    known: BTreeMap<CardId, Known>,
}

#[derive(Debug)]
struct Known {
    card: nvml::Card,
    prefix: String,
    health: Health,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Health {
    Good,
    /// It stopped answering, and has given this many good readings since.
    Silent(u32),
    /// It raised a critical error. It stays so until the plugin starts anew.
    Failed,
}

impl Inventory {
    /// No cards yet; `unit` is the memory that one unit stands for.
    pub fn new(unit: MiB) -> Self {
        Self { unit, known: BTreeMap::new() }
    }

    /// Takes in the cards that the driver enumerates. A known card that is not among them has
    /// stopped answering.
    pub fn enumerated(&mut self, cards: Vec<nvml::Card>) {
        for (uuid, known) in &mut self.known {
            if !cards.iter().any(|card| card.uuid == uuid.as_str()) {
                known.health = known.health.reading(false);
            }
        }
        let (old, new): (Vec<_>, Vec<_>) =
            cards.into_iter().partition(|card| self.known.contains_key(card.uuid.as_str()));
        old.into_iter().for_each(|card| self.update(card));
        self.add(new);
    }

    fn update(&mut self, card: nvml::Card) {
        if let Some(known) = self.known.get_mut(card.uuid.as_str()) {
            // A card that gives no size now keeps the one that it had.
            let memory_mib = card.memory_mib.or(known.card.memory_mib);
            known.card = nvml::Card { memory_mib, ..card };
        }
    }

    /// Prefixes that were given out stay as they are; only new cards get theirs here.
    fn add(&mut self, cards: Vec<nvml::Card>) {
        let uuids: Vec<CardId> =
            cards.iter().map(|card| CardId::from(card.uuid.as_str())).collect();
        let all: Vec<CardId> = self.known.keys().cloned().chain(uuids.iter().cloned()).collect();
        let prefixes = ids::prefixes(&all).split_off(self.known.len());
        for ((uuid, card), prefix) in uuids.into_iter().zip(cards).zip(prefixes) {
            self.known.insert(uuid, Known { card, prefix, health: Health::Good });
        }
    }

    /// Takes in whether a card answered a poll.
    pub fn answered(&mut self, uuid: &CardId, answered: bool) {
        if let Some(known) = self.known.get_mut(uuid) {
            known.health = known.health.reading(answered);
        }
    }

    /// Takes in an error. One that names no card counts for every card.
    pub fn raised(&mut self, event: &XidEvent) {
        if !event.is_fatal() {
            return;
        }
        for (uuid, known) in &mut self.known {
            if event.uuid.as_deref().is_none_or(|named| named == uuid.as_str()) {
                known.health = Health::Failed;
            }
        }
    }

    /// The cards to list now.
    pub fn cards(&self) -> Cards {
        let cards = self.known.iter().filter_map(|(uuid, known)| known.card(uuid, self.unit));
        Cards::new(cards.collect())
    }
}

impl Known {
    fn card(&self, uuid: &CardId, unit: MiB) -> Option<Card> {
        let memory = self.card.memory_mib?;
        let units = u32::try_from(memory.checked_div(unit.0)?).unwrap_or(u32::MAX);
        Some(Card {
            uuid: uuid.clone(),
            index: self.card.index,
            model: self.card.model.clone().unwrap_or_default(),
            memory: MiB(memory),
            units: Units(units),
            numa_node: self.card.numa_node,
            healthy: self.health == Health::Good,
            prefix: self.prefix.clone(),
        })
    }
}

impl Health {
    fn reading(self, answered: bool) -> Self {
        match (self, answered) {
            (Self::Failed, _) => Self::Failed,
            (_, false) => Self::Silent(0),
            (Self::Good, true) => Self::Good,
            (Self::Silent(good), true) if good + 1 >= GOOD_READINGS => Self::Good,
            (Self::Silent(good), true) => Self::Silent(good + 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probed(uuid: &str, index: u32, memory_mib: Option<u64>) -> nvml::Card {
        nvml::Card { uuid: uuid.to_owned(), index, memory_mib, ..nvml::Card::default() }
    }

    fn inventory(cards: &[(&str, u64)]) -> Inventory {
        let mut inventory = Inventory::new(MiB(1024));
        let probe = |(index, (uuid, mib)): (u32, &(&str, u64))| probed(uuid, index, Some(*mib));
        inventory.enumerated((0..).zip(cards).map(probe).collect());
        inventory
    }

    fn healthy(inventory: &Inventory) -> Vec<bool> {
        inventory.cards().iter().map(|card| card.healthy).collect()
    }

    const A: &str = "GPU-a1b2c3d4-1";
    const B: &str = "GPU-b1b2c3d4-1";

    #[test]
    fn a_card_has_whole_units_only() {
        assert_eq!(inventory(&[(A, 23028)]).cards().iter().next().unwrap().units, Units(22));
    }

    #[test]
    fn a_card_of_unknown_size_is_not_listed_until_it_is_known() {
        let mut inventory = Inventory::new(MiB(1024));
        inventory.enumerated(vec![probed(A, 0, None)]);
        assert!(inventory.cards().is_empty());
        inventory.enumerated(vec![probed(A, 0, Some(4096))]);
        assert_eq!(inventory.cards().iter().next().unwrap().units, Units(4));
        inventory.enumerated(vec![probed(A, 0, None)]);
        assert_eq!(inventory.cards().iter().next().unwrap().units, Units(4), "and keeps its size");
    }

    #[test]
    fn a_card_that_vanishes_stays_listed_as_unhealthy() {
        let mut inventory = inventory(&[(A, 1024), (B, 1024)]);
        inventory.enumerated(vec![probed(B, 1, Some(1024))]);
        assert_eq!(healthy(&inventory), [false, true]);
    }

    #[test]
    fn a_silent_card_is_trusted_again_after_three_good_readings() {
        let mut inventory = inventory(&[(A, 1024)]);
        inventory.answered(&A.into(), false);
        for expected in [false, false, true] {
            inventory.answered(&A.into(), true);
            assert_eq!(healthy(&inventory), [expected]);
        }
    }

    #[test]
    fn a_critical_error_condemns_its_card_and_one_without_a_name_every_card() {
        let mut inventory = inventory(&[(A, 1024), (B, 1024)]);
        let event =
            |uuid: Option<&str>, xid| XidEvent { uuid: uuid.map(str::to_owned), xid: Some(xid) };
        inventory.raised(&event(Some(A), 13));
        assert_eq!(healthy(&inventory), [true, true], "an application's own error");
        inventory.raised(&event(Some(A), 79));
        inventory.answered(&A.into(), true);
        assert_eq!(healthy(&inventory), [false, true]);
        inventory.raised(&event(None, 79));
        assert_eq!(healthy(&inventory), [false, false]);
    }

    #[test]
    fn a_card_that_comes_later_changes_no_id_that_was_listed() {
        let mut inventory = inventory(&[("GPU-a1b2c3d4-01", 1024)]);
        inventory.enumerated(vec![
            probed("GPU-a1b2c3d4-01", 1, Some(1024)),
            probed("GPU-a1b2c3d4-02", 0, Some(1024)),
        ]);
        let cards = inventory.cards();
        let prefixes: Vec<&str> = cards.iter().map(|card| card.prefix.as_str()).collect();
        assert_eq!(prefixes, ["a1b2c3d402", "a1b2c3d4"]);
        let first = cards.of(&"a1b2c3d4-0".parse().unwrap()).unwrap();
        assert_eq!(first.uuid.as_str(), "GPU-a1b2c3d4-01");
    }
}

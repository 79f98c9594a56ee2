//! The cards of this node: their units, device ids and health.
//!
//! [`ids`] names units, [`sizing`] counts the units of a card, [`inventory`] turns NVML's answers into cards, [`watch`]
//! polls NVML, [`cordoned`] follows which cards operators take out of use, [`search`] looks for a first card,
//! [`mod@file`] keeps the cards for a later process, [`closed`] are the cards that take no new pods, [`offered`] those
//! that a DRA driver offers as well, [`compute_mode`] those whose mode keeps processes from them, and [`context`] those
//! on which CUDA opens no context.

pub mod closed;
pub(crate) mod compute_mode;
pub(crate) mod context;
pub(crate) mod cordoned;
mod errors;
pub(crate) mod file;
pub mod ids;
pub mod inventory;
pub mod offered;
pub(crate) mod search;
pub mod sizing;
pub(crate) mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nvml::{ComputeMode, Probe, Recovery, Xid};
use placement::units::{CardId, MiB, Units};

use ids::{DeviceId, Ids};

/// Opens NVML. May block.
pub(crate) type Open = Arc<dyn Fn() -> Result<Arc<dyn Probe>, nvml::Error> + Send + Sync>;

/// Why a card takes no pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unhealthy {
    /// It does not answer, or has not yet answered three times in a row since.
    #[error("it does not answer")]
    Lost,
    /// The driver requires a recovery action before the card is used again.
    #[error("it needs {0}")]
    Recovery(Recovery),
    /// It raised a critical error that no application causes.
    #[error("it raised {0}")]
    Failed(Xid),
    /// Its memory belongs to MIG instances, which cannot be divided into units.
    #[error("MIG mode is on")]
    Mig,
    /// The Node's annotation `cordoned-gpus` lists its UUID.
    #[error("it is cordoned")]
    Cordoned,
    /// The ConfigMap `unhealthy-gpu-<node>` lists its index.
    #[error("the ConfigMap unhealthy-gpu-<node> lists its index")]
    Listed,
}

/// One card, as reported to the kubelet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Card {
    /// NVML's UUID, `GPU-…`.
    pub uuid: CardId,
    /// NVML's index since the last boot.
    pub index: u32,
    /// N of its device node `/dev/nvidiaN`; `None` if unknown.
    pub minor: Option<u32>,
    /// Product name, empty where NVML has none.
    pub model: String,
    /// Memory that programs can have: the total less what the driver keeps for itself.
    pub memory: MiB,
    /// Units that pods can request: whole units of `memory` less the reserve.
    pub units: Units,
    /// The NUMA node that the card is attached to; `None` if unknown.
    pub numa_node: Option<u32>,
    /// Major number of its CUDA compute capability; `None` if unknown.
    pub cuda_major: Option<u32>,
    /// How many processes may use it for computing; `None` if unknown.
    pub compute_mode: Option<ComputeMode>,
    /// Why it takes no pods now; `None` for a healthy card.
    pub unhealthy: Option<Unhealthy>,
    /// The part of its device ids before the slot.
    pub prefix: String,
}

impl Card {
    /// Whether it takes pods now.
    pub fn is_healthy(&self) -> bool {
        self.unhealthy.is_none()
    }

    /// The device ids of its units, slot 0 first.
    pub fn ids(&self) -> impl Iterator<Item = DeviceId> {
        (0..self.units.0).map(|slot| DeviceId::new(&self.prefix, slot))
    }
}

/// All cards of the node at one moment, by index.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cards {
    cards: Vec<Card>,
    driver: Option<String>,
}

impl Cards {
    /// These cards, sorted by index. The driver numbers its cards anew when it is loaded, so a lost card may have the
    /// index of a present one. The lost card then gets the lowest free index, so that an index names one card.
    pub fn new(mut cards: Vec<Card>) -> Self {
        cards.sort_by_key(|card| {
            let is_lost = card.unhealthy == Some(Unhealthy::Lost);
            (is_lost, !card.is_healthy(), card.index)
        });
        let all: BTreeSet<u32> = cards.iter().map(|card| card.index).collect();
        let mut free = (0..).filter(|index| !all.contains(index));
        let mut taken = BTreeSet::new();
        for card in &mut cards {
            if !taken.insert(card.index) {
                card.index = free.next().unwrap_or(u32::MAX);
            }
        }
        cards.sort_by_key(|card| card.index);
        Self { cards, driver: None }
    }

    /// The same cards under this version of the driver.
    pub fn with_driver(self, driver: Option<String>) -> Self {
        Self { driver, ..self }
    }

    /// The driver's version, such as `580.95.05`; `None` if NVML does not report it.
    pub fn driver(&self) -> Option<&str> {
        self.driver.as_deref()
    }

    /// The cards, by index.
    pub fn iter(&self) -> impl Iterator<Item = &Card> {
        self.cards.iter()
    }

    /// The healthy cards, by index.
    pub fn healthy(&self) -> impl Iterator<Item = &Card> {
        self.iter().filter(|card| card.is_healthy())
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.cards.is_empty()
    }

    /// The card of that UUID.
    pub fn get(&self, uuid: &CardId) -> Option<&Card> {
        self.cards.iter().find(|card| card.uuid == *uuid)
    }

    /// The card that currently offers a device id; `None` if no card does, or the prefix is ambiguous.
    pub fn offering(&self, id: &DeviceId) -> Option<&Card> {
        self.named_by(id).filter(|card| card.units.0 > id.slot())
    }

    /// The card that a device id names, whatever its slot. For ids that containers hold: the card may have had more
    /// units when the id was granted.
    pub fn named_by(&self, id: &DeviceId) -> Option<&Card> {
        let exact = self.cards.iter().find(|card| card.prefix == id.prefix());
        exact.or_else(|| self.by_digits(id.prefix()))
    }

    /// The kubelet may hold ids that were granted when other cards were present, and that have a prefix of
    /// another length.
    fn by_digits(&self, prefix: &str) -> Option<&Card> {
        let mut named =
            self.cards.iter().filter(|card| ids::digits(&card.uuid).starts_with(prefix));
        let card = named.next()?;
        if named.next().is_none() { Some(card) } else { None }
    }
}

/// The UUIDs with commas between them.
pub fn joined<'c>(cards: impl IntoIterator<Item = &'c CardId>) -> String {
    cards.into_iter().map(CardId::as_str).collect::<Vec<_>>().join(",")
}

/// The number of ids on each card. Ids that the card no longer offers count as well.
pub fn units_of(ids: &Ids, cards: &Cards) -> BTreeMap<CardId, Units> {
    let mut units: BTreeMap<CardId, Units> = BTreeMap::new();
    for card in ids.iter().filter_map(|id| cards.named_by(id)) {
        let held = units.entry(card.uuid.clone()).or_default();
        *held = held.saturating_add(Units(1));
    }
    units
}

#[cfg(test)]
mod tests {
    use placement::units::Units;

    use super::{Card, Cards, Unhealthy, units_of};
    use crate::fixtures::{A, B, cards, ids, with_unhealthy};

    #[test]
    fn an_id_is_on_one_card_or_on_none() {
        let cards = cards(&[("GPU-a1b2c3d4-01", 2), ("GPU-a1b2c3d4-02", 2)]);
        for (id, uuid, why) in [
            ("a1b2c3d401-1", Some("GPU-a1b2c3d4-01"), "its card"),
            ("a1b2c3d401-2", None, "past the card's last unit"),
            ("a1b2c3d4-0", None, "could be either"),
            ("ffffffff-0", None, "no card"),
        ] {
            let card = cards.offering(&id.parse().unwrap());
            assert_eq!(card.map(|card| card.uuid.as_str()), uuid, "{why}");
        }
    }

    #[test]
    fn no_two_cards_share_an_index_after_the_driver_counted_without_a_lost_one() {
        let three = cards(&[(A, 4), (B, 4), ("GPU-cccccccc-1111", 4)]);
        let lost = with_unhealthy(&three, A, Unhealthy::Lost);
        let counted = lost.iter().map(|card| {
            let index = card.index.saturating_sub(1);
            Card { index, ..card.clone() }
        });
        let cards = Cards::new(counted.collect());
        let indexes: Vec<(&str, u32)> =
            cards.iter().map(|card| (card.uuid.as_str(), card.index)).collect();
        assert_eq!(indexes, [(B, 0), ("GPU-cccccccc-1111", 1), (A, 2)]);
    }

    #[test]
    fn an_id_past_the_last_unit_still_names_its_card_and_counts_there() {
        let cards = cards(&[(A, 2)]);
        let past = "aaaaaaaa-3".parse().unwrap();
        assert_eq!((cards.offering(&past), cards.named_by(&past)), (None, cards.get(&A.into())));
        let held = ids(["aaaaaaaa-1", "aaaaaaaa-3", "ffffffff-0"]);
        assert_eq!(units_of(&held, &cards), [(A.into(), Units(2))].into());
    }
}

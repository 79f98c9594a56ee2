//! What is requested of one card, and what a container requests of its cards beyond units.

use std::collections::BTreeMap;

use crate::units::{CardId, Cores, Units};

/// The share of each card.
pub type CardShares = BTreeMap<CardId, CardShare>;

/// What a container or a pod has of one card: a part of its memory and of its compute, or the whole card.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CardShare {
    /// Units of memory, as the kubelet counts them.
    pub units: Units,
    /// Percent of the compute; zero if none is reserved.
    pub cores: Cores,
    /// Whether no other pod may be on the card. The whole card is then charged, whatever the value of `units`.
    pub exclusive: bool,
    /// Processes that use the card at the same time: each is a client of MPS where the pod shares cards by MPS.
    pub processes: u16,
}

impl CardShare {
    /// A share of the memory alone.
    pub const fn of(units: Units) -> Self {
        Self { units, cores: Cores::ZERO, exclusive: false, processes: 0 }
    }

    /// Whether nothing of the card is requested.
    pub fn is_zero(self) -> bool {
        self.units.is_zero() && self.cores == Cores::ZERO && !self.exclusive
    }

    /// The sum: what two containers have that run at the same time.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            units: self.units.saturating_add(other.units),
            cores: self.cores.saturating_add(other.cores),
            exclusive: self.exclusive || other.exclusive,
            processes: self.processes.saturating_add(other.processes),
        }
    }

    /// The larger value of each field: what two containers need that run one after the other.
    #[must_use]
    pub fn larger(self, other: Self) -> Self {
        Self {
            units: self.units.max(other.units),
            cores: self.cores.max(other.cores),
            exclusive: self.exclusive || other.exclusive,
            processes: self.processes.max(other.processes),
        }
    }
}

/// What a container requests of cards beyond units, by pod annotations: the kubelet counts units only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CardUse {
    /// Cards, each with an equal part of the units; never zero.
    pub cards: u32,
    /// Whether no other pod may be on these cards.
    pub exclusive: bool,
    /// Percent of each card's compute that is reserved for it.
    pub cores: Cores,
    /// The most units on all its cards together that it may use while they are free, on nodes that can enforce it.
    pub limit: Option<Units>,
    /// Processes that use its cards at the same time; never zero.
    pub processes: u16,
}

impl CardUse {
    /// Whether it asks for a part of the compute of cards that it shares.
    pub fn asks_for_compute(self) -> bool {
        !self.exclusive && self.cores > Cores::ZERO && self.cores < Cores::ALL
    }
}

impl Default for CardUse {
    /// A part of one card's memory.
    fn default() -> Self {
        Self { cards: 1, exclusive: false, cores: Cores::ZERO, limit: None, processes: 1 }
    }
}

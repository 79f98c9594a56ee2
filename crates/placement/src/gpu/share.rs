//! What is asked of one card, and what a container asks of its cards.

use crate::units::{Cores, Units};

/// What one card gives to a container or a pod: parts of its memory and of its compute, or all of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CardShare {
    /// Units of memory, as the kubelet counts them.
    pub units: Units,
    /// Percent of the compute; zero where none is set aside.
    pub cores: Cores,
    /// Whether no other pod may be on the card. The whole card is then charged, whatever `units` says.
    pub exclusive: bool,
}

impl CardShare {
    /// A share of the memory alone.
    pub const fn of(units: Units) -> Self {
        Self { units, cores: Cores::ZERO, exclusive: false }
    }

    /// Whether it is nothing.
    pub fn is_none(self) -> bool {
        self == Self::default()
    }

    /// Both at the same time.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            units: self.units.saturating_add(other.units),
            cores: self.cores.saturating_add(other.cores),
            exclusive: self.exclusive || other.exclusive,
        }
    }

    /// The larger of both, part by part: enough for one after the other.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            units: self.units.max(other.units),
            cores: self.cores.max(other.cores),
            exclusive: self.exclusive || other.exclusive,
        }
    }
}

/// A container's use of cards in addition to its units: by pod annotations, since the kubelet counts units only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CardUse {
    /// Cards, each with an equal part of the units; never zero.
    pub cards: u32,
    /// Whether it wants these cards for its pod alone.
    pub exclusive: bool,
    /// Percent of each card's compute that is set aside for it.
    pub cores: Cores,
    /// Units, of all its cards together, that it may grow to while the cards have them free, where its node can enforce it.
    pub limit: Option<Units>,
}

impl Default for CardUse {
    /// A part of one card, of which memory alone is set aside.
    fn default() -> Self {
        Self { cards: 1, exclusive: false, cores: Cores::ZERO, limit: None }
    }
}

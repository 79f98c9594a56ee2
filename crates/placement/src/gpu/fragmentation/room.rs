//! What a pod asks for and what a node has free, as far as fragmentation goes.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::units::Units;

/// How much of each of its cards a pod takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// So many units.
    Units(Units),
    /// The whole card, which has to be idle.
    Whole,
}

/// Models of cards that a pod accepts.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelFilter {
    /// Only these; any where it is empty.
    pub only: BTreeSet<Arc<str>>,
    /// None of these.
    pub never: BTreeSet<Arc<str>>,
}

/// What a pod asks for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shape {
    /// CPU in thousandths of a core.
    pub cpu: u64,
    /// Cards; 0 for a pod that uses none.
    pub cards: usize,
    /// What it takes of each.
    pub part: Part,
    /// The models that it accepts.
    pub models: ModelFilter,
}

/// What is free on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room<'a> {
    /// CPU in thousandths of a core; `None` where it is not known, and then it decides nothing.
    pub cpu: Option<u64>,
    /// The cards' model.
    pub model: &'a str,
    /// The cards that pods may be placed on, in the order in which equal ones are taken.
    pub cards: &'a [CardRoom],
}

/// What is free on a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CardRoom {
    /// Units free.
    pub free: Units,
    /// All its units.
    pub units: Units,
}

impl Part {
    /// Whether a card has room for it.
    pub fn fits(self, card: CardRoom) -> bool {
        match self {
            Self::Units(units) => card.free >= units,
            Self::Whole => card.free == card.units,
        }
    }

    /// The units that it takes of a card of `units`.
    pub fn of(self, units: Units) -> Units {
        match self {
            Self::Units(part) => part,
            Self::Whole => units,
        }
    }
}

impl ModelFilter {
    /// Whether cards of `model` are accepted.
    pub fn accepts(&self, model: &str) -> bool {
        (self.only.is_empty() || self.only.contains(model)) && !self.never.contains(model)
    }
}

impl CardRoom {
    /// What is free, in parts of the card.
    pub(super) fn part(self) -> f64 {
        f64::from(self.free.0.min(self.units.0)) / f64::from(self.units.0.max(1))
    }
}

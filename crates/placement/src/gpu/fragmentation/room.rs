//! What a pod requests and what a card has free, in the form that fragmentation is computed from.

use crate::gpu::{GpuRequest, Patterns};
use crate::units::Units;

/// How much of each of its cards a pod takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CardPart {
    /// This number of units.
    Units(Units),
    /// The whole card, which has to be idle.
    Whole,
}

/// A pod's request. Pods with equal requests are of one kind.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodShape {
    /// CPU in thousandths of a core.
    pub cpu: u64,
    /// Cards; never 0.
    pub cards: usize,
    /// What it takes of each.
    pub part: CardPart,
    /// The models that it accepts.
    pub models: Patterns,
}

impl PodShape {
    /// The shape of a request. Each card counts with the largest share. An exclusive card counts whole only if the pod
    /// may have it for fewer units than the card has.
    pub fn of(request: &GpuRequest) -> Self {
        let share = request.largest();
        Self {
            cpu: request.cpu(),
            cards: request.shares().len(),
            part: if share.exclusive && request.may_be_exclusive() {
                CardPart::Whole
            } else {
                CardPart::Units(share.units)
            },
            models: request.filter().models.clone(),
        }
    }
}

/// What is free on a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct CardRoom {
    /// Units free.
    pub(super) free: Units,
    /// All its units.
    pub(super) units: Units,
}

impl CardPart {
    /// Whether a card has room for it.
    pub(super) fn fits(self, card: CardRoom) -> bool {
        match self {
            Self::Units(units) => card.free >= units,
            Self::Whole => card.free == card.units,
        }
    }

    /// The units that it takes of a card with `units` units.
    pub(super) fn of(self, units: Units) -> Units {
        match self {
            Self::Units(part) => part,
            Self::Whole => units,
        }
    }
}

impl CardRoom {
    /// The free part of the card, 0 to 1.
    pub(super) fn part(self) -> f64 {
        f64::from(self.free.0.min(self.units.0)) / f64::from(self.units.0.max(1))
    }
}

//! A kind of pod, and the cards that its pods fit.

use super::CardPart;
use super::room::CardRoom;
use crate::gpu::CardShare;
use crate::units::Units;

/// A kind of pod.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Kind {
    pub(super) cpu: u64,
    pub(super) cards: usize,
    pub(super) part: CardPart,
    /// The models that it accepts, one bit each; the last bit is for models that no node class has.
    pub(super) models: u64,
    pub(super) weight: f64,
}

/// What is free of a card that takes new pods.
#[derive(Clone, Copy)]
pub(super) struct PricedCard {
    pub(super) room: CardRoom,
    /// The free part of the card, 0 to 1.
    pub(super) part: f64,
    /// The model's number.
    pub(super) model: usize,
}

impl Kind {
    /// Whether its pods fit a card of this model with this free room.
    pub(super) fn fits(&self, model: usize, card: CardRoom) -> bool {
        self.models >> model & 1 == 1 && self.part.fits(card)
    }

    /// A kind that accepts every model, and that was never requested.
    pub(super) fn any_model(cpu: u64, cards: usize, part: CardPart) -> Self {
        Self { cpu, cards, part, models: u64::MAX, weight: 0.0 }
    }

    /// How many of its pods fit a node with this CPU, `None` where it is not known, and so many cards that fit.
    pub(super) fn places(&self, fitting: usize, cpu: Option<u64>) -> usize {
        let by_cpu = cpu.and_then(|cpu| cpu.checked_div(self.cpu)).unwrap_or(u64::MAX);
        (fitting / self.cards.max(1)).min(usize::try_from(by_cpu).unwrap_or(usize::MAX))
    }

    /// Whether each place for one of its pods is one for a pod of the other kind too.
    pub(super) fn is_as_large_as(&self, other: &Self) -> bool {
        self.cards >= other.cards
            && self.cpu >= other.cpu
            && self.part >= other.part
            && self.models & !other.models == 0
    }
}

impl PricedCard {
    /// The card with this share on it.
    pub(super) fn with(self, share: CardShare) -> Self {
        let CardRoom { free, units } = self.room;
        let free = if share.exclusive { Units::ZERO } else { free.saturating_sub(share.units) };
        let room = CardRoom { free, units };
        Self { room, part: room.part(), ..self }
    }
}

/// How many of the cards a pod of the kind fits.
pub(super) fn fitting<'c>(cards: impl Iterator<Item = &'c PricedCard>, kind: &Kind) -> usize {
    cards.filter(|card| kind.fits(card.model, card.room)).count()
}

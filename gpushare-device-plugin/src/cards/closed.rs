//! Which cards take no new pods although they work: the node knows that a container could not start there.

use std::collections::BTreeMap;

use placement::gpu::Closed;
use placement::units::CardId;

/// The cards that take no new pods, and why.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClosedCards {
    /// Why no card of the node takes any.
    pub all: Option<Closed>,
    /// Why single cards take none.
    pub cards: BTreeMap<CardId, Closed>,
}

impl ClosedCards {
    /// Why a card takes no new pods; `None` if it takes some.
    pub fn of(&self, card: &CardId) -> Option<Closed> {
        self.all.or_else(|| self.cards.get(card).copied())
    }
}

//! Which cards take no new pods although they work: the node knows that a container could not start there, or that
//! others give the card out too.

use std::collections::BTreeMap;
use std::sync::Arc;

use placement::gpu::Closed;
use placement::units::CardId;

use super::offered::OfferedCards;

/// The cards that take no new pods, and why.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClosedCards {
    /// Why no card of the node takes any.
    pub all: Option<Closed>,
    /// Why single cards take none.
    pub cards: BTreeMap<CardId, Closed>,
    /// Those that a DRA driver offers as well: they take none.
    pub offered: Arc<OfferedCards>,
}

impl ClosedCards {
    /// Why a card takes no new pods; `None` if it takes some.
    pub fn of(&self, card: &CardId) -> Option<Closed> {
        let by_dra = || self.offered.driver_of(card).map(|_| Closed::Dra);
        self.all.or_else(by_dra).or_else(|| self.cards.get(card).copied())
    }
}

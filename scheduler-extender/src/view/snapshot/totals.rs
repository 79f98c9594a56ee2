//! Sums over the cards of all nodes.

use super::Snapshot;

/// Sums over the whole cluster.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Nodes with cards.
    pub nodes: u64,
    /// Cards.
    pub cards: u64,
    /// Cards that are reported unhealthy.
    pub unhealthy: u64,
    /// Units of all cards.
    pub units: u64,
    /// Units that pods hold. A pod of unknown place counts on each card of its node, one that is not on a card yet
    /// once.
    pub used: u64,
    /// Units that pods of known place hold beyond what their card has; above 0 after a binding by another scheduler or
    /// an edited claim.
    pub overbooked: u64,
    /// Reservations that the API server has not confirmed.
    pub reserved: u64,
}

impl Snapshot {
    /// Sums over all nodes.
    #[must_use]
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for (_, cards) in self.nodes_with_cards() {
            totals.nodes += u64::from(!cards.accounts().is_empty());
            totals.reserved += cards.reserved() as u64;
            totals.used +=
                cards.unplaced().iter().map(|(_, units)| u64::from(units.0)).sum::<u64>();
            for account in cards.accounts() {
                let units = u64::from(account.card.units.0);
                totals.cards += 1;
                totals.unhealthy += u64::from(!account.card.healthy);
                totals.units += units;
                totals.used += u64::from(account.held().0);
                totals.overbooked += u64::from(account.of_known_place().0).saturating_sub(units);
            }
        }
        totals
    }
}

//! Unmanaged memory on cards: memory in use beyond the units that pods hold, by the annotation `plimsoll.dev/gpu-share`.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use placement::gpu::{Account, Basis, Card, MeasuredMemory, in_both_measurements};
use placement::units::{CardId, NodeName, Units};

use super::CardBook;

/// Units, by card.
pub(super) type OnCards = Vec<(CardId, Units)>;

/// The last two measurements of each node.
#[derive(Debug, Default)]
pub(super) struct Measurements(Mutex<HashMap<NodeName, OfNode>>);

#[derive(Debug)]
struct OfNode {
    last: MeasuredMemory,
    /// The unmanaged memory by `last`.
    unmanaged: OnCards,
    before: Option<(MeasuredMemory, OnCards)>,
}

impl Measurements {
    /// Applies a node's measurement; `None` where it has none.
    pub(super) fn set(&self, node: &NodeName, measured: Option<&MeasuredMemory>, cards: &[Card]) {
        let mut nodes = self.lock();
        let Some(measured) = measured else {
            nodes.remove(node);
            return;
        };
        let unmanaged = measured.unmanaged(cards);
        let new = |before| OfNode { last: measured.clone(), unmanaged, before };
        let known = nodes.remove(node);
        let next = match known {
            // The same measurement.
            Some(known) if known.last.at >= measured.at => known,
            Some(OfNode { last, unmanaged, .. }) => new(Some((last, unmanaged))),
            None => new(None),
        };
        nodes.insert(node.clone(), next);
    }

    /// The unmanaged memory that both of the last two measurements show, if both are fresh at `now`.
    pub(super) fn unmanaged(&self, node: &NodeName, now: Timestamp) -> OnCards {
        let nodes = self.lock();
        let Some(OfNode { last, unmanaged, before }) = nodes.get(node) else { return Vec::new() };
        let fresh = before.as_ref().filter(|(before, _)| before.is_fresh(last.at));
        match fresh.filter(|_| last.is_fresh(now)) {
            Some((_, before)) => in_both_measurements(unmanaged, before),
            None => Vec::new(),
        }
    }

    // Every change is one insertion or removal, so that a panic leaves no partial change.
    fn lock(&self) -> MutexGuard<'_, HashMap<NodeName, OfNode>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CardBook {
    /// Applies a measurement of a node's cards; `None` where there is none.
    pub fn set_measured(&self, node: &NodeName, measured: Option<&MeasuredMemory>) {
        let cards = self.ledgers.cards(node);
        self.measurements.set(node, measured.filter(|_| !cards.is_empty()), &cards);
    }

    /// Sets whether unmanaged memory counts on a node, and updates it by the measurements that are fresh at `now`.
    pub fn count_unmanaged(&self, node: &NodeName, counts: bool, now: Timestamp) {
        let Some(cards) = self.read().node(node.as_str()).cloned() else { return };
        let units = if counts { self.measurements.unmanaged(node, now) } else { Vec::new() };
        let of_account = |account: &Account| {
            account.charges.iter().any(|charge| charge.basis == Basis::Unmanaged)
        };
        if !units.is_empty() || cards.accounts().iter().any(of_account) {
            self.ledgers.change(node, |ledger| ledger.set_unmanaged(units));
        }
    }
}

//! What is in use on the cards of nodes beyond what pods hold, as the annotation `gpu-share` tells it.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use placement::gpu::{Card, MeasuredMemory, in_both};
use placement::units::{CardId, NodeName, Units};

/// Units of cards.
pub(super) type OnCards = Vec<(CardId, Units)>;

/// The last two measurements of each node.
#[derive(Debug, Default)]
pub(super) struct Measurements(Mutex<HashMap<NodeName, OfNode>>);

#[derive(Debug)]
struct OfNode {
    last: MeasuredMemory,
    /// Beyond what pods held, then.
    unmanaged: OnCards,
    before: Option<(MeasuredMemory, OnCards)>,
}

impl Measurements {
    /// Takes over a node's measurement; `None` where it has none.
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
            // The same again.
            Some(known) if known.last.at >= measured.at => known,
            Some(OfNode { last, unmanaged, .. }) => new(Some((last, unmanaged))),
            None => new(None),
        };
        nodes.insert(node.clone(), next);
    }

    /// What the last two measurements show at `now`, where both are fresh.
    pub(super) fn unmanaged(&self, node: &NodeName, now: Timestamp) -> OnCards {
        let nodes = self.lock();
        let Some(OfNode { last, unmanaged, before }) = nodes.get(node) else { return Vec::new() };
        let fresh = before.as_ref().filter(|(before, _)| before.is_fresh(last.at));
        match fresh.filter(|_| last.is_fresh(now)) {
            Some((_, before)) => in_both(unmanaged, before),
            None => Vec::new(),
        }
    }

    // Every change is one insertion or removal, so that a panic leaves nothing half done.
    fn lock(&self) -> MutexGuard<'_, HashMap<NodeName, OfNode>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

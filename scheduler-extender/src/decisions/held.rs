//! How much memory decisions hold together.
//!
//! Invariant: each value that a decision holds, directly or through its snapshot, counts once, however many decisions
//! hold it, and as long as one does. Values that the view holds at the moment count too. What two values share below a
//! node's state (readings, labels) counts with each.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;
use placement::gpu::{Account, NodeCards};

use super::Decision;
use crate::view::{NodeState, Snapshot};

/// Bytes of a node's state at one time with its readings of some ten metrics.
const STATE: usize = 600;

/// Bytes of one recent pod of a node.
const RECENT_POD: usize = 64;

/// Bytes of a node's cards: of a card, and of a charge on it.
const CARD: usize = 200;
const CHARGE: usize = 64;

/// Bytes of a snapshot beside its lists: itself, and what it has of back-offs.
const SNAPSHOT: usize = size_of::<Snapshot>();

/// The bytes of all values that some decisions hold.
#[derive(Debug, Default)]
pub(super) struct HeldBytes {
    /// By the address of a value: how often it is held, and its bytes.
    values: HashMap<usize, (u32, u32), RandomState>,
    bytes: usize,
}

impl HeldBytes {
    /// The sum.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Counts a decision.
    pub(super) fn add(&mut self, decision: &Decision) {
        self.bytes += decision.own_bytes();
        let snapshot = decision.snapshot();
        if !self.is_first(snapshot, SNAPSHOT + snapshot.list_bytes()) {
            return;
        }
        self.is_first(snapshot.names(), snapshot.names().bytes());
        for chunk in snapshot.chunks() {
            if self.is_first(chunk, size_of_val(chunk.nodes())) {
                for state in chunk.nodes() {
                    self.add_state(state);
                }
            }
        }
    }

    fn add_state(&mut self, state: &Arc<NodeState>) {
        if self.is_first(state, state_bytes(state))
            && let Some(cards) = &state.cards
        {
            self.is_first(cards, card_bytes(cards));
        }
    }

    /// No longer counts a decision.
    pub(super) fn remove(&mut self, decision: &Decision) {
        self.bytes -= decision.own_bytes();
        let snapshot = decision.snapshot();
        if !self.was_last(snapshot) {
            return;
        }
        self.was_last(snapshot.names());
        for chunk in snapshot.chunks() {
            if self.was_last(chunk) {
                for state in chunk.nodes() {
                    self.remove_state(state);
                }
            }
        }
    }

    fn remove_state(&mut self, state: &Arc<NodeState>) {
        if self.was_last(state)
            && let Some(cards) = &state.cards
        {
            self.was_last(cards);
        }
    }

    /// Counts a value once more. Returns whether it was not held before.
    fn is_first<T>(&mut self, value: &Arc<T>, bytes: usize) -> bool {
        // A value of more than 4 GB is no part of any snapshot.
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let (times, _) = self.values.entry(address(value)).or_insert((0, bytes));
        *times += 1;
        let is_first = *times == 1;
        if is_first {
            self.bytes += bytes as usize;
        }
        is_first
    }

    /// Counts a value once less. Returns whether it is held no more.
    fn was_last<T>(&mut self, value: &Arc<T>) -> bool {
        let address = address(value);
        let Some((times, bytes)) = self.values.get_mut(&address) else { return false };
        *times -= 1;
        let was_last = *times == 0;
        if was_last {
            self.bytes -= *bytes as usize;
            self.values.remove(&address);
        }
        was_last
    }
}

/// What a value is known by: no other value can have its address while it is held.
fn address<T>(value: &Arc<T>) -> usize {
    Arc::as_ptr(value).addr()
}

fn state_bytes(state: &NodeState) -> usize {
    STATE + state.load.as_ref().map_or(0, |load| load.recent.len() * RECENT_POD)
}

fn card_bytes(cards: &NodeCards) -> usize {
    let account = |account: &Account| CARD + account.charges.len() * CHARGE;
    size_of::<NodeCards>() + cards.accounts().iter().map(account).sum::<usize>()
}

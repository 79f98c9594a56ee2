//! How much memory decisions hold together.
//!
//! Invariant: each value that a decision holds, directly or through its snapshot, counts once, however many decisions
//! hold it, and as long as one does. Values that the view holds at the moment count too. What two values share below a
//! node's state (readings, labels) counts with each.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;
use placement::gpu::{Account, NodeGpus};
use placement::load::NodeLoad;

use super::kept::KeptDecision;
use crate::view::{NodeState, Snapshot};

/// Bytes of a node's state at one time with its readings of some ten metrics.
const STATE: usize = 600;

/// Bytes of one recent pod of a node.
const RECENT_POD: usize = 64;

/// Bytes of one pod that declares something of network or disk.
const DECLARED_POD: usize = 64;

/// Bytes of a node's GPUs: of a GPU, and of a charge on it.
const GPU: usize = 200;
const CHARGE: usize = 64;

/// Bytes of a snapshot beside its lists: itself, and what it has of back-offs.
const SNAPSHOT: usize = size_of::<Snapshot>();

/// The bytes of all values that some decisions hold.
#[derive(Debug, Default)]
pub(super) struct HeldBytes {
    /// By the address of a value: how often it is held.
    times: HashMap<usize, u32, RandomState>,
    bytes: usize,
}

/// What is done at a value of these bytes. Returns whether to go on to what the value holds.
type Visit = fn(&mut HeldBytes, address: usize, bytes: usize) -> bool;

impl HeldBytes {
    /// The sum.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Counts a decision.
    pub(super) fn add(&mut self, decision: &KeptDecision) {
        self.bytes += decision.own_bytes();
        self.visit(decision.snapshot(), Self::hold);
    }

    /// No longer counts a decision.
    pub(super) fn remove(&mut self, decision: &KeptDecision) {
        self.bytes -= decision.own_bytes();
        self.visit(decision.snapshot(), Self::release);
    }

    fn visit(&mut self, snapshot: &Arc<Snapshot>, visit: Visit) {
        if !visit(self, address(snapshot), SNAPSHOT + snapshot.list_bytes()) {
            return;
        }
        visit(self, address(snapshot.names()), snapshot.names().bytes());
        for chunk in snapshot.chunks() {
            if visit(self, address(chunk), size_of_val(chunk.nodes())) {
                for state in chunk.nodes() {
                    self.visit_state(state, visit);
                }
            }
        }
    }

    fn visit_state(&mut self, state: &Arc<NodeState>, visit: Visit) {
        if visit(self, address(state), state_bytes(state))
            && let Some(gpus) = &state.gpus
        {
            visit(self, address(gpus), gpu_bytes(gpus));
        }
    }

    /// Counts a value once more. Returns whether it was not held before.
    fn hold(&mut self, address: usize, bytes: usize) -> bool {
        let times = self.times.entry(address).or_default();
        *times += 1;
        let is_first = *times == 1;
        if is_first {
            self.bytes += bytes;
        }
        is_first
    }

    /// Counts a value once less. Returns whether it is held no more. Values do not change, so it has the bytes that it
    /// had at first.
    fn release(&mut self, address: usize, bytes: usize) -> bool {
        let Some(times) = self.times.get_mut(&address) else { return false };
        *times -= 1;
        let was_last = *times == 0;
        if was_last {
            self.bytes -= bytes;
            self.times.remove(&address);
        }
        was_last
    }
}

/// What a value is known by: no other value can have its address while it is held.
fn address<T>(value: &Arc<T>) -> usize {
    Arc::as_ptr(value).addr()
}

fn state_bytes(state: &NodeState) -> usize {
    let of_load = |load: &NodeLoad| {
        let declared = load.declared.as_ref().map_or(0, |pods| pods.len());
        load.recent.len() * RECENT_POD + declared * DECLARED_POD
    };
    STATE + state.load.as_ref().map_or(0, of_load)
}

fn gpu_bytes(gpus: &NodeGpus) -> usize {
    let own = size_of::<NodeGpus>() + gpus.accounts().iter().map(account_bytes).sum::<usize>();
    own + gpus.for_claims().map_or(0, gpu_bytes)
}

fn account_bytes(account: &Account) -> usize {
    GPU + account.charges.len() * CHARGE
}

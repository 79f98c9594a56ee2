//! What Bind decides, as a state machine without I/O and clock: [`Attempt::step`] takes an event, changes the ledger,
//! and returns what the binder has to do next.
//!
//! ```text
//! New ─> (Finding) ─> (Checking) ─> Sending ─> (Verifying) ─> Ended
//!                                                  └────────> InDoubt <─> Settling ─> Ended
//! ```
//!
//! The pod is read in the phases in brackets, which most attempts skip, and in Settling.
//!
//! Invariants: an attempt ends with the ledger as the API server shows the pod, or is in doubt and keeps the
//! reservation. In doubt, the reservation stays until the pod is bound, is deleted, or is still unbound when no request
//! for it can be carried out any more.

mod attempt;

use std::collections::HashMap;

use cluster::{BindOutcome, CallError, PodFacts};
use jiff::Timestamp;
use placement::gpu::{BeyondUnits, ChoiceRule, GpuRequest, Reservation};
use placement::units::{NodeName, PodUid};

use super::{BindError, BindResult, Target};
use crate::view::{GpuPodId, Index};

pub(super) use self::attempt::{Attempt, apply_look_up};

type AttemptKey = (PodUid, NodeName);

/// The attempts under way. `J` is what joins a further call for the same pod and node: the channel of the outcome.
#[derive(Debug, Clone)]
pub(super) struct Bindings<J> {
    running: HashMap<AttemptKey, J>,
    /// Of attempts that ended in doubt, the number of the last one.
    doubtful: HashMap<AttemptKey, u64>,
    begun: u64,
}

/// What a step sees and changes.
pub(super) struct Known<'a, J> {
    pub(super) index: &'a mut Index,
    pub(super) bindings: &'a mut Bindings<J>,
    pub(super) now: Timestamp,
    /// Whether all nodes and pods have been listed once.
    pub(super) is_complete: bool,
    /// Whether this replica assigns GPUs.
    pub(super) leads: bool,
    pub(super) rule: ChoiceRule,
    /// What the pod's namespace may take now. The policy may have changed since Filter.
    pub(super) beyond_units: BeyondUnits,
}

/// What has happened.
pub(super) enum Event {
    Begun,
    /// The answer to [`Action::Read`].
    Found(Found),
    /// The answer to [`Action::Send`].
    Answered(BindOutcome),
    /// Nothing was sent.
    NotSent(BindError),
    /// The pause is over. `is_over`: the API server can no longer carry out the attempt's request.
    Woken {
        is_over: bool,
    },
}

/// The result of reading a pod from the API server.
pub(super) enum Found {
    Bound(Box<PodFacts>),
    Unbound(Box<PodFacts>),
    /// It does not exist, or is another of its name.
    Gone,
    Failed(CallError),
}

/// What the binder has to do next.
pub(super) enum Action {
    /// Read the pod.
    Read,
    /// Send a binding of the pod at this version, with the reservation's claim; without one for a pod without GPU.
    Send { version: Option<String>, reserved: Option<Box<(GpuRequest, Reservation)>> },
    /// Tell the callers, and go on with [`Event::Woken`].
    Finish(BindResult),
    /// Pause.
    Wait,
    /// Nothing more for the attempt, but look the pod up: a list did not have it.
    LookUp,
    /// Nothing more.
    End,
}

impl<J> Default for Bindings<J> {
    fn default() -> Self {
        Self { running: HashMap::new(), doubtful: HashMap::new(), begun: 0 }
    }
}

impl<J> Bindings<J> {
    /// What joins the attempt for this pod and node that is under way.
    pub(super) fn running(&self, target: &Target) -> Option<&J> {
        self.running.get(&key(target))
    }
}

impl Found {
    /// A pod of the name of `wanted`.
    pub(super) fn of(facts: PodFacts, wanted: &GpuPodId) -> Self {
        if facts.uid != wanted.uid {
            Self::Gone
        } else if facts.node.is_some() {
            Self::Bound(Box::new(facts))
        } else {
            Self::Unbound(Box::new(facts))
        }
    }
}

fn key(target: &Target) -> AttemptKey {
    (target.pod.uid.clone(), target.node.clone())
}

//! Which pods to move to other nodes so that a pod finds cards on one: `GET /v1/moves` proposes it, and
//! `--move-for-cards` carries it out ([`crate::card_evictions`]).
//!
//! The view has the cards of all nodes. What else counts is read from the API server: the pods of the nodes that would
//! need the fewest moves, and the room and taints of each node that a plan sends a pod to. Until a node is read it is
//! taken for one with room. So a plan is made again whenever a node of it turns out otherwise, and what is proposed
//! goes to nodes that were read.
//!
//! Invariants: at most [`MAX_READ`] nodes are read for one plan; no plan goes to a node that is cordoned or not ready,
//! or that Filter rejects for the pod that would go there: with what it will probably use, the node is over a limit; no
//! pod is moved for one that is less important, nor one of [`placement::gpu::NodeCards::undrained_clients`].

mod search;

use std::collections::BTreeMap;
use std::sync::Arc;

use cluster::{Applicant, PodReference, Stays};
use placement::gpu::GpuRequest;
use placement::units::{CardId, NodeName};

use crate::decisions::DecidedPod;

pub(crate) use search::MoveSearch;

/// Nodes that are read for one plan. Each takes two calls.
const MAX_READ: usize = 64;

/// The most pods that are moved for one.
pub(crate) const MAX_MOVES: usize = 16;

/// A controller of pods.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Workload {
    pub(crate) namespace: Arc<str>,
    /// `Deployment/web`.
    pub(crate) name: String,
}

/// The pod that room is made for.
pub(crate) struct MovesFor<'a> {
    /// The pod as Filter decides about it; of no namespace or name for a shape that someone asks about.
    pub(crate) decided: &'a DecidedPod,
    /// The cards that it asks for.
    pub(crate) request: &'a GpuRequest,
    /// What it takes besides, and its rules about nodes.
    pub(crate) applicant: &'a Applicant,
    /// Only pods that give way to this priority are moved; `None`: any.
    pub(crate) priority: Option<i32>,
}

/// What would make room.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Proposal {
    /// The node that has room then.
    pub(crate) node: NodeName,
    /// The cards there.
    pub(crate) cards: Vec<CardId>,
    /// Their indices.
    pub(crate) indices: Vec<u32>,
    /// The pods to move; none where there is room as it is.
    pub(crate) moves: Vec<ProposedMove>,
}

/// A pod to move, and where its successor fits.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ProposedMove {
    pub(crate) pod: PodReference,
    /// Its controller.
    pub(crate) workload: Option<Workload>,
    pub(crate) priority: i32,
    /// Its units on all its cards.
    pub(crate) units: u32,
    /// The indices of its cards.
    pub(crate) from: Vec<u32>,
    /// Another node, or other cards of the same.
    pub(crate) to: NodeName,
    /// The indices of the cards there.
    pub(crate) to_cards: Vec<u32>,
}

/// The outcome of a search.
#[derive(Debug, Default)]
pub(crate) struct Search {
    /// `None` where no moves make room.
    pub(crate) proposal: Option<Proposal>,
    /// Nodes of which the pods were read.
    pub(crate) nodes: usize,
    /// The pods of these that are not moved, counted by the reason.
    pub(crate) stays: BTreeMap<Stays, usize>,
}

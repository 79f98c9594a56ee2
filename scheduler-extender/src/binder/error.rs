//! Errors of Bind. kube-scheduler writes their texts into events of the pod.

use std::sync::Arc;
use std::time::Duration;

use placement::gpu::NoFit;
use placement::units::NodeName;

use crate::view::{OtherPod, ReservationError};

/// The text for pods that wait for deleted pods of their namespace, in Filter too.
pub(crate) const HELD_BY_DELETED: &str = "GPU memory of deleted pods of this namespace is still in use: its GPU pods \
     wait until processes of these have ended";

/// Why a pod is not bound, or not known to be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BindError {
    /// The view is not complete, so a GPU that looks free may be in use.
    #[error("still reading the cluster; GPU pods wait until every node and pod has been seen")]
    NotReady,
    /// Another pod took the units between Filter and Bind.
    #[error("node {0}: {1}")]
    NoFit(NodeName, NoFit),
    /// The request's UID is that of a pod with another name.
    #[error(transparent)]
    OtherPod(#[from] OtherPod),
    /// The watch showed it bound, but the API server shows it unbound.
    #[error("the pod was seen bound to node {0}, yet it is not; trying again will help")]
    Contradiction(NodeName),
    /// Another replica assigns GPUs, or soon will.
    #[error("this replica of the extender does not lead any more; trying again will help")]
    NotLeading,
    /// Another scheduler or extender bound it to another node.
    #[error("the pod is already bound to node {0}")]
    Elsewhere(NodeName),
    /// Another scheduler or extender bound it to this node, without a claim.
    #[error(
        "the pod is bound to this node already, but without a claim that counts; \
         is another scheduler or extender at work?"
    )]
    NoClaim,
    /// Another pod of its group cannot be bound.
    #[error("the pods of its group are bound together: {0}")]
    Group(Arc<str>),
    /// Deleted pods of its namespace still hold GPU memory.
    #[error("{HELD_BY_DELETED}")]
    HeldByDeleted,
    /// The pod does not exist any more.
    #[error("the pod is gone")]
    Gone,
    /// The pod has changed since it was looked at.
    #[error("the pod changes faster than it can be bound ({0}); trying again will help")]
    Changed(String),
    /// The API server rejected the binding, or no binding was sent.
    #[error("{0}")]
    Refused(String),
    /// The binding was sent and may have been carried out.
    #[error(
        "no clear answer to the binding ({0}); its GPU stays reserved until the API server shows what became of it"
    )]
    InDoubt(String),
    /// The call timed out; the binding continues.
    #[error(
        "the API server has not answered within {0:?}; the binding goes on, its GPU stays reserved"
    )]
    Slow(Duration),
    /// The task of the binding panicked.
    #[error("the binding was lost; this is a fault of the extender")]
    Lost,
}

impl BindError {
    /// The label of the metric.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::NotReady => "not-ready",
            Self::NotLeading => "not-leading",
            Self::NoFit(..) => "no-card",
            Self::OtherPod(_) => "other-pod",
            Self::Contradiction(_) => "contradiction",
            Self::Elsewhere(_) => "elsewhere",
            Self::NoClaim => "no-claim",
            Self::Group(_) => "group",
            Self::HeldByDeleted => "held-by-deleted",
            Self::Gone => "gone",
            Self::Changed(_) => "changed",
            Self::Refused(_) => "refused",
            Self::InDoubt(_) => "in-doubt",
            Self::Slow(_) => "slow",
            Self::Lost => "lost",
        }
    }
}

impl From<ReservationError> for BindError {
    fn from(error: ReservationError) -> Self {
        match error {
            ReservationError::NoFit(node, why) => Self::NoFit(node, why),
            ReservationError::Bound(node) => Self::Contradiction(node),
            ReservationError::Changed(node) => Self::Changed(format!(
                "a binding to node {node} of what it was before may be under way"
            )),
            ReservationError::OtherPod(other) => Self::OtherPod(other),
            ReservationError::HeldByDeleted(_) => Self::HeldByDeleted,
        }
    }
}

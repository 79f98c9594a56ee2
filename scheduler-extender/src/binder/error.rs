//! Why a pod is not bound, in words for the events that users read.

use std::time::Duration;

use placement::gpu::NoFit;
use placement::units::NodeName;

use crate::view::{OtherPod, ReservationError};

/// Why a pod is not bound, or not known to be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BindError {
    /// The view is not complete, so a card that looks free may not be.
    #[error("still reading the cluster; GPU pods wait until every node and pod has been seen")]
    NotReady,
    /// Between Filter and Bind another pod took the room.
    #[error("node {0}: {1}")]
    NoFit(NodeName, NoFit),
    /// The request's UID is that of a pod with another name.
    #[error(transparent)]
    OtherPod(#[from] OtherPod),
    /// The watch says that it is bound, the API server that it is not.
    #[error("the pod was seen bound to node {0}, yet it is not; trying again will help")]
    Contradiction(NodeName),
    /// Another replica gives out cards, or soon will.
    #[error("this replica of the extender does not lead any more; trying again will help")]
    NotLeading,
    /// Another scheduler or extender bound it.
    #[error("the pod is already bound to node {0}")]
    Elsewhere(NodeName),
    /// Another scheduler or extender bound it to this node.
    #[error(
        "the pod is bound to this node already, but without a claim that counts; is another scheduler or extender at work?"
    )]
    NoClaim,
    /// The pod does not exist any more.
    #[error("the pod is gone")]
    Gone,
    /// The API server said no, or was not asked.
    #[error("{0}")]
    Refused(String),
    /// The binding was sent and may have been carried out.
    #[error(
        "no clear answer to the binding ({0}); its card stays reserved until the API server shows what became of it"
    )]
    InDoubt(String),
    /// It takes too long; it goes on.
    #[error(
        "the API server has not answered within {0:?}; the binding goes on, its card stays reserved"
    )]
    Slow(Duration),
    /// The task that bound it died.
    #[error("the binding was lost; this is a fault of the extender")]
    Lost,
}

impl BindError {
    /// For metrics.
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
            Self::Gone => "gone",
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
            ReservationError::OtherPod(other) => Self::OtherPod(other),
        }
    }
}

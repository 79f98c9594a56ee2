//! What a pod is charged on a card, and why it counts there.

use super::{CardShare, GpuRequest, Sharing};
use crate::units::{Cores, PodUid, Units};

/// What one pod is charged on one card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Charge {
    /// The pod's UID; empty for unmanaged memory, which belongs to no pod.
    pub pod: PodUid,
    /// Its units; never zero. All units of the card for an exclusive pod.
    pub units: Units,
    /// Percent of the card's compute.
    pub cores: Cores,
    /// Its processes that use the card at the same time.
    pub processes: u16,
    /// How it shares the card; `None` where that is not known, for a pod whose card is not known, and for unmanaged
    /// memory.
    pub sharing: Option<Sharing>,
    /// Why it counts here.
    pub basis: Basis,
    /// For a nominated pod, its priority: pods of higher priority take the units. `None` for what counts against all.
    pub kept_at: Option<i32>,
}

/// Why a pod counts on a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Basis {
    /// The kubelet's records put it here.
    Recorded,
    /// Bind has chosen this card since this process started.
    Chosen,
    /// Its claim names this card, and the kubelet's records do not place it yet.
    Claimed,
    /// Its card is unknown, and the kubelet has admitted it or its claim names a card that the node does not report: it
    /// counts on every card of the node.
    UnknownPlace,
    /// Its claim names another card, and nothing else is known of the pod. It counts on every card, since any user who
    /// may edit the pod can write a claim.
    UnprovenClaim,
    /// It holds nothing yet: kube-scheduler has evicted pods for it, and the card is kept for it, except from pods of
    /// higher priority.
    Nominated,
    /// Unmanaged: memory in use beyond what pods hold.
    Unmanaged,
}

impl Basis {
    /// Whether the pod holds the units, as far as is known. False for unproven claims, for nominated pods, which hold
    /// nothing yet, and for unmanaged memory.
    #[must_use]
    pub fn is_held(self) -> bool {
        !matches!(self, Self::UnprovenClaim | Self::Nominated | Self::Unmanaged)
    }
}

impl Charge {
    /// What a pod with this share is charged on a card with `card` units; `None` for an empty share.
    pub(super) fn of(
        pod: &PodUid,
        share: CardShare,
        basis: Basis,
        sharing: Option<Sharing>,
        card: Units,
    ) -> Option<Self> {
        let (units, cores) = if share.exclusive {
            (share.units.max(card), share.cores.max(Cores::ALL))
        } else {
            (share.units, share.cores)
        };
        let (pod, processes, kept_at) = (pod.clone(), share.processes, None);
        let charge = Self { pod, units, cores, processes, sharing, basis, kept_at };
        (!share.is_zero()).then_some(charge)
    }

    /// Whether the units are taken for this pod. What is kept for itself, or for a less important pod, is not.
    pub(super) fn counts_against(&self, pod: &PodUid, request: &GpuRequest) -> bool {
        self.kept_at.is_none_or(|kept_at| self.pod != *pod && request.priority() <= kept_at)
    }
}

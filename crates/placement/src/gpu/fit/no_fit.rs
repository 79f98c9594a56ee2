//! Why no cards fit a request.

use super::assign::assign;
use crate::gpu::{CardFit, CardShare, Excess, FreeCard, GpuRequest};

/// Why no cards of a node fit a request. The text is the same whatever the numbers: kube-scheduler groups nodes by it
/// and uses it as a format string. The numbers are in [`Fit::cards`](super::Fit::cards).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[error("{}", self.reason())]
pub enum NoFit {
    /// The node reports no cards.
    NoCards,
    /// The pod accepts none of the node's cards.
    NotAccepted,
    /// The node cannot enforce the isolation that the pod requires.
    WeakIsolation,
    /// The node does not report which isolation it can enforce, and the pod requires some.
    UnknownIsolation,
    /// The node has refused several pods, and takes none for a while.
    BackedOff,
    /// The request is larger than any card of the node, or for more cards than it has: evicting pods does not help.
    TooLarge,
    /// Enough cards have room, but some of these are unhealthy.
    Unhealthy,
    /// Enough healthy cards have room, but some of these take no new pods.
    Closed,
    /// Enough cards have the memory, but some of them have too little compute.
    NoCores,
    /// Too few cards are without pods.
    InUse,
    /// Some cards have room, but fewer than the pod needs.
    TooFewCards,
    /// Every card of that size has too few units free.
    NoRoom,
    /// The pod would take more of the cards than its units are of them, without a right to that.
    BeyondUnits(Excess),
    /// Cards have room, but pods on them share them by MPS and this pod would not, or the other way round.
    OtherSharing,
    /// Cards have room, but serve too few more clients of MPS.
    TooManyClients,
    /// Cards have room, but the node's free units are needed for pods that are not on a card yet.
    NeededByUnplaced,
}

impl NoFit {
    /// The text for Filter's answer, events and conditions.
    pub fn reason(self) -> &'static str {
        match self {
            Self::NoCards => {
                reason!("node reports no GPU cards: is gpushare-device-plugin running there?")
            }
            Self::NotAccepted => reason!("node has no GPU card of a model that the pod accepts"),
            Self::WeakIsolation => reason!(
                "node cannot enforce the pod's gpu-isolation (for mps: no daemon runs, or the pod mounts a /dev/shm or has the host's IPC)"
            ),
            Self::UnknownIsolation => reason!(
                "node does not report which gpu-isolation it can enforce: is its device plugin up to date?"
            ),
            Self::BackedOff => {
                reason!("node takes no GPU pods for a while: it has refused several of them")
            }
            Self::TooLarge => {
                reason!("Insufficient GPU Memory in one device: the node has no card of that size")
            }
            Self::Unhealthy => {
                reason!("Insufficient GPU Memory in one device: cards with room are unhealthy")
            }
            Self::Closed => reason!(
                "Insufficient GPU Memory in one device: cards with room take no new pods, see the events of the node"
            ),
            Self::NoCores => reason!("Insufficient GPU compute in one device"),
            Self::InUse => reason!("too few GPU cards without pods"),
            Self::TooFewCards => reason!("Insufficient GPU Memory in enough devices"),
            Self::NoRoom => reason!("Insufficient GPU Memory in one device"),
            Self::BeyondUnits(excess) => excess.reason(),
            Self::OtherSharing => reason!(
                "GPU cards with room have pods of the other kind: pods with MPS and pods without it share no card"
            ),
            Self::TooManyClients => {
                reason!("GPU cards with room serve no more clients of MPS")
            }
            Self::NeededByUnplaced => reason!(
                "free GPU memory of the node is needed for pods without a claim that the kubelet has not admitted yet"
            ),
        }
    }

    /// Whether the cards may fit once pods on them have ended.
    pub fn is_resolvable(self) -> bool {
        !matches!(
            self,
            Self::NoCards
                | Self::NotAccepted
                | Self::WeakIsolation
                | Self::UnknownIsolation
                | Self::BackedOff
                | Self::TooLarge
                | Self::BeyondUnits(_)
        )
    }

    /// A short text, for metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::NoCards => "no cards reported",
            Self::NotAccepted => "no card of an accepted model",
            Self::WeakIsolation => "weaker isolation",
            Self::UnknownIsolation => "isolation not reported",
            Self::BackedOff => "backed off",
            Self::TooLarge => "larger than any card",
            Self::Unhealthy => "no healthy card with room",
            Self::Closed => "no open card with room",
            Self::NoCores => "no card with compute",
            Self::InUse => "no card without pods",
            Self::TooFewCards => "too few cards with room",
            Self::NoRoom => "no card with room",
            Self::BeyondUnits(excess) => excess.label(),
            Self::OtherSharing => "cards shared in the other way",
            Self::TooManyClients => "too many clients of MPS",
            Self::NeededByUnplaced => "needed by unplaced pods",
        }
    }
}

/// Why none of `cards` fit the request.
pub(in crate::gpu) fn why_no_fit(cards: &[&FreeCard], request: &GpuRequest) -> NoFit {
    let shares = request.shares();
    let largest = request.largest();
    let filter = request.filter();
    let named: Vec<&FreeCard> =
        cards.iter().copied().filter(|card| card.is_named_by(filter)).collect();
    let mut accepted = named.clone();
    accepted.retain(|card| filter.is_enforced_by(card.isolation.strongest));
    if cards.is_empty() {
        NoFit::NoCards
    } else if named.is_empty() {
        NoFit::NotAccepted
    } else if accepted.is_empty() && named.iter().all(|card| card.isolation.strongest.is_none()) {
        NoFit::UnknownIsolation
    } else if accepted.is_empty() {
        NoFit::WeakIsolation
    } else if !fits_if(&accepted, shares, FreeCard::is_large_enough) {
        NoFit::TooLarge
    } else if !fits_if(&accepted, shares, |card, share| card.is_allowed(share, request))
        && let Some(excess) = excess(&accepted, request)
    {
        NoFit::BeyondUnits(excess)
    } else if fits_if(&accepted, shares, |card, share| {
        card.is_open() && card.is_allowed(share, request) && card.room().has_room(share)
    }) {
        if fits_if(&accepted, shares, |card, share| {
            matches!(
                card.fit(share, request),
                CardFit::Fits { .. } | CardFit::TooManyClients { .. }
            )
        }) {
            NoFit::TooManyClients
        } else {
            NoFit::OtherSharing
        }
    } else if fits_if(&accepted, shares, |card, share| {
        card.healthy && card.is_allowed(share, request) && card.room().has_room(share)
    }) {
        NoFit::Closed
    } else if fits_if(&accepted, shares, |card, share| {
        card.is_allowed(share, request) && card.room().has_room(share)
    }) {
        NoFit::Unhealthy
    } else if largest.exclusive {
        NoFit::InUse
    } else if fits_if(&accepted, shares, |card, share| {
        card.is_allowed(share, request) && card.has_memory(share)
    }) {
        NoFit::NoCores
    } else if shares.len() > 1 && accepted.iter().any(|card| card.has_memory(largest)) {
        NoFit::TooFewCards
    } else {
        NoFit::NoRoom
    }
}

/// Whether each share gets a card of its own, if a share fits a card on this condition.
fn fits_if(
    cards: &[&FreeCard],
    shares: &[CardShare],
    condition: impl Fn(&FreeCard, CardShare) -> bool,
) -> bool {
    assign(cards, shares, condition).is_some()
}

/// What the request would take beyond its units on a card that is large enough; the same in whatever order the cards
/// are.
fn excess(cards: &[&FreeCard], request: &GpuRequest) -> Option<Excess> {
    let mut least: Option<Excess> = None;
    for card in cards {
        for share in request.shares().iter().filter(|share| card.is_large_enough(**share)) {
            least = least.into_iter().chain(request.excess(*share, card.units)).min();
        }
    }
    least
}

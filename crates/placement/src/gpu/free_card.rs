//! A card with what is free of it, and whether a share of a request fits it.

use super::{CardFilter, CardIsolation, CardShare, Closed, Excess, GpuRequest, Sharers, Sharing};
use crate::units::{CardId, CardModel, Cores, Units};

/// A card and what is left of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FreeCard {
    /// The card.
    pub uuid: CardId,
    /// Its index, which breaks ties.
    pub index: u32,
    /// The product's name.
    pub model: CardModel,
    /// The NUMA node that it is attached to, where known.
    pub numa_node: Option<u32>,
    /// All its units.
    pub units: Units,
    /// Units that are charged to no pod.
    pub free: Units,
    /// Percent of its compute that is charged to no pod.
    pub free_cores: Cores,
    /// Whether nothing is charged to any pod.
    pub idle: bool,
    /// Whether it works.
    pub healthy: bool,
    /// Why it takes no new pods although it may be healthy.
    pub closed: Option<Closed>,
    /// The isolation that its node reports for it.
    pub isolation: CardIsolation,
    /// The kinds of pods that are charged.
    pub sharers: Sharers,
    /// Clients of MPS, with those that may be.
    pub clients: u16,
}

/// Whether a share fits one card, or why not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CardFit {
    /// It fits.
    Fits {
        /// Units that stay free.
        left: Units,
    },
    /// The card is reported unhealthy.
    Unhealthy,
    /// The card takes no new pods.
    Closed(Closed),
    /// The pod does not accept this model or UUID.
    NotAccepted,
    /// The node cannot enforce the isolation that the pod requires, or does not report that it can.
    WeakIsolation,
    /// Too few units are free.
    TooLittleFree {
        /// Units free.
        free: Units,
        /// Units missing.
        missing: Units,
    },
    /// Too little of the compute is free.
    TooFewCores {
        /// Percent free.
        free: Cores,
    },
    /// The pod requests the card exclusively, and another pod is on it.
    InUse,
    /// The pod would take more of the card than its units are of it, without a right to that.
    BeyondUnits(Excess),
    /// The pod shares cards by MPS and pods on the card do not, or the other way round.
    OtherSharing,
    /// The card does not serve as many more clients of MPS.
    TooManyClients {
        /// How many more it serves.
        left: u16,
    },
}

/// One of the chosen cards.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ChosenCard {
    /// The card.
    pub uuid: CardId,
    /// Its index.
    pub index: u32,
    /// All its units.
    pub units: Units,
    /// Units that stay free once the share is on it.
    pub left: Units,
}

impl FreeCard {
    /// Whether a share of this request fits the card, or why not.
    pub fn fit(&self, share: CardShare, request: &GpuRequest) -> CardFit {
        if !self.is_named_by(request.filter()) {
            return CardFit::NotAccepted;
        }
        if !request.filter().is_enforced_by(self.isolation.strongest) {
            return CardFit::WeakIsolation;
        }
        if let Some(excess) = request.excess(share, self.units) {
            return CardFit::BeyondUnits(excess);
        }
        if !self.healthy {
            return CardFit::Unhealthy;
        }
        if let Some(why) = self.closed {
            return CardFit::Closed(why);
        }
        if self.free < share.units {
            let missing = share.units.saturating_sub(self.free);
            return CardFit::TooLittleFree { free: self.free, missing };
        }
        if share.exclusive && !self.idle {
            return CardFit::InUse;
        }
        if self.free_cores < share.cores {
            return CardFit::TooFewCores { free: self.free_cores };
        }
        let room = self.room();
        room.conflict(share, request, self.isolation)
            .unwrap_or_else(|| CardFit::Fits { left: room.left(share) })
    }

    /// What is free of the card, whether it is healthy or not.
    pub(super) fn room(&self) -> Room {
        let Self { free: units, free_cores: cores, idle, sharers, clients, .. } = *self;
        Room { units, cores, idle, sharers, clients }
    }

    pub(super) fn is_accepted(&self, filter: &CardFilter) -> bool {
        filter.accepts_all()
            || (filter.is_enforced_by(self.isolation.strongest) && self.is_named_by(filter))
    }

    pub(super) fn is_named_by(&self, filter: &CardFilter) -> bool {
        filter.accepts_all() || filter.accepts(self.model.as_str(), self.uuid.as_str())
    }

    /// Whether new pods may be placed on it.
    pub(super) fn is_open(&self) -> bool {
        self.healthy && self.closed.is_none()
    }

    pub(super) fn fits(&self, share: CardShare, request: &GpuRequest) -> bool {
        matches!(self.fit(share, request), CardFit::Fits { .. })
    }

    /// The card with this much free.
    pub(super) fn with_room(&self, room: Room) -> Self {
        let Room { units: free, cores: free_cores, idle, sharers, clients } = room;
        Self { free, free_cores, idle, sharers, clients, ..self.clone() }
    }

    pub(super) fn has_memory(&self, share: CardShare) -> bool {
        self.free >= share.units
    }

    pub(super) fn is_large_enough(&self, share: CardShare) -> bool {
        self.units >= share.units
    }

    /// Whether the card is large enough, and the share takes no more of it than its units pay for.
    pub(super) fn is_allowed(&self, share: CardShare, request: &GpuRequest) -> bool {
        self.is_large_enough(share) && request.excess(share, self.units).is_none()
    }

    /// The card as chosen for a share that fits it.
    pub(super) fn chosen(&self, share: CardShare) -> ChosenCard {
        let left = self.room().left(share);
        ChosenCard { uuid: self.uuid.clone(), index: self.index, units: self.units, left }
    }
}

/// What is free of a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Room {
    /// Units free.
    pub(super) units: Units,
    /// Percent of its compute that is free.
    pub(super) cores: Cores,
    /// Whether nothing is charged to any pod.
    pub(super) idle: bool,
    /// As [`FreeCard::sharers`].
    pub(super) sharers: Sharers,
    /// As [`FreeCard::clients`].
    pub(super) clients: u16,
}

impl Room {
    /// Whether a share of the request fits, beside the pods on the card.
    pub(super) fn takes(
        self,
        share: CardShare,
        request: &GpuRequest,
        isolation: CardIsolation,
    ) -> bool {
        self.has_room(share) && self.conflict(share, request, isolation).is_none()
    }

    /// Whether there is room for a share, in whatever way its pod and those on the card share it.
    pub(super) fn has_room(self, share: CardShare) -> bool {
        self.units >= share.units && self.cores >= share.cores && (self.idle || !share.exclusive)
    }

    /// Why the pods on the card cannot share it with one more; `None` if they can.
    pub(super) fn conflict(
        self,
        share: CardShare,
        request: &GpuRequest,
        isolation: CardIsolation,
    ) -> Option<CardFit> {
        if share.exclusive {
            return None;
        }
        let sharing = isolation.sharing(request.isolation());
        if !self.sharers.admit(sharing) {
            return Some(CardFit::OtherSharing);
        }
        let most = isolation.mps_clients.filter(|_| sharing == Sharing::Mps)?;
        let left = most.saturating_sub(self.clients);
        (share.processes > left).then_some(CardFit::TooManyClients { left })
    }

    /// Units that stay free with the share on the card.
    pub(super) fn left(self, share: CardShare) -> Units {
        if share.exclusive { Units::ZERO } else { self.units.saturating_sub(share.units) }
    }
}

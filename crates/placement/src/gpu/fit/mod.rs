//! Whether a request fits a node's cards, and which cards it gets. Filter, Prioritize, preempt, explain, Bind and the
//! benchmarks use this one rule.
//!
//! [`choose()`] chooses the cards, [`NoFit`] says why there are none.

mod assign;
mod choose;
mod no_fit;

use super::fragmentation::Cost;
use super::strategy::Preference;
use super::{
    CardFilter, CardIsolation, CardShare, Charge, ChoiceRule, Closed, Excess, GpuRequest, Rating,
    Sharers, Sharing,
};
use crate::load::Score;
use crate::units::{CardId, CardModel, Cores, Units};

pub use choose::choose;
pub(super) use choose::{check, numa_free};
pub use no_fit::NoFit;
pub(super) use no_fit::why_no_fit;

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

/// The cards that were chosen for a request.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Choice {
    /// One for each share of the request, in their order; never empty.
    pub cards: Vec<ChosenCard>,
    /// The cost of the placement; `None` if the cards were not chosen by cost.
    pub cost: Option<Cost>,
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

/// The whole decision about a node's cards for a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fit {
    /// The largest share of the request.
    pub largest_share: CardShare,
    /// How many cards are requested.
    pub count: usize,
    /// Each card, by index, and whether the largest share fits it.
    pub cards: Vec<(FreeCard, CardFit)>,
    /// The cards that were chosen, or why none fit.
    pub outcome: Result<Choice, NoFit>,
    /// The node's rating, as [`NodeCards::rate`](super::NodeCards::rate); `None` if the request does not fit.
    pub rating: Option<Rating>,
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

    fn is_named_by(&self, filter: &CardFilter) -> bool {
        filter.accepts_all() || filter.accepts(self.model.as_str(), self.uuid.as_str())
    }

    /// Whether new pods may be placed on it.
    pub(super) fn is_open(&self) -> bool {
        self.healthy && self.closed.is_none()
    }

    fn fits(&self, share: CardShare, request: &GpuRequest) -> bool {
        matches!(self.fit(share, request), CardFit::Fits { .. })
    }

    /// The card with this much free.
    pub(super) fn with_room(&self, room: Room) -> Self {
        let Room { units: free, cores: free_cores, idle, sharers, clients } = room;
        Self { free, free_cores, idle, sharers, clients, ..self.clone() }
    }

    fn has_memory(&self, share: CardShare) -> bool {
        self.free >= share.units
    }

    fn is_large_enough(&self, share: CardShare) -> bool {
        self.units >= share.units
    }

    /// Whether the card is large enough, and the share takes no more of it than its units pay for.
    fn is_allowed(&self, share: CardShare, request: &GpuRequest) -> bool {
        self.is_large_enough(share) && request.excess(share, self.units).is_none()
    }

    /// The card as chosen for a share that fits it.
    pub(super) fn chosen(&self, share: CardShare) -> ChosenCard {
        let left = self.room().left(share);
        ChosenCard { uuid: self.uuid.clone(), index: self.index, units: self.units, left }
    }
}

impl Choice {
    /// How good the choice is for a request under a rule: its cost where placements have one. Otherwise a score: under
    /// packing 100 where the cards are full and less the more stays free on them, under spreading the reverse.
    pub fn rate(&self, request: &GpuRequest, rule: &ChoiceRule) -> Rating {
        let left = self.cards.iter().map(|card| card.left).sum();
        let units = self.cards.iter().map(|card| card.units).sum();
        match (rule.preference(request), self.cost) {
            (Preference::Cheapest(_), Some(cost)) => Rating::Cost(cost),
            // Chosen before there was a measure: the pod keeps these cards, so this is the best rating.
            (Preference::Cheapest(_), None) => Rating::Cost(Cost(i64::MIN)),
            (Preference::Fullest, _) => Rating::Score(packing_score(left, units)),
            (Preference::Emptiest, _) => Rating::Score(spread_score(left, units)),
        }
    }

    /// The cards.
    pub fn card_ids(&self) -> Vec<CardId> {
        self.cards.iter().map(|card| card.uuid.clone()).collect()
    }

    /// Their indices.
    pub fn indices(&self) -> Vec<u32> {
        self.cards.iter().map(|card| card.index).collect()
    }

    /// The lowest index.
    pub fn first_index(&self) -> u32 {
        self.cards.iter().map(|card| card.index).min().unwrap_or_default()
    }
}

/// The score under packing where `left` of `units` stay free.
pub(super) fn packing_score(left: Units, units: Units) -> Score {
    Score::truncated(100.0 * (1.0 - f64::from(left.0) / f64::from(units.0.max(1))))
}

/// The score under spreading where `left` of `units` stay free.
pub(super) fn spread_score(left: Units, units: Units) -> Score {
    Score::truncated(100.0 - f64::from(packing_score(left, units).get()))
}

/// What is free of a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Room {
    /// Units free.
    pub(super) units: Units,
    /// Percent of its compute that is free.
    cores: Cores,
    /// Whether nothing is charged to any pod.
    idle: bool,
    /// As [`FreeCard::sharers`].
    sharers: Sharers,
    /// As [`FreeCard::clients`].
    clients: u16,
}

impl Room {
    /// What these charges leave free of a card with `units` units.
    pub(super) fn left_by<'c>(units: Units, charges: impl Iterator<Item = &'c Charge>) -> Self {
        let sharers = Sharers::None;
        let whole = Self { units, cores: Cores::ALL, idle: true, sharers, clients: 0 };
        charges.fold(whole, |room, charge| {
            let is_client = charge.sharing != Some(Sharing::Turns);
            Self {
                units: room.units.saturating_sub(charge.units),
                cores: room.cores.saturating_sub(charge.cores),
                idle: false,
                sharers: room.sharers.and(charge.sharing),
                clients: room.clients.saturating_add(if is_client { charge.processes } else { 0 }),
            }
        })
    }

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

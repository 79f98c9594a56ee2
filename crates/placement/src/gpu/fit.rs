//! Whether a request fits a node's cards, and which cards it gets. Filter, Prioritize, preempt, explain, Bind and the
//! benchmarks use this one rule.
//!
//! The shares of a request are sorted, the largest first. So a greedy choice finds cards for all shares whenever some
//! choice does.

use std::cmp::Reverse;

use super::fragmentation::{Cost, Measure, MeasuredNode};
use super::strategy::Preference;
use super::{
    CardFilter, CardShare, Charge, ChoiceRule, Closed, Excess, GpuRequest, Isolation, Rating,
};
use crate::load::Score;
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
    /// The strongest isolation that the node can enforce on it; `None` if not reported.
    pub isolation: Option<Isolation>,
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

/// Why no cards of a node fit a request. The text is the same whatever the numbers: kube-scheduler groups nodes by it
/// and uses it as a format string. The numbers are in [`Fit::cards`].
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
                "node cannot enforce the pod's gpu-isolation (MPS cannot for a pod that mounts a /dev/shm or has the host's IPC)"
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
            Self::NeededByUnplaced => "needed by unplaced pods",
        }
    }
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
        if !request.filter().is_enforced_by(self.isolation) {
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
        CardFit::Fits { left: self.room().left(share) }
    }

    /// What is free of the card, whether it is healthy or not.
    pub(super) fn room(&self) -> Room {
        Room { units: self.free, cores: self.free_cores, idle: self.idle }
    }

    pub(super) fn is_accepted(&self, filter: &CardFilter) -> bool {
        filter.accepts_all() || (filter.is_enforced_by(self.isolation) && self.is_named_by(filter))
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
}

impl Room {
    /// What these charges leave free of a card with `units` units.
    pub(super) fn left_by<'c>(units: Units, charges: impl Iterator<Item = &'c Charge>) -> Self {
        let whole = Self { units, cores: Cores::ALL, idle: true };
        charges.fold(whole, |room, charge| Self {
            units: room.units.saturating_sub(charge.units),
            cores: room.cores.saturating_sub(charge.cores),
            idle: false,
        })
    }

    /// Whether a share fits.
    pub(super) fn takes(self, share: CardShare) -> bool {
        self.units >= share.units && self.cores >= share.cores && (self.idle || !share.exclusive)
    }

    /// Units that stay free with the share on the card.
    pub(super) fn left(self, share: CardShare) -> Units {
        if share.exclusive { Units::ZERO } else { self.units.saturating_sub(share.units) }
    }
}

/// Chooses the cards for a request by the request's own strategy or else that of the rule. `cpu` is the node's free
/// CPU, in thousandths of a core. Of equal cards it takes one on the NUMA node with the least free memory, so that
/// other NUMA nodes stay whole, and there the one with the lowest index. Several cards are on one NUMA node where that
/// is possible. CPU is no reason to reject a node here: kube-scheduler counts it.
///
/// # Errors
///
/// Why none fit.
pub fn choose<'a>(
    cards: impl IntoIterator<Item = &'a FreeCard>,
    cpu: Option<u64>,
    request: &GpuRequest,
    rule: &ChoiceRule,
) -> Result<Choice, NoFit> {
    let mut cards: Vec<&FreeCard> = cards.into_iter().collect();
    let numa = numa_free(&cards);
    match rule.preference(request) {
        Preference::Cheapest(measure) => return cheapest(measure, &cards, cpu, request),
        Preference::Fullest => {
            cards.sort_by_cached_key(|card| (card.free, numa(card), card.index));
        }
        Preference::Emptiest => {
            cards.sort_by_cached_key(|card| (Reverse(card.free), Reverse(numa(card)), card.index));
        }
    }
    let chosen = pick(&cards, request).ok_or_else(|| why_no_fit(&cards, request))?;
    let chosen = chosen.into_iter().zip(request.shares());
    Ok(Choice { cards: chosen.map(|(card, share)| card.chosen(*share)).collect(), cost: None })
}

/// The cards where a placement costs least. For several cards, each is the cheapest by itself.
fn cheapest(
    measure: &Measure,
    cards: &[&FreeCard],
    cpu: Option<u64>,
    request: &GpuRequest,
) -> Result<Choice, NoFit> {
    let share = request.largest();
    let numa = numa_free(cards);
    let node = MeasuredNode::new(measure, cpu, cards);
    let mut priced: Vec<(Cost, u64, u32, &FreeCard)> = Vec::with_capacity(cards.len());
    for (at, card) in cards.iter().enumerate() {
        let cost = if card.fits(share, request) {
            let mut fitting = priced.iter().filter(|(cost, ..)| *cost != COST_OF_NO_FIT);
            let alike = fitting.find(|(.., other)| costs_the_same(card, other));
            match alike {
                Some((cost, ..)) => *cost,
                None => node.cost(request.cpu(), &[(at, share)]),
            }
        } else {
            COST_OF_NO_FIT
        };
        priced.push((cost, numa(card), card.index, card));
    }
    priced.sort_by_key(|(cost, numa, index, _)| (*cost, *numa, *index));
    let by_cost: Vec<&FreeCard> = priced.iter().map(|(.., card)| *card).collect();
    let chosen = pick(&by_cost, request).ok_or_else(|| why_no_fit(cards, request))?;
    let shares = chosen.iter().zip(request.shares());
    let shares: Vec<(usize, CardShare)> = shares
        .filter_map(|(card, share)| {
            let position = cards.iter().position(|other| std::ptr::eq(*other, *card))?;
            Some((position, *share))
        })
        .collect();
    let cost = Some(node.cost(request.cpu(), &shares));
    let chosen = chosen.into_iter().zip(request.shares());
    Ok(Choice { cards: chosen.map(|(card, share)| card.chosen(*share)).collect(), cost })
}

/// The cost of a card that the largest share does not fit.
const COST_OF_NO_FIT: Cost = Cost(i64::MAX);

/// Units free on the open cards of a card's NUMA node; 0 if that is not known.
pub(super) fn numa_free(cards: &[&FreeCard]) -> impl Fn(&FreeCard) -> u64 + use<> {
    let mut free: Vec<(u32, u64)> = Vec::new();
    for card in cards.iter().filter(|card| card.is_open()) {
        let Some(node) = card.numa_node else { continue };
        let units = u64::from(card.free.0);
        match free.iter_mut().find(|(known, _)| *known == node) {
            Some((_, sum)) => *sum += units,
            None => free.push((node, units)),
        }
    }
    move |card| {
        card.numa_node
            .and_then(|node| free.iter().find(|(known, _)| *known == node).map(|(_, sum)| *sum))
            .unwrap_or(0)
    }
}

/// The first of `cards`, in their order, that fit the request; on one NUMA node where that is possible.
fn pick<'a>(cards: &[&'a FreeCard], request: &GpuRequest) -> Option<Vec<&'a FreeCard>> {
    on_one_numa_node(cards, request).or_else(|| assign_all(cards, request))
}

/// Whether cards fit a request, without choosing them.
///
/// # Errors
///
/// Why none fit.
pub(super) fn check(cards: &[&FreeCard], request: &GpuRequest) -> Result<(), NoFit> {
    assign_all(cards, request).map(|_| ()).ok_or_else(|| why_no_fit(cards, request))
}

/// A card for each share of the request, without regard to NUMA nodes.
fn assign_all<'a>(cards: &[&'a FreeCard], request: &GpuRequest) -> Option<Vec<&'a FreeCard>> {
    assign(cards, request.shares(), |card, share| card.fits(share, request))
}

/// Cards for several shares on one NUMA node: the one where the chosen cards have the fewest free units.
fn on_one_numa_node<'a>(cards: &[&'a FreeCard], request: &GpuRequest) -> Option<Vec<&'a FreeCard>> {
    if request.shares().len() < 2 {
        return None;
    }
    let mut nodes: Vec<u32> = cards.iter().filter_map(|card| card.numa_node).collect();
    nodes.sort_unstable();
    nodes.dedup();
    let possible = nodes.into_iter().filter_map(|node| {
        let near: Vec<&FreeCard> =
            cards.iter().copied().filter(|card| card.numa_node == Some(node)).collect();
        assign_all(&near, request)
    });
    possible.min_by_key(|chosen| chosen.iter().map(|card| u64::from(card.free.0)).sum::<u64>())
}

/// For each share the first card that fits it and is not taken yet. Where all that fit it are taken, an earlier share
/// gives way if it fits another card: a card that fits the largest share may be too large for the compute or the
/// exclusive card of a smaller one.
fn assign<'a>(
    cards: &[&'a FreeCard],
    shares: &[CardShare],
    fits: impl Fn(&FreeCard, CardShare) -> bool,
) -> Option<Vec<&'a FreeCard>> {
    let mut taken: Vec<Option<usize>> = vec![None; cards.len()];
    for share in 0..shares.len() {
        let mut tried = vec![false; cards.len()];
        let fits = |share: usize, card: usize| fits(cards[card], shares[share]);
        if !put(share, &mut taken, &mut tried, &fits) {
            return None;
        }
    }
    (0..shares.len())
        .map(|share| taken.iter().position(|by| *by == Some(share)).map(|at| cards[at]))
        .collect()
}

/// Puts a share on a card, and the share that was there on another one. `taken`: the share on each card. `tried`: cards
/// that cannot be freed.
fn put(
    share: usize,
    taken: &mut [Option<usize>],
    tried: &mut [bool],
    fits: &impl Fn(usize, usize) -> bool,
) -> bool {
    let free = (0..taken.len()).find(|card| taken[*card].is_none() && fits(share, *card));
    if let Some(card) = free {
        taken[card] = Some(share);
        return true;
    }
    for card in 0..taken.len() {
        let Some(other) = taken[card] else {
            continue;
        };
        if tried[card] || !fits(share, card) {
            continue;
        }
        tried[card] = true;
        if put(other, taken, tried, fits) {
            taken[card] = Some(share);
            return true;
        }
    }
    false
}

/// Whether a share costs the same on both cards.
fn costs_the_same(one: &FreeCard, other: &FreeCard) -> bool {
    one.free == other.free
        && one.units == other.units
        && one.idle == other.idle
        && one.free_cores == other.free_cores
        && one.model == other.model
}

impl FreeCard {
    /// The card with this much free.
    pub(super) fn with_room(&self, room: Room) -> Self {
        Self { free: room.units, free_cores: room.cores, idle: room.idle, ..self.clone() }
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
}

/// Why none of `cards` fit the request.
pub(super) fn why_no_fit(cards: &[&FreeCard], request: &GpuRequest) -> NoFit {
    let shares = request.shares();
    let largest = request.largest();
    let filter = request.filter();
    let named: Vec<&FreeCard> =
        cards.iter().copied().filter(|card| card.is_named_by(filter)).collect();
    let accepted: Vec<&FreeCard> =
        named.iter().copied().filter(|card| filter.is_enforced_by(card.isolation)).collect();
    let fits_if = |condition: &dyn Fn(&FreeCard, CardShare) -> bool| {
        assign(&accepted, shares, condition).is_some()
    };
    if cards.is_empty() {
        NoFit::NoCards
    } else if named.is_empty() {
        NoFit::NotAccepted
    } else if accepted.is_empty() && named.iter().all(|card| card.isolation.is_none()) {
        NoFit::UnknownIsolation
    } else if accepted.is_empty() {
        NoFit::WeakIsolation
    } else if !fits_if(&FreeCard::is_large_enough) {
        NoFit::TooLarge
    } else if !fits_if(&|card, share| card.is_allowed(share, request))
        && let Some(excess) = excess(&accepted, request)
    {
        NoFit::BeyondUnits(excess)
    } else if fits_if(&|card, share| {
        card.healthy && card.is_allowed(share, request) && card.room().takes(share)
    }) {
        NoFit::Closed
    } else if fits_if(&|card, share| card.is_allowed(share, request) && card.room().takes(share)) {
        NoFit::Unhealthy
    } else if largest.exclusive {
        NoFit::InUse
    } else if fits_if(&|card, share| card.is_allowed(share, request) && card.has_memory(share)) {
        NoFit::NoCores
    } else if shares.len() > 1 && accepted.iter().any(|card| card.has_memory(largest)) {
        NoFit::TooFewCards
    } else {
        NoFit::NoRoom
    }
}

/// What the request would take beyond its units on a card that is large enough; the same in whatever order the cards
/// are.
fn excess(cards: &[&FreeCard], request: &GpuRequest) -> Option<Excess> {
    cards
        .iter()
        .filter_map(|card| {
            let units = card.units;
            let shares = request.shares().iter().filter(move |share| units >= share.units);
            shares.filter_map(move |share| request.excess(*share, units)).min()
        })
        .min()
}

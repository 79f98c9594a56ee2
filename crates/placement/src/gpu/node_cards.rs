//! What readers see of a node's cards.

use super::fit::{Room, cause, score};
use super::{CardFit, CardShare, Choice, Fit, FreeCard, GpuRequest, NoFit, Strategy, choose};
use crate::load::Score;
use crate::units::{Cores, PodUid, Units};

/// A node's cards at one time: what is free, and who is charged for the rest. Immutable; the ledger makes a new one
/// with every change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeCards {
    accounts: Vec<Account>,
    /// The healthy cards, by what is free and by index: the first with enough is the one to fill best.
    rooms: Box<[Healthy]>,
    /// The pods that Bind chose cards for in the life of this process, by UID.
    chosen: Vec<(PodUid, Choice)>,
    /// The pods that cards are kept for until they are bound, by UID.
    nominated: Vec<PodUid>,
    reserved: usize,
}

/// A healthy card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Healthy {
    room: Room,
    /// Among the node's accounts.
    position: usize,
}

/// One card's account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// The card.
    pub card: FreeCard,
    /// What pods are charged, by UID.
    pub charges: Vec<Charge>,
}

/// What one pod is charged on one card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Charge {
    /// The pod.
    pub pod: PodUid,
    /// Its units; never zero. All of the card for a pod that has it for itself.
    pub units: Units,
    /// Percent of the card's compute.
    pub cores: Cores,
    /// Why it counts here.
    pub basis: Basis,
}

/// Why a pod counts on a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Basis {
    /// The kubelet's records put it here.
    Recorded,
    /// Bind chose this card in the life of this process.
    Chosen,
    /// Its claim names this card, and the kubelet's records do not place it yet.
    Claimed,
    /// Its card is unknown: it counts on each.
    UnknownPlace,
    /// Its claim names another card, but a claim alone proves nothing: any user who may edit the pod can write one.
    UnprovenClaim,
    /// It holds nothing yet: kube-scheduler has evicted pods for it, and it is to be bound here.
    Nominated,
}

impl Charge {
    /// What a pod with this share is charged on a card of so many units; `None` where that is nothing.
    pub(super) fn of(pod: &PodUid, share: CardShare, basis: Basis, card: Units) -> Option<Self> {
        let (units, cores) = match share.exclusive {
            true => (share.units.max(card), share.cores.max(Cores::ALL)),
            false => (share.units, share.cores),
        };
        (!share.is_none()).then(|| Self { pod: pod.clone(), units, cores, basis })
    }
}

impl Account {
    /// Units that pods hold, as far as is known: all but those that count here only because a claim is not proven, or are kept for
    /// a pod that is to come.
    pub fn held(&self) -> Units {
        self.sum(|basis| !matches!(basis, Basis::UnprovenClaim | Basis::Nominated))
    }

    /// Units of the pods that are known, or claim, to be here.
    pub fn of_known_place(&self) -> Units {
        self.sum(|basis| matches!(basis, Basis::Recorded | Basis::Chosen | Basis::Claimed))
    }

    fn sum(&self, counts: impl Fn(Basis) -> bool) -> Units {
        self.charges.iter().filter(|charge| counts(charge.basis)).map(|charge| charge.units).sum()
    }
}

impl NodeCards {
    /// `chosen` and `nominated` are sorted by UID.
    pub(super) fn new(
        accounts: Vec<Account>,
        chosen: Vec<(PodUid, Choice)>,
        nominated: Vec<PodUid>,
        reserved: usize,
    ) -> Self {
        let healthy = |(position, account): (usize, &Account)| {
            let card = &account.card;
            card.healthy.then(|| Healthy { room: card.room(), position })
        };
        let mut rooms: Vec<_> = accounts.iter().enumerate().filter_map(healthy).collect();
        rooms.sort_by_key(|card| (card.room.units, accounts[card.position].card.index));
        Self { accounts, rooms: rooms.into(), chosen, nominated, reserved }
    }

    /// Reservations that the API server has not confirmed.
    pub fn reserved(&self) -> usize {
        self.reserved
    }

    /// The accounts, by index.
    pub fn accounts(&self) -> &[Account] {
        &self.accounts
    }

    /// The cards that a pod would go to. One that Bind chose cards for has them: it is not turned away from them for
    /// want of what it holds itself.
    ///
    /// # Errors
    ///
    /// Why none fit.
    pub fn fit(&self, pod: &PodUid, request: &GpuRequest) -> Result<Choice, NoFit> {
        if let Some(choice) = self.choice(pod) {
            return Ok(choice.clone());
        }
        match request.shares() {
            _ if self.is_nominated(pod) => self.fit_without(|uid| uid == pod, pod, request),
            [share] => {
                let card = &self.accounts[self.healthy(request, *share)?.position].card;
                Ok(Choice { cards: vec![card.chosen(*share)] })
            }
            _ => choose(self.cards(), request, Strategy::default()),
        }
    }

    /// How well the pod would fit, as [`Choice::score`] of what [`NodeCards::fit`] chooses.
    ///
    /// # Errors
    ///
    /// As [`NodeCards::fit`].
    pub fn score(&self, pod: &PodUid, request: &GpuRequest) -> Result<Score, NoFit> {
        let strategy = request.strategy().unwrap_or_default();
        match request.shares() {
            // Without a copy of the card.
            [share] if self.choice(pod).is_none() && !self.is_nominated(pod) => {
                let Healthy { room, position } = self.healthy(request, *share)?;
                let units = self.accounts[*position].card.units;
                Ok(score(strategy, room.left(*share), units))
            }
            _ => self.fit(pod, request).map(|choice| choice.score(strategy)),
        }
    }

    /// Where the one share of a request goes: as [`choose`], without a copy of the cards.
    fn healthy(&self, request: &GpuRequest, share: CardShare) -> Result<&Healthy, NoFit> {
        let accepted =
            |card: &&Healthy| self.accounts[card.position].card.is_accepted(request.filter());
        let mut fitting = self.rooms.iter().filter(|card| card.room.takes(share)).filter(accepted);
        let chosen = match request.strategy().unwrap_or_default() {
            Strategy::Pack => fitting.next(),
            // Of equals the first, which has the lowest index.
            Strategy::Spread => {
                fitting.reduce(|a, b| if b.room.units > a.room.units { b } else { a })
            }
        };
        chosen.ok_or_else(|| cause(&self.cards().collect::<Vec<_>>(), request))
    }

    /// As [`NodeCards::fit`], with how the request stands to each card.
    pub fn explain(&self, pod: &PodUid, request: &GpuRequest) -> Fit {
        let (asked, count) = (request.largest(), request.shares().len());
        let card = |card: &FreeCard| (card.clone(), card.fit(asked, request.filter()));
        let cards: Vec<(FreeCard, CardFit)> = self.cards().map(card).collect();
        let score = self.score(pod, request).unwrap_or(Score::ZERO);
        Fit { asked, count, cards, outcome: self.fit(pod, request), score }
    }

    /// As [`NodeCards::fit`], if the pods that `gone` names held nothing any more.
    ///
    /// # Errors
    ///
    /// Why no cards fit even then.
    pub fn fit_without(
        &self,
        gone: impl Fn(&PodUid) -> bool,
        pod: &PodUid,
        request: &GpuRequest,
    ) -> Result<Choice, NoFit> {
        if let Some(choice) = self.choice(pod) {
            return Ok(choice.clone());
        }
        let without = |account: &Account| account.without(&gone);
        let cards: Vec<FreeCard> = self.accounts.iter().map(without).collect();
        choose(&cards, request, Strategy::default())
    }

    fn is_nominated(&self, pod: &PodUid) -> bool {
        !self.nominated.is_empty() && self.nominated.binary_search(pod).is_ok()
    }

    fn choice(&self, pod: &PodUid) -> Option<&Choice> {
        if self.chosen.is_empty() {
            return None;
        }
        let at = self.chosen.binary_search_by(|(chosen, _)| chosen.cmp(pod)).ok()?;
        self.chosen.get(at).map(|(_, choice)| choice)
    }

    fn cards(&self) -> impl Iterator<Item = &FreeCard> + Clone {
        self.accounts.iter().map(|account| &account.card)
    }
}

impl Account {
    /// The account of a card as it is without charges.
    pub(super) fn new(card: &FreeCard, charges: Vec<Charge>) -> Self {
        Self { card: Room::beside(card.units, charges.iter()).of(card), charges }
    }

    fn without(&self, gone: &impl Fn(&PodUid) -> bool) -> FreeCard {
        let stay = self.charges.iter().filter(|charge| !gone(&charge.pod));
        Room::beside(self.card.units, stay).of(&self.card)
    }
}

//! What readers see of a node's cards.

use super::fit::{Room, cause};
use super::{CardFit, Choice, Fit, FreeCard, GpuRequest, NoFit, choose};
use crate::load::Score;
use crate::units::{PodUid, Units};

/// A node's cards at one time: what is free, and who is charged for the rest. Immutable; the ledger makes a new one
/// with every change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeCards {
    accounts: Vec<Account>,
    /// The healthy cards, by what is free and by index: the first with enough is the one to choose.
    rooms: Box<[Room]>,
    /// The pods that Bind chose a card for in the life of this process, by UID.
    chosen: Vec<(PodUid, Choice)>,
    reserved: usize,
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
    /// Its units; never zero.
    pub units: Units,
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
}

impl Account {
    /// Units that pods hold, as far as is known: all but those that count here only because a claim is not proven.
    pub fn held(&self) -> Units {
        self.sum(|basis| basis != Basis::UnprovenClaim)
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
    /// `chosen` is sorted by UID.
    pub(super) fn new(
        accounts: Vec<Account>,
        chosen: Vec<(PodUid, Choice)>,
        reserved: usize,
    ) -> Self {
        let mut rooms: Vec<_> =
            accounts.iter().enumerate().filter_map(|(at, account)| account.card.room(at)).collect();
        rooms.sort_by_key(|room| (room.free, accounts[room.position].card.index));
        Self { accounts, rooms: rooms.into(), chosen, reserved }
    }

    /// Reservations that the API server has not confirmed.
    pub fn reserved(&self) -> usize {
        self.reserved
    }

    /// The accounts, by index.
    pub fn accounts(&self) -> &[Account] {
        &self.accounts
    }

    /// The card that a pod would go to. One that Bind chose a card for has it: it is not turned away from its card for
    /// want of what it holds itself.
    ///
    /// # Errors
    ///
    /// Why no card fits.
    pub fn fit(&self, pod: &PodUid, request: &GpuRequest) -> Result<Choice, NoFit> {
        match self.choice(pod) {
            Some(choice) => Ok(choice.clone()),
            None => {
                self.room(request).map(|room| self.accounts[room.position].card.choice(request))
            }
        }
    }

    /// How tightly the pod would fit, as the [tightness](Choice::tightness) of [`NodeCards::fit`].
    ///
    /// # Errors
    ///
    /// As [`NodeCards::fit`].
    pub fn tightness(&self, pod: &PodUid, request: &GpuRequest) -> Result<Score, NoFit> {
        match self.choice(pod) {
            Some(choice) => Ok(choice.tightness()),
            None => self.room(request).map(|room| room.tightness(request)),
        }
    }

    fn room(&self, request: &GpuRequest) -> Result<&Room, NoFit> {
        let asked = request.peak();
        let first = self.rooms.iter().find(|room| room.free >= asked);
        first.ok_or_else(|| cause(&self.cards(), asked))
    }

    /// As [`NodeCards::fit`], with how the request stands to each card.
    pub fn explain(&self, pod: &PodUid, request: &GpuRequest) -> Fit {
        let asked = request.peak();
        let card = |card: &FreeCard| (card.clone(), card.fit(asked));
        let cards: Vec<(FreeCard, CardFit)> = self.cards().map(card).collect();
        Fit { asked, cards, outcome: self.fit(pod, request) }
    }

    /// As [`NodeCards::fit`], if the pods that `gone` names held nothing any more.
    ///
    /// # Errors
    ///
    /// Why no card fits even then.
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
        choose(&cards, request)
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
    pub(super) fn new(card: FreeCard, charges: Vec<Charge>) -> Self {
        let charged = charges.iter().map(|charge| charge.units).sum();
        Self { card: FreeCard { free: card.units.saturating_sub(charged), ..card }, charges }
    }

    fn without(&self, gone: &impl Fn(&PodUid) -> bool) -> FreeCard {
        let stays = self.charges.iter().filter(|charge| !gone(&charge.pod));
        let charged = stays.map(|charge| charge.units).sum();
        FreeCard { free: self.card.units.saturating_sub(charged), ..self.card.clone() }
    }
}

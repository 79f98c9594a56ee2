//! What readers see of a node's cards.

use super::fit::{Room, cause, check, looseness, numa_free, tightness};
use super::fragmentation::{Cost, Measure};
use super::strategy::Preference;
use super::{
    CardFit, CardShare, Choice, ChoiceRule, Fit, FreeCard, GpuRequest, NoFit, Rating, choose,
};
use std::cmp::Reverse;

use crate::units::{Cores, PodUid, Units};

/// A node's cards at one time: what is free, and which pods are charged for the rest. Immutable; the ledger makes a new one
/// with every change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeCards {
    accounts: Vec<Account>,
    /// The healthy cards, by what is free and by index: the first with enough is the one to fill best.
    rooms: Box<[Healthy]>,
    pods: KnownPods,
    /// Free CPU, in thousandths of a core; `None` where it is not known.
    cpu: Option<u64>,
}

/// The pods of which more is known than what they are charged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct KnownPods {
    /// Those that Bind chose cards for in the life of this process, by UID.
    pub(super) chosen: Vec<(PodUid, Choice)>,
    /// Those that cards are kept for until they are bound, by UID.
    pub(super) nominated: Vec<PodUid>,
    /// Those that are gone while they may have processes, and that no report has shown, by UID.
    pub(super) departed: Vec<PodUid>,
    /// Reservations that the API server has not confirmed.
    pub(super) reserved: usize,
}

/// A healthy card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Healthy {
    room: Room,
    /// Units free on its NUMA node.
    numa: u64,
    /// All its units.
    units: Units,
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
    /// The pod; empty where it is no pod's.
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
    /// No pod's: memory that is in use beyond what pods hold.
    Unmanaged,
}

impl Basis {
    /// Whether the pod holds the units, as far as is known: not where an unproven claim alone says so, where they are kept for a pod
    /// that is to come, or where they are nobody's.
    #[must_use]
    pub fn is_held(self) -> bool {
        !matches!(self, Self::UnprovenClaim | Self::Nominated | Self::Unmanaged)
    }
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
        self.sum(Basis::is_held)
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
    pub(super) fn new(accounts: Vec<Account>, pods: KnownPods, cpu: Option<u64>) -> Self {
        let numa = numa_free(&accounts.iter().map(|account| &account.card).collect::<Vec<_>>());
        let healthy = |(position, account): (usize, &Account)| {
            let card = &account.card;
            let (numa, units) = (numa(card), card.units);
            card.healthy.then(|| Healthy { room: card.room(), numa, units, position })
        };
        let mut rooms: Vec<_> = accounts.iter().enumerate().filter_map(healthy).collect();
        let index = |card: &Healthy| accounts[card.position].card.index;
        rooms.sort_by_key(|card| (card.room.units, card.numa, index(card)));
        Self { accounts, rooms: rooms.into(), pods, cpu }
    }

    /// Free CPU, in thousandths of a core; `None` where it is not known.
    pub fn cpu(&self) -> Option<u64> {
        self.cpu
    }

    /// Reservations that the API server has not confirmed.
    pub fn reserved(&self) -> usize {
        self.pods.reserved
    }

    /// The pods that are gone, and that are charged for some seconds yet, since they may have processes: by UID.
    pub fn departed(&self) -> &[PodUid] {
        &self.pods.departed
    }

    /// The pods for which [`NodeCards::fit`], [`NodeCards::check`] and [`NodeCards::rate`] may say something else than for others with
    /// the same request: cards are set aside or kept for them. By UID.
    pub fn known_pods(&self) -> impl Iterator<Item = &PodUid> {
        self.pods.chosen.iter().map(|(pod, _)| pod).chain(&self.pods.nominated)
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
    pub fn fit(
        &self,
        pod: &PodUid,
        request: &GpuRequest,
        rule: &ChoiceRule,
    ) -> Result<Choice, NoFit> {
        if let Some(choice) = self.choice(pod) {
            return Ok(choice.clone());
        }
        match (request.shares(), rule.preference(request)) {
            _ if self.is_nominated(pod) => self.fit_without(|uid| uid == pod, pod, request, rule),
            ([share], Preference::Fullest | Preference::Emptiest) => {
                let card = self.single(request, *share, rule)?;
                let card = self.accounts[card.position].card.chosen(*share);
                Ok(Choice { cards: vec![card], cost: None })
            }
            _ => choose(self.cards(), self.cpu, request, rule),
        }
    }

    /// Whether [`NodeCards::fit`] finds cards, without choosing them.
    ///
    /// # Errors
    ///
    /// Why none fit.
    pub fn check(&self, pod: &PodUid, request: &GpuRequest) -> Result<(), NoFit> {
        if self.choice(pod).is_some() {
            return Ok(());
        }
        match request.shares() {
            _ if self.is_nominated(pod) => {
                let rule = ChoiceRule::default();
                self.fit_without(|uid| uid == pod, pod, request, &rule).map(|_| ())
            }
            [share] => match self.fitting(request, *share).next() {
                Some(_) => Ok(()),
                None => Err(self.cause(request)),
            },
            _ => check(&self.cards().collect::<Vec<_>>(), request),
        }
    }

    /// How good the node is for the pod, as [`Choice::rate`] of what [`NodeCards::fit`] chooses.
    ///
    /// # Errors
    ///
    /// As [`NodeCards::fit`].
    pub fn rate(
        &self,
        pod: &PodUid,
        request: &GpuRequest,
        rule: &ChoiceRule,
    ) -> Result<Rating, NoFit> {
        let preference = rule.preference(request);
        let points = match preference {
            Preference::Cheapest(_) => None,
            Preference::Fullest => Some(tightness as fn(Units, Units) -> _),
            Preference::Emptiest => Some(looseness as fn(Units, Units) -> _),
        };
        match (request.shares(), points) {
            // Without a copy of the card.
            ([share], Some(points)) if self.choice(pod).is_none() && !self.is_nominated(pod) => {
                let Healthy { room, units, .. } = self.single(request, *share, rule)?;
                Ok(Rating::Score(points(room.left(*share), *units)))
            }
            _ => self.fit(pod, request, rule).map(|choice| choice.rate(request, rule)),
        }
    }

    /// Where the one share of a request goes where nothing is measured: as [`choose`], without a copy of the cards.
    fn single(
        &self,
        request: &GpuRequest,
        share: CardShare,
        rule: &ChoiceRule,
    ) -> Result<&Healthy, NoFit> {
        let mut fitting = self.fitting(request, share);
        let chosen = match rule.preference(request) {
            Preference::Emptiest => fitting.max_by_key(|card| {
                let index = self.accounts[card.position].card.index;
                (card.room.units, card.numa, Reverse(index))
            }),
            _ => fitting.next(),
        };
        chosen.ok_or_else(|| self.cause(request))
    }

    /// The cards that a share fits, the fullest first.
    fn fitting(&self, request: &GpuRequest, share: CardShare) -> impl Iterator<Item = &Healthy> {
        // Most pods accept any card, and then the accounts need not be read.
        let is_any = request.filter().accepts_all();
        let accepted = move |card: &&Healthy| {
            is_any || self.accounts[card.position].card.is_accepted(request.filter())
        };
        self.rooms.iter().filter(move |card| card.room.takes(share)).filter(accepted)
    }

    fn cause(&self, request: &GpuRequest) -> NoFit {
        cause(&self.cards().collect::<Vec<_>>(), request)
    }

    /// What it costs the cards that a pod without cards takes so much CPU, in thousandths of a core. Nothing where the CPU is not known.
    pub fn cost_of_cpu(&self, asked: u64, measure: &Measure) -> Cost {
        let cards = self.accounts.iter().map(|account| &account.card);
        self.cpu.map_or(Cost(0), |cpu| measure.cost_of_cpu(cards, cpu, asked))
    }

    /// As [`NodeCards::fit`], with how the request stands to each card.
    pub fn explain(&self, pod: &PodUid, request: &GpuRequest, rule: &ChoiceRule) -> Fit {
        let (asked, count) = (request.largest(), request.shares().len());
        let card = |card: &FreeCard| (card.clone(), card.fit(asked, request.filter()));
        let cards: Vec<(FreeCard, CardFit)> = self.cards().map(card).collect();
        let rating = self.rate(pod, request, rule).ok();
        Fit { asked, count, cards, outcome: self.fit(pod, request, rule), rating }
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
        rule: &ChoiceRule,
    ) -> Result<Choice, NoFit> {
        if let Some(choice) = self.choice(pod) {
            return Ok(choice.clone());
        }
        let without = |account: &Account| account.without(&gone);
        let cards: Vec<FreeCard> = self.accounts.iter().map(without).collect();
        choose(&cards, self.cpu, request, rule)
    }

    /// Whether the pod fits once departed pods count no more, where any does.
    pub fn fits_soon(&self, pod: &PodUid, request: &GpuRequest) -> bool {
        let goes = |uid: &PodUid| uid == pod || self.pods.departed.binary_search(uid).is_ok();
        let fits = || self.fit_without(goes, pod, request, &ChoiceRule::default()).is_ok();
        !self.pods.departed.is_empty() && fits()
    }

    /// These cards if the pods that `gone` names held nothing any more.
    #[must_use]
    pub fn without(&self, gone: impl Fn(&PodUid) -> bool) -> Self {
        let without = |account: &Account| {
            let stay = account.charges.iter().filter(|charge| !gone(&charge.pod));
            Account::new(&account.card, stay.cloned().collect())
        };
        let accounts = self.accounts.iter().map(without).collect();
        Self::new(accounts, self.pods.clone(), self.cpu)
    }

    fn is_nominated(&self, pod: &PodUid) -> bool {
        !self.pods.nominated.is_empty() && self.pods.nominated.binary_search(pod).is_ok()
    }

    fn choice(&self, pod: &PodUid) -> Option<&Choice> {
        let chosen = &self.pods.chosen;
        if chosen.is_empty() {
            return None;
        }
        let at = chosen.binary_search_by(|(chosen, _)| chosen.cmp(pod)).ok()?;
        chosen.get(at).map(|(_, choice)| choice)
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

//! A node's cards and charges at one time, as Filter, Prioritize, preempt, explain and Bind read them.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::choice_rule::Preference;
use super::fit::{check, numa_free, packing_score, spread_score, why_no_fit};
use super::fragmentation::{Cost, Measure};
use super::free_card::Room;
use super::{
    Account, Basis, CardIsolation, CardShare, Charge, Choice, ChoiceRule, Fit, FreeCard,
    GpuRequest, NoFit, Rating, Sharing, choose,
};
use crate::units::{PodUid, Units};

/// A node's cards at one time: what is free, and what each pod is charged. Immutable; the ledger makes a new value
/// after each change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeCards {
    accounts: Vec<Account>,
    /// The open cards, sorted by free units, then by free units of the NUMA node and by index: under packing, the first
    /// that fits is best.
    open_cards: Box<[OpenCard]>,
    pods: PodStates,
    /// Free CPU, in thousandths of a core; `None` where it is not known.
    cpu: Option<u64>,
}

/// What is known of pods beyond their charges.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct PodStates {
    /// Pods that Bind has chosen cards for since this process started, sorted by UID.
    pub(super) chosen: Vec<(PodUid, Choice)>,
    /// Pods that cards are kept for until they are bound, sorted by UID, each with its priority.
    pub(super) nominated: Vec<(PodUid, i32)>,
    /// Deleted pods that may still have processes and that no report has shown, sorted by UID.
    pub(super) departed: Vec<PodUid>,
    /// How many reservations the API server has not confirmed.
    pub(super) reserved: usize,
    /// Units of pods that are bound without a claim and not on a card yet.
    pub(super) unplaced: Vec<(PodUid, Units)>,
    /// Pods of which nothing but a claim is known, and that names a card that the node does not report.
    pub(super) on_lost_cards: Vec<PodUid>,
}

/// A healthy card that takes new pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct OpenCard {
    room: Room,
    /// Units free on its NUMA node.
    numa: u64,
    /// All its units.
    units: Units,
    isolation: CardIsolation,
    /// Its position among the node's accounts.
    position: usize,
}

impl NodeCards {
    pub(super) fn new(accounts: Vec<Account>, pods: PodStates, cpu: Option<u64>) -> Self {
        let numa = numa_free(&accounts.iter().map(|account| &account.card).collect::<Vec<_>>());
        let mut open_cards = Vec::with_capacity(accounts.len());
        for (position, Account { card, .. }) in accounts.iter().enumerate() {
            if card.is_open() {
                let (room, units, isolation) = (card.room(), card.units, card.isolation);
                open_cards.push(OpenCard { room, numa: numa(card), units, isolation, position });
            }
        }
        open_cards
            .sort_by_key(|card| (card.room.units, card.numa, accounts[card.position].card.index));
        Self { accounts, open_cards: open_cards.into(), pods, cpu }
    }

    /// Free CPU, in thousandths of a core; `None` where it is not known.
    pub fn cpu(&self) -> Option<u64> {
        self.cpu
    }

    /// How many reservations the API server has not confirmed.
    pub fn reserved(&self) -> usize {
        self.pods.reserved
    }

    /// Deleted pods that are still charged for some seconds, since they may have processes; sorted by UID.
    pub fn departed(&self) -> &[PodUid] {
        &self.pods.departed
    }

    /// Pods that are bound without a claim and not on a card yet, with their units. They count once on the whole node,
    /// as in kube-scheduler: a pod fits only if the node's free units suffice for it and for them.
    pub fn unplaced(&self) -> &[(PodUid, Units)] {
        &self.pods.unplaced
    }

    /// Pods of which nothing but a claim is known, and that names a card that the node does not report.
    pub fn on_lost_cards(&self) -> &[PodUid] {
        &self.pods.on_lost_cards
    }

    /// The pods that cards are reserved or kept for. For these, [`NodeCards::fit`], [`NodeCards::check`] and
    /// [`NodeCards::rate`] may return something else than for other pods with the same request.
    pub fn pods_with_set_aside_cards(&self) -> impl Iterator<Item = &PodUid> {
        let PodStates { chosen, nominated, .. } = &self.pods;
        chosen.iter().map(|(pod, _)| pod).chain(nominated.iter().map(|(pod, _)| pod))
    }

    /// The accounts, by index.
    pub fn accounts(&self) -> &[Account] {
        &self.accounts
    }

    /// The clients of MPS beside others on a card where nothing terminates a client before it is killed: a kill with
    /// work in flight would end the others. A pod of unknown kind counts as a client where there is MPS.
    pub fn undrained_clients(&self) -> BTreeSet<&PodUid> {
        let mut undrained = BTreeSet::new();
        for Account { card, charges } in &self.accounts {
            let isolation = card.isolation;
            let is_client = |charge: &&Charge| match charge.sharing {
                _ if !charge.basis.is_held() => false,
                Some(sharing) => sharing == Sharing::Mps,
                None => isolation.mps_clients.is_some(),
            };
            let clients: Vec<_> =
                charges.iter().filter(is_client).map(|charge| &charge.pod).collect();
            if !isolation.drains_clients && clients.len() > 1 {
                undrained.extend(clients);
            }
        }
        undrained
    }

    /// The cards that a pod would get. A pod that Bind has chosen cards for keeps them: its own charges are no reason
    /// against them.
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
            _ if self.has_kept_for(pod, request) => self.fit_without(|_| false, pod, request, rule),
            _ if self.unplaced_need(|_| false, self.cards(), request) => {
                Err(NoFit::NeededByUnplaced)
            }
            ([share], Preference::Fullest | Preference::Emptiest) => {
                let card = self.best_card(request, *share, rule)?;
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
            _ if self.has_kept_for(pod, request) => {
                self.fit_without(|_| false, pod, request, &ChoiceRule::default()).map(|_| ())
            }
            _ if self.unplaced_need(|_| false, self.cards(), request) => {
                Err(NoFit::NeededByUnplaced)
            }
            [share] => match self.fitting(request, *share).next() {
                Some(_) => Ok(()),
                None => Err(self.why_no_fit(request)),
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
            Preference::Fullest => Some(packing_score as fn(Units, Units) -> _),
            Preference::Emptiest => Some(spread_score as fn(Units, Units) -> _),
        };
        match (request.shares(), points) {
            // Avoids a copy of the card.
            ([share], Some(points))
                if self.choice(pod).is_none()
                    && !self.has_kept_for(pod, request)
                    && self.pods.unplaced.is_empty() =>
            {
                let OpenCard { room, units, .. } = self.best_card(request, *share, rule)?;
                Ok(Rating::Score(points(room.left(*share), *units)))
            }
            _ => self.fit(pod, request, rule).map(|choice| choice.rate(request, rule)),
        }
    }

    /// The card for a request of one share under packing or spreading: as [`choose`], without a copy of the cards.
    fn best_card(
        &self,
        request: &GpuRequest,
        share: CardShare,
        rule: &ChoiceRule,
    ) -> Result<&OpenCard, NoFit> {
        let mut fitting = self.fitting(request, share);
        let chosen = match rule.preference(request) {
            Preference::Emptiest => fitting.max_by_key(|card| {
                let index = self.accounts[card.position].card.index;
                (card.room.units, card.numa, Reverse(index))
            }),
            _ => fitting.next(),
        };
        chosen.ok_or_else(|| self.why_no_fit(request))
    }

    /// The cards that fit a share, the fullest first.
    fn fitting(&self, request: &GpuRequest, share: CardShare) -> impl Iterator<Item = &OpenCard> {
        // Most pods accept any card; then the accounts need not be read.
        let is_any = request.filter().accepts_all();
        self.open_cards
            .iter()
            .filter(move |card| {
                card.room.takes(share, request, card.isolation)
                    && request.excess(share, card.units).is_none()
            })
            .filter(move |card| {
                is_any || self.accounts[card.position].card.is_accepted(request.filter())
            })
    }

    fn why_no_fit(&self, request: &GpuRequest) -> NoFit {
        why_no_fit(&self.cards().collect::<Vec<_>>(), request)
    }

    /// The cost to the cards of a pod without cards that requests this CPU, in thousandths of a core. 0 if the node's
    /// free CPU is not known.
    pub fn cost_of_cpu(&self, requested: u64, measure: &Measure) -> Cost {
        self.cpu.map_or(Cost(0), |cpu| measure.cost_of_cpu(self.cards(), cpu, requested))
    }

    /// As [`NodeCards::fit`], and for each card whether the largest share fits it.
    pub fn explain(&self, pod: &PodUid, request: &GpuRequest, rule: &ChoiceRule) -> Fit {
        let largest_share = request.largest();
        let count = request.shares().len();
        let mut cards = Vec::with_capacity(self.accounts.len());
        for card in self.accounts.iter().map(|account| account.for_pod(pod, request)) {
            let fit = card.fit(largest_share, request);
            cards.push((card, fit));
        }
        let rating = self.rate(pod, request, rule).ok();
        Fit { largest_share, count, cards, outcome: self.fit(pod, request, rule), rating }
    }

    /// As [`NodeCards::fit`], without the charges of the pods for which `gone` is true.
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
        let stays = |charge: &&Charge| !gone(&charge.pod) && charge.counts_against(pod, request);
        let cards: Vec<FreeCard> =
            self.accounts.iter().map(|account| account.with_charges(stays)).collect();
        if self.unplaced_need(&gone, cards.iter(), request) {
            return Err(NoFit::NeededByUnplaced);
        }
        choose(&cards, self.cpu, request, rule)
    }

    /// Whether pods that are not on a card yet, without those for which `gone` is true, need units of `cards` that the
    /// request would take.
    pub(super) fn unplaced_need<'c>(
        &self,
        gone: impl Fn(&PodUid) -> bool,
        cards: impl Iterator<Item = &'c FreeCard>,
        request: &GpuRequest,
    ) -> bool {
        let beside = self.free_beside_unplaced(gone, cards);
        beside.is_some_and(|free| free < request.peak())
    }

    /// The units of `cards` that no pod needs that is not on a card yet; `None` if there is no such pod. Those for
    /// which `gone` is true do not count.
    pub(super) fn free_beside_unplaced<'c>(
        &self,
        gone: impl Fn(&PodUid) -> bool,
        cards: impl Iterator<Item = &'c FreeCard>,
    ) -> Option<Units> {
        let needed: Units =
            self.pods.unplaced.iter().filter(|(pod, _)| !gone(pod)).map(|(_, units)| *units).sum();
        if needed.is_zero() {
            return None;
        }
        let free: Units = cards.filter(|card| card.healthy).map(|card| card.free).sum();
        Some(free.saturating_sub(needed))
    }

    /// These cards without the charges of the pods for which `gone` is true.
    #[must_use]
    pub fn without(&self, gone: impl Fn(&PodUid) -> bool) -> Self {
        let mut accounts = Vec::with_capacity(self.accounts.len());
        for Account { card, charges } in &self.accounts {
            let stay = charges.iter().filter(|charge| !gone(&charge.pod)).cloned().collect();
            accounts.push(Account::new(card, stay));
        }
        let mut pods = self.pods.clone();
        pods.unplaced.retain(|(pod, _)| !gone(pod));
        pods.chosen.retain(|(pod, _)| !gone(pod));
        pods.nominated.retain(|(pod, _)| !gone(pod));
        Self::new(accounts, pods, self.cpu)
    }

    /// These cards with a pod on the chosen ones, and with its CPU taken.
    #[must_use]
    pub fn with(&self, pod: &PodUid, request: &GpuRequest, choice: &Choice) -> Self {
        let mut accounts = self.accounts.clone();
        for (chosen, share) in choice.cards.iter().zip(request.shares()) {
            let known = accounts.iter_mut().find(|account| account.card.uuid == chosen.uuid);
            let Some(account) = known else { continue };
            let mut charges = std::mem::take(&mut account.charges);
            let sharing = Some(account.card.isolation.sharing(request.isolation()));
            charges.extend(Charge::of(pod, *share, Basis::Chosen, sharing, chosen.units));
            charges.sort_by(|one, other| one.pod.cmp(&other.pod));
            *account = Account::new(&account.card, charges);
        }
        let cpu = self.cpu.map(|cpu| cpu.saturating_sub(request.cpu()));
        Self::new(accounts, self.pods.clone(), cpu)
    }

    /// These cards with this much free CPU, in thousandths of a core.
    #[must_use]
    pub fn with_cpu(self, cpu: Option<u64>) -> Self {
        Self { cpu, ..self }
    }

    /// Whether cards are kept that count as free for the pod: its own, and those of less important pods.
    fn has_kept_for(&self, pod: &PodUid, request: &GpuRequest) -> bool {
        let nominated = &self.pods.nominated;
        nominated.iter().any(|(other, kept_at)| other == pod || *kept_at < request.priority())
    }

    fn choice(&self, pod: &PodUid) -> Option<&Choice> {
        let chosen = &self.pods.chosen;
        if chosen.is_empty() {
            return None;
        }
        let at = chosen.binary_search_by(|(chosen, _)| chosen.cmp(pod)).ok()?;
        chosen.get(at).map(|(_, choice)| choice)
    }

    fn cards(&self) -> impl ExactSizeIterator<Item = &FreeCard> + Clone {
        self.accounts.iter().map(|account| &account.card)
    }
}

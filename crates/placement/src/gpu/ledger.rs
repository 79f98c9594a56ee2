//! The ledger of one node: which pod holds how many units of which card.
//!
//! Invariant: [`NodeLedger::reserve`] never takes a card over its units, whatever came before. A
//! pod's entry only moves forward (reserved → bound → allocated → released); what the API server
//! shows always wins over what we meant to do; and where two sources disagree about a card (the
//! claim, the kubelet's records) the larger charge counts. Callers hold one lock a node around it.

use std::collections::BTreeMap;

use super::{Card, Choice, Claim, FreeCard, GpuRequest, NoCard, choose};
use crate::units::{CardId, PodUid, Units};

/// Where a bound pod's units are, as its annotations tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Placed {
    /// Our claim, checked against the spec: units at most held on each card.
    Cards(BTreeMap<CardId, Units>),
    /// Only Aliyun's annotation: the whole pod on the card of this index.
    Index(u32),
    /// Nothing that counts: the pod may be on any card.
    Unknown,
}

impl Placed {
    /// By the pod's claim.
    pub fn by(claim: &Claim, request: &GpuRequest) -> Self {
        Self::Cards([(claim.card().clone(), request.peak())].into())
    }
}

/// How far a pod's claim has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Chosen here; the API server has not confirmed it.
    Reserved,
    /// The API server shows the pod on the node.
    Bound,
    /// The device plugin has handed the card over.
    Allocated,
}

#[derive(Debug, Clone)]
struct Entry {
    stage: Stage,
    peak: Units,
    placed: Placed,
    /// What Bind decided, so that a repeated call gets the same answer.
    reserved: Option<(Claim, Choice)>,
}

/// One card's account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CardUse {
    /// The card as reported.
    pub card: Card,
    /// Units held.
    pub used: Units,
    /// Who holds how many of them.
    pub pods: BTreeMap<PodUid, Units>,
}

/// The account of one node's cards.
#[derive(Debug, Clone, Default)]
pub struct NodeLedger {
    cards: Vec<Card>,
    entries: BTreeMap<PodUid, Entry>,
    /// Per card of `cards`, in its order: kept up to date so that Filter only reads.
    free: Vec<FreeCard>,
}

impl NodeLedger {
    /// Takes over the node's report of its cards.
    pub fn set_cards(&mut self, cards: Vec<Card>) {
        self.cards = cards;
        self.settle();
    }

    /// The cards as last reported.
    pub fn cards(&self) -> &[Card] {
        &self.cards
    }

    /// Which card the request would go to now.
    ///
    /// # Errors
    ///
    /// Each card's reason where none fits.
    pub fn fit(&self, request: &GpuRequest) -> Result<Choice, NoCard> {
        choose(&self.free, request)
    }

    /// As [`NodeLedger::fit`], for a pod that may hold a reservation here already: then it has its
    /// card, and must not be turned away from it for want of what it holds itself.
    ///
    /// # Errors
    ///
    /// As [`NodeLedger::fit`].
    pub fn fit_pod(&self, pod: &PodUid, request: &GpuRequest) -> Result<Choice, NoCard> {
        let entry = self.entries.get(pod);
        match entry.and_then(|entry| entry.reserved.as_ref()) {
            Some((_, choice)) => Ok(choice.clone()),
            None => self.fit(request),
        }
    }

    /// Chooses a card and sets it aside for the pod. A pod that already holds a reservation here
    /// gets the same one again.
    ///
    /// # Errors
    ///
    /// Each card's reason where none fits.
    pub fn reserve(
        &mut self,
        pod: &PodUid,
        request: &GpuRequest,
    ) -> Result<(Claim, Choice), NoCard> {
        if let Some(reserved) = self.entries.get(pod).and_then(|entry| entry.reserved.clone()) {
            return Ok(reserved);
        }
        let choice = self.fit(request)?;
        let claim = Claim::on_card(request, &choice.uuid);
        let peak = request.peak();
        let placed = Placed::by(&claim, request);
        let reserved = Some((claim.clone(), choice.clone()));
        self.enter(pod, Entry { stage: Stage::Reserved, peak, placed, reserved });
        Ok((claim, choice))
    }

    /// Gives a reservation back, where the API server surely did not take it. Does nothing to a pod
    /// that is known to be bound.
    pub fn cancel(&mut self, pod: &PodUid) {
        if self.entries.get(pod).is_some_and(|entry| entry.stage == Stage::Reserved) {
            self.release(pod);
        }
    }

    /// Notes what the API server shows of a pod on this node.
    pub fn observe(&mut self, pod: &PodUid, request: &GpuRequest, placed: Placed, stage: Stage) {
        let known = self.entries.get(pod);
        let stage = known.map_or(stage, |entry| entry.stage.max(stage));
        let reserved = known.and_then(|entry| entry.reserved.clone());
        self.enter(pod, Entry { stage, peak: request.peak(), placed, reserved });
    }

    /// Forgets a pod that has ended, is gone, or turned out to be elsewhere.
    pub fn release(&mut self, pod: &PodUid) {
        if self.entries.remove(pod).is_some() {
            self.settle();
        }
    }

    /// How far a pod's claim has come; `None` where it has no entry.
    pub fn stage(&self, pod: &PodUid) -> Option<Stage> {
        self.entries.get(pod).map(|entry| entry.stage)
    }

    /// The pods with an entry, and how far each has come.
    pub fn stages(&self) -> impl Iterator<Item = (&PodUid, Stage)> {
        self.entries.iter().map(|(pod, entry)| (pod, entry.stage))
    }

    /// What is free on each card, by index.
    pub fn free_cards(&self) -> &[FreeCard] {
        &self.free
    }

    /// The account of every card, by index.
    pub fn accounts(&self) -> Vec<CardUse> {
        self.cards
            .iter()
            .map(|card| {
                let pods = self.charges(card);
                CardUse { card: card.clone(), used: pods.values().copied().sum(), pods }
            })
            .collect()
    }

    fn enter(&mut self, pod: &PodUid, entry: Entry) {
        self.entries.insert(pod.clone(), entry);
        self.settle();
    }

    fn settle(&mut self) {
        let free = |card: &Card| FreeCard {
            uuid: card.uuid.clone(),
            index: card.index,
            units: card.units,
            free: card.units.saturating_sub(self.charges(card).values().copied().sum()),
            healthy: card.healthy,
        };
        self.free = self.cards.iter().map(free).collect();
    }

    /// Who holds how much of `card`: the larger of claim and kubelet's record for each pod. A pod
    /// that only the records know counts too: its API object may be gone before its processes.
    fn charges(&self, card: &Card) -> BTreeMap<PodUid, Units> {
        let mut charges = card.pods.clone();
        for (pod, entry) in &self.entries {
            let recorded = charges.get(pod).copied().unwrap_or(Units::ZERO);
            let charge = recorded.max(self.claimed(pod, entry, card));
            if !charge.is_zero() {
                charges.insert(pod.clone(), charge);
            }
        }
        charges
    }

    /// What the pod's own annotations put on `card`. A pod of unknown place counts on every card
    /// until the kubelet's records tell which.
    fn claimed(&self, pod: &PodUid, entry: &Entry, card: &Card) -> Units {
        match &entry.placed {
            Placed::Cards(charge) => held(charge, &card.uuid),
            Placed::Index(index) if *index == card.index => entry.peak,
            Placed::Index(_) => Units::ZERO,
            Placed::Unknown if self.cards.iter().any(|c| c.pods.contains_key(pod)) => Units::ZERO,
            Placed::Unknown => entry.peak,
        }
    }
}

fn held(charge: &BTreeMap<CardId, Units>, card: &CardId) -> Units {
    charge.get(card).copied().unwrap_or(Units::ZERO)
}

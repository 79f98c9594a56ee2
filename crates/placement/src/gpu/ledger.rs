//! The ledger of one node: which pod is charged how many units of which card.
//!
//! Invariant: [`NodeLedger::reserve`] never takes a card over its units, whatever came before; and no annotation makes
//! a card look emptier than it is (see [`super::entry`]). Callers hold one lock a node around it, and give readers the
//! [`NodeCards`] of the last change.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::entry::{Entry, Reservation, Stage};
use super::{Account, Basis, Card, Charge, Claim, FreeCard, GpuRequest, NoFit, NodeCards};
use crate::units::{PodUid, Units};

/// The account of one node's cards.
///
/// # Examples
///
/// ```
/// use placement::gpu::{Card, GpuRequest, NodeLedger};
/// use placement::units::{MiB, PodUid, Units};
///
/// let card = |index| Card {
///     uuid: format!("GPU-{index}").into(),
///     index,
///     model: "NVIDIA A10".to_owned(),
///     memory: MiB(24576),
///     units: Units(24),
///     numa_node: None,
///     healthy: true,
///     pods: [].into(),
/// };
/// let mut ledger = NodeLedger::default();
/// ledger.set_cards(vec![card(0), card(1)]);
/// let request = GpuRequest::single("main", Units(20)).ok_or("asks for nothing")?;
/// let pod = PodUid::from("0f6c3a1e");
/// let reserved = ledger.reserve(&pod, &request).map_err(|error| error.to_string())?;
/// assert_eq!(reserved.choice.index, 0);
/// assert_eq!(ledger.read().accounts()[0].card.free, Units(4));
/// // The API server refused the binding.
/// ledger.cancel(&pod);
/// assert_eq!(ledger.read().accounts()[0].card.free, Units(24));
/// # Ok::<(), String>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct NodeLedger {
    cards: Vec<Card>,
    entries: BTreeMap<PodUid, Entry>,
    /// Made anew with each change.
    read: Arc<NodeCards>,
}

/// Why nothing was reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReserveError {
    /// No card fits.
    #[error(transparent)]
    NoFit(#[from] NoFit),
    /// The pod is known to be bound to the node.
    #[error("the pod is bound already")]
    Bound,
}

impl NodeLedger {
    /// Takes over the node's report of its cards.
    pub fn set_cards(&mut self, cards: Vec<Card>) {
        self.cards = cards;
        let entries = std::mem::take(&mut self.entries).into_iter();
        let report = |(pod, entry): (PodUid, Entry)| {
            let entry = entry.reported(&pod, &self.cards);
            (pod, entry)
        };
        self.entries = entries.map(report).collect();
        self.settle();
    }

    /// The cards as last reported.
    pub fn cards(&self) -> &[Card] {
        &self.cards
    }

    /// The cards with what is free and who is charged, as of the last change.
    pub fn read(&self) -> &Arc<NodeCards> {
        &self.read
    }

    /// Chooses a card and sets it aside for the pod. A pod that has a reservation here already gets the same again.
    ///
    /// # Errors
    ///
    /// Where no card fits, or the pod is bound already.
    pub fn reserve(
        &mut self,
        pod: &PodUid,
        request: &GpuRequest,
    ) -> Result<Reservation, ReserveError> {
        match self.entries.get(pod).map(|entry| (entry.stage(), entry.reservation())) {
            Some((Stage::Reserved, Some(reservation))) => return Ok(reservation.clone()),
            Some(_) => return Err(ReserveError::Bound),
            None => {}
        }
        let choice = self.read.fit(pod, request)?;
        let claim = Claim::on_card(request, &choice.uuid);
        let reservation = Reservation { claim, choice };
        self.enter(pod, Entry::reserved(request.peak(), reservation.clone()));
        Ok(reservation)
    }

    /// Gives a reservation back, where the API server surely did not take it. Does nothing to a pod that is known to be
    /// bound, or to hold its units.
    pub fn cancel(&mut self, pod: &PodUid) {
        if self.stage(pod) == Some(Stage::Reserved) {
            self.release(pod);
        }
    }

    /// The API server shows the pod on this node. `claim` is what its annotation claims, where that agrees with its
    /// spec.
    pub fn bind(&mut self, pod: &PodUid, request: &GpuRequest, claim: Option<&Claim>) {
        let before = self.entries.remove(pod);
        self.enter(pod, Entry::bound(before, request.peak(), claim.map(Claim::card).cloned()));
    }

    /// Forgets a pod that has ended, is gone, or turned out to be elsewhere. What the kubelet's records show of it
    /// counts until they change.
    pub fn release(&mut self, pod: &PodUid) {
        if self.entries.remove(pod).is_some() {
            self.settle();
        }
    }

    /// How far a pod's claim has come; `None` where it has no entry.
    pub fn stage(&self, pod: &PodUid) -> Option<Stage> {
        self.entries.get(pod).map(Entry::stage)
    }

    /// The pods with an entry, and how far each has come.
    pub fn stages(&self) -> impl Iterator<Item = (&PodUid, Stage)> {
        self.entries.iter().map(|(pod, entry)| (pod, entry.stage()))
    }

    /// Whether there is nothing to account for.
    pub fn is_empty(&self) -> bool {
        self.cards.is_empty() && self.entries.is_empty()
    }

    fn enter(&mut self, pod: &PodUid, entry: Entry) {
        self.entries.insert(pod.clone(), entry.reported(pod, &self.cards));
        self.settle();
    }

    fn settle(&mut self) {
        let mut charges: Vec<Vec<Charge>> =
            self.cards.iter().map(|card| self.strangers(card)).collect();
        for (pod, entry) in &self.entries {
            for (charges, charge) in charges.iter_mut().zip(entry.charges(pod, &self.cards)) {
                charges.extend(charge);
            }
        }
        let account = |(card, mut charges): (&Card, Vec<Charge>)| {
            charges.sort_by(|one, other| one.pod.cmp(&other.pod));
            let (uuid, index) = (card.uuid.clone(), card.index);
            let free = FreeCard {
                uuid,
                index,
                units: card.units,
                free: card.units,
                healthy: card.healthy,
            };
            Account::new(free, charges)
        };
        let accounts = self.cards.iter().zip(charges).map(account).collect();
        let chosen = |(pod, entry): (&PodUid, &Entry)| {
            Some((pod.clone(), entry.reservation()?.choice.clone()))
        };
        let chosen = self.entries.iter().filter_map(chosen).collect();
        let reserved = self.stages().filter(|(_, stage)| *stage == Stage::Reserved).count();
        self.read = Arc::new(NodeCards::new(accounts, chosen, reserved));
    }

    /// The pods that only the kubelet's records know: the API object may be gone before the processes are.
    fn strangers(&self, card: &Card) -> Vec<Charge> {
        let strange = card
            .pods
            .iter()
            .filter(|(pod, units)| !units.is_zero() && !self.entries.contains_key(*pod));
        let charge = |(pod, units): (&PodUid, &Units)| Charge {
            pod: pod.clone(),
            units: *units,
            basis: Basis::Recorded,
        };
        strange.map(charge).collect()
    }
}

//! The ledger of one node: which pod is charged how many units of which card.
//!
//! Invariant: [`NodeLedger::reserve`] never takes a card over its units, whatever came before; and no annotation makes
//! a card look emptier than it is (see [`super::entry`]). Callers hold one lock a node around it, and give readers the
//! [`NodeCards`] of the last change.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, OnceLock};

use super::entry::{Entry, Reservation, Stage, record};
use super::node_cards::KnownPods;
use super::{
    Account, Basis, Card, CardShare, CardShares, Charge, ChoiceRule, Claim, FreeCard, GpuRequest,
    NoFit, NodeCards,
};
use crate::units::{CardId, Cores, PodUid, Units};

/// The account of one node's cards.
///
/// # Examples
///
/// ```
/// use placement::gpu::{Card, ChoiceRule, GpuRequest, NodeLedger};
/// use placement::units::{MiB, PodUid, Units};
///
/// let card = |index| Card {
///     uuid: format!("GPU-{index}").into(),
///     index,
///     model: "NVIDIA A10".into(),
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
/// let rule = ChoiceRule::default();
/// let reserved = ledger.reserve(&pod, &request, &rule).map_err(|error| error.to_string())?;
/// assert_eq!(reserved.choice.cards[0].index, 0);
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
    /// Pods that were released while the kubelet's records still show them, and that hold more than these know.
    stopping: BTreeMap<PodUid, Entry>,
    /// Pods that are gone while they may have processes, and that the kubelet's records do not show yet.
    departed: BTreeMap<PodUid, Entry>,
    /// Pods that kube-scheduler has evicted others for, with the cards that are kept for them.
    nominated: BTreeMap<PodUid, CardShares>,
    /// Free CPU, in thousandths of a core; `None` where it is not known.
    cpu: Option<u64>,
    /// Units that are in use beyond what pods hold.
    unmanaged: Vec<(CardId, Units)>,
    /// Made when it is read for the first time after a change: Bind makes several changes, and its time grows with the pods of the node.
    read: OnceLock<Arc<NodeCards>>,
}

/// Of all that it holds but for what readers see, which follows from that: two ledgers that are alike go on alike.
impl Hash for NodeLedger {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self { cards, entries, stopping, departed, nominated, cpu, unmanaged, read: _ } = self;
        (cards, entries, stopping, departed, nominated, cpu, unmanaged).hash(state);
    }
}

/// Why nothing was reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReserveError {
    /// No cards fit.
    #[error(transparent)]
    NoFit(#[from] NoFit),
    /// The pod is known to be bound to the node.
    #[error("the pod is bound already")]
    Bound,
}

impl NodeLedger {
    /// Takes over the node's report of its cards; empty where the node is gone, and with it what departed pods held there.
    pub fn set_cards(&mut self, cards: Vec<Card>) {
        self.cards = cards;
        if self.cards.is_empty() {
            self.departed.clear();
        }
        let entries = std::mem::take(&mut self.entries).into_iter();
        let report = |(pod, entry): (PodUid, Entry)| {
            let entry = entry.reported(&pod, &self.cards);
            (pod, entry)
        };
        self.entries = entries.map(report).collect();
        let departed = std::mem::take(&mut self.departed).into_iter();
        let (recorded, departed): (BTreeMap<_, _>, BTreeMap<_, _>) =
            departed.partition(|(pod, _)| !record(pod, &self.cards).is_empty());
        self.departed = departed;
        self.stopping.extend(recorded);
        self.stopping.retain(|pod, _| !record(pod, &self.cards).is_empty());
        self.changed();
    }

    /// The cards as last reported.
    pub fn cards(&self) -> &[Card] {
        &self.cards
    }

    /// The cards with what is free and which pods are charged, as of the last change.
    pub fn read(&self) -> &Arc<NodeCards> {
        self.read.get_or_init(|| Arc::new(self.node_cards()))
    }

    /// Chooses cards and sets what the pod requests aside. A pod that has a reservation here already gets the same again.
    ///
    /// # Errors
    ///
    /// Where no cards fit, or the pod is bound already.
    pub fn reserve(
        &mut self,
        pod: &PodUid,
        request: &GpuRequest,
        rule: &ChoiceRule,
    ) -> Result<Reservation, ReserveError> {
        match self.entries.get(pod).map(|entry| (entry.stage(), entry.reservation())) {
            Some((Stage::Reserved, Some(reservation))) => return Ok(reservation.clone()),
            Some(_) => return Err(ReserveError::Bound),
            None => {}
        }
        let choice = self.read().fit(pod, request, rule)?;
        let reservation = Reservation::new(request, choice);
        self.enter(pod, Entry::reserved(request, reservation.clone()));
        Ok(reservation)
    }

    /// Sets the free CPU of the node, in thousandths of a core; `None` where it is not known.
    pub fn set_cpu(&mut self, cpu: Option<u64>) {
        if self.cpu != cpu {
            self.cpu = cpu;
            self.changed();
        }
    }

    /// Sets what units of cards are in use beyond what pods hold.
    pub fn set_unmanaged(&mut self, unmanaged: Vec<(CardId, Units)>) {
        if self.unmanaged != unmanaged {
            self.unmanaged = unmanaged;
            self.changed();
        }
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
        self.enter(pod, Entry::bound(before, request, claim));
    }

    /// Forgets a pod that has ended, is gone, or turned out to be elsewhere. What the kubelet's records show of it
    /// counts until they change, as a card for itself where the pod had one.
    pub fn release(&mut self, pod: &PodUid) {
        self.end_nomination(pod);
        let Some(entry) = self.entries.remove(pod) else { return };
        if entry.holds_more_than_units() && !record(pod, &self.cards).is_empty() {
            self.stopping.insert(pod.clone(), entry);
        }
        self.changed();
    }

    /// As [`NodeLedger::release`], of a pod that is gone while it may have processes. Where the kubelet's records have never shown
    /// it, it counts as before, until they do or [`NodeLedger::end_departure`]. Returns whether that is so.
    pub fn depart(&mut self, pod: &PodUid) -> bool {
        // One that a report has shown, and that the last one does not show any more, has no processes.
        let never_shown = self.stage(pod).is_some_and(|stage| stage != Stage::Allocated);
        let is_unreported =
            never_shown && !self.cards.is_empty() && record(pod, &self.cards).is_empty();
        if !is_unreported {
            self.release(pod);
            return false;
        }
        self.end_nomination(pod);
        self.departed.extend(self.entries.remove_entry(pod));
        self.changed();
        true
    }

    /// What the kubelet's records do not show of a pod that is gone does not count any more.
    pub fn end_departure(&mut self, pod: &PodUid) {
        if self.departed.remove(pod).is_some() {
            self.changed();
        }
    }

    /// Keeps cards for a pod that others were evicted for. Where it has a reservation or is bound, that counts.
    pub fn nominate(&mut self, pod: &PodUid, request: &GpuRequest, cards: &[CardId]) {
        if self.entries.contains_key(pod) {
            return;
        }
        let shares = Claim::on_cards(request, cards).cards().clone();
        self.nominated.insert(pod.clone(), shares);
        self.changed();
    }

    /// Keeps nothing any more for a pod that has not been bound.
    pub fn end_nomination(&mut self, pod: &PodUid) {
        if self.nominated.remove(pod).is_some() {
            self.changed();
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
        let pods = self.entries.is_empty() && self.departed.is_empty() && self.nominated.is_empty();
        pods && self.cards.is_empty()
    }

    fn enter(&mut self, pod: &PodUid, entry: Entry) {
        self.stopping.remove(pod);
        self.departed.remove(pod);
        self.nominated.remove(pod);
        self.entries.insert(pod.clone(), entry.reported(pod, &self.cards));
        self.changed();
    }

    /// What was made for readers does not hold any more.
    fn changed(&mut self) {
        self.read.take();
    }

    fn node_cards(&self) -> NodeCards {
        let mut charges: Vec<Vec<Charge>> =
            self.cards.iter().map(|card| self.strangers(card)).collect();
        for (pod, entry) in self.entries.iter().chain(&self.departed) {
            for (charges, charge) in charges.iter_mut().zip(entry.charges(pod, &self.cards)) {
                charges.extend(charge);
            }
        }
        for (pod, shares) in &self.nominated {
            for (charges, card) in charges.iter_mut().zip(&self.cards) {
                let share = shares.get(&card.uuid);
                let kept = share.and_then(|s| Charge::of(pod, *s, Basis::Nominated, card.units));
                charges.extend(kept);
            }
        }
        for (card, units) in &self.unmanaged {
            let (share, nobody) = (CardShare::of(*units), PodUid::from(""));
            for (charges, of) in charges.iter_mut().zip(&self.cards) {
                let charge = Charge::of(&nobody, share, Basis::Unmanaged, of.units);
                charges.extend(charge.filter(|_| of.uuid == *card));
            }
        }
        let account = |(card, mut charges): (&Card, Vec<Charge>)| {
            charges.sort_by(|one, other| one.pod.cmp(&other.pod));
            Account::new(&whole(card), charges)
        };
        let accounts = self.cards.iter().zip(charges).map(account).collect();
        let chosen = |(pod, entry): (&PodUid, &Entry)| {
            Some((pod.clone(), entry.reservation()?.choice.clone()))
        };
        let pods = KnownPods {
            chosen: self.entries.iter().filter_map(chosen).collect(),
            nominated: self.nominated.keys().cloned().collect(),
            departed: self.departed.keys().cloned().collect(),
            reserved: self.stages().filter(|(_, stage)| *stage == Stage::Reserved).count(),
        };
        NodeCards::new(accounts, pods, self.cpu)
    }

    /// The pods that only the kubelet's records know: the API object may be gone before the processes are.
    fn strangers(&self, card: &Card) -> Vec<Charge> {
        let strange = card
            .pods
            .iter()
            .filter(|(pod, units)| !units.is_zero() && !self.entries.contains_key(*pod));
        let charge = |(pod, units): (&PodUid, &Units)| {
            let known = self.stopping.get(pod).map(|entry| entry.known_share(&card.uuid));
            let share = CardShare { units: *units, ..known.unwrap_or_default() };
            Charge::of(pod, share, Basis::Recorded, card.units)
        };
        strange.filter_map(charge).collect()
    }
}

/// The card without a charge.
fn whole(card: &Card) -> FreeCard {
    FreeCard {
        uuid: card.uuid.clone(),
        index: card.index,
        model: card.model.clone(),
        numa_node: card.numa_node,
        units: card.units,
        free: card.units,
        free_cores: Cores::ALL,
        idle: true,
        healthy: card.healthy,
    }
}

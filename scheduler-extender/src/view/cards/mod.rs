//! The ledgers of all nodes and the pods on them: one ledger for each node, one record for each pod.
//!
//! Invariants: a pod's record is locked while its entries in ledgers change, so that changes of one pod are in order; locks are taken
//! pod first, then node, never the other way round, and readers of cards take none. A pod that is known to be bound holds units on
//! one node; before that, on every node to which a binding of it was sent and may have been carried out. A UID belongs to the
//! name with which it was first seen.

mod back_offs;
mod cpu;
mod departures;
#[cfg(test)]
pub(crate) mod fixtures;
mod index;
mod measure;
mod measured;
mod nominations;
mod ratings;
mod totals;

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::{ArcSwap, Guard};
use cluster::{GpuPod, PodFacts};
use dashmap::mapref::entry::{Entry, OccupiedEntry};
use dashmap::{DashMap, DashSet};
use jiff::{SignedDuration, Timestamp};
use placement::gpu::{
    Account, Card, ChoiceRule, Claim, GpuRequest, NoFit, NodeLedger, Reservation, ReserveError,
    Stage,
};
use placement::units::{NodeName, PodUid, Units};

use back_offs::{BackOffs, Sent};
pub use back_offs::{BegunBackOff, NodeBackOffs};
use cpu::NodeCpus;
use departures::Departure;
pub use departures::HeldByDeleted;
use index::Ledgers;
pub use index::{CardIndex, CardsOnBoard};
use measure::LearnedMeasure;
use measured::Measurements;
use nominations::Plans;
pub use totals::Totals;

use super::board::NodeNames;

/// A pod's UID, namespace and name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuPodId {
    /// Its UID.
    pub uid: PodUid,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// A pod that requests GPU memory, on any node or none.
struct PodRecord {
    namespace: String,
    name: String,
    request: GpuRequest,
    /// Its annotations cannot be read, or no node can meet them: it must not be bound.
    faulty: bool,
    /// The nodes on which it holds units.
    nodes: Vec<NodeName>,
    /// The nominated node in its status.
    nominated_by_scheduler: Option<NodeName>,
    /// The node where cards are kept for it, after pods were evicted.
    nominated: Option<NodeName>,
    /// The node where this program has evicted pods for it, which is not in its status.
    kept: Option<NodeName>,
    /// The card that this process chose for it, until its admission is known.
    sent: Option<Sent>,
    /// The last list of all pods did not have it, and no event and no look-up has come since. It may be deleted.
    unlisted: bool,
    /// Its kubelet has reported that it admitted the pod.
    admitted: bool,
    /// Since when it was seen admitted while its claim names a card that its node does not report.
    on_lost_card_since: Option<Timestamp>,
}

/// The time within which a node's report shows an admitted pod on its card: the device plugin's reporting interval, the write and the watch.
const REPORTED_WITHIN: SignedDuration = SignedDuration::from_secs(10);

/// The ledgers of all nodes, and the pods on them.
#[derive(Default)]
pub struct CardBook {
    ledgers: Ledgers,
    pods: DashMap<PodUid, PodRecord>,
    /// The cards that a pod would get on each node after kube-scheduler's evictions there.
    plans: Mutex<Plans>,
    /// Pods whose deletion has begun, evicted ones included.
    ending: DashSet<PodUid>,
    /// Deleted pods that may still have processes.
    departures: ArcSwap<Vec<Departure>>,
    /// Held while a card is reserved in a namespace with departures, so that two pods do not take the same room.
    one_at_a_time: Mutex<()>,
    /// The free CPU of each node.
    cpus: NodeCpus,
    measure: LearnedMeasure,
    measurements: Measurements,
    back_offs: BackOffs,
    /// Nodes that are not ready: few.
    not_ready: ArcSwap<HashSet<NodeName>>,
}

/// Why no card was reserved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReservationError {
    /// No card of the node fits.
    NoFit(NodeName, NoFit),
    /// The pod is bound to the node already.
    Bound(NodeName),
    /// The UID belongs to a pod of another name.
    OtherPod(OtherPod),
    /// Deleted pods of the pod's namespace still hold units.
    HeldByDeleted(HeldByDeleted),
}

/// The error of a UID that belongs to a pod with another name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the UID belongs to pod {namespace}/{name}")]
pub struct OtherPod {
    /// The namespace of the UID's pod.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// The units that one pod holds of a card, with the pod's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodOnCard {
    /// Its namespace; empty for a pod that is only in the node's report.
    pub namespace: String,
    /// Its name, or its UID for a pod that is only in the node's report.
    pub name: String,
    /// The units that it holds.
    pub units: Units,
}

impl PodRecord {
    fn new(id: &GpuPodId, request: &GpuRequest) -> Self {
        Self {
            namespace: id.namespace.clone(),
            name: id.name.clone(),
            request: request.clone(),
            faulty: false,
            nodes: Vec::new(),
            nominated_by_scheduler: None,
            nominated: None,
            kept: None,
            sent: None,
            unlisted: false,
            admitted: false,
            on_lost_card_since: None,
        }
    }

    fn is_of(&self, pod: &GpuPodId) -> Result<(), OtherPod> {
        match self.namespace == pod.namespace && self.name == pod.name {
            true => Ok(()),
            false => Err(OtherPod { namespace: self.namespace.clone(), name: self.name.clone() }),
        }
    }

    fn id(&self, uid: &PodUid) -> GpuPodId {
        GpuPodId { uid: uid.clone(), namespace: self.namespace.clone(), name: self.name.clone() }
    }
}

impl CardBook {
    /// The current index of every node's cards. Takes no lock.
    pub fn read(&self) -> Guard<Arc<CardIndex>> {
        self.ledgers.read()
    }

    /// As [`CardBook::read`], by the places of a board with these names, for a pod with this request.
    pub fn on(
        &self,
        names: &Arc<NodeNames>,
        request: Option<&GpuRequest>,
        rule: &ChoiceRule,
    ) -> CardsOnBoard {
        self.ledgers.on(names, request, rule)
    }

    /// Sets whether a node is ready, by its kubelet or the node controller.
    pub fn set_ready(&self, node: &NodeName, ready: bool) {
        self.not_ready.rcu(|known| {
            if known.contains(node) != ready {
                return Arc::clone(known);
            }
            let mut changed = HashSet::clone(known);
            match ready {
                true => changed.remove(node),
                false => changed.insert(node.clone()),
            };
            Arc::new(changed)
        });
    }

    /// Forgets nodes that a list of all nodes did not have.
    pub fn keep_not_ready(&self, listed: &HashSet<&NodeName>) {
        if !self.not_ready.load().iter().all(|node| listed.contains(node)) {
            self.not_ready.rcu(|known| {
                known.iter().filter(|node| listed.contains(node)).cloned().collect::<HashSet<_>>()
            });
        }
    }

    /// Stops charging pods on every card of their node of which a claim names a card that the node does not report, as one that has
    /// failed: once a report would have shown them on another card.
    pub fn settle_lost_cards(&self, now: Timestamp) {
        for (node, cards) in self.read().clone().nodes() {
            for uid in cards.on_lost_cards() {
                let Some(mut record) = self.pods.get_mut(uid).filter(|it| it.admitted) else {
                    continue;
                };
                let since = *record.on_lost_card_since.get_or_insert(now);
                if now.duration_since(since).abs() >= REPORTED_WITHIN {
                    self.ledgers.change(node, |ledger| ledger.set_overdue(uid));
                }
            }
        }
    }

    /// Applies a node's report of its cards; empty for a node that no longer reports any, or was deleted.
    pub fn set_cards(&self, node: &NodeName, cards: Vec<Card>) {
        if cards.is_empty() && self.read().node(node.as_str()).is_none() {
            return;
        }
        self.ledgers.change(node, |ledger| {
            // Most watch events of a node are its kubelet's heartbeats.
            if ledger.cards() != cards {
                ledger.set_cards(cards);
            }
        });
    }

    /// The nodes that have a ledger.
    pub fn nodes(&self) -> Vec<NodeName> {
        self.read().nodes().map(|(name, _)| name.clone()).collect()
    }

    /// Applies a GPU pod from a watch event.
    pub fn apply(&self, pod: &PodFacts, gpu: &GpuPod) {
        if pod.finished {
            return self.forget(&pod.uid);
        }
        let fresh = || {
            if gpu.fault.is_none() {
                self.measure.observe(&gpu.request);
            }
            PodRecord::new(&id(pod), &gpu.request)
        };
        let mut record = self.pods.entry(pod.uid.clone()).or_insert_with(fresh);
        record.unlisted = false;
        self.update(pod, gpu, &mut record);
    }

    /// As [`CardBook::apply`], for a pod that was read from the API server. Ignores a pod without a record: the watch has
    /// shown its end meanwhile. The read may be older than a list without the pod, so `unlisted` stays.
    pub fn apply_known(&self, pod: &PodFacts, gpu: &GpuPod) {
        if pod.finished {
            return self.forget(&pod.uid);
        }
        if let Some(mut record) = self.pods.get_mut(&pod.uid) {
            self.update(pod, gpu, &mut record);
        }
    }

    fn update(&self, pod: &PodFacts, gpu: &GpuPod, record: &mut PodRecord) {
        if pod.deleting {
            self.ending.insert(pod.uid.clone());
        }
        record.admitted |= pod.admitted;
        // An unbound pod may have a binding under way: its reservations stay.
        if let Some(node) = &pod.node {
            let claim = gpu.claim.as_ref().ok().and_then(Option::as_ref);
            if record.nodes.is_empty() && claim.is_some() {
                // Its annotations may have changed since they were read here; the claim has what Bind has read.
                record.request = gpu.request.clone();
            }
            return self.settle(&pod.uid, record, node, claim);
        }
        // The annotations can change until the pod is bound.
        record.faulty = gpu.fault.is_some();
        if record.nodes.is_empty() {
            record.request = gpu.request.clone();
        }
        record.nominated_by_scheduler = pod.nominated_node.clone();
        self.set_nominated(&pod.uid, record);
    }

    /// Records that the pod is bound to the node. Releases its units on other nodes.
    fn settle(&self, uid: &PodUid, record: &mut PodRecord, node: &NodeName, claim: Option<&Claim>) {
        for other in record.nodes.drain(..).filter(|other| other != node) {
            self.release(&other, uid);
        }
        record.nodes.push(node.clone());
        self.cancel_departure(uid, node);
        self.ledgers.change(node, |ledger| {
            ledger.bind(uid, &record.request, claim);
            if record.admitted {
                ledger.admit(uid);
            }
        });
        record.kept = None;
        self.end_nomination(uid, record);
        self.plans().remove(uid);
    }

    /// Releases everything that a pod holds, and removes its record.
    pub fn forget(&self, uid: &PodUid) {
        let Some(record) = self.end(uid) else { return };
        for node in &record.get().nodes {
            self.release(node, uid);
        }
        record.remove();
    }

    /// Ends the nomination and the plan of a deleted pod. Returns its locked record; `None` where it has none.
    fn end(&self, uid: &PodUid) -> Option<OccupiedEntry<'_, PodUid, PodRecord>> {
        self.ending.remove(uid);
        let Entry::Occupied(mut record) = self.pods.entry(uid.clone()) else { return None };
        self.end_nomination(uid, record.get_mut());
        self.plans().remove(uid);
        Some(record)
    }

    fn release(&self, node: &NodeName, uid: &PodUid) {
        self.change_with_cpu(node, |ledger| {
            self.cpus.remove(node, uid);
            ledger.release(uid);
        });
    }

    /// Changes a node's ledger, and updates its free CPU.
    fn change_with_cpu<T>(&self, node: &NodeName, change: impl FnOnce(&mut NodeLedger) -> T) -> T {
        self.ledgers.change(node, |ledger| {
            let outcome = change(ledger);
            ledger.set_cpu(self.cpus.free(node));
            outcome
        })
    }

    /// A pod's GPU request; `None` for an unknown pod, or one with faulty annotations.
    ///
    /// # Errors
    ///
    /// Where the UID belongs to a pod of another name.
    pub fn request(&self, pod: &GpuPodId) -> Result<Option<GpuRequest>, OtherPod> {
        let Some(record) = self.pods.get(&pod.uid) else { return Ok(None) };
        record.is_of(pod)?;
        Ok((!record.faulty).then(|| record.request.clone()))
    }

    /// The nodes on which a pod holds units.
    pub fn held_on(&self, uid: &PodUid) -> Vec<NodeName> {
        self.pods.get(uid).map_or_else(Vec::new, |record| record.nodes.clone())
    }

    /// Chooses a card of a node and reserves it.
    ///
    /// # Errors
    ///
    /// Where no card fits, or the pod is bound already, or is another, or has to wait for deleted pods of its namespace.
    pub fn reserve(
        &self,
        pod: &GpuPodId,
        request: &GpuRequest,
        node: &NodeName,
        rule: &ChoiceRule,
    ) -> Result<Reservation, ReservationError> {
        // Nothing is guarded but the order.
        let lock = || self.one_at_a_time.lock().unwrap_or_else(PoisonError::into_inner);
        let _one_at_a_time = self.has_departures(&pod.namespace).then(lock);
        if let Some(held) = self.waits_for_deleted(pod, request) {
            return Err(ReservationError::HeldByDeleted(held));
        }
        let reserve = || self.reserve_on(node, &pod.uid, request, rule);
        let sent = |reservation: &Reservation| Sent {
            node: node.clone(),
            claim: reservation.claim.clone(),
        };
        match self.pods.entry(pod.uid.clone()) {
            Entry::Occupied(mut entry) => {
                entry.get().is_of(pod).map_err(ReservationError::OtherPod)?;
                let reservation = reserve()?;
                let record = entry.get_mut();
                if !record.nodes.contains(node) {
                    record.nodes.push(node.clone());
                }
                record.sent = Some(sent(&reservation));
                Ok(reservation)
            }
            Entry::Vacant(entry) => {
                let reservation = reserve()?;
                let nodes = vec![node.clone()];
                self.measure.observe(request);
                let sent = Some(sent(&reservation));
                entry.insert(PodRecord { nodes, sent, ..PodRecord::new(pod, request) });
                Ok(reservation)
            }
        }
    }

    fn reserve_on(
        &self,
        node: &NodeName,
        uid: &PodUid,
        request: &GpuRequest,
        rule: &ChoiceRule,
    ) -> Result<Reservation, ReservationError> {
        // No ledger is created for an unknown node.
        if self.read().node(node.as_str()).is_none() {
            return Err(ReservationError::NoFit(node.clone(), NoFit::NoCards));
        }
        let reserved = self.change_with_cpu(node, |ledger| {
            let reserved = ledger.reserve(uid, request, rule)?;
            self.cpus.set(node, uid, request.cpu());
            Ok(reserved)
        });
        reserved.map_err(|error| match error {
            ReserveError::NoFit(why) => ReservationError::NoFit(node.clone(), why),
            ReserveError::Bound => ReservationError::Bound(node.clone()),
        })
    }

    /// Records that the API server has carried out the binding of the reservation `claim`. Does nothing if the pod has ended
    /// meanwhile.
    pub fn confirm(&self, uid: &PodUid, node: &NodeName, claim: &Claim) {
        if let Some(mut record) = self.pods.get_mut(uid) {
            self.settle(uid, &mut record, node, Some(claim));
        }
    }

    /// Whether a pod has to be looked up after a binding of it has ended: a list did not have it, so that no event may
    /// come for its end. False while another binding of it is under way, at whose end this is called again.
    pub fn is_doubtful(&self, uid: &PodUid) -> bool {
        self.pods
            .get(uid)
            .is_some_and(|record| record.unlisted && !self.awaits_binding(uid, &record))
    }

    /// Records that a look-up of the pod begins, whose result is newer than every list so far.
    pub fn begin_look_up(&self, uid: &PodUid) {
        if let Some(mut record) = self.pods.get_mut(uid) {
            record.unlisted = false;
        }
    }

    /// Releases a reservation. Does nothing if the pod is known to be bound there.
    pub fn cancel(&self, uid: &PodUid, node: &NodeName) {
        let Entry::Occupied(mut record) = self.pods.entry(uid.clone()) else { return };
        let left = self.change_with_cpu(node, |ledger| {
            ledger.cancel(uid);
            let left = ledger.stage(uid);
            if left.is_none() {
                self.cpus.remove(node, uid);
            }
            left
        });
        if left.is_none() {
            record.get_mut().nodes.retain(|other| other != node);
        }
        // It holds nothing, and no list has it: if it exists, a later event adds it again.
        if record.get().nodes.is_empty() && record.get().unlisted {
            record.remove();
        }
    }

    /// Whether the pod is in the stage *reserved* on the node.
    pub fn is_reserved(&self, uid: &PodUid, node: &NodeName) -> bool {
        self.ledgers.stage(node, uid) == Some(Stage::Reserved)
    }

    fn awaits_binding(&self, uid: &PodUid, record: &PodRecord) -> bool {
        record.nodes.iter().any(|node| self.is_reserved(uid, node))
    }

    /// The pods without a binding under way. A list of all pods that begins after this call contains each of them that still
    /// exists.
    pub fn settled(&self) -> HashSet<PodUid> {
        let pods = self.pods.iter();
        let settled = pods.filter(|record| !self.awaits_binding(record.key(), record));
        settled.map(|record| record.key().clone()).collect()
    }

    /// Handles pods that a completed list of all pods does not contain. `settled` are the [`CardBook::settled`] pods of when the
    /// list began: those that are not `listed` are removed by [`CardBook::depart`], since no event has shown how they ended. Returns
    /// the other pods that are not `listed`: they were bound during the list and may have ended before it, so that no event shows
    /// their end. They have to be looked up; a pod whose binding is still under way, after that has ended
    /// ([`CardBook::is_doubtful`]).
    #[must_use]
    pub fn after_list(
        &self,
        listed: &HashSet<PodUid>,
        settled: &HashSet<PodUid>,
        now: Timestamp,
    ) -> Vec<GpuPodId> {
        settled.difference(listed).for_each(|uid| self.depart(uid, now));
        // In the list, a nominated pod may have come before its victims.
        for mut record in self.pods.iter_mut() {
            let (uid, record) = record.pair_mut();
            self.set_nominated(uid, record);
        }
        let mut doubtful = Vec::new();
        for mut record in self.pods.iter_mut().filter(|record| !listed.contains(record.key())) {
            record.unlisted = true;
            if !self.awaits_binding(record.key(), &record) {
                doubtful.push(record.id(record.key()));
            }
        }
        doubtful
    }

    /// The pods that hold units of a card, with their names.
    pub fn pods_on(&self, account: &Account) -> Vec<PodOnCard> {
        let held = account.charges.iter().filter(|charge| charge.basis.is_held());
        held.map(|charge| self.named(&charge.pod, charge.units)).collect()
    }

    fn named(&self, uid: &PodUid, units: Units) -> PodOnCard {
        let (namespace, name) = match self.pods.get(uid) {
            Some(record) => (record.namespace.clone(), record.name.clone()),
            None => (String::new(), uid.to_string()),
        };
        PodOnCard { namespace, name, units }
    }
}

fn id(pod: &PodFacts) -> GpuPodId {
    GpuPodId { uid: pod.uid.clone(), namespace: pod.namespace.clone(), name: pod.name.clone() }
}

//! The ledgers of all nodes and the pods on them: one ledger a node, one record a pod.
//!
//! Invariants: a pod's record is held while its entries in ledgers change, so that what happens to one pod happens in
//! order; locks are taken pod first, then node, never the other way round, and readers of cards take none. A pod holds
//! units on one node once it is known to be bound; before that, on every node on which a binding of it was tried and
//! may have been carried out. A UID belongs to the one name under which it was first seen.

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
use std::sync::{Arc, Mutex};

use arc_swap::{ArcSwap, Guard};
use cluster::{GpuPod, PodFacts};
use dashmap::mapref::entry::{Entry, OccupiedEntry};
use dashmap::{DashMap, DashSet};
use jiff::Timestamp;
use placement::gpu::{
    Account, Card, ChoiceRule, Claim, GpuRequest, NoFit, NodeLedger, Reservation, ReserveError,
    Stage,
};
use placement::units::{NodeName, PodUid, Units};

use cpu::NodeCpus;
use departures::Departure;
use index::Ledgers;
pub use index::{CardIndex, CardsOnBoard};
use measure::LearnedMeasure;
use measured::Measurements;
use nominations::Plans;
pub use totals::Totals;

use super::board::NodeNames;

/// A pod's UID, and the name under which the API server has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuPodId {
    /// Its UID.
    pub uid: PodUid,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// What is known of a pod that asks for GPU memory, wherever it is.
struct PodRecord {
    namespace: String,
    name: String,
    request: GpuRequest,
    /// Its annotations cannot be read, or ask for what no node has: it is not to be bound.
    faulty: bool,
    /// The nodes on which it holds units.
    nodes: Vec<NodeName>,
    /// The node that it is nominated for.
    nominated_by_scheduler: Option<NodeName>,
    /// The node where cards are kept for it, after pods were evicted.
    nominated: Option<NodeName>,
    /// The node where this program has evicted pods for it, which kube-scheduler does not know.
    kept: Option<NodeName>,
    /// A list of all pods has left it out; since then no event has shown it, and no look-up has begun. It may be gone.
    unlisted: bool,
}

/// The ledgers of all nodes, and the pods on them.
#[derive(Default)]
pub struct CardBook {
    ledgers: Ledgers,
    pods: DashMap<PodUid, PodRecord>,
    /// The cards that a pod would go to on each node, if kube-scheduler evicts there for it.
    plans: Mutex<Plans>,
    /// Pods whose deletion has begun: those that were evicted for others are among them.
    ending: DashSet<PodUid>,
    /// Pods that are gone while they may have processes, and that no report of their node has shown.
    departures: Mutex<Vec<Departure>>,
    /// What CPU of each node no pod has asked for.
    cpus: NodeCpus,
    measure: LearnedMeasure,
    measurements: Measurements,
    /// Nodes whose device plugin offers units and has reported no cards: few, and only for a while.
    unreported: ArcSwap<HashSet<NodeName>>,
}

/// Why no card was set aside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReservationError {
    /// No card of the node fits.
    NoFit(NodeName, NoFit),
    /// The pod is bound to the node already.
    Bound(NodeName),
    /// The UID belongs to a pod of another name.
    OtherPod(OtherPod),
}

/// A UID was used with a name that is not its pod's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the UID belongs to pod {namespace}/{name}")]
pub struct OtherPod {
    /// The namespace of the UID's pod.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// What one pod holds of a card, with its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodOnCard {
    /// Its namespace; empty where only the node's report knows the pod.
    pub namespace: String,
    /// Its name, or its UID where only the node's report knows the pod.
    pub name: String,
    /// Units that it holds.
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
            unlisted: false,
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
    /// Every node's cards as of the last change; takes no lock.
    pub fn read(&self) -> Guard<Arc<CardIndex>> {
        self.ledgers.read()
    }

    /// As [`CardBook::read`], to be found by the places of a board with these names, for a pod with that request.
    pub fn on(
        &self,
        names: &Arc<NodeNames>,
        request: Option<&GpuRequest>,
        rule: &ChoiceRule,
    ) -> CardsOnBoard {
        self.ledgers.on(names, request, rule)
    }

    /// The nodes whose device plugin offers units and has reported no cards.
    pub fn unreported(&self) -> Arc<HashSet<NodeName>> {
        self.unreported.load_full()
    }

    /// Notes whether a node's device plugin offers units and has reported no cards.
    pub fn set_unreported(&self, node: &NodeName, unreported: bool) {
        self.unreported.rcu(|known| {
            if known.contains(node) == unreported {
                return Arc::clone(known);
            }
            let mut changed = HashSet::clone(known);
            match unreported {
                true => changed.insert(node.clone()),
                false => changed.remove(node),
            };
            Arc::new(changed)
        });
    }

    /// Takes over a node's report of its cards; empty where it reports none any more, or is gone.
    pub fn set_cards(&self, node: &NodeName, cards: Vec<Card>) {
        if cards.is_empty() && self.read().node(node.as_str()).is_none() {
            return;
        }
        self.ledgers.change(node, |ledger| {
            // Most changes of a node are its kubelet's heartbeats.
            if ledger.cards() != cards {
                ledger.set_cards(cards);
            }
        });
    }

    /// The nodes that have a ledger.
    pub fn nodes(&self) -> Vec<NodeName> {
        self.read().nodes().map(|(name, _)| name.clone()).collect()
    }

    /// Takes over a GPU pod as the watch shows it.
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

    /// As [`CardBook::apply`], for a pod that was read from the API server. One that is not known any more stays unknown:
    /// the watch has shown its end meanwhile. What was read may be older than a list that has left the pod out.
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
        // One that is not bound may have a binding under way: its reservations stay.
        if let Some(node) = &pod.node {
            let claim = gpu.claim.as_ref().ok().and_then(Option::as_ref);
            return self.settle(&pod.uid, record, node, claim);
        }
        // Its author may change the annotations until it is bound.
        record.faulty = gpu.fault.is_some();
        if record.nodes.is_empty() {
            record.request = gpu.request.clone();
        }
        record.nominated_by_scheduler = pod.nominated_node.clone();
        self.set_nominated(&pod.uid, record);
    }

    /// The pod is bound to the node, and so to no other.
    fn settle(&self, uid: &PodUid, record: &mut PodRecord, node: &NodeName, claim: Option<&Claim>) {
        for other in record.nodes.drain(..).filter(|other| other != node) {
            self.release(&other, uid);
        }
        record.nodes.push(node.clone());
        self.ledgers.change(node, |ledger| ledger.bind(uid, &record.request, claim));
        record.kept = None;
        self.end_nomination(uid, record);
        self.plans().remove(uid);
    }

    /// Gives back everything that a pod holds, and forgets it.
    pub fn forget(&self, uid: &PodUid) {
        let Some(record) = self.end(uid) else { return };
        for node in &record.get().nodes {
            self.release(node, uid);
        }
        record.remove();
    }

    /// Ends what others do for a pod that is gone. Its record, which is held; `None` where it has none.
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

    /// Changes what a pod holds of a node, its CPU too.
    fn change_with_cpu<T>(&self, node: &NodeName, change: impl FnOnce(&mut NodeLedger) -> T) -> T {
        self.ledgers.change(node, |ledger| {
            let outcome = change(ledger);
            ledger.set_cpu(self.cpus.free(node));
            outcome
        })
    }

    /// What a pod asks for; `None` where it is not known, or where its annotations have a fault.
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

    /// Chooses a card of a node and sets it aside.
    ///
    /// # Errors
    ///
    /// Where no card fits, or the pod is bound already, or is another.
    pub fn reserve(
        &self,
        pod: &GpuPodId,
        request: &GpuRequest,
        node: &NodeName,
        rule: &ChoiceRule,
    ) -> Result<Reservation, ReservationError> {
        let reserve = || self.reserve_on(node, &pod.uid, request, rule);
        match self.pods.entry(pod.uid.clone()) {
            Entry::Occupied(mut entry) => {
                entry.get().is_of(pod).map_err(ReservationError::OtherPod)?;
                let reservation = reserve()?;
                let nodes = &mut entry.get_mut().nodes;
                if !nodes.contains(node) {
                    nodes.push(node.clone());
                }
                Ok(reservation)
            }
            Entry::Vacant(entry) => {
                let reservation = reserve()?;
                let nodes = vec![node.clone()];
                self.measure.observe(request);
                entry.insert(PodRecord { nodes, ..PodRecord::new(pod, request) });
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
        // A name that is no GPU node's makes no ledger.
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

    /// The API server has taken the binding that `claim` was reserved for. Does nothing where the pod has ended
    /// meanwhile.
    pub fn confirm(&self, uid: &PodUid, node: &NodeName, claim: &Claim) {
        if let Some(mut record) = self.pods.get_mut(uid) {
            self.settle(uid, &mut record, node, Some(claim));
        }
    }

    /// Whether a pod has to be looked up once a binding of it has ended: a list has left it out, so that no event may
    /// come of its end. While another binding of it is under way, the end of that one will ask again.
    pub fn is_doubtful(&self, uid: &PodUid) -> bool {
        self.pods
            .get(uid)
            .is_some_and(|record| record.unlisted && !self.awaits_binding(uid, &record))
    }

    /// A look-up of the pod begins: what it shows is newer than every list so far.
    pub fn begin_look_up(&self, uid: &PodUid) {
        if let Some(mut record) = self.pods.get_mut(uid) {
            record.unlisted = false;
        }
    }

    /// Gives a reservation back. Does nothing where the pod is known to be bound there.
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
        // It holds nothing, and no list shows it: whether it exists is for the next event to say.
        if record.get().nodes.is_empty() && record.get().unlisted {
            record.remove();
        }
    }

    /// Whether a reservation on the node still waits for the API server's word.
    pub fn is_reserved(&self, uid: &PodUid, node: &NodeName) -> bool {
        self.ledgers.stage(node, uid) == Some(Stage::Reserved)
    }

    fn awaits_binding(&self, uid: &PodUid, record: &PodRecord) -> bool {
        record.nodes.iter().any(|node| self.is_reserved(uid, node))
    }

    /// The pods whose place does not hang on a binding under way. A list of all pods that begins after this call has
    /// each of them that still exists.
    pub fn settled(&self) -> HashSet<PodUid> {
        let pods = self.pods.iter();
        let settled = pods.filter(|record| !self.awaits_binding(record.key(), record));
        settled.map(|record| record.key().clone()).collect()
    }

    /// A whole list of pods has been taken over. Forgets those of `settled`, which were [`CardBook::settled`] when it
    /// began, that are not `listed`: what they held counts on as [`CardBook::depart`] says, since nothing has shown how they ended. Returns
    /// the others that are not: pods that were bound while it was read, which may
    /// have ended before it was made, so that no event shows their end. They have to be looked up; one whose binding
    /// is still under way, once that has ended ([`CardBook::is_doubtful`]).
    #[must_use]
    pub fn after_list(
        &self,
        listed: &HashSet<PodUid>,
        settled: &HashSet<PodUid>,
        now: Timestamp,
    ) -> Vec<GpuPodId> {
        settled.difference(listed).for_each(|uid| self.depart(uid, now));
        // The list may have named a nominee before those that were evicted for it.
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

    /// A card's account with the pods' names.
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

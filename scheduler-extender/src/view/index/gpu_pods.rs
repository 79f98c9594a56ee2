//! The pods that request GPU memory, and what they hold on nodes.
//!
//! Invariants: a pod that is known to be bound holds units on one node; before that, on every node to which a binding
//! of it was sent and may have been carried out. A UID belongs to the name with which it was first seen.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashSet};

use cluster::{GpuPod, PodFacts};
use jiff::Timestamp;
use placement::gpu::{
    Account, Charge, ChoiceRule, Claim, GpuRequest, NoFit, Reservation, ReserveError, Stage,
};
use placement::units::{NodeName, PodUid};

use super::Index;
use super::back_offs::Sent;
use super::departures::{Ended, REPORTED_WITHIN};
use super::pod_record::{GpuPodId, OtherPod, PodOnGpu, PodRecord, ReservationError};

impl Index {
    /// Stops charging pods on every GPU of their node of which a claim names a GPU that the node does not report, as
    /// one that has failed: once a report would have shown them on another GPU.
    pub fn settle_lost_gpus(&mut self, now: Timestamp) {
        self.at(now);
        let mut overdue: Vec<(NodeName, PodUid)> = Vec::new();
        for node in self.nodes.iter() {
            for uid in node.ledger.read().on_lost_gpus() {
                let Some(record) = self.pods.get_mut(uid).filter(|it| it.admitted) else {
                    continue;
                };
                let since = *record.on_lost_gpu_since.get_or_insert(now);
                if now.duration_since(since).abs() >= REPORTED_WITHIN {
                    overdue.push((node.name.clone(), uid.clone()));
                }
            }
        }
        for (node, uid) in overdue {
            self.nodes.change(&node, |node| node.ledger.set_overdue(&uid));
        }
    }

    /// Changes the record of a pod, and what depends on it. `None` for a pod without one.
    pub(super) fn change_record<T>(
        &mut self,
        uid: &PodUid,
        change: impl FnOnce(&mut Self, &mut PodRecord) -> T,
    ) -> Option<T> {
        let mut record = self.pods.remove(uid)?;
        let outcome = change(self, &mut record);
        self.pods.insert(uid.clone(), record);
        Some(outcome)
    }

    /// Applies a GPU pod from a watch event.
    pub fn apply(&mut self, pod: &PodFacts, gpu: &GpuPod) {
        if pod.finished {
            return self.forget(&pod.uid);
        }
        let gpu = self.with_right(pod, gpu);
        if !self.pods.contains_key(&pod.uid) {
            self.pods
                .insert(pod.uid.clone(), PodRecord::new(&GpuPodId::of_facts(pod), &gpu.request));
        }
        self.change_record(&pod.uid, |index, record| {
            record.unlisted = false;
            index.update(pod, &gpu, record);
        });
    }

    /// As [`Index::apply`], for a pod that was read from the API server. Ignores a pod without a record: the watch has
    /// shown its end meanwhile. The read may be older than a list without the pod, so `unlisted` stays.
    pub fn apply_known(&mut self, pod: &PodFacts, gpu: &GpuPod) {
        if pod.finished {
            return self.forget(&pod.uid);
        }
        let gpu = self.with_right(pod, gpu);
        self.change_record(&pod.uid, |index, record| index.update(pod, &gpu, record));
    }

    /// The pod with what its namespace may take.
    fn with_right(&self, pod: &PodFacts, gpu: &GpuPod) -> GpuPod {
        let beyond_units = self.policy.policy.gpu.beyond_units_of(&pod.namespace);
        let own = gpu.clone();
        GpuPod { request: own.request.with_beyond_units(beyond_units), ..own }
    }

    fn update(&mut self, pod: &PodFacts, gpu: &GpuPod, record: &mut PodRecord) {
        if pod.deleting {
            self.ending.entry(pod.uid.clone()).or_insert(self.now);
        }
        record.admitted |= pod.admitted;
        record.group.clone_from(&pod.group);
        if pod.group.is_some() {
            self.grouped.insert(pod.uid.clone());
        }
        record.waits = pod.waits_at.map(|priority| (priority, pod.created_at));
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
        record.version.clone_from(&pod.version);
        record.request = gpu.request.clone();
        record.nominated_by_scheduler = pod.nominated_node.clone();
        self.set_nominated(&pod.uid, record);
    }

    /// Records that the pod is bound to the node. Releases its units on other nodes.
    fn settle(
        &mut self,
        uid: &PodUid,
        record: &mut PodRecord,
        node: &NodeName,
        claim: Option<&Claim>,
    ) {
        for other in record.nodes.drain(..).filter(|other| other != node) {
            self.release(&other, uid);
        }
        record.nodes.push(node.clone());
        // A pod that is never bound costs its author nothing, and one without a claim is not by Bind: neither may
        // change where the pods of others go.
        if claim.is_some() && !std::mem::replace(&mut record.measured, true) {
            self.observe(&record.request);
        }
        self.cancel_departure(uid, node);
        self.nodes.change(node, |node| {
            node.ledger.bind(uid, &record.request, claim);
            if record.admitted {
                node.ledger.admit(uid);
            }
        });
        record.kept = None;
        self.forget_place(uid, record);
        self.end_nomination(uid, record);
        self.plans.remove(uid);
    }

    /// Releases everything that a pod holds, and removes its record.
    pub fn forget(&mut self, uid: &PodUid) {
        let Some(record) = self.end(uid) else { return };
        for node in record.nodes {
            self.release(&node, uid);
            if self.is_in_report(&node, uid) {
                self.ended.push(Ended { node, pod: uid.clone(), at: self.now });
            }
        }
    }

    /// Ends the nomination and the plan of a deleted pod, and removes its record. `None` where it has none.
    pub(super) fn end(&mut self, uid: &PodUid) -> Option<PodRecord> {
        self.ending.remove(uid);
        self.grouped.remove(uid);
        let mut record = self.pods.remove(uid)?;
        self.forget_place(uid, &mut record);
        self.end_nomination(uid, &mut record);
        self.plans.remove(uid);
        Some(record)
    }

    fn release(&mut self, node: &NodeName, uid: &PodUid) {
        let hash = self.nodes.uid_hash(uid);
        self.nodes.change(node, |node| {
            node.cpu.requests.remove(hash);
            node.ledger.release(uid);
        });
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

    /// The version of the pod, not bound yet, of which [`Index::request`] is; `None` where it is not known.
    #[must_use]
    pub fn version(&self, uid: &PodUid) -> Option<String> {
        self.pods.get(uid)?.version.clone()
    }

    /// The pods for which kube-scheduler finds no node and that may preempt others, each with its priority: the most
    /// important first, of equals the oldest.
    #[must_use]
    pub fn waiting_pods(&self) -> Vec<(GpuPodId, i32)> {
        let mut waiting = Vec::new();
        for (uid, record) in &self.pods {
            let Some((priority, created_at)) = record.waits else { continue };
            if !record.faulty && record.nodes.is_empty() {
                waiting.push(((Reverse(priority), created_at), record.id(uid)));
            }
        }
        waiting.sort_by(|(one, a), (other, b)| (one, &a.uid).cmp(&(other, &b.uid)));
        waiting.into_iter().map(|((Reverse(priority), _), pod)| (pod, priority)).collect()
    }

    /// The pods with a process outside of MPS, by the report of the node on which they hold units. None of
    /// [`NodeGpus::undrained_clients`](placement::gpu::NodeGpus::undrained_clients).
    #[must_use]
    pub fn outside_mps(&self) -> Vec<(NodeName, GpuPodId)> {
        let mut found = Vec::new();
        for node in self.nodes.iter() {
            let reported: BTreeSet<&PodUid> =
                node.ledger.gpus().iter().flat_map(|gpu| &gpu.outside_mps).collect();
            if reported.is_empty() {
                continue;
            }
            let undrained = node.ledger.read().undrained_clients();
            for uid in reported.difference(&undrained) {
                let Some(record) = self.pods.get(*uid) else { continue };
                if record.nodes.contains(&node.name) {
                    found.push((node.name.clone(), record.id(uid)));
                }
            }
        }
        found
    }

    /// Whether some pod of lower priority holds units.
    #[must_use]
    pub fn has_pod_below(&self, priority: i32) -> bool {
        let is_below = |pod: &PodRecord| !pod.nodes.is_empty() && pod.request.priority() < priority;
        self.pods.values().any(is_below)
    }

    /// The nodes on which a pod holds units.
    #[must_use]
    pub fn held_on(&self, uid: &PodUid) -> Vec<NodeName> {
        self.pods.get(uid).map_or_else(Vec::new, |record| record.nodes.clone())
    }

    /// Chooses a GPU of a node and reserves it.
    ///
    /// # Errors
    ///
    /// Where no GPU fits, or the pod is bound already, or is another, or has to wait for deleted pods of its
    /// namespace.
    pub fn reserve(
        &mut self,
        pod: &GpuPodId,
        request: &GpuRequest,
        node: &NodeName,
        rule: &ChoiceRule,
    ) -> Result<Reservation, ReservationError> {
        if let Some(held) = self.waits_for_deleted(pod, request) {
            return Err(ReservationError::HeldByDeleted(held));
        }
        if let Some(record) = self.pods.get(&pod.uid) {
            record.is_of(pod).map_err(ReservationError::OtherPod)?;
        }
        let reservation = self.reserve_on(node, &pod.uid, request, rule)?;
        let entry = self.pods.entry(pod.uid.clone());
        let record = entry.or_insert_with(|| PodRecord::new(pod, request));
        if !record.nodes.contains(node) {
            record.nodes.push(node.clone());
        }
        record.sent = Some(Sent { node: node.clone(), claim: reservation.claim.clone() });
        self.end_places(std::slice::from_ref(&pod.uid));
        Ok(reservation)
    }

    fn reserve_on(
        &mut self,
        name: &NodeName,
        uid: &PodUid,
        request: &GpuRequest,
        rule: &ChoiceRule,
    ) -> Result<Reservation, ReservationError> {
        let hash = self.nodes.uid_hash(uid);
        let reserved = self.nodes.change_known(name, |node| {
            let reserved = node.ledger.reserve(uid, request, rule)?;
            node.cpu.requests.set(hash, request.cpu());
            Ok(reserved)
        });
        match reserved {
            Some(Ok(reserved)) => Ok(reserved),
            Some(Err(ReserveError::Bound)) => Err(ReservationError::Bound(name.clone())),
            Some(Err(ReserveError::Changed)) => Err(ReservationError::Changed(name.clone())),
            Some(Err(ReserveError::NoFit(why))) => Err(ReservationError::NoFit(name.clone(), why)),
            None => Err(ReservationError::NoFit(name.clone(), NoFit::NoGpus)),
        }
    }

    /// Records that the API server has carried out the binding of the reservation `claim`. Does nothing if the pod has
    /// ended meanwhile.
    pub fn confirm(&mut self, uid: &PodUid, node: &NodeName, claim: &Claim) {
        self.change_record(uid, |index, record| index.settle(uid, record, node, Some(claim)));
    }

    /// Whether a pod has to be looked up after a binding of it has ended: a list did not have it, so that no event may
    /// come for its end. False while another binding of it is under way, at whose end this is called again.
    #[must_use]
    pub fn is_doubtful(&self, uid: &PodUid) -> bool {
        self.pods
            .get(uid)
            .is_some_and(|record| record.unlisted && !self.awaits_binding(uid, record))
    }

    /// Records that a look-up of the pod begins, whose result is newer than every list so far.
    pub fn begin_look_up(&mut self, uid: &PodUid) {
        if let Some(record) = self.pods.get_mut(uid) {
            record.unlisted = false;
        }
    }

    /// Releases a reservation. Does nothing if the pod is known to be bound there.
    pub fn cancel(&mut self, uid: &PodUid, node: &NodeName) {
        if !self.pods.contains_key(uid) {
            return;
        }
        let hash = self.nodes.uid_hash(uid);
        let left = self.nodes.change_known(node, |node| {
            node.ledger.cancel(uid);
            let left = node.ledger.stage(uid);
            if left.is_none() {
                node.cpu.requests.remove(hash);
            }
            left
        });
        let Some(record) = self.pods.get_mut(uid) else { return };
        if left.flatten().is_none() {
            record.nodes.retain(|other| other != node);
        }
        // It holds nothing, and no list has it: if it exists, a later event adds it again.
        if record.nodes.is_empty() && record.unlisted {
            self.pods.remove(uid);
        }
    }

    /// Whether the pod is in the stage *reserved* on the node.
    #[must_use]
    pub fn is_reserved(&self, uid: &PodUid, node: &NodeName) -> bool {
        let stage = self.nodes.get(node).and_then(|node| node.ledger.stage(uid));
        stage == Some(Stage::Reserved)
    }

    fn awaits_binding(&self, uid: &PodUid, record: &PodRecord) -> bool {
        record.nodes.iter().any(|node| self.is_reserved(uid, node))
    }

    /// The pods without a binding under way. A list of all pods that begins after this call contains each of them that
    /// still exists.
    #[must_use]
    pub fn settled(&self) -> HashSet<PodUid> {
        let is_settled = |(uid, pod): &(&PodUid, &PodRecord)| !self.awaits_binding(uid, pod);
        self.pods.iter().filter(is_settled).map(|(uid, _)| uid.clone()).collect()
    }

    /// Handles pods that a completed list of all pods does not contain. `settled` are the [`Index::settled`] pods of
    /// when the list began: those that are not `listed` are removed by [`Index::depart`], since no event has shown how
    /// they ended. Returns the other pods that are not `listed`: they were bound during the list and may have ended
    /// before it, so that no event shows their end. They have to be looked up; a pod whose binding is still under way,
    /// after that has ended ([`Index::is_doubtful`]).
    #[must_use]
    pub fn after_list(
        &mut self,
        listed: &HashSet<PodUid>,
        settled: &HashSet<PodUid>,
        now: Timestamp,
    ) -> Vec<GpuPodId> {
        for uid in settled.difference(listed) {
            self.depart(uid, now);
        }
        let uids: Vec<PodUid> = self.pods.keys().cloned().collect();
        let mut doubtful = Vec::new();
        for uid in &uids {
            // In the list, a nominated pod may have come before its victims.
            self.change_record(uid, |index, record| index.set_nominated(uid, record));
            if listed.contains(uid) {
                continue;
            }
            let Some(record) = self.pods.get_mut(uid) else { continue };
            record.unlisted = true;
            let id = record.id(uid);
            if self.is_doubtful(uid) {
                doubtful.push(id);
            }
        }
        doubtful
    }

    /// The pods and ResourceClaims that hold units of a GPU, with their names.
    #[must_use]
    pub fn pods_on(&self, account: &Account) -> Vec<PodOnGpu> {
        let mut pods = Vec::new();
        for charge in account.charges.iter().filter(|charge| charge.basis.is_held()) {
            let (namespace, name) = self.holder(charge);
            pods.push(PodOnGpu { namespace, name, units: charge.units });
        }
        pods
    }

    /// The namespace and the name of the pod or ResourceClaim that is charged. Of a pod that only its node's report
    /// shows, its UID as its name; of unmanaged memory, nothing.
    #[must_use]
    pub fn holder(&self, charge: &Charge) -> (String, String) {
        match (&charge.claim, self.pods.get(&charge.pod)) {
            (Some(claim), _) => (claim.namespace.clone(), claim.name.clone()),
            (None, Some(record)) => (record.namespace.clone(), record.name.clone()),
            (None, None) => (String::new(), charge.pod.to_string()),
        }
    }
}

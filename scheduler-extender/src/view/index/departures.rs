//! Deleted pods that may still have processes, and what their namespaces may take meanwhile.
//!
//! ResourceQuota counts a pod no more once its object is gone, as after a deletion by force, while its GPU stays
//! charged until its processes have ended. Invariant: while deleted pods of a namespace hold units, the namespace gets
//! no GPU with which its pods, the deleted ones included, would hold more units than when one of these was deleted.
//! Without that, creating pods and deleting them by force would hold any number of GPUs.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use placement::gpu::{GpuRequest, NodeGpus};
use placement::units::{NodeName, PodUid, Units};

use super::{GpuPodId, HeldByDeleted, Index, PodRecord};

/// The time within which a node's report shows an admitted pod on its GPU: the device plugin's reporting interval, the
/// write and the watch.
pub(super) const REPORTED_WITHIN: SignedDuration = SignedDuration::from_secs(10);

/// How long a deleted pod that holds units restricts its namespace: longer than any usual grace period. A process that
/// never ends, or a node whose device plugin is gone, must not keep the namespace from all GPUs for ever.
const RESTRICTS: SignedDuration = SignedDuration::from_mins(10);

/// How long after a deletion the node's report of the end is expected. While units are expected, a pod that waits for
/// them is not called unschedulable, so that nothing is evicted and no node added for it: not for longer.
const REPORTS_END_WITHIN: SignedDuration = SignedDuration::from_secs(20);

/// How long a pod that is being deleted is expected to take: the default grace period, and the kubelet's part.
const ENDS_WITHIN: SignedDuration = SignedDuration::from_secs(40);

/// The most pods that [`Index::leaving`] looks at of each kind. Of more, the others' units free with an event.
const LEAVING: usize = 256;

/// A deleted pod that still holds units of a node.
#[derive(Debug, Clone)]
pub(super) struct Departure {
    node: NodeName,
    pod: PodUid,
    namespace: String,
    /// The pod's units.
    units: Units,
    /// The units that pods of the namespace, deleted ones included, held when this one was deleted.
    most: Units,
    at: Timestamp,
}

/// A pod without processes. Its node's next report does not have it.
#[derive(Debug, Clone)]
pub(super) struct Ended {
    pub(super) node: NodeName,
    pub(super) pod: PodUid,
    pub(super) at: Timestamp,
}

impl Departure {
    /// Whether it no longer keeps its namespace from other GPUs. The GPU itself stays charged for as long as reports
    /// have the pod.
    fn is_forgiven(&self, now: Timestamp) -> bool {
        !is_within(RESTRICTS, self.at, now)
    }

    /// Whether the time for a report of it is over. A time far in the future means that the clock was set back.
    fn is_over(&self, now: Timestamp) -> bool {
        !is_within(REPORTED_WITHIN, self.at, now)
    }

    fn frees_soon(&self, now: Timestamp) -> bool {
        is_within(REPORTS_END_WITHIN, self.at, now)
    }
}

impl Index {
    /// As [`Index::forget`], for a pod that may still have processes, as after a deletion by force. It counts while its
    /// node's reports contain it; if none has contained it yet, for [`REPORTED_WITHIN`].
    pub fn depart(&mut self, uid: &PodUid, now: Timestamp) {
        self.at(now);
        let Some(record) = self.end(uid) else { return };
        let hash = self.nodes.uid_hash(uid);
        for node in &record.nodes {
            self.nodes.change(node, |node| {
                node.cpu.requests.remove(hash);
                node.ledger.depart(uid);
            });
        }
        let nodes: Vec<NodeName> =
            record.nodes.iter().filter(|node| self.is_held(node, uid)).cloned().collect();
        if nodes.is_empty() {
            return;
        }
        let (namespace, units) = (record.namespace, record.request.peak());
        let mut most = self.live_units(&namespace).saturating_add(self.deleted_units(&namespace));
        // On each of the nodes where it may be.
        for _ in &nodes {
            most = most.saturating_add(units);
        }
        self.departures.retain(|before| before.pod != *uid);
        for node in nodes {
            let (pod, namespace) = (uid.clone(), namespace.clone());
            self.departures.push(Departure { node, pod, namespace, units, most, at: now });
        }
    }

    /// Releases the units of departed pods for which the time for a report is over.
    pub fn end_departures(&mut self, now: Timestamp) {
        self.at(now);
        self.ended.retain(|it| is_within(REPORTS_END_WITHIN, it.at, now));
        let departures = std::mem::take(&mut self.departures);
        for departure in departures {
            let Departure { node, pod, .. } = &departure;
            if departure.is_over(now) {
                self.nodes.change_known(node, |node| node.ledger.end_departure(pod));
            }
            let restricts = !departure.is_forgiven(now) && self.is_held(node, pod);
            if !departure.is_over(now) || restricts {
                self.departures.push(departure);
            }
        }
    }

    /// Whether some pod may have to wait for deleted ones.
    pub(super) fn deleted_may_hold(&self) -> bool {
        !self.departures.is_empty()
    }

    /// Whether the pod has to wait, since deleted pods of its namespace hold units. A pod with a binding under way does
    /// not.
    #[must_use]
    pub fn waits_for_deleted(&self, pod: &GpuPodId, request: &GpuRequest) -> Option<HeldByDeleted> {
        let held: Vec<&Departure> = self.holding(&pod.namespace).collect();
        let most = held.iter().map(|it| it.most).max()?;
        let deleted: Units = held.iter().map(|it| it.units).sum();
        let live = self.live_units(&pod.namespace).saturating_add(self.placed_units(pod));
        let wanted = live.saturating_add(deleted);
        if wanted.saturating_add(request.peak()) <= most || !self.held_on(&pod.uid).is_empty() {
            return None;
        }
        if held.into_iter().any(|departure| departure.frees_soon(self.now)) {
            Some(HeldByDeleted::Recently)
        } else {
            Some(HeldByDeleted::ForLong)
        }
    }

    /// Pods whose units are expected to be free within seconds, by node: deleted and ended ones, and ones that are
    /// being deleted and have no units by their node's report any more. kube-scheduler learns of that when this view
    /// does: if it tries a waiting pod a moment earlier, no other event may follow for minutes.
    #[must_use]
    pub fn leaving(&self) -> BTreeMap<NodeName, BTreeSet<PodUid>> {
        let mut leaving = BTreeMap::<NodeName, BTreeSet<PodUid>>::new();
        let mut add = |node: &NodeName, pod: &PodUid| {
            leaving.entry(node.clone()).or_default().insert(pod.clone());
        };
        for deleted in self.departures.iter().rev().take(LEAVING) {
            if deleted.frees_soon(self.now) {
                add(&deleted.node, &deleted.pod);
            }
        }
        for ended in self.ended.iter().rev().take(LEAVING) {
            if is_within(REPORTS_END_WITHIN, ended.at, self.now) {
                add(&ended.node, &ended.pod);
            }
        }
        for (uid, since) in self.ending.iter().take(LEAVING) {
            if is_within(ENDS_WITHIN, *since, self.now)
                && let Some(node) = self.pods.get(uid).and_then(|pod| pod.nodes.first())
                && !self.is_in_report(node, uid)
            {
                add(node, uid);
            }
        }
        leaving
    }

    /// The pods of groups that have places, by node. If kube-scheduler gives a group up, no event follows.
    #[must_use]
    pub fn placed_in_groups(&self) -> BTreeMap<NodeName, BTreeSet<PodUid>> {
        let mut placed = BTreeMap::<NodeName, BTreeSet<PodUid>>::new();
        for uid in self.places.values().flat_map(|places| &places.pods).take(LEAVING) {
            if let Some((_, node)) = self.pods.get(uid).and_then(|pod| pod.place.as_ref()) {
                placed.entry(node.clone()).or_default().insert(uid.clone());
            }
        }
        placed
    }

    pub(super) fn is_in_report(&self, node: &NodeName, pod: &PodUid) -> bool {
        self.nodes.get(node).is_some_and(|node| node.ledger.is_recorded(pod))
    }

    /// Drops what is known of a pod's deletion: an older event has shown it again, bound to `node`. It holds nothing on
    /// the other nodes where it might have been.
    pub(super) fn cancel_departure(&mut self, uid: &PodUid, node: &NodeName) {
        if !self.departures.iter().any(|departure| departure.pod == *uid) {
            return;
        }
        for departure in std::mem::take(&mut self.departures) {
            if departure.pod != *uid {
                self.departures.push(departure);
            } else if departure.node != *node {
                self.nodes.change_known(&departure.node, |other| other.ledger.end_departure(uid));
            }
        }
    }

    /// The units of the namespace's pods that are bound or being bound.
    fn live_units(&self, namespace: &str) -> Units {
        let is_live = |pod: &&PodRecord| pod.namespace == namespace && !pod.nodes.is_empty();
        self.pods.values().filter(is_live).map(|pod| pod.request.peak()).sum()
    }

    /// The units that are kept for other pods of groups of the namespace.
    fn placed_units(&self, but: &GpuPodId) -> Units {
        let mut units = Units::ZERO;
        for (_, places) in self.places.iter().filter(|(it, _)| it.namespace == but.namespace) {
            for pod in places.pods.iter().filter(|pod| **pod != but.uid) {
                let peak = self.pods.get(pod).map(|record| record.request.peak());
                units = units.saturating_add(peak.unwrap_or_default());
            }
        }
        units
    }

    /// The units that deleted pods of the namespace hold.
    fn deleted_units(&self, namespace: &str) -> Units {
        self.holding(namespace).map(|it| it.units).sum()
    }

    /// The deleted pods of the namespace that hold units.
    fn holding(&self, namespace: &str) -> impl Iterator<Item = &Departure> {
        self.departures.iter().filter(move |it| it.namespace == namespace && self.counts(it))
    }

    /// Whether the deleted pod takes units from others. On a node that is gone or not ready there is nothing to take,
    /// and its report may never change again.
    fn counts(&self, departure: &Departure) -> bool {
        self.nodes
            .get(&departure.node)
            .is_some_and(|node| !node.is_unready && is_charged(node.ledger.read(), &departure.pod))
    }

    /// Whether the deleted pod is charged on a GPU of the node, or will be once the node reports its GPUs again.
    fn is_held(&self, node: &NodeName, pod: &PodUid) -> bool {
        let Some(node) = self.nodes.get(node) else { return false };
        let gpus = node.ledger.read();
        is_charged(gpus, pod) || gpus.departed().contains(pod)
    }
}

/// Whether so much time at most lies between both, on a clock that may be set back.
pub(super) fn is_within(limit: SignedDuration, since: Timestamp, now: Timestamp) -> bool {
    now.duration_since(since).abs() < limit
}

fn is_charged(gpus: &NodeGpus, pod: &PodUid) -> bool {
    gpus.accounts().iter().flat_map(|account| &account.charges).any(|charge| charge.pod == *pod)
}

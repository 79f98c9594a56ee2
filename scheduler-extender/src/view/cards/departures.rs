//! Deleted pods that may still have processes, and what their namespaces may take meanwhile.
//!
//! ResourceQuota counts a pod no more once its object is gone, as after a deletion by force, while its card stays charged until its processes
//! have ended. Invariant: while deleted pods of a namespace hold units, the namespace gets no card with which its pods, the deleted ones
//! included, would hold more units than when one of these was deleted. Without that, creating pods and deleting them by force would hold
//! any number of cards.

use jiff::{SignedDuration, Timestamp};
use placement::gpu::{GpuRequest, NodeCards};
use placement::units::{NodeName, PodUid, Units};

use super::{CardBook, GpuPodId, REPORTED_WITHIN};

/// How long a deleted pod that holds units restricts its namespace: longer than any usual grace period. A process that never ends, or a node whose
/// device plugin is gone, must not keep the namespace from all cards for ever.
const RESTRICTS: SignedDuration = SignedDuration::from_mins(10);

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

impl Departure {
    /// Whether it no longer keeps its namespace from other cards. The card itself stays charged for as long as reports have the pod.
    fn is_forgiven(&self, now: Timestamp) -> bool {
        now.duration_since(self.at).abs() >= RESTRICTS
    }

    /// Whether the time for a report of it is over. A time far in the future means that the clock was set back.
    fn is_over(&self, now: Timestamp) -> bool {
        now.duration_since(self.at).abs() >= REPORTED_WITHIN
    }
}

/// Deleted pods of a namespace hold units, so that its other pods have to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeldByDeleted {
    /// One of them is in no report of its node yet. It counts for some seconds, and no event shows that they are over.
    Unreported,
    /// Reports show them. A report shows their end.
    Reported,
}

impl CardBook {
    /// As [`CardBook::forget`], for a pod that may still have processes, as after a deletion by force. It counts while its node's
    /// reports contain it; if none has contained it yet, for [`REPORTED_WITHIN`].
    pub fn depart(&self, uid: &PodUid, now: Timestamp) {
        let Some(record) = self.end(uid) else { return };
        for node in &record.get().nodes {
            self.change_with_cpu(node, |ledger| {
                self.cpus.remove(node, uid);
                ledger.depart(uid);
            });
        }
        let record = record.remove();
        let holds = |node: &NodeName| self.is_held(node, uid);
        let nodes: Vec<NodeName> =
            record.nodes.iter().filter(|node| holds(node)).cloned().collect();
        if nodes.is_empty() {
            return;
        }
        let (namespace, units) = (record.namespace, record.request.peak());
        let others = self.live_units(&namespace).saturating_add(self.deleted_units(&namespace));
        // On each of the nodes where it may be.
        let most = nodes.iter().fold(others, |sum, _| sum.saturating_add(units));
        let departure = |node| {
            let (pod, namespace) = (uid.clone(), namespace.clone());
            Departure { node, pod, namespace, units, most, at: now }
        };
        let new: Vec<Departure> = nodes.into_iter().map(departure).collect();
        self.departures.rcu(|known| {
            let others = known.iter().filter(|before| before.pod != *uid);
            others.chain(&new).cloned().collect::<Vec<_>>()
        });
    }

    /// Releases the units of departed pods for which the time for a report is over.
    pub fn end_departures(&self, now: Timestamp) {
        let over = |it: &&Departure| it.is_over(now);
        for Departure { node, pod, .. } in self.departures.load().iter().filter(over) {
            self.ledgers.change(node, |ledger| ledger.end_departure(pod));
        }
        let stays = |it: &Departure| {
            !it.is_over(now) || (!it.is_forgiven(now) && self.is_held(&it.node, &it.pod))
        };
        if !self.departures.load().iter().all(stays) {
            self.departures
                .rcu(|known| known.iter().filter(|it| stays(it)).cloned().collect::<Vec<_>>());
        }
    }

    /// Whether the pod has to wait, since deleted pods of its namespace hold units. A pod with a binding under way does not.
    pub fn waits_for_deleted(&self, pod: &GpuPodId, request: &GpuRequest) -> Option<HeldByDeleted> {
        let departures = self.departures.load();
        let is_held = |it: &&Departure| it.namespace == pod.namespace && self.counts(it);
        let held: Vec<&Departure> = departures.iter().filter(is_held).collect();
        let most = held.iter().map(|it| it.most).max()?;
        let deleted: Units = held.iter().map(|it| it.units).sum();
        let wanted = self.live_units(&pod.namespace).saturating_add(deleted);
        if wanted.saturating_add(request.peak()) <= most || !self.held_on(&pod.uid).is_empty() {
            return None;
        }
        let index = self.read();
        let is_unreported = |it: &Departure| {
            index.node(it.node.as_str()).is_some_and(|cards| cards.departed().contains(&it.pod))
        };
        match held.into_iter().any(is_unreported) {
            true => Some(HeldByDeleted::Unreported),
            false => Some(HeldByDeleted::Reported),
        }
    }

    /// Whether deleted pods of the namespace may hold units.
    pub(super) fn has_departures(&self, namespace: &str) -> bool {
        self.departures.load().iter().any(|it| it.namespace == namespace)
    }

    /// Drops what is known of a pod's deletion: an older event has shown it again, bound to `node`. It holds nothing on the other nodes where it
    /// might have been.
    pub(super) fn cancel_departure(&self, uid: &PodUid, node: &NodeName) {
        let known = self.departures.load();
        if !known.iter().any(|it| it.pod == *uid) {
            return;
        }
        for other in known.iter().filter(|it| it.pod == *uid && it.node != *node) {
            self.ledgers.change(&other.node, |ledger| ledger.end_departure(uid));
        }
        self.departures
            .rcu(|known| known.iter().filter(|it| it.pod != *uid).cloned().collect::<Vec<_>>());
    }

    /// The units of the namespace's pods that are bound or being bound.
    fn live_units(&self, namespace: &str) -> Units {
        let is_live =
            |record: &super::PodRecord| record.namespace == namespace && !record.nodes.is_empty();
        let pods = self.pods.iter().filter(|record| is_live(record));
        pods.map(|record| record.request.peak()).sum()
    }

    /// The units that deleted pods of the namespace hold.
    fn deleted_units(&self, namespace: &str) -> Units {
        let departures = self.departures.load();
        let held = departures.iter().filter(|it| it.namespace == namespace && self.counts(it));
        held.map(|it| it.units).sum()
    }

    /// Whether the deleted pod takes units from others. On a node that is gone or not ready there is nothing to take, and its report may
    /// never change again.
    fn counts(&self, departure: &Departure) -> bool {
        let Departure { node, pod, .. } = departure;
        !self.not_ready.load().contains(node)
            && self.read().node(node.as_str()).is_some_and(|cards| is_charged(cards, pod))
    }

    /// Whether the deleted pod is charged on a card of the node, or will be once the node reports its cards again.
    fn is_held(&self, node: &NodeName, pod: &PodUid) -> bool {
        let index = self.read();
        let Some(cards) = index.node(node.as_str()) else { return false };
        is_charged(cards, pod) || cards.departed().contains(pod)
    }
}

fn is_charged(cards: &NodeCards, pod: &PodUid) -> bool {
    let mut charges = cards.accounts().iter().flat_map(|account| &account.charges);
    charges.any(|charge| charge.pod == *pod)
}

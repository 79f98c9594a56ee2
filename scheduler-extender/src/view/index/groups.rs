//! GPUs that are kept for the pods of a group from Filter on, while kube-scheduler asks about the group's other pods
//! and binds them.

use std::collections::{BTreeSet, HashMap, HashSet};

use cluster::PodGroup;
use jiff::Timestamp;
use placement::gpu::{ChoiceRule, GpuRequest};
use placement::units::{NodeName, PodUid};

use super::departures::is_within;
use super::{Index, PodRecord};
use crate::gangs::IDLE;

/// The groups whose pods have places.
pub(super) type Places = HashMap<PodGroup, GroupPlaces>;

/// The places of the pods of one group: kept for a second after the last request for the group, since kube-scheduler
/// does not tell that it has given it up.
#[derive(Debug, Clone)]
pub(super) struct GroupPlaces {
    pub(super) pods: BTreeSet<PodUid>,
    asked_at: Timestamp,
}

impl Index {
    /// Keeps GPUs of a node for a pod of a group, in place of those that are kept for it already: after a failed Bind,
    /// kube-scheduler's nomination stays for a while.
    pub fn keep_in_group(
        &mut self,
        (group, pod): (&PodGroup, &PodUid),
        (request, rule): (&GpuRequest, &ChoiceRule),
        node: &NodeName,
        now: Timestamp,
    ) {
        let gpus = self.nodes.get(node).map(|node| node.ledger.read());
        let Some(Ok(choice)) = gpus.map(|gpus| gpus.fit(pod, request, rule)) else { return };
        let kept = self.change_record(pod, |index, record| {
            index.end_nomination(pod, record);
            index.nodes.change(node, |known| {
                known.ledger.nominate(pod, request, &choice.gpu_ids());
            });
            record.nominated = Some(node.clone());
            record.place = Some((group.clone(), node.clone()));
        });
        if kept.is_none() {
            return;
        }
        let places = self.places.entry(group.clone());
        let new = || GroupPlaces { pods: BTreeSet::new(), asked_at: now };
        places.or_insert_with(new).pods.insert(pod.clone());
        self.renew_places(group, now);
    }

    /// Keeps the places of a group for another second.
    pub fn renew_places(&mut self, group: &PodGroup, now: Timestamp) {
        if let Some(places) = self.places.get_mut(group) {
            places.asked_at = now;
        }
    }

    /// Whether the pod is in a group, whose places are then kept for another second.
    pub fn renew_places_of(&mut self, pod: &PodUid, now: Timestamp) -> bool {
        let group = self.pods.get(pod).and_then(|record| record.group.clone());
        group.is_some_and(|group| {
            self.renew_places(&group, now);
            true
        })
    }

    /// The groups with pods that are bound and others that wait to be.
    #[must_use]
    pub fn half_bound_groups(&self) -> HashSet<PodGroup> {
        let (mut bound, mut waiting) = (HashSet::new(), HashSet::new());
        for record in self.grouped.iter().filter_map(|pod| self.pods.get(pod)) {
            if let Some(group) = &record.group {
                let of = if record.nodes.is_empty() { &mut waiting } else { &mut bound };
                of.insert(group);
            }
        }
        let mut half_bound = HashSet::new();
        for group in bound.into_iter().filter(|group| waiting.contains(group)) {
            half_bound.insert(group.clone());
        }
        half_bound
    }

    /// Ends [`Index::keep_in_group`] of these pods.
    pub fn end_places(&mut self, pods: &[PodUid]) {
        for pod in pods {
            self.change_record(pod, |index, record| {
                index.forget_place(pod, record);
                index.set_nominated(pod, record);
            });
        }
    }

    /// Ends the places that have been kept for long enough.
    pub(super) fn end_old_places(&mut self, now: Timestamp) {
        let mut old = Vec::new();
        for places in self.places.values().filter(|it| !is_within(IDLE, it.asked_at, now)) {
            old.extend(places.pods.iter().cloned());
        }
        self.end_places(&old);
    }

    /// Forgets the place of a pod for which the ledger keeps nothing any more.
    pub(super) fn forget_place(&mut self, uid: &PodUid, record: &mut PodRecord) {
        let Some((group, _)) = record.place.take() else { return };
        let Some(places) = self.places.get_mut(&group) else { return };
        places.pods.remove(uid);
        if places.pods.is_empty() {
            self.places.remove(&group);
        }
    }
}

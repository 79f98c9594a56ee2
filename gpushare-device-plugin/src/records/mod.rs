//! Which container holds which device ids, by the UIDs of pods.
//!
//! # Sources
//!
//! | source | what it has | when it is read |
//! |---|---|---|
//! | grants of this process | UID, container, ids | each Allocate |
//! | the file of grants (`lingering::file`) | UID, name, ids of pods that may have processes | at the start |
//! | [the kubelet's checkpoint](checkpoint) | UID, container, ids; init containers too | at the start, with each list |
//! | [PodResources List](pod_resources) | **name**, container, ids; no init containers | each GetPreferredAllocation |
//! | [the watch of pods](crate::pods) | UID, name | always; it may be late |
//!
//! # From a name to a UID
//!
//! Only PodResources has no UIDs. A listed pod that holds ids has the UID of the first row that gives one:
//!
//! | the pod is | when |
//! |---|---|
//! | the pod in admission, if it has that name: [`Records::begin_allocation`] | from its admission to the next list |
//! | the only one that the checkpoint shows with these ids in this container [^name] | with each list |
//! | the only one of that name that was granted all of the ids | with each list |
//! | the one that the watch shows by that name [^shown] | with each list, and while the UID is not known |
//! | not known: its ids are in use for every pod | else |
//!
//! [^name]: And that the watch does not show under another name.
//!
//! [^shown]: If the kubelet has admitted it, and none of the ids was granted to another pod.
//!
//! Invariant: for app containers and sidecars the kubelet's list is authoritative and replaces their grants. Init
//! containers never appear in it; their grants are kept while their pod is listed. Ids of an earlier pod never count
//! for a later pod of its name. The ids of a pod whose processes may still run stay in use, although the kubelet
//! forgets a pod as soon as its object is deleted.

pub mod checkpoint;
mod pod_record;
pub mod pod_resources;
mod saved;
mod uids;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cluster::PodFacts;
use placement::units::PodUid;
use tokio::sync::watch;

use crate::cards::ids::{DeviceId, Ids};
use crate::pods::{PodCache, PodRef};
use checkpoint::{Checkpoint, HeldIds, OtherPluginCard};
pub use pod_record::{GrantedPod, PodRecord, Presence, at_peak};
use pod_resources::ListedPod;
pub use saved::SavedGrants;

/// The container that holds exactly the given ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HoldingContainer {
    /// Namespace and name of its pod.
    pub pod: PodRef,
    /// The UID of its pod; `None` if the kubelet listed the pod before the watch showed it.
    pub uid: Option<PodUid>,
    /// The container's name.
    pub container: String,
    /// Whether it is an init container, which the kubelet never lists.
    pub init: bool,
}

/// The ids in use, for the admission of one pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IdsInUse {
    /// Ids that may be granted to no container now.
    pub all: Ids,
    /// Ids of other pods.
    pub others: Ids,
    /// Ids of other pods that are exclusive on their cards.
    pub exclusive: Ids,
    /// Cards that other pods hold through another plugin's resource.
    pub elsewhere: Vec<OtherPluginCard>,
}

/// The records behind a lock, with a notification of changes.
#[derive(Debug, Default)]
pub struct SharedRecords {
    records: Mutex<Records>,
    changes: watch::Sender<()>,
}

impl SharedRecords {
    /// Locks the records. Do not hold the lock over an await.
    pub fn lock(&self) -> MutexGuard<'_, Records> {
        // Every change is one assignment or insert, so a panic cannot leave a partial change.
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notifies the receivers of [`SharedRecords::changes`].
    pub fn notify(&self) {
        self.changes.send_replace(());
    }

    /// A receiver of changes from now on.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }
}

/// The records.
#[derive(Debug, Default)]
pub struct Records {
    /// The kubelet's last list.
    listed: Vec<Listed>,
    /// The pods that were granted ids: until the kubelet no longer lists the pod and its processes have ended.
    pods: HashMap<PodUid, PodRecord>,
    /// Cards that pods hold through another plugin's resource.
    elsewhere: Vec<OtherPluginCard>,
}

/// A pod of the kubelet's list.
#[derive(Debug)]
struct Listed {
    pod: ListedPod,
    /// By the table of this module; `None` if it is not known.
    uid: Option<PodUid>,
}

/// The ids of one container, by the kubelet's list or by a grant.
#[derive(Clone, Copy)]
struct ContainerIds<'r> {
    pod: &'r PodRef,
    uid: Option<&'r PodUid>,
    container: &'r str,
    ids: &'r Ids,
}

impl Records {
    /// Replaces the kubelet's list. `checkpoint` is the kubelet's checkpoint as it was read after the list; `None` if
    /// it cannot be read. Returns whether the list has shown new holders, which must be saved.
    pub fn relist(
        &mut self,
        list: Vec<ListedPod>,
        checkpoint: Option<&Checkpoint>,
        pods: &PodCache,
    ) -> bool {
        let held = checkpoint.map_or(&[][..], |checkpoint| &checkpoint.held);
        let mut listed = Vec::with_capacity(list.len());
        for pod in list {
            let uid = self.uid_of(&pod, held, pods);
            listed.push(Listed { pod, uid });
        }
        self.listed = listed;
        self.drop_grants_that_the_list_replaces();
        if let Some(checkpoint) = checkpoint {
            self.set_elsewhere(checkpoint, pods);
        }
        self.add_listed_holders(pods)
    }

    /// Drops the grants of pods that are not listed, and of containers that are listed without ids: the kubelet died
    /// before it recorded these.
    fn drop_grants_that_the_list_replaces(&mut self) {
        for (uid, record) in &mut self.pods {
            let listed = self.listed.iter().find(|listed| listed.pod.pod == record.pod);
            let listed = listed.filter(|listed| listed.uid.as_ref().is_none_or(|of| of == uid));
            match (listed, &mut record.granted) {
                (None, granted) => *granted = None,
                (Some(listed), Some(granted)) => granted.containers.retain(|container, _| {
                    listed.pod.containers.get(container).is_none_or(|ids| !ids.is_empty())
                }),
                (Some(_), None) => {}
            }
        }
        self.drop_ended();
    }

    /// Drops the records that are over.
    fn drop_ended(&mut self) {
        self.pods.retain(|_, record| !record.is_over());
    }

    /// Adds holders that only the kubelet's list shows: neither this process nor the checkpoint recorded their
    /// allocation. Returns whether there were any.
    fn add_listed_holders(&mut self, pods: &PodCache) -> bool {
        let mut with_uid: Vec<(PodUid, PodRef, Ids)> = Vec::new();
        for Listed { pod, uid } in &self.listed {
            if let Some(uid) = uid {
                with_uid.push((uid.clone(), pod.pod.clone(), pod.ids().cloned().collect()));
            }
        }
        let mut added = false;
        for (uid, name, mut ids) in with_uid {
            // An id that another pod holds was listed for that pod: an earlier one of the same name.
            ids.retain(|id| !self.is_held_by_other(&uid, id));
            let is_known = match self.holder(&uid) {
                Some(record) => record.ids.is_superset(&ids),
                None => ids.is_empty(),
            };
            if is_known {
                continue;
            }
            match pods.find(&name, Some(&uid)) {
                Some(facts) => self.record_of(&facts).add_ids(&facts, &ids),
                None => self.add_unknown_pod(&uid, &ids),
            }
            added = true;
        }
        added
    }

    /// Records that `ids` were granted to a container: this plugin chose them for its pod.
    pub fn grant(&mut self, facts: &Arc<PodFacts>, container: &str, ids: Ids) {
        let record = self.record_of(facts);
        record.chosen = true;
        record.add_ids(facts, &ids);
        record.add_grant(facts, container, ids);
    }

    /// Adds the checkpoint's entries of pods that still exist. Grants of this process are not changed.
    pub fn restore(&mut self, held: Vec<HeldIds>, pods: &PodCache) {
        for HeldIds { pod, container, ids, .. } in held {
            let Some(facts) = pods.by_uid(&pod).filter(|facts| !facts.finished) else {
                self.add_unknown_pod(&pod, &ids);
                continue;
            };
            if !self.granted(&pod).is_some_and(|granted| granted.has_grant(&container)) {
                let record = self.record_of(&facts);
                record.add_ids(&facts, &ids);
                record.add_grant(&facts, &container, ids);
            }
        }
    }

    /// The record of a pod, a new one if there is none.
    fn record_of(&mut self, facts: &PodFacts) -> &mut PodRecord {
        let record = self.pods.entry(facts.uid.clone());
        record.or_insert_with(|| PodRecord::new(PodRef::of(facts)))
    }

    /// Adds ids that the kubelet holds for a pod that the watch does not show.
    fn add_unknown_pod(&mut self, uid: &PodUid, ids: &Ids) {
        let unnamed = PodRef::new("", uid.as_str());
        let record = self.pods.entry(uid.clone()).or_insert_with(|| PodRecord::new(unnamed));
        // A pod of the kubelet's records that the watch does not show is deleted.
        record.seen |= record.ids.is_empty();
        record.ids.extend(ids.iter().cloned());
    }

    /// Sets the cards that existing pods hold through another plugin's resource.
    pub fn set_elsewhere(&mut self, checkpoint: &Checkpoint, pods: &PodCache) {
        let held = checkpoint.cards_held_elsewhere(|uid| pods.by_uid(uid));
        self.elsewhere = held.cloned().collect();
    }

    /// Cards that pods hold through another plugin's resource, as last set.
    pub fn elsewhere(&self) -> &[OtherPluginCard] {
        &self.elsewhere
    }

    /// Prepares for an allocation by the kubelet: the container holds no ids now, and this pod is the one with its
    /// name. An earlier pod of that name is deleted.
    pub fn begin_allocation(&mut self, facts: &PodFacts, container: &str) {
        let name = PodRef::of(facts);
        for (uid, record) in &mut self.pods {
            if *uid == facts.uid {
                if let Some(granted) = &mut record.granted {
                    granted.containers.remove(container);
                }
            } else if record.pod == name {
                record.granted = None;
            }
        }
        self.drop_ended();
        for listed in &mut self.listed {
            if listed.pod.pod == name {
                listed.uid = Some(facts.uid.clone());
            }
        }
    }

    /// The grants of a pod.
    pub fn granted(&self, uid: &PodUid) -> Option<&GrantedPod> {
        self.pods.get(uid)?.granted.as_ref()
    }

    /// All pods with grants.
    pub fn all_granted(&self) -> impl Iterator<Item = &GrantedPod> {
        self.pods.values().filter_map(|record| record.granted.as_ref())
    }

    /// The kubelet's last list.
    pub fn listed(&self) -> impl Iterator<Item = &ListedPod> {
        self.listed.iter().map(|listed| &listed.pod)
    }

    /// The pods that were granted ids and may have processes, with their UIDs.
    pub fn holders(&self) -> impl Iterator<Item = (&PodUid, &PodRecord)> {
        self.pods.iter().filter(|(_, record)| !record.ids.is_empty())
    }

    /// The pod of that UID, if it was granted ids and may have processes.
    pub fn holder(&self, uid: &PodUid) -> Option<&PodRecord> {
        self.pods.get(uid).filter(|record| !record.ids.is_empty())
    }

    /// The pods that linger.
    pub fn lingering(&self) -> impl Iterator<Item = (&PodUid, &PodRecord)> {
        self.pods.iter().filter(|(_, record)| record.lingers)
    }

    /// Marks the pods that the watch has shown.
    pub fn mark_seen(&mut self, shown: impl Fn(&PodUid) -> bool) {
        for (uid, record) in &mut self.pods {
            if !record.ids.is_empty() {
                record.seen |= shown(uid);
            }
        }
    }

    /// Sets for each pod that was granted ids whether it is still there. Returns whether anything has changed.
    pub fn set_presence(&mut self, presence: &HashMap<PodUid, Presence>) -> bool {
        let mut changed = false;
        for (uid, presence) in presence {
            let Some(record) = self.pods.get_mut(uid) else { continue };
            let lingers = *presence == Presence::Lingers;
            let pod = &record.pod;
            if lingers && !record.lingers {
                tracing::warn!(
                    %pod, %uid,
                    "the pod is gone, its processes may run: its units stay taken until they have ended"
                );
            } else if !lingers && record.lingers {
                tracing::info!(%pod, %uid, "the processes of a pod that was gone have ended");
            }
            changed |= lingers != record.lingers || *presence == Presence::Ended;
            record.lingers = lingers;
            if *presence == Presence::Ended {
                record.end();
            }
        }
        self.drop_ended();
        changed
    }

    /// Whether a pod other than this one holds the id.
    fn is_held_by_other(&self, uid: &PodUid, id: &DeviceId) -> bool {
        self.pods.iter().any(|(other, record)| other != uid && record.ids.contains(id))
    }

    /// All ids that containers hold, those of pods that linger included.
    pub fn in_use(&self) -> Ids {
        self.held().map(|(_, id)| id.clone()).collect()
    }

    /// As [`Records::in_use`], for a pod that is being admitted. Its own lingering ids are not in use for it.
    pub fn in_use_for(&self, admitted: &PodUid) -> IdsInUse {
        let mut in_use = IdsInUse::default();
        for container in self.containers() {
            in_use.all.extend(container.ids.iter().cloned());
        }
        for (uid, id) in self.held() {
            if uid == Some(admitted) {
                continue;
            }
            in_use.all.insert(id.clone());
            in_use.others.insert(id.clone());
            let record = uid.and_then(|uid| self.pods.get(uid));
            if record.is_some_and(|record| record.exclusive) {
                in_use.exclusive.insert(id.clone());
            }
        }
        let elsewhere = self.elsewhere.iter().filter(|card| card.pod != *admitted);
        in_use.elsewhere = elsewhere.cloned().collect();
        in_use
    }

    /// All ids that containers hold, those of pods that linger included, each with its pod's UID if known.
    fn held(&self) -> impl Iterator<Item = (Option<&PodUid>, &DeviceId)> {
        let containers = self.containers();
        let of_containers = containers
            .flat_map(|container| container.ids.iter().map(move |id| (container.uid, id)));
        let lingering = self.lingering();
        let of_lingering =
            lingering.flat_map(|(uid, record)| record.ids.iter().map(move |id| (Some(uid), id)));
        of_containers.chain(of_lingering)
    }

    /// All listed and granted containers. Pods that linger are left out.
    fn containers(&self) -> impl Iterator<Item = ContainerIds<'_>> {
        let listed = self.listed.iter().flat_map(|Listed { pod, uid }| {
            pod.containers.iter().map(|(container, ids)| ContainerIds {
                pod: &pod.pod,
                uid: uid.as_ref(),
                container,
                ids,
            })
        });
        let granted = self.pods.iter().flat_map(|(uid, record)| {
            let containers = record.granted.iter().flat_map(|granted| &granted.containers);
            containers.map(move |(container, ids)| ContainerIds {
                pod: &record.pod,
                uid: Some(uid),
                container,
                ids,
            })
        });
        listed.chain(granted)
    }

    /// The ids that pods hold which kube-scheduler counts: those that exist and have not finished. A pod that the watch
    /// has not shown yet counts too.
    pub fn counted_ids(&self, pods: &PodCache) -> Ids {
        let mut ids = Ids::new();
        for container in self.containers().filter(|container| !container.ids.is_empty()) {
            let counts = match pods.find(container.pod, container.uid) {
                Some(facts) => !facts.finished,
                None => !pods.is_listed() || !container.uid.is_some_and(|uid| self.was_seen(uid)),
            };
            if counts {
                ids.extend(container.ids.iter().cloned());
            }
        }
        ids
    }

    /// Whether the watch has shown that pod, or its processes have ended.
    fn was_seen(&self, uid: &PodUid) -> bool {
        self.holder(uid).is_none_or(|record| record.seen)
    }

    /// Whether a deleted or terminating pod holds ids by the list or by a grant.
    pub fn gone_pods_hold_ids(&self, pods: &PodCache) -> bool {
        self.containers().filter(|container| !container.ids.is_empty()).any(|container| {
            let facts = pods.find(container.pod, container.uid);
            facts.is_none_or(|facts| facts.finished || facts.deleting)
        })
    }

    /// The container that holds exactly these ids. If an app container reuses all ids of an init container, it is the
    /// app container, which the kubelet lists.
    pub fn holding_container(&self, ids: &Ids) -> Option<HoldingContainer> {
        let holding = self.containers().filter(|container| container.ids == ids);
        let holding = holding.map(|container| HoldingContainer {
            pod: container.pod.clone(),
            uid: container.uid.cloned(),
            container: container.container.to_owned(),
            init: self.is_init(container),
        });
        holding.min_by_key(|holding| holding.init)
    }

    fn is_init(&self, container: ContainerIds<'_>) -> bool {
        let granted = container.uid.and_then(|uid| self.granted(uid));
        granted.is_some_and(|granted| granted.is_init(container.container))
    }

    /// Whether this plugin, this process or an earlier one, chose ids for the pod of that UID.
    pub fn chose_for(&self, uid: &PodUid) -> bool {
        self.pods.get(uid).is_some_and(|record| record.chosen)
    }

    /// Whether [`Records::held_by`] is not empty for a pod.
    pub fn holds(&self, facts: &PodFacts) -> bool {
        self.containers_of(facts).any(|container| !container.ids.is_empty())
    }

    /// The ids that a pod holds.
    pub fn held_by(&self, facts: &PodFacts) -> Ids {
        self.containers_of(facts).flat_map(|container| container.ids).cloned().collect()
    }

    /// The containers of a pod that exists, by the table of this module.
    fn containers_of<'r>(&'r self, facts: &'r PodFacts) -> impl Iterator<Item = ContainerIds<'r>> {
        let is_shown = self
            .listed
            .iter()
            .any(|listed| listed.uid.is_none() && self.is_shown(&listed.pod, facts));
        self.containers().filter(move |container| match container.uid {
            Some(uid) => *uid == facts.uid,
            None => is_shown && container.pod.is_of(facts),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{A, ids, listed, simple, with_init, with_use};
    use cluster::Event;
    use placement::gpu::CardUse;

    fn held(pod: &str, container: &str, ids: Ids) -> HeldIds {
        HeldIds { pod: pod.into(), container: container.to_owned(), ids, unit: None }
    }

    fn showing<const N: usize>(shown: [PodFacts; N]) -> PodCache {
        let pods = PodCache::default();
        pods.apply(Event::Listed(shown.map(Into::into).into()));
        pods
    }

    /// All pods that were granted ids linger.
    fn linger(records: &mut Records) {
        set_all(records, Presence::Lingers);
    }

    fn set_all(records: &mut Records, presence: Presence) {
        let all = records.holders().map(|(uid, _)| (uid.clone(), presence)).collect();
        records.set_presence(&all);
    }

    #[test]
    fn what_the_kubelet_lists_without_ids_is_no_longer_granted() {
        let pod = simple("p", A, 1);
        let mut records = Records::default();
        records.grant(&pod, "main", ids(["aaaaaaaa-0"]));
        records.relist(vec![listed("p", [])], None, &PodCache::default());
        assert!(records.in_use().is_empty(), "the kubelet died before it wrote that down");
    }

    #[test]
    fn ids_of_init_containers_count_for_as_long_as_their_pod_is_listed() {
        let pod = with_init("p", A, 2, 1);
        let mut records = Records::default();
        records.grant(&pod, "init", ids(["aaaaaaaa-0", "aaaaaaaa-1"]));
        records.relist(vec![listed("p", ["aaaaaaaa-0"])], None, &PodCache::default());
        assert_eq!(records.in_use(), ids(["aaaaaaaa-0", "aaaaaaaa-1"]));
        assert_eq!(records.held_by(&pod), ids(["aaaaaaaa-0", "aaaaaaaa-1"]));
        records.relist(vec![], None, &PodCache::default());
        assert!(records.in_use().is_empty());
    }

    #[test]
    fn a_pod_that_the_kubelet_alone_knows_of_is_a_holder_once_its_uid_is_known() {
        let pod = PodFacts::clone(&simple("p", A, 2));
        let pods = showing([pod.clone()]);
        let list = [listed("p", ["aaaaaaaa-0", "aaaaaaaa-1"]), listed("plain", [])];
        let mut records = Records::default();
        let has_new = records.relist(list.to_vec(), None, &pods);
        assert!(!has_new, "it may be another of that name");
        pods.apply(Event::Applied(PodFacts { admitted: true, ..pod }.into()));
        assert!(records.relist(list.to_vec(), None, &pods));
        assert!(!records.relist(list.to_vec(), None, &pods), "noted");
        records.relist(vec![], None, &pods);
        linger(&mut records);
        assert_eq!(records.in_use(), ids(["aaaaaaaa-0", "aaaaaaaa-1"]), "it lingers");
    }

    #[test]
    fn a_pod_of_the_same_name_is_another_pod() {
        let old = with_init("p", A, 1, 1);
        let new = Arc::new(PodFacts { uid: "new".into(), ..PodFacts::clone(&old) });
        let mut records = Records::default();
        records.grant(&old, "init", ids(["aaaaaaaa-0"]));
        let checkpoint = Checkpoint {
            held: vec![held("new", "main", ids(["aaaaaaaa-1"]))],
            ..Checkpoint::default()
        };
        let list = vec![listed("p", ["aaaaaaaa-1"])];
        records.relist(list, Some(&checkpoint), &PodCache::default());
        assert_eq!(records.held_by(&new), ids(["aaaaaaaa-1"]));
        assert!(records.held_by(&old).is_empty());
        assert!(records.granted(&old.uid).is_none());
    }

    #[test]
    fn a_pod_whose_container_is_allocated_again_or_that_has_an_earlier_pods_name_holds_nothing() {
        let old = with_init("p", A, 1, 1);
        let new = Arc::new(PodFacts { uid: "new".into(), ..PodFacts::clone(&old) });
        let mut records = Records::default();
        records.grant(&old, "init", ids(["aaaaaaaa-0"]));
        records.relist(vec![listed("p", [])], None, &PodCache::default());
        assert_eq!(records.in_use(), ids(["aaaaaaaa-0"]), "it may still be the old pod");
        records.begin_allocation(&new, "init");
        assert!(records.in_use().is_empty());
        records.grant(&new, "init", ids(["aaaaaaaa-0"]));
        records.begin_allocation(&new, "main");
        assert_eq!(records.in_use(), ids(["aaaaaaaa-0"]));
        records.begin_allocation(&new, "init");
        assert!(records.in_use().is_empty(), "the kubelet forgot the grant");
    }

    #[test]
    fn a_checkpoint_restores_containers_of_pods_that_exist_and_no_later_grant() {
        let pod = with_init("p", A, 2, 1);
        let finished = PodFacts { finished: true, ..PodFacts::clone(&simple("finished", A, 1)) };
        let mut records = Records::default();
        records.grant(&pod, "main", ids(["aaaaaaaa-1"]));
        let checkpoint = vec![
            held("p", "init", ids(["aaaaaaaa-0", "aaaaaaaa-1"])),
            held("p", "main", ids(["aaaaaaaa-0"])),
            held("finished", "main", ids(["aaaaaaaa-2"])),
            held("gone", "main", ids(["aaaaaaaa-3"])),
        ];
        records.restore(checkpoint, &showing([PodFacts::clone(&pod), finished]));
        assert_eq!(records.in_use(), ids(["aaaaaaaa-0", "aaaaaaaa-1"]));
        assert_eq!(records.holding_container(&ids(["aaaaaaaa-1"])).unwrap().container, "main");
    }

    #[test]
    fn ids_of_other_pods_are_told_from_the_admitted_pods_own_and_exclusive_ones_from_the_rest() {
        let whole = CardUse { exclusive: true, ..CardUse::default() };
        let whole = Arc::new(with_use("whole", A, 1, whole));
        let mut records = Records::default();
        records.grant(&whole, "main", ids(["aaaaaaaa-0"]));
        records.grant(&simple("p", A, 1), "main", ids(["aaaaaaaa-1"]));
        let list = vec![listed("whole", ["aaaaaaaa-0"]), listed("p", ["aaaaaaaa-1"])];
        records.relist(list, None, &PodCache::default());
        let all = ids(["aaaaaaaa-0", "aaaaaaaa-1"]);
        let for_p = records.in_use_for(&"p".into());
        assert_eq!(for_p.all, all);
        assert_eq!((for_p.others, for_p.exclusive), (ids(["aaaaaaaa-0"]), ids(["aaaaaaaa-0"])));
        let for_whole = records.in_use_for(&"whole".into());
        assert_eq!(for_whole.all, all);
        assert_eq!((for_whole.others, for_whole.exclusive), (ids(["aaaaaaaa-1"]), Ids::new()));
    }

    #[test]
    fn the_ids_of_an_exclusive_pod_that_lingers_stay_exclusive() {
        let whole = CardUse { exclusive: true, ..CardUse::default() };
        let mut records = Records::default();
        records.grant(&Arc::new(with_use("whole", A, 1, whole)), "main", ids(["aaaaaaaa-0"]));
        records.relist(vec![], None, &PodCache::default());
        assert_eq!(records.in_use_for(&"p".into()), IdsInUse::default());
        linger(&mut records);
        assert_eq!(records.in_use_for(&"p".into()).exclusive, ids(["aaaaaaaa-0"]));
        assert_eq!(records.in_use_for(&"whole".into()), IdsInUse::default(), "its own");
    }

    #[test]
    fn what_was_chosen_for_a_pod_is_known_until_its_processes_and_its_grants_have_ended() {
        let pod = simple("p", A, 1);
        let mut records = Records::default();
        records.grant(&pod, "main", ids(["aaaaaaaa-0"]));
        set_all(&mut records, Presence::Ended);
        assert_eq!(records.holders().count(), 0, "it is in no file of grants");
        assert!(records.chose_for(&pod.uid), "the kubelet may not have listed it yet");
        assert_eq!(records.in_use(), ids(["aaaaaaaa-0"]));
        records.relist(vec![], None, &PodCache::default());
        assert!(!records.chose_for(&pod.uid));
        assert!(records.in_use().is_empty());
    }

    #[test]
    fn the_container_that_took_over_all_ids_is_their_owner() {
        let pod = with_init("p", A, 1, 1);
        let mut records = Records::default();
        records.grant(&pod, "init", ids(["aaaaaaaa-0"]));
        assert!(records.holding_container(&ids(["aaaaaaaa-0"])).unwrap().init);
        records.grant(&pod, "main", ids(["aaaaaaaa-0"]));
        assert_eq!(records.holding_container(&ids(["aaaaaaaa-0"])).unwrap().container, "main");
        assert_eq!(records.holding_container(&ids(["aaaaaaaa-1"])), None);
    }
}

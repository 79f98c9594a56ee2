//! Which container holds which device ids, by the UIDs of pods. Here the records change; [`held`] reads from them which
//! ids are held.
//!
//! # Sources
//!
//! | source | what it has | when it is read |
//! |---|---|---|
//! | grants of this process | UID, container, ids | each Allocate |
//! | the file of grants (`lingering::file`) | UID, name, ids of pods that may have processes | at the start |
//! | [the kubelet's checkpoint](checkpoint) | UID, container, ids; init containers too | at the start, with each list |
//! | [PodResources List](pod_resources) | **name**, container, ids; no init containers | each GetPreferredAllocation |
//! | [PodResources Get](pod_resources) | devices of claims, by container | when [a pod with claims](crate::dra) comes |
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
mod held;
mod pod_record;
pub mod pod_resources;
pub mod resource_claims;
mod saved;
mod uids;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cluster::PodFacts;
use placement::units::{PodUid, ResourceClaimUid};
use tokio::sync::watch;

use crate::gpus::ids::{DeviceId, Ids};
use crate::gpus::{Gpus, units_of};
use crate::pods::{PodCache, PodRef};
use checkpoint::{Checkpoint, HeldIds, OtherPluginGpu};
pub use held::{HoldingContainer, IdsInUse};
pub use pod_record::{GrantedPod, PodRecord, Presence, at_peak};
use pod_resources::ListedPod;
use resource_claims::{BookedClaim, ClaimLedger, NoRoom};
pub use saved::SavedGrants;

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
    /// GPUs that pods hold through another plugin's resource.
    elsewhere: Vec<OtherPluginGpu>,
    /// What pods hold by resource claims, as the kubelet has it.
    claimed: BTreeMap<PodUid, ClaimedGpus>,
    /// What ResourceClaims of this plugin's own driver hold.
    pub resource_claims: ClaimLedger,
}

/// What a pod holds by resource claims.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClaimedGpus {
    /// Its GPUs by drivers of others. Of a device that may be on any GPU, every one of the node.
    pub gpus: Vec<OtherPluginGpu>,
    /// Its GPUs by this plugin's driver, for which [`Records::resource_claims`] counts.
    pub own: Vec<OtherPluginGpu>,
    /// The containers of which it is known which GPUs these are.
    pub known: BTreeSet<String>,
}

/// A pod of the kubelet's list.
#[derive(Debug)]
struct Listed {
    pod: ListedPod,
    /// By the table of this module; `None` if it is not known.
    uid: Option<PodUid>,
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
            let of_name = self.listed.iter().find(|listed| listed.pod.pod == record.pod);
            let listed = of_name.filter(|listed| listed.uid.as_ref().is_none_or(|of| of == uid));
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

    /// Sets the GPUs that existing pods hold through another plugin's resource. Returns whether that has changed.
    pub fn set_elsewhere(&mut self, checkpoint: &Checkpoint, pods: &PodCache) -> bool {
        let held = checkpoint.gpus_held_elsewhere(|uid| pods.by_uid(uid)).cloned().collect();
        let changed = self.elsewhere != held;
        self.elsewhere = held;
        changed
    }

    /// Sets what pods hold by resource claims. Returns whether that has changed.
    pub fn set_claimed(&mut self, claimed: BTreeMap<PodUid, ClaimedGpus>) -> bool {
        let changed = self.claimed != claimed;
        self.claimed = claimed;
        changed
    }

    /// What pods hold by resource claims, as last set.
    pub fn claimed(&self) -> &BTreeMap<PodUid, ClaimedGpus> {
        &self.claimed
    }

    /// GPUs that pods hold through another plugin's resource, and by resource claims of others' drivers, as last set.
    pub fn elsewhere(&self) -> impl Iterator<Item = &OtherPluginGpu> {
        self.elsewhere.iter().chain(self.claimed.values().flat_map(|claimed| &claimed.gpus))
    }

    /// Books a claim in place of its earlier entry, if there is room beside all else that the GPUs hold. `clients` are
    /// the clients of MPS that a GPU serves.
    ///
    /// # Errors
    /// Which GPU has too little room, and who holds it.
    pub fn book(
        &mut self,
        uid: &ResourceClaimUid,
        claim: BookedClaim,
        gpus: &Gpus,
        clients: Option<u16>,
    ) -> Result<(), NoRoom> {
        let held = units_of(&self.ids_with_processes(), gpus);
        for gpu in claim.shares.iter().map(|share| &share.gpu) {
            if let Some(units) = held.get(gpu).copied() {
                return Err(NoRoom::Units { gpu: gpu.clone(), units });
            }
            if let Some(other) = self.elsewhere().find(|held| held.gpu == *gpu) {
                let (pod, resource) = (other.pod.clone(), other.resource.clone());
                return Err(NoRoom::Elsewhere { gpu: gpu.clone(), pod, resource });
            }
        }
        self.resource_claims.check_room(uid, &claim, gpus, clients)?;
        self.resource_claims.insert(uid.clone(), claim);
        Ok(())
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
            let PodRef { namespace, name: pod } = &record.pod;
            if lingers && !record.lingers {
                tracing::warn!(
                    %uid, namespace, pod,
                    "the kubelet no longer holds the pod's units, and its processes may run: the units stay taken until \
                     they have ended"
                );
            } else if !lingers && record.lingers {
                tracing::info!(%uid, namespace, pod, "the processes of a pod for which the kubelet held no units have ended");
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

    /// Whether this plugin, this process or an earlier one, chose ids for the pod of that UID.
    pub fn chose_for(&self, uid: &PodUid) -> bool {
        self.pods.get(uid).is_some_and(|record| record.chosen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{A, ids, listed, simple, with_init};
    use cluster::Event;

    fn held(pod: &str, container: &str, ids: Ids) -> HeldIds {
        HeldIds { pod: pod.into(), container: container.to_owned(), ids, unit: None }
    }

    fn showing<const N: usize>(shown: [PodFacts; N]) -> PodCache {
        let pods = PodCache::default();
        pods.apply(Event::Listed(shown.map(Into::into).into()));
        pods
    }

    /// Sets it for all pods that were granted ids.
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
        set_all(&mut records, Presence::Lingers);
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
    fn a_reallocated_container_or_reused_name_holds_nothing() {
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
}

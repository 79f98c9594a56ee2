//! Which container holds which device ids: the kubelet's last list ([`pod_resources`]), the grants of this
//! process, and the grants of earlier processes ([`checkpoint`]).
//!
//! Invariant: for app containers and sidecars the kubelet's list is authoritative and replaces their
//! grants. Init containers never appear in it; their grants are kept while their pod is listed. The list has names only; [`names`] finds
//! the UIDs, so that ids of an earlier pod never count for a later pod of its name.

pub mod checkpoint;
pub mod holders;
pub mod names;
pub mod pod_resources;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cluster::PodFacts;
use placement::gpu::{ContainerKind, ContainerRequest};
use placement::units::PodUid;
use tokio::sync::watch;

use crate::cards::ids::{DeviceId, Ids};
use crate::pods::{PodRef, container_requests};
use checkpoint::{HeldIds, OtherPluginCard};
use holders::Holders;
use pod_resources::ListedPod;

/// A pod that this process, or an earlier one, granted ids to.
#[derive(Debug, Clone)]
pub struct GrantedPod {
    /// The pod as it was at its last grant.
    pub facts: Arc<PodFacts>,
    /// Granted ids by container.
    pub containers: BTreeMap<String, Ids>,
}

impl GrantedPod {
    /// The containers without a grant, in the order in which the kubelet admits them.
    pub fn pending(&self) -> impl Iterator<Item = &ContainerRequest> {
        container_requests(&self.facts).filter(|ask| !self.holds(&ask.name))
    }

    /// Whether a container has a grant.
    pub fn holds(&self, container: &str) -> bool {
        self.containers.contains_key(container)
    }

    /// The ids of all its containers.
    pub fn ids(&self) -> impl Iterator<Item = &DeviceId> {
        self.containers.values().flatten()
    }
}

/// The container that holds exactly the given ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
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

/// The ids that containers hold: the kubelet's last list, and grants by pod.
#[derive(Debug, Default)]
pub struct Records {
    /// The kubelet's last list, with each pod's UID if it is known.
    listed: Vec<(ListedPod, Option<PodUid>)>,
    granted: HashMap<PodUid, GrantedPod>,
    /// Cards that pods hold through another plugin's resource.
    elsewhere: Vec<OtherPluginCard>,
    /// The pods that were granted ids, for as long as they may have processes.
    pub holders: Holders,
}

impl Records {
    /// Replaces the kubelet's list. `uid` looks up the UID of a listed pod: [`names::uid_of`].
    pub fn relist(&mut self, list: Vec<ListedPod>, uid: impl Fn(&PodRef) -> Option<PodUid>) {
        self.listed = list
            .into_iter()
            .map(|listed| (uid(&listed.pod), listed))
            .map(|(uid, pod)| (pod, uid))
            .collect();
        let listed = &self.listed;
        self.granted.retain(|granted, pod| {
            let name = PodRef::of(&pod.facts);
            let found = listed.iter().find(|(listed, _)| listed.pod == name);
            found.is_some_and(|(_, uid)| uid.as_ref().is_none_or(|uid| uid == granted))
        });
        self.drop_forgotten();
    }

    /// Adds holders that only the kubelet's list shows: neither this process nor the checkpoint recorded their allocation. `pod`
    /// looks up the pod that currently has a name. Returns whether there were any.
    pub fn add_listed_holders(&mut self, pod: impl Fn(&PodRef) -> Option<Arc<PodFacts>>) -> bool {
        let mut noted = false;
        for (listed, uid) in &self.listed {
            let Some(uid) = uid else { continue };
            // An id that another pod holds was listed for that pod: an earlier one of the same name.
            let is_free = |id: &&DeviceId| !self.holders.is_held_by_other(uid, id);
            let ids = listed.containers.values().flatten().filter(is_free);
            let ids: Ids = ids.cloned().collect();
            if self.holders.get(uid).map_or(ids.is_empty(), |holder| holder.ids.is_superset(&ids)) {
                continue;
            }
            match pod(&listed.pod).filter(|facts| facts.uid == *uid) {
                Some(facts) => drop(self.holders.add_recorded(&facts, &ids)),
                None => self.holders.add_unknown_pod(uid, &ids),
            }
            noted = true;
        }
        noted
    }

    /// Drops grants of containers that the kubelet lists without ids: it died before it recorded them.
    fn drop_forgotten(&mut self) {
        for granted in self.granted.values_mut() {
            let name = PodRef::of(&granted.facts);
            let Some((listed, _)) = self.listed.iter().find(|(listed, _)| listed.pod == name)
            else {
                continue;
            };
            granted.containers.retain(|container, _| {
                listed.containers.get(container).is_none_or(|ids| !ids.is_empty())
            });
        }
    }

    /// Records that `ids` were granted to a container.
    pub fn grant(&mut self, facts: &Arc<PodFacts>, container: &str, ids: Ids) {
        self.holders.add_grant(facts, &ids);
        self.add(facts, container, ids);
    }

    /// Adds ids of a container, in place of those that it had.
    fn add(&mut self, facts: &Arc<PodFacts>, container: &str, ids: Ids) {
        let fresh = || GrantedPod { facts: facts.clone(), containers: BTreeMap::new() };
        let pod = self.granted.entry(facts.uid.clone()).or_insert_with(fresh);
        pod.containers.insert(container.to_owned(), ids);
    }

    /// Adds the checkpoint's entries of pods that still exist, which `pod` looks up. Grants of this process
    /// are not changed.
    pub fn restore(&mut self, held: Vec<HeldIds>, pod: impl Fn(&PodUid) -> Option<Arc<PodFacts>>) {
        for held in held {
            let Some(facts) = pod(&held.pod).filter(|facts| !facts.finished) else {
                self.holders.add_unknown_pod(&held.pod, &held.ids);
                continue;
            };
            let known = self.granted(&held.pod).is_some_and(|pod| pod.holds(&held.container));
            if !known {
                self.holders.add_recorded(&facts, &held.ids);
                self.add(&facts, &held.container, held.ids);
            }
        }
    }

    /// Sets the cards that pods hold through another plugin's resource.
    pub fn set_elsewhere(&mut self, cards: Vec<OtherPluginCard>) {
        self.elsewhere = cards;
    }

    /// Cards that pods hold through another plugin's resource, as last set.
    pub fn elsewhere(&self) -> &[OtherPluginCard] {
        &self.elsewhere
    }

    /// Prepares for an allocation by the kubelet: the container holds no ids now, and this pod is the one
    /// with its name. An earlier pod of that name is deleted.
    pub fn begin_allocation(&mut self, facts: &PodFacts, container: &str) {
        let name = PodRef::of(facts);
        self.granted.retain(|uid, pod| *uid == facts.uid || PodRef::of(&pod.facts) != name);
        if let Some(pod) = self.granted.get_mut(&facts.uid) {
            pod.containers.remove(container);
        }
        for (_, uid) in self.listed.iter_mut().filter(|(listed, _)| listed.pod == name) {
            *uid = Some(facts.uid.clone());
        }
    }

    /// The grants of a pod.
    pub fn granted(&self, uid: &PodUid) -> Option<&GrantedPod> {
        self.granted.get(uid)
    }

    /// All pods with grants.
    pub fn all_granted(&self) -> impl Iterator<Item = &GrantedPod> {
        self.granted.values()
    }

    /// The kubelet's last list.
    pub fn listed(&self) -> impl Iterator<Item = &ListedPod> {
        self.listed.iter().map(|(listed, _)| listed)
    }

    /// All ids that containers hold, those of pods that linger included.
    pub fn in_use(&self) -> Ids {
        self.held().map(|(_, id)| id.clone()).collect()
    }

    /// As [`Records::in_use`], for a pod that is being admitted. Its own lingering ids are not in use for it.
    pub fn in_use_for(&self, admitted: &PodUid) -> IdsInUse {
        let others = || self.held().filter(|(uid, _)| *uid != Some(admitted));
        let is_exclusive = |uid: Option<&PodUid>| {
            uid.and_then(|uid| self.holders.get(uid)).is_some_and(|holder| holder.exclusive)
        };
        let exclusive = others().filter(|(uid, _)| is_exclusive(*uid));
        IdsInUse {
            all: self.recorded().chain(others()).map(|(_, id)| id.clone()).collect(),
            others: others().map(|(_, id)| id.clone()).collect(),
            exclusive: exclusive.map(|(_, id)| id.clone()).collect(),
            elsewhere: self
                .elsewhere
                .iter()
                .filter(|card| card.pod != *admitted)
                .cloned()
                .collect(),
        }
    }

    /// All ids that containers hold, those of pods that linger included, each with its pod's UID if known.
    fn held(&self) -> impl Iterator<Item = (Option<&PodUid>, &DeviceId)> {
        let lingering = self.holders.lingering();
        let lingering =
            lingering.flat_map(|(uid, holder)| holder.ids.iter().map(move |id| (Some(uid), id)));
        self.recorded().chain(lingering)
    }

    /// All ids of listed and granted containers, those of pods that linger left out.
    fn recorded(&self) -> impl Iterator<Item = (Option<&PodUid>, &DeviceId)> {
        let listed = self.listed.iter().flat_map(|(listed, uid)| {
            listed.containers.values().flatten().map(move |id| (uid.as_ref(), id))
        });
        let granted = self.granted.iter();
        let granted = granted.flat_map(|(uid, pod)| pod.ids().map(move |id| (Some(uid), id)));
        listed.chain(granted)
    }

    /// The ids of listed and granted containers whose pod `counts`, which gets the pod's name, its UID if known, and whether the watch
    /// has ever shown it.
    pub fn ids_of(&self, counts: impl Fn(&PodRef, Option<&PodUid>, bool) -> bool) -> Ids {
        let seen = |uid: &PodUid| self.holders.get(uid).is_none_or(|holder| holder.seen);
        let mut ids = Ids::new();
        for (listed, uid) in &self.listed {
            if counts(&listed.pod, uid.as_ref(), uid.as_ref().is_some_and(seen)) {
                ids.extend(listed.containers.values().flatten().cloned());
            }
        }
        for (uid, pod) in &self.granted {
            if counts(&PodRef::of(&pod.facts), Some(uid), seen(uid)) {
                ids.extend(pod.ids().cloned());
            }
        }
        ids
    }

    /// Whether a deleted pod holds ids. `is_there` returns whether the pod of that name, and of that UID if
    /// known, still exists.
    pub fn gone_pods_hold_ids(&self, is_there: impl Fn(&PodRef, Option<&PodUid>) -> bool) -> bool {
        let holds = |listed: &ListedPod| listed.containers.values().any(|ids| !ids.is_empty());
        let mut listed = self.listed.iter().filter(|(listed, _)| holds(listed));
        let listed = listed.any(|(listed, uid)| !is_there(&listed.pod, uid.as_ref()));
        let there =
            |(uid, pod): (&PodUid, &GrantedPod)| is_there(&PodRef::of(&pod.facts), Some(uid));
        listed || !self.granted.iter().all(there)
    }

    /// The container that holds exactly these ids. If an app container reuses all ids of an init container, it
    /// is the app container, which the kubelet lists.
    pub fn owner(&self, ids: &Ids) -> Option<Owner> {
        let granted = self.granted.values().flat_map(|pod| owners_granted(pod, ids));
        let listed =
            self.listed.iter().flat_map(|(listed, uid)| owners_listed(listed, uid.as_ref(), ids));
        granted.chain(listed).min_by_key(|owner| owner.init)
    }

    /// Whether [`Records::held_by`] is not empty for a pod.
    pub fn holds(&self, facts: &PodFacts) -> bool {
        let granted = || self.granted.get(&facts.uid).is_some_and(|pod| pod.ids().next().is_some());
        self.listed_for(facts).next().is_some() || granted()
    }

    /// Whether this plugin, this process or an earlier one, chose ids for the pod of that UID.
    pub fn chose_for(&self, uid: &PodUid) -> bool {
        self.holders.get(uid).is_some_and(|holder| holder.chosen)
    }

    /// The ids that a pod holds.
    pub fn held_by(&self, facts: &PodFacts) -> Ids {
        let granted = self.granted.get(&facts.uid).into_iter().flat_map(GrantedPod::ids);
        self.listed_for(facts).chain(granted).cloned().collect()
    }

    /// The listed ids of a pod. Ids of an entry whose UID is not known are those of the pod of its name, once this pod was admitted.
    fn listed_for<'a>(&'a self, facts: &'a PodFacts) -> impl Iterator<Item = &'a DeviceId> {
        self.listed.iter().flat_map(move |(listed, uid)| {
            let is_its_own = match uid {
                Some(uid) => *uid == facts.uid,
                None => facts.admitted && listed.pod == PodRef::of(facts),
            };
            let own = is_its_own.then_some(&listed.containers).into_iter();
            let ids = own.flat_map(|containers| containers.values().flatten());
            let is_free = |id: &DeviceId| !self.holders.is_held_by_other(&facts.uid, id);
            ids.filter(move |id| uid.is_some() || is_free(id))
        })
    }
}

fn owners_granted<'a>(pod: &'a GrantedPod, ids: &'a Ids) -> impl Iterator<Item = Owner> + 'a {
    let is_init = |name: &str| {
        container_requests(&pod.facts)
            .any(|ask| ask.name == name && ask.kind == ContainerKind::Init)
    };
    let holders = pod.containers.iter().filter(move |(_, held)| *held == ids);
    holders.map(move |(container, _)| Owner {
        pod: PodRef::of(&pod.facts),
        uid: Some(pod.facts.uid.clone()),
        container: container.clone(),
        init: is_init(container),
    })
}

fn owners_listed<'a>(
    listed: &'a ListedPod,
    uid: Option<&'a PodUid>,
    ids: &'a Ids,
) -> impl Iterator<Item = Owner> + 'a {
    let holders = listed.containers.iter().filter(move |(_, held)| *held == ids);
    holders.map(move |(container, _)| Owner {
        pod: listed.pod.clone(),
        uid: uid.cloned(),
        container: container.clone(),
        init: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{A, ids, listed, simple, with_init, with_use};
    use placement::gpu::CardUse;

    #[test]
    fn what_the_kubelet_lists_without_ids_is_no_longer_granted() {
        let pod = simple("p", A, 1);
        let mut records = Records::default();
        records.grant(&pod, "main", ids(["aaaaaaaa-0"]));
        records.relist(vec![listed("p", [])], |_| None);
        assert!(records.in_use().is_empty(), "the kubelet died before it wrote that down");
    }

    #[test]
    fn ids_of_init_containers_count_for_as_long_as_their_pod_is_listed() {
        let pod = with_init("p", A, 2, 1);
        let mut records = Records::default();
        records.grant(&pod, "init", ids(["aaaaaaaa-0", "aaaaaaaa-1"]));
        records.relist(vec![listed("p", ["aaaaaaaa-0"])], |_| None);
        assert_eq!(records.in_use(), ids(["aaaaaaaa-0", "aaaaaaaa-1"]));
        assert_eq!(records.held_by(&pod), ids(["aaaaaaaa-0", "aaaaaaaa-1"]));
        records.relist(vec![], |_| None);
        assert!(records.in_use().is_empty());
    }

    #[test]
    fn a_pod_that_the_kubelet_alone_knows_of_is_a_holder_once_its_uid_is_known() {
        let pod = simple("p", A, 2);
        let mut records = Records::default();
        let list = || vec![listed("p", ["aaaaaaaa-0", "aaaaaaaa-1"]), listed("plain", [])];
        records.relist(list(), |_| None);
        assert!(
            !records.add_listed_holders(|_| Some(pod.clone())),
            "it may be another of that name"
        );
        records.relist(list(), |listed| Some(PodUid::from(listed.name.as_str())));
        assert!(records.add_listed_holders(|_| Some(pod.clone())));
        assert!(!records.add_listed_holders(|_| Some(pod.clone())), "noted");
        records.relist(vec![], |_| None);
        records.holders.set_lingering(|_| Some(true));
        assert_eq!(records.in_use(), ids(["aaaaaaaa-0", "aaaaaaaa-1"]), "it lingers");
    }

    #[test]
    fn a_pod_of_the_same_name_is_another_pod() {
        let (old, new) = (with_init("p", A, 1, 1), with_init("p", A, 1, 1));
        let new = Arc::new(PodFacts { uid: "new".into(), ..PodFacts::clone(&new) });
        let mut records = Records::default();
        records.grant(&old, "init", ids(["aaaaaaaa-0"]));
        records.relist(vec![listed("p", ["aaaaaaaa-1"])], |_| Some("new".into()));
        assert_eq!(records.held_by(&new), ids(["aaaaaaaa-1"]));
        assert!(records.held_by(&old).is_empty());
        assert!(records.granted(&old.uid).is_none());
    }

    #[test]
    fn a_pod_whose_container_is_allocated_again_or_that_has_an_earlier_pods_name_holds_nothing() {
        let (old, new) = (with_init("p", A, 1, 1), with_init("p", A, 1, 1));
        let new = Arc::new(PodFacts { uid: "new".into(), ..PodFacts::clone(&new) });
        let mut records = Records::default();
        records.grant(&old, "init", ids(["aaaaaaaa-0"]));
        records.relist(vec![listed("p", [])], |_| None);
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
        let (pod, finished) = (with_init("p", A, 2, 1), simple("finished", A, 1));
        let finished = Arc::new(PodFacts { finished: true, ..PodFacts::clone(&finished) });
        let held = |pod: &str, container: &str, ids| {
            let (pod, container) = (PodUid::from(pod), container.to_owned());
            HeldIds { pod, container, ids, unit: None }
        };
        let mut records = Records::default();
        records.grant(&pod, "main", ids(["aaaaaaaa-1"]));
        let checkpoint = vec![
            held("p", "init", ids(["aaaaaaaa-0", "aaaaaaaa-1"])),
            held("p", "main", ids(["aaaaaaaa-0"])),
            held("finished", "main", ids(["aaaaaaaa-2"])),
            held("gone", "main", ids(["aaaaaaaa-3"])),
        ];
        let pods = [pod.clone(), finished];
        records.restore(checkpoint, |uid| pods.iter().find(|pod| pod.uid == *uid).cloned());
        assert_eq!(records.in_use(), ids(["aaaaaaaa-0", "aaaaaaaa-1"]));
        assert_eq!(records.owner(&ids(["aaaaaaaa-1"])).unwrap().container, "main");
    }

    #[test]
    fn ids_of_other_pods_are_told_from_the_admitted_pods_own_and_exclusive_ones_from_the_rest() {
        let whole = CardUse { exclusive: true, ..CardUse::default() };
        let whole = Arc::new(with_use("whole", A, 1, whole));
        let mut records = Records::default();
        records.grant(&whole, "main", ids(["aaaaaaaa-0"]));
        records.grant(&simple("p", A, 1), "main", ids(["aaaaaaaa-1"]));
        let listed = vec![listed("whole", ["aaaaaaaa-0"]), listed("p", ["aaaaaaaa-1"])];
        records.relist(listed, |pod| Some(PodUid::from(pod.name.as_str())));
        let beside = |pod: &str| {
            let in_use = records.in_use_for(&pod.into());
            assert_eq!(in_use.all, ids(["aaaaaaaa-0", "aaaaaaaa-1"]), "{pod}");
            (in_use.others, in_use.exclusive)
        };
        assert_eq!(beside("p"), (ids(["aaaaaaaa-0"]), ids(["aaaaaaaa-0"])));
        assert_eq!(beside("whole"), (ids(["aaaaaaaa-1"]), Ids::new()));
    }

    #[test]
    fn the_ids_of_an_exclusive_pod_that_lingers_stay_exclusive() {
        let whole = CardUse { exclusive: true, ..CardUse::default() };
        let mut records = Records::default();
        records.grant(&Arc::new(with_use("whole", A, 1, whole)), "main", ids(["aaaaaaaa-0"]));
        records.relist(vec![], |_| None);
        assert_eq!(records.in_use_for(&"p".into()), IdsInUse::default());
        records.holders.set_lingering(|_| Some(true));
        assert_eq!(records.in_use_for(&"p".into()).exclusive, ids(["aaaaaaaa-0"]));
        assert_eq!(records.in_use_for(&"whole".into()), IdsInUse::default(), "its own");
    }

    #[test]
    fn the_container_that_took_over_all_ids_is_their_owner() {
        let pod = with_init("p", A, 1, 1);
        let mut records = Records::default();
        records.grant(&pod, "init", ids(["aaaaaaaa-0"]));
        assert!(records.owner(&ids(["aaaaaaaa-0"])).unwrap().init);
        records.grant(&pod, "main", ids(["aaaaaaaa-0"]));
        assert_eq!(records.owner(&ids(["aaaaaaaa-0"])).unwrap().container, "main");
        assert_eq!(records.owner(&ids(["aaaaaaaa-1"])), None);
    }
}

//! What is known of which container holds which device ids: the kubelet's own records as last
//! listed, and what was handed out since.
//!
//! Invariant: the kubelet's list is the truth for ordinary containers and sidecars and replaces
//! what was believed of them. Init containers never appear in it, so theirs is remembered, for as
//! long as their pod is listed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use cluster::PodFacts;
use placement::gpu::{ContainerAsk, ContainerKind};
use placement::units::PodUid;

use crate::ids::DeviceId;
use crate::pods::PodRef;

/// A set of device ids.
pub type Ids = BTreeSet<DeviceId>;

/// A pod in the kubelet's list: the ids that each of its containers holds, none included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedPod {
    /// The pod.
    pub pod: PodRef,
    /// Its containers' ids of our resource.
    pub containers: BTreeMap<String, Ids>,
}

/// A pod that was handed ids in the life of this process.
#[derive(Debug, Clone)]
pub struct GivenPod {
    /// The pod.
    pub facts: Arc<PodFacts>,
    /// Ids by container.
    pub containers: BTreeMap<String, Ids>,
}

impl GivenPod {
    /// The containers that were handed nothing yet, in the order in which the kubelet admits them.
    pub fn pending(&self) -> impl Iterator<Item = &ContainerAsk> {
        asks(&self.facts).filter(|ask| !self.containers.contains_key(&ask.name))
    }

    /// All its ids.
    pub fn ids(&self) -> impl Iterator<Item = &DeviceId> {
        self.containers.values().flatten()
    }
}

/// What a pod's containers ask for, in admission order; nothing for a pod that asks for nothing.
pub fn asks(facts: &PodFacts) -> impl Iterator<Item = &ContainerAsk> {
    facts
        .gpu
        .as_ref()
        .ok()
        .and_then(Option::as_ref)
        .into_iter()
        .flat_map(|gpu| gpu.request.containers())
}

/// Who holds a set of ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// The pod.
    pub pod: PodRef,
    /// Its UID, where known.
    pub uid: Option<PodUid>,
    /// The container.
    pub container: String,
    /// Whether it is an init container, which the kubelet never lists.
    pub init: bool,
}

/// All records.
#[derive(Debug, Default)]
pub struct Records {
    listed: Vec<(ListedPod, Option<PodUid>)>,
    given: HashMap<PodUid, GivenPod>,
}

impl Records {
    /// Takes in a whole list. `uid` tells which pod has a name now, where that is known.
    pub fn relist(&mut self, list: Vec<ListedPod>, uid: impl Fn(&PodRef) -> Option<PodUid>) {
        self.listed = list
            .into_iter()
            .map(|listed| (uid(&listed.pod), listed))
            .map(|(uid, pod)| (pod, uid))
            .collect();
        let listed = &self.listed;
        self.given.retain(|given, pod| {
            let name = PodRef::of(&pod.facts);
            let found = listed.iter().find(|(listed, _)| listed.pod == name);
            found.is_some_and(|(_, uid)| uid.as_ref().is_none_or(|uid| uid == given))
        });
        self.believe();
    }

    /// What was handed to a container that the kubelet lists without devices did not arrive: the
    /// kubelet died before it wrote that down.
    fn believe(&mut self) {
        for given in self.given.values_mut() {
            let name = PodRef::of(&given.facts);
            let Some((listed, _)) = self.listed.iter().find(|(listed, _)| listed.pod == name)
            else {
                continue;
            };
            given.containers.retain(|container, _| {
                listed.containers.get(container).is_none_or(|ids| !ids.is_empty())
            });
        }
    }

    /// Remembers what a container was handed.
    pub fn give(&mut self, facts: &Arc<PodFacts>, container: &str, ids: Ids) {
        let fresh = || GivenPod { facts: facts.clone(), containers: BTreeMap::new() };
        let pod = self.given.entry(facts.uid.clone()).or_insert_with(fresh);
        pod.containers.insert(container.to_owned(), ids);
    }

    /// What a pod was handed in the life of this process.
    pub fn given(&self, uid: &PodUid) -> Option<&GivenPod> {
        self.given.get(uid)
    }

    /// Every pod that was handed something in the life of this process.
    pub fn all_given(&self) -> impl Iterator<Item = &GivenPod> {
        self.given.values()
    }

    /// The kubelet's last list.
    pub fn listed(&self) -> impl Iterator<Item = &ListedPod> {
        self.listed.iter().map(|(listed, _)| listed)
    }

    /// Every id that anybody holds.
    pub fn in_use(&self) -> Ids {
        let listed = self.listed().flat_map(|listed| listed.containers.values().flatten());
        listed.chain(self.given.values().flat_map(GivenPod::ids)).cloned().collect()
    }

    /// Whether anybody holds ids who is gone; `is_there` tells of a name, with the UID where that
    /// is known.
    pub fn has_leftovers(&self, is_there: impl Fn(&PodRef, Option<&PodUid>) -> bool) -> bool {
        let holds = |listed: &ListedPod| listed.containers.values().any(|ids| !ids.is_empty());
        let mut listed = self.listed.iter().filter(|(listed, _)| holds(listed));
        let listed = listed.any(|(listed, uid)| !is_there(&listed.pod, uid.as_ref()));
        let there = |(uid, pod): (&PodUid, &GivenPod)| is_there(&PodRef::of(&pod.facts), Some(uid));
        listed || !self.given.iter().all(there)
    }

    /// The container that holds exactly these ids. Where an ordinary container took over all ids of
    /// an init container, it is the ordinary one: that is whom the kubelet lists.
    pub fn owner(&self, ids: &Ids) -> Option<Owner> {
        let given = self.given.values().flat_map(|pod| owners_given(pod, ids));
        let listed =
            self.listed.iter().flat_map(|(listed, uid)| owners_listed(listed, uid.as_ref(), ids));
        given.chain(listed).min_by_key(|owner| owner.init)
    }

    /// The ids that a pod holds. The kubelet's record of a name counts for the pod that had it when
    /// it was listed.
    pub fn held_by(&self, facts: &PodFacts) -> Ids {
        let name = PodRef::of(facts);
        let same = |uid: &Option<PodUid>| uid.as_ref().is_none_or(|uid| *uid == facts.uid);
        let listed = self.listed.iter().filter(|(listed, uid)| listed.pod == name && same(uid));
        let listed = listed.flat_map(|(listed, _)| listed.containers.values().flatten());
        let given = self.given.get(&facts.uid).into_iter().flat_map(GivenPod::ids);
        listed.chain(given).cloned().collect()
    }
}

fn owners_given<'a>(pod: &'a GivenPod, ids: &'a Ids) -> impl Iterator<Item = Owner> + 'a {
    let is_init = |name: &str| {
        asks(&pod.facts).any(|ask| ask.name == name && ask.kind == ContainerKind::Init)
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
    use crate::facts_for_tests::{A, ids, listed, simple, with_init};

    #[test]
    fn what_the_kubelet_does_not_list_was_not_handed_over() {
        let pod = simple("p", A, 1);
        let mut records = Records::default();
        records.give(&pod, "main", ids(["aaaaaaaa-0"]));
        records.relist(vec![listed("p", [])], |_| None);
        assert!(records.in_use().is_empty(), "the kubelet died before it wrote that down");
    }

    #[test]
    fn ids_of_init_containers_count_for_as_long_as_their_pod_is_listed() {
        let pod = with_init("p", A, 2, 1);
        let mut records = Records::default();
        records.give(&pod, "init", ids(["aaaaaaaa-0", "aaaaaaaa-1"]));
        records.relist(vec![listed("p", ["aaaaaaaa-0"])], |_| None);
        assert_eq!(records.in_use(), ids(["aaaaaaaa-0", "aaaaaaaa-1"]));
        assert_eq!(records.held_by(&pod), ids(["aaaaaaaa-0", "aaaaaaaa-1"]));
        records.relist(vec![], |_| None);
        assert!(records.in_use().is_empty());
    }

    #[test]
    fn a_pod_of_the_same_name_is_another_pod() {
        let (old, new) = (with_init("p", A, 1, 1), with_init("p", A, 1, 1));
        let new = Arc::new(PodFacts { uid: "new".into(), ..PodFacts::clone(&new) });
        let mut records = Records::default();
        records.give(&old, "init", ids(["aaaaaaaa-0"]));
        records.relist(vec![listed("p", ["aaaaaaaa-1"])], |_| Some("new".into()));
        assert_eq!(records.held_by(&new), ids(["aaaaaaaa-1"]));
        assert!(records.held_by(&old).is_empty());
        assert!(records.given(&old.uid).is_none());
    }

    #[test]
    fn the_container_that_took_over_all_ids_is_their_owner() {
        let pod = with_init("p", A, 1, 1);
        let mut records = Records::default();
        records.give(&pod, "init", ids(["aaaaaaaa-0"]));
        assert!(records.owner(&ids(["aaaaaaaa-0"])).unwrap().init);
        records.give(&pod, "main", ids(["aaaaaaaa-0"]));
        assert_eq!(records.owner(&ids(["aaaaaaaa-0"])).unwrap().container, "main");
        assert_eq!(records.owner(&ids(["aaaaaaaa-1"])), None);
    }
}

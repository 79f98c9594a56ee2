//! Which ids containers hold now, by the kubelet's list, by grants, and by pods that linger. Changes nothing.

use cluster::PodFacts;
use placement::units::PodUid;

use super::checkpoint::OtherPluginGpu;
use super::{Listed, Records};
use crate::gpus::ids::{DeviceId, Ids};
use crate::pods::{PodCache, PodRef};

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
    /// Ids of other pods that are exclusive on their GPUs.
    pub exclusive: Ids,
    /// GPUs that other pods hold through another plugin's resource, or by resource claims.
    pub elsewhere: Vec<OtherPluginGpu>,
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
    /// All ids that containers hold, those of pods that linger included.
    pub fn in_use(&self) -> Ids {
        self.held().map(|(_, id)| id.clone()).collect()
    }

    /// The ids of pods that may have processes, and of listed ones that are not known. Unlike [`Records::in_use`]
    /// without those that the kubelet still holds for pods that have ended: it frees them with its next admission of
    /// units, which never comes to a node that is given out by claims.
    pub fn ids_with_processes(&self) -> Ids {
        let mut ids: Ids = self.holders().flat_map(|(_, record)| &record.ids).cloned().collect();
        for listed in self.listed.iter().filter(|listed| listed.uid.is_none()) {
            ids.extend(listed.pod.ids().cloned());
        }
        ids
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
        in_use.elsewhere = self.elsewhere().filter(|gpu| gpu.pod != *admitted).cloned().collect();
        in_use
    }

    /// All ids that containers hold, those of pods that linger included, each with its pod's UID if known.
    fn held(&self) -> impl Iterator<Item = (Option<&PodUid>, &DeviceId)> {
        let containers = self.containers().map(|container| (container.uid, container.ids));
        let lingering = self.lingering().map(|(uid, record)| (Some(uid), &record.ids));
        containers.chain(lingering).flat_map(|(uid, ids)| ids.iter().map(move |id| (uid, id)))
    }

    /// All listed and granted containers. Pods that linger are left out.
    fn containers(&self) -> impl Iterator<Item = ContainerIds<'_>> {
        let listed =
            self.listed.iter().map(|Listed { pod, uid }| (&pod.pod, uid.as_ref(), &pod.containers));
        let granted = self.pods.iter().filter_map(|(uid, record)| {
            Some((&record.pod, Some(uid), &record.granted.as_ref()?.containers))
        });
        listed.chain(granted).flat_map(|(pod, uid, containers)| {
            containers.iter().map(move |(container, ids)| ContainerIds { pod, uid, container, ids })
        })
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
        let holds = |container: &ContainerIds<'_>| container.ids == ids;
        let holding = self.containers().filter(holds).min_by_key(|held| self.is_init(*held))?;
        Some(HoldingContainer {
            pod: holding.pod.clone(),
            uid: holding.uid.cloned(),
            container: holding.container.to_owned(),
            init: self.is_init(holding),
        })
    }

    fn is_init(&self, container: ContainerIds<'_>) -> bool {
        let granted = container.uid.and_then(|uid| self.granted(uid));
        granted.is_some_and(|granted| granted.is_init(container.container))
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
    use std::sync::Arc;

    use placement::gpu::GpuUse;

    use super::*;
    use crate::fixtures::{A, ids, listed, simple, with_init, with_use};
    use crate::records::Presence;

    #[test]
    fn ids_in_use_are_apart_by_owner_and_by_exclusive_use() {
        let whole = GpuUse { exclusive: true, ..GpuUse::default() };
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
        let whole = GpuUse { exclusive: true, ..GpuUse::default() };
        let mut records = Records::default();
        records.grant(&Arc::new(with_use("whole", A, 1, whole)), "main", ids(["aaaaaaaa-0"]));
        records.relist(vec![], None, &PodCache::default());
        assert_eq!(records.in_use_for(&"p".into()), IdsInUse::default());
        records.set_presence(&[("whole".into(), Presence::Lingers)].into());
        assert_eq!(records.in_use_for(&"p".into()).exclusive, ids(["aaaaaaaa-0"]));
        assert_eq!(records.in_use_for(&"whole".into()), IdsInUse::default(), "its own");
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

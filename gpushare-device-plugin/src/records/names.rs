//! Finds the UIDs of the pods in the kubelet's list, which has names only.
//!
//! Invariant: an earlier pod's entry is never taken for a later pod of its name: the watch and the kubelet may be at different pods.

use std::collections::BTreeSet;

use placement::units::PodUid;

use super::checkpoint::HeldIds;
use super::holders::Holders;
use super::pod_resources::ListedPod;
use crate::cards::ids::Ids;
use crate::pods::{PodCache, PodRef};

/// The UID of a listed pod that holds ids; `None` if it holds none, or is not known.
///
/// The kubelet's checkpoint is exact: it has the same ids by UID. `checkpoint` is empty if it cannot be read. Then the UID is that of the
/// only pod of this name that was granted these ids, or else that of the pod that the watch shows, if the kubelet has admitted it and none
/// of the ids was granted to another pod.
pub fn uid_of(
    listed: &ListedPod,
    checkpoint: &[HeldIds],
    holders: &Holders,
    pods: &PodCache,
) -> Option<PodUid> {
    let ids: Ids = listed.containers.values().flatten().cloned().collect();
    if ids.is_empty() {
        return None;
    }
    let has_other_name =
        |uid: &PodUid| pods.by_uid(uid).is_some_and(|facts| PodRef::of(&facts) != listed.pod);
    let is_entry = |held: &&HeldIds| listed.containers.get(&held.container) == Some(&held.ids);
    let entries = checkpoint.iter().filter(is_entry).map(|held| &held.pod);
    if let Some(uid) = only(entries.filter(|uid| !has_other_name(uid))) {
        return Some(uid.clone());
    }
    let of_name = holders.iter().filter(|(_, holder)| holder.pod == listed.pod);
    let granted = of_name.filter(|(_, holder)| holder.ids.is_superset(&ids)).map(|(uid, _)| uid);
    if let Some(uid) = only(granted) {
        return Some(uid.clone());
    }
    let shown = pods.get(&listed.pod).filter(|facts| facts.admitted)?;
    let is_free = |id| !holders.is_held_by_other(&shown.uid, id);
    ids.iter().all(is_free).then(|| shown.uid.clone())
}

/// The only UID, however often it occurs.
fn only<'u>(uids: impl Iterator<Item = &'u PodUid>) -> Option<&'u PodUid> {
    let uids: BTreeSet<&PodUid> = uids.collect();
    uids.first().copied().filter(|_| uids.len() == 1)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use cluster::{Event, PodFacts};

    use super::*;
    use crate::fixtures::{A, ids, listed, simple};

    /// Two pods of the name `p`.
    fn pod(uid: &str, admitted: bool) -> Arc<PodFacts> {
        let pod = PodFacts::clone(&simple("p", A, 1));
        Arc::new(PodFacts { uid: uid.into(), admitted, ..pod })
    }

    fn held(uid: &str) -> HeldIds {
        let (pod, container) = (uid.into(), "main".to_owned());
        HeldIds { pod, container, ids: ids(["aaaaaaaa-0"]), unit: None }
    }

    fn shows(pod: &PodFacts) -> PodCache {
        let pods = PodCache::default();
        pods.apply(Event::Applied(pod.clone().into()));
        pods
    }

    #[test]
    fn ids_are_those_of_the_pod_that_the_checkpoint_names_whatever_the_watch_shows() {
        let (old, new) = (pod("old", true), pod("new", true));
        let mut holders = Holders::default();
        holders.add_grant(&new, &ids(["aaaaaaaa-0"]));
        let entry = listed("p", ["aaaaaaaa-0"]);
        for shown in [&old, &new] {
            let found = uid_of(&entry, &[held("old")], &holders, &shows(shown));
            assert_eq!(found, Some("old".into()));
        }
    }

    #[test]
    fn of_two_entries_with_the_same_ids_that_of_the_name_counts() {
        let pods = shows(&pod("new", true));
        let other = PodFacts::clone(&simple("other", A, 1));
        pods.apply(Event::Applied(other.into()));
        let checkpoint = [held("other"), held("new")];
        let entry = listed("p", ["aaaaaaaa-0"]);
        assert_eq!(uid_of(&entry, &checkpoint, &Holders::default(), &pods), Some("new".into()));
    }

    #[test]
    fn without_a_checkpoint_ids_are_those_of_the_pod_that_was_granted_them() {
        let (old, new) = (pod("old", true), pod("new", true));
        let mut holders = Holders::default();
        holders.add_grant(&old, &ids(["aaaaaaaa-0"]));
        let entry = listed("p", ["aaaaaaaa-0"]);
        assert_eq!(uid_of(&entry, &[], &holders, &shows(&new)), Some("old".into()));
        let elsewhere = listed("q", ["aaaaaaaa-0"]);
        let q = PodFacts { name: "q".to_owned(), ..PodFacts::clone(&new) };
        assert_eq!(uid_of(&elsewhere, &[], &holders, &shows(&q)), None, "granted to another");
    }

    #[test]
    fn a_pod_that_was_not_admitted_holds_nothing() {
        let entry = listed("p", ["aaaaaaaa-0"]);
        let found =
            |admitted| uid_of(&entry, &[], &Holders::default(), &shows(&pod("new", admitted)));
        assert_eq!([found(false), found(true)], [None, Some("new".into())]);
        let without = listed("p", []);
        assert_eq!(
            uid_of(&without, &[held("new")], &Holders::default(), &shows(&pod("new", true))),
            None
        );
    }
}

//! The rule that gives a listed pod its UID. The table is at the head of [`super`].
//!
//! Invariant: an earlier pod's entry is never taken for a later pod of its name. The watch and the kubelet may be at
//! different pods of one name.

use cluster::PodFacts;
use placement::units::PodUid;

use super::checkpoint::HeldIds;
use super::pod_resources::ListedPod;
use super::{PodRecord, Records};
use crate::gpus::ids::Ids;
use crate::pods::PodCache;

impl Records {
    /// The UID of a pod in the kubelet's list; `None` if it holds no ids, or its UID is not known. `checkpoint` is
    /// empty if it cannot be read.
    pub(super) fn uid_of(
        &self,
        listed: &ListedPod,
        checkpoint: &[HeldIds],
        pods: &PodCache,
    ) -> Option<PodUid> {
        let holds_ids = listed.ids().next().is_some();
        if !holds_ids {
            return None;
        }
        if let Some(uid) = uid_by_checkpoint(listed, checkpoint, pods) {
            return Some(uid);
        }
        if let Some(uid) = self.uid_by_grants(listed) {
            return Some(uid);
        }
        let shown = pods.get(&listed.pod)?;
        self.is_shown(listed, &shown).then(|| shown.uid.clone())
    }

    /// The only pod of this name that was granted these ids.
    fn uid_by_grants(&self, listed: &ListedPod) -> Option<PodUid> {
        let ids: Ids = listed.ids().cloned().collect();
        let fits = |record: &PodRecord| record.pod == listed.pod && record.ids.is_superset(&ids);
        only(self.holders().filter(|(_, record)| fits(record)).map(|(uid, _)| uid))
    }

    /// Whether a pod that the watch shows under the name is the listed one: the kubelet has admitted it, and none of
    /// the ids was granted to another pod.
    pub(super) fn is_shown(&self, listed: &ListedPod, shown: &PodFacts) -> bool {
        shown.admitted
            && listed.pod.is_of(shown)
            && !listed.ids().any(|id| self.is_held_by_other(&shown.uid, id))
    }
}

/// The only pod that the kubelet's checkpoint shows with the same ids in the same container. Pods that the watch shows
/// under another name are left out.
fn uid_by_checkpoint(
    listed: &ListedPod,
    checkpoint: &[HeldIds],
    pods: &PodCache,
) -> Option<PodUid> {
    let has_same_ids = |held: &&HeldIds| listed.containers.get(&held.container) == Some(&held.ids);
    let may_be_it = |uid: &&PodUid| pods.by_uid(uid).is_none_or(|facts| listed.pod.is_of(&facts));
    only(checkpoint.iter().filter(has_same_ids).map(|held| &held.pod).filter(may_be_it))
}

/// The only UID, however often it occurs; `None` if there are none or several.
fn only<'u>(mut uids: impl Iterator<Item = &'u PodUid>) -> Option<PodUid> {
    let first = uids.next()?;
    uids.all(|uid| uid == first).then(|| first.clone())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use cluster::Event;

    use super::*;
    use crate::fixtures::{A, ids, listed, simple};

    /// Two pods of the name `p`.
    fn pod(uid: &str, admitted: bool) -> Arc<PodFacts> {
        let pod = PodFacts::clone(&simple("p", A, 1));
        Arc::new(PodFacts { uid: uid.into(), admitted, ..pod })
    }

    fn held(uid: &str) -> HeldIds {
        HeldIds {
            pod: uid.into(),
            container: "main".to_owned(),
            ids: ids(["aaaaaaaa-0"]),
            unit: None,
        }
    }

    fn shows(pod: &PodFacts) -> PodCache {
        let pods = PodCache::default();
        pods.apply(Event::Applied(pod.clone().into()));
        pods
    }

    #[test]
    fn ids_are_those_of_the_pod_that_the_checkpoint_names_whatever_the_watch_shows() {
        let old = pod("old", true);
        let new = pod("new", true);
        let mut records = Records::default();
        records.grant(&new, "main", ids(["aaaaaaaa-0"]));
        let entry = listed("p", ["aaaaaaaa-0"]);
        for shown in [&old, &new] {
            let found = records.uid_of(&entry, &[held("old")], &shows(shown));
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
        assert_eq!(Records::default().uid_of(&entry, &checkpoint, &pods), Some("new".into()));
    }

    #[test]
    fn without_a_checkpoint_ids_are_those_of_the_pod_that_was_granted_them() {
        let old = pod("old", true);
        let new = pod("new", true);
        let mut records = Records::default();
        records.grant(&old, "main", ids(["aaaaaaaa-0"]));
        let entry = listed("p", ["aaaaaaaa-0"]);
        assert_eq!(records.uid_of(&entry, &[], &shows(&new)), Some("old".into()));
        let elsewhere = listed("q", ["aaaaaaaa-0"]);
        let q = PodFacts { name: "q".to_owned(), ..PodFacts::clone(&new) };
        assert_eq!(records.uid_of(&elsewhere, &[], &shows(&q)), None, "granted to another");
    }

    #[test]
    fn a_pod_that_was_not_admitted_holds_nothing() {
        let records = Records::default();
        let entry = listed("p", ["aaaaaaaa-0"]);
        assert_eq!(records.uid_of(&entry, &[], &shows(&pod("new", false))), None);
        let admitted = shows(&pod("new", true));
        assert_eq!(records.uid_of(&entry, &[], &admitted), Some("new".into()));
        let without = listed("p", []);
        assert_eq!(records.uid_of(&without, &[held("new")], &admitted), None);
    }

    /// The UID of the entry that the kubelet lists, in every state of the other sources. Of two pods `old` and `new` of
    /// one name one holds the ids. What this plugin grants is recorded, so its grants to `new` are known if those to
    /// `old` are.
    fn uids_in_every_state(
        holder: &str,
        grants: &[&[&str]],
        shown: &[Option<(&str, bool)>],
    ) -> Vec<Option<PodUid>> {
        let mut found = Vec::new();
        for checkpoint in [vec![], vec![held(holder)]] {
            for granted in grants {
                let mut records = Records::default();
                for uid in *granted {
                    records.grant(&pod(uid, true), "main", ids(["aaaaaaaa-0"]));
                }
                for shown in shown {
                    let pods = shown.map(|(uid, admitted)| shows(&pod(uid, admitted)));
                    let entry = listed("p", ["aaaaaaaa-0"]);
                    found.push(records.uid_of(&entry, &checkpoint, &pods.unwrap_or_default()));
                }
            }
        }
        found
    }

    #[test]
    fn in_no_state_is_the_entry_of_one_pod_taken_for_another_of_its_name() {
        let shown = [None, Some(("old", true)), Some(("new", false))];
        let of_old = uids_in_every_state("old", &[&[], &["old"]], &shown);
        assert_eq!(of_old.len(), 12);
        for uid in of_old {
            assert!(uid.is_none_or(|uid| uid.as_str() == "old"));
        }
        let shown = [None, Some(("old", true)), Some(("new", false)), Some(("new", true))];
        let of_new = uids_in_every_state("new", &[&["new"], &["old", "new"]], &shown);
        assert_eq!(of_new.len(), 16);
        for uid in of_new {
            assert!(uid.is_none_or(|uid| uid.as_str() == "new"));
        }
    }

    #[test]
    fn a_pod_whose_uid_was_not_known_is_the_one_that_the_watch_shows_later() {
        let late = pod("new", true);
        let mut records = Records::default();
        records.relist(vec![listed("p", ["aaaaaaaa-0"])], None, &PodCache::default());
        assert_eq!(records.held_by(&late), ids(["aaaaaaaa-0"]));
        assert_eq!(records.held_by(&pod("new", false)), Ids::new(), "not admitted");
        records.grant(&simple("other", A, 1), "main", ids(["aaaaaaaa-0"]));
        assert_eq!(records.held_by(&late), Ids::new(), "granted to another");
    }
}

//! Which pod, and which of its containers, the kubelet is admitting.
//!
//! GetPreferredAllocation carries device ids only. But the kubelet adds a pod to its own list just
//! before it admits it, and admits one at a time, so at that moment exactly one listed pod has a
//! container that asks and holds nothing (kubelet.go:2852 in v1.36.2). Pods that were let in before
//! the resource existed look the same, and are told by their status; init containers are never
//! listed, and are told by what they were handed.
//!
//! Invariant: where the facts leave two pods possible, neither is chosen.

use std::collections::HashMap;
use std::sync::Arc;

use cluster::PodFacts;
use placement::gpu::{ContainerAsk, ContainerKind};

use crate::pods::PodRef;
use crate::records::{Ids, ListedPod, Records, asks};

/// What the kubelet wants ids for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// How many ids.
    pub size: usize,
    /// Ids of the same pod's init containers that it hands on.
    pub must_include: Ids,
}

/// Facts by pod.
pub type FactsOf = HashMap<PodRef, Arc<PodFacts>>;

/// Who it is.
#[derive(Debug, Clone, PartialEq)]
pub enum Found {
    /// This container of this pod.
    One(Arc<PodFacts>, ContainerAsk),
    /// No pod that is known fits.
    Nobody,
    /// Any of these fits.
    Several(Vec<PodRef>),
}

/// The container being admitted, by the kubelet's list and what is known of its pods.
pub fn candidate(records: &Records, facts: &FactsOf, wanted: &Wanted) -> Found {
    let fits = |listed: &ListedPod| {
        let facts = facts.get(&listed.pod).filter(|facts| is_waiting(facts))?;
        let ask = container(records, listed, facts, wanted)?;
        Some((facts.clone(), ask))
    };
    let mut fitting: Vec<_> = records.listed().filter_map(fits).collect();
    match (fitting.pop(), fitting.is_empty()) {
        (None, _) => Found::Nobody,
        (Some((facts, ask)), true) => Found::One(facts, ask),
        (Some((last, _)), false) => {
            let all = fitting.iter().map(|(facts, _)| facts).chain([&last]);
            Found::Several(all.map(|facts| PodRef::of(facts)).collect())
        }
    }
}

/// Whether the kubelet may still have to let the pod in.
fn is_waiting(facts: &PodFacts) -> bool {
    !facts.finished && !facts.admitted
}

/// The container of `facts` that wants that many ids now: the first in admission order that holds
/// none. An init container that was handed some is asked for again only if the kubelet forgot it,
/// which the size then tells.
fn container(
    records: &Records,
    listed: &ListedPod,
    facts: &PodFacts,
    wanted: &Wanted,
) -> Option<ContainerAsk> {
    if !may_reuse(records, facts, &wanted.must_include) {
        return None;
    }
    let given = records.given(&facts.uid);
    let was_given =
        |ask: &ContainerAsk| given.is_some_and(|given| given.containers.contains_key(&ask.name));
    let open = |ask: &&ContainerAsk| {
        ask.units.0 as usize == wanted.size && !is_listed_with_ids(listed, ask)
    };
    let mut first_choice = asks(facts).filter(open).filter(|ask| !was_given(ask));
    let ask = first_choice
        .next()
        .or_else(|| asks(facts).filter(open).find(|ask| ask.kind == ContainerKind::Init));
    // A pod whose every container was served waits only for its start.
    let served = given.is_some_and(|given| given.pending().next().is_none());
    ask.filter(|_| !served).cloned()
}

fn is_listed_with_ids(listed: &ListedPod, ask: &ContainerAsk) -> bool {
    listed.containers.get(&ask.name).is_some_and(|ids| !ids.is_empty())
}

/// Ids that are handed on come from the same pod. Where nobody is known to hold them, any pod may.
fn may_reuse(records: &Records, facts: &PodFacts, must_include: &Ids) -> bool {
    let holds = |ids: &Ids, held: &Ids| !ids.is_disjoint(held);
    let held_by_another = records.all_given().any(|given| {
        let held: Ids = given.ids().cloned().collect();
        given.facts.uid != facts.uid && holds(must_include, &held)
    });
    !held_by_another
}

/// Pods of the list that could be the one, by the little that the list itself says: those with a
/// container that holds nothing. Only of these are facts needed.
pub fn open_pods(records: &Records) -> Vec<PodRef> {
    let open = |listed: &&ListedPod| listed.containers.values().any(Ids::is_empty);
    records.listed().filter(open).map(|listed| listed.pod.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts_for_tests::{A, B, ids, listed, simple, with_init};

    fn facts<const N: usize>(pods: [&Arc<PodFacts>; N]) -> FactsOf {
        pods.iter().map(|facts| (PodRef::of(facts), Arc::clone(facts))).collect()
    }

    fn records(list: Vec<ListedPod>) -> Records {
        let mut records = Records::default();
        records.relist(list, |_| None);
        records
    }

    fn wanted(size: usize) -> Wanted {
        Wanted { size, must_include: Ids::new() }
    }

    fn who(found: &Found) -> Option<(&str, &str)> {
        match found {
            Found::One(facts, ask) => Some((&facts.name, &ask.name)),
            Found::Nobody | Found::Several(_) => None,
        }
    }

    #[test]
    fn the_pod_that_holds_nothing_is_the_one() {
        let (old, new) = (simple("old", A, 2), simple("new", B, 2));
        let records = records(vec![listed("old", ["aaaaaaaa-0", "aaaaaaaa-1"]), listed("new", [])]);
        let found = candidate(&records, &facts([&old, &new]), &wanted(2));
        assert_eq!(who(&found), Some(("new", "main")));
    }

    #[test]
    fn a_pod_of_another_size_that_was_let_in_or_that_has_finished_is_not_the_one() {
        let records = records(vec![listed("p", [])]);
        let waiting = simple("p", A, 2);
        assert_eq!(who(&candidate(&records, &facts([&waiting]), &wanted(3))), None);
        let admitted = Arc::new(PodFacts { admitted: true, ..PodFacts::clone(&waiting) });
        assert_eq!(candidate(&records, &facts([&admitted]), &wanted(2)), Found::Nobody);
        let finished = Arc::new(PodFacts { finished: true, ..PodFacts::clone(&waiting) });
        assert_eq!(candidate(&records, &facts([&finished]), &wanted(2)), Found::Nobody);
    }

    #[test]
    fn two_that_fit_are_not_guessed_between() {
        let (one, two) = (simple("one", A, 2), simple("two", B, 2));
        let records = records(vec![listed("one", []), listed("two", [])]);
        let Found::Several(pods) = candidate(&records, &facts([&one, &two]), &wanted(2)) else {
            panic!()
        };
        assert_eq!(pods.len(), 2);
    }

    #[test]
    fn an_init_container_comes_first_and_is_not_asked_for_twice() {
        let pod = with_init("p", A, 2, 2);
        let mut records = records(vec![listed("p", [])]);
        let known = facts([&pod]);
        assert_eq!(who(&candidate(&records, &known, &wanted(2))), Some(("p", "init")));
        records.give(&pod, "init", ids(["aaaaaaaa-0", "aaaaaaaa-1"]));
        assert_eq!(who(&candidate(&records, &known, &wanted(2))), Some(("p", "main")));
    }

    #[test]
    fn an_init_container_that_the_kubelet_forgot_is_served_again() {
        let pod = with_init("p", A, 4, 2);
        let mut records = records(vec![listed("p", [])]);
        records.give(&pod, "init", ids(["aaaaaaaa-0"]));
        assert_eq!(who(&candidate(&records, &facts([&pod]), &wanted(4))), Some(("p", "init")));
    }

    #[test]
    fn a_pod_whose_containers_were_all_served_no_longer_waits() {
        let init_only =
            Arc::new(crate::facts_for_tests::pod("p", A, &[("init", ContainerKind::Init, 2)]));
        let mut records = records(vec![listed("p", [])]);
        records.give(&init_only, "init", ids(["aaaaaaaa-0", "aaaaaaaa-1"]));
        assert_eq!(candidate(&records, &facts([&init_only]), &wanted(2)), Found::Nobody);
    }

    #[test]
    fn ids_that_are_handed_on_tell_the_pod() {
        let (one, two) = (with_init("one", A, 1, 2), with_init("two", A, 1, 2));
        let mut records = records(vec![listed("one", []), listed("two", [])]);
        records.give(&one, "init", ids(["aaaaaaaa-0"]));
        records.give(&two, "init", ids(["aaaaaaaa-1"]));
        let wanted = Wanted { size: 2, must_include: ids(["aaaaaaaa-1"]) };
        assert_eq!(who(&candidate(&records, &facts([&one, &two]), &wanted)), Some(("two", "main")));
    }
}

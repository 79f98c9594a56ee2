//! Which pod, and which of its containers, the kubelet is admitting.
//!
//! GetPreferredAllocation carries device ids only. But the kubelet lists a pod from just before its
//! admission on, and admits one pod at a time, so at that moment exactly one listed pod has a
//! container that asks for units and holds none (kubelet.go:2852 in v1.36.2). Pods that were admitted
//! before the resource was registered look the same, but have a start time in their status. Init
//! containers are never listed; the records say what they were granted.
//!
//! Invariant: while two pods are possible, none is chosen.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use cluster::PodFacts;
use futures::future::join_all;
use placement::gpu::{ContainerAsk, ContainerKind};
use tokio::time::{Instant, sleep};

use super::refusal::Refusal;
use super::sources::{READ_BUDGET, Sources};
use crate::cards::ids::Ids;
use crate::pods::{PodRef, asks};
use crate::records::pod_resources::ListedPod;
use crate::records::{GrantedPod, Records};

/// Pause before pods are read again.
const REREAD_PAUSE: Duration = Duration::from_millis(50);

/// What the kubelet wants ids for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// How many ids, those of `must_include` among them.
    pub size: usize,
    /// Ids of the same pod's init containers that must be among them.
    pub must_include: Ids,
}

/// Facts by the pods' names.
pub type FactsOf = HashMap<PodRef, Arc<PodFacts>>;

/// The pods that the kubelet may be admitting.
#[derive(Debug, Clone, PartialEq)]
pub enum Found {
    /// This pod, at this container.
    One(Arc<PodFacts>, ContainerAsk),
    /// No known pod fits.
    None,
    /// Each of these fits.
    Several(Vec<PodRef>),
}

/// The container being admitted, by the kubelet's list and the facts about its pods.
pub fn candidate(records: &Records, facts: &FactsOf, wanted: &Wanted) -> Found {
    let fits = |listed: &ListedPod| {
        let facts = facts.get(&listed.pod).filter(|facts| is_waiting(facts))?;
        let ask = container(records, listed, facts, wanted)?;
        Some((facts.clone(), ask))
    };
    let mut fitting: Vec<_> = records.listed().filter_map(fits).collect();
    match (fitting.pop(), fitting.is_empty()) {
        (None, _) => Found::None,
        (Some((facts, ask)), true) => Found::One(facts, ask),
        (Some((last, _)), false) => {
            let all = fitting.iter().map(|(facts, _)| facts).chain([&last]);
            Found::Several(all.map(|facts| PodRef::of(facts)).collect())
        }
    }
}

/// Whether the kubelet may still have to admit the pod.
fn is_waiting(facts: &PodFacts) -> bool {
    !facts.finished && !facts.admitted
}

/// The container of the pod that is admitted next, if it asks for that many ids: the first in
/// admission order without a grant. An init container with a grant comes second: the kubelet asks for
/// it again if it died before it recorded the grant.
fn container(
    records: &Records,
    listed: &ListedPod,
    facts: &PodFacts,
    wanted: &Wanted,
) -> Option<ContainerAsk> {
    if !may_reuse(records, facts, &wanted.must_include) {
        return None;
    }
    let granted = records.granted(&facts.uid);
    let has_grant = |ask: &ContainerAsk| {
        granted.is_some_and(|granted| granted.containers.contains_key(&ask.name))
    };
    let open = |ask: &&ContainerAsk| {
        ask.units.0 as usize == wanted.size && !is_listed_with_ids(listed, ask)
    };
    let mut first_choice = asks(facts).filter(open).filter(|ask| !has_grant(ask));
    let ask = first_choice
        .next()
        .or_else(|| asks(facts).filter(open).find(|ask| ask.kind == ContainerKind::Init));
    // With a grant for every container, the pod is admitted; its status does not show that yet.
    let complete = granted.is_some_and(|granted| granted.pending().next().is_none());
    ask.filter(|_| !complete).cloned()
}

fn is_listed_with_ids(listed: &ListedPod, ask: &ContainerAsk) -> bool {
    listed.containers.get(&ask.name).is_some_and(|ids| !ids.is_empty())
}

/// Whether no other pod holds one of the ids that must be included: they come from init containers of
/// the pod itself.
fn may_reuse(records: &Records, facts: &PodFacts, must_include: &Ids) -> bool {
    let others = records.all_granted().filter(|granted| granted.facts.uid != facts.uid);
    !others.flat_map(GrantedPod::ids).any(|id| must_include.contains(id))
}

/// The listed pods with a container that holds no ids of ours: one of them is being admitted. Most are
/// pods that ask for none.
pub fn open_pods(records: &Records) -> Vec<PodRef> {
    let open = |listed: &&ListedPod| listed.containers.values().any(Ids::is_empty);
    records.listed().filter(open).map(|listed| listed.pod.clone()).collect()
}

/// The pod and container being admitted.
///
/// Our watch may be later than the kubelet's, so the pod that the cache names is read from the API
/// server. If it cannot be read, the cache counts. If the cache names none, all pods that may be the one
/// are read. Those that could not be read, and those that fit where several do, are read again until one pod is
/// found or [`READ_BUDGET`] is spent: the kubelet still lists a pod that it has just refused if the pod is
/// being deleted, and reports the refusal a moment later. Of several, one is out of the question once its status or the
/// kubelet's list says so. That its object is gone says nothing: the pod being admitted can be deleted by force.
///
/// # Errors
/// Where no pod fits, or several still do, or those that may fit could not be read in time.
pub async fn identify(
    sources: &Sources,
    wanted: &Wanted,
) -> Result<(Arc<PodFacts>, ContainerAsk), Refusal> {
    let open = open_pods(&sources.records());
    let mut facts: FactsOf =
        open.iter().filter_map(|pod| Some((pod.clone(), sources.pods.get(pod)?))).collect();
    let fitting = |facts: &FactsOf| candidate(&sources.records(), facts, wanted);
    if let Found::One(cached, _) = fitting(&facts) {
        read(sources, &[PodRef::of(&cached)], &BTreeSet::new(), &mut facts).await;
        if let Found::One(facts, ask) = fitting(&facts) {
            return Ok((facts, ask));
        }
    }
    let (until, mut unread) = (Instant::now() + READ_BUDGET, open);
    let mut contested = BTreeSet::new();
    loop {
        let failed = read(sources, &unread, &contested, &mut facts).await;
        let is_time_left = Instant::now() < until;
        let again: BTreeSet<PodRef> = failed.iter().map(|(pod, _)| pod.clone()).collect();
        match (fitting(&facts), failed.into_iter().next()) {
            (Found::One(facts, ask), _) => return Ok((facts, ask)),
            (Found::Several(pods), _) if is_time_left => contested.extend(pods),
            (Found::None, Some(_)) if is_time_left => {}
            (_, Some((pod, error))) => {
                return Err(Refusal::Unidentified(format!("read pod {pod}: {error}")));
            }
            (Found::None, None) => return Err(Refusal::NoPodAsks { size: wanted.size }),
            (Found::Several(pods), None) => {
                return Err(Refusal::Ambiguous { size: wanted.size, pods });
            }
        }
        // Each once, also where a contested one could not be read.
        unread = again.union(&contested).cloned().collect();
        sleep(REREAD_PAUSE).await;
        if !contested.is_empty()
            && let Err(status) = sources.relist().await
        {
            tracing::debug!("PodResources List: {}", status.message());
        }
    }
}

/// Reads pods from the API server; a contested one that is gone stays as it was. Returns those that could not be read, with the reason.
async fn read(
    sources: &Sources,
    pods: &[PodRef],
    contested: &BTreeSet<PodRef>,
    into: &mut FactsOf,
) -> Vec<(PodRef, String)> {
    let reads = join_all(pods.iter().map(|pod| sources.api.read(pod))).await;
    let mut failed = Vec::new();
    for (pod, read) in pods.iter().zip(reads) {
        match read {
            Ok(Some(facts)) => drop(into.insert(pod.clone(), Arc::new(facts))),
            Ok(None) if contested.contains(pod) => {}
            Ok(None) => drop(into.remove(pod)),
            Err(error) => failed.push((pod.clone(), error)),
        }
    }
    failed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{A, B, ids, listed, simple, with_init};

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

    fn names(found: &Found) -> Option<(&str, &str)> {
        match found {
            Found::One(facts, ask) => Some((&facts.name, &ask.name)),
            Found::None | Found::Several(_) => None,
        }
    }

    #[test]
    fn the_pod_without_ids_is_being_admitted() {
        let (old, new) = (simple("old", A, 2), simple("new", B, 2));
        let records = records(vec![listed("old", ["aaaaaaaa-0", "aaaaaaaa-1"]), listed("new", [])]);
        let found = candidate(&records, &facts([&old, &new]), &wanted(2));
        assert_eq!(names(&found), Some(("new", "main")));
    }

    #[test]
    fn a_pod_of_another_size_or_admitted_or_finished_is_not_being_admitted() {
        let records = records(vec![listed("p", [])]);
        let waiting = simple("p", A, 2);
        assert_eq!(names(&candidate(&records, &facts([&waiting]), &wanted(3))), None);
        let admitted = Arc::new(PodFacts { admitted: true, ..PodFacts::clone(&waiting) });
        assert_eq!(candidate(&records, &facts([&admitted]), &wanted(2)), Found::None);
        let finished = Arc::new(PodFacts { finished: true, ..PodFacts::clone(&waiting) });
        assert_eq!(candidate(&records, &facts([&finished]), &wanted(2)), Found::None);
    }

    #[test]
    fn of_two_pods_that_fit_none_is_chosen() {
        let (one, two) = (simple("one", A, 2), simple("two", B, 2));
        let records = records(vec![listed("one", []), listed("two", [])]);
        let Found::Several(pods) = candidate(&records, &facts([&one, &two]), &wanted(2)) else {
            panic!()
        };
        assert_eq!(pods.len(), 2);
    }

    #[test]
    fn an_init_container_comes_before_the_app_container() {
        let pod = with_init("p", A, 2, 2);
        let mut records = records(vec![listed("p", [])]);
        let known = facts([&pod]);
        assert_eq!(names(&candidate(&records, &known, &wanted(2))), Some(("p", "init")));
        records.grant(&pod, "init", ids(["aaaaaaaa-0", "aaaaaaaa-1"]));
        assert_eq!(names(&candidate(&records, &known, &wanted(2))), Some(("p", "main")));
    }

    #[test]
    fn an_init_container_whose_grant_the_kubelet_forgot_is_asked_for_again() {
        let pod = with_init("p", A, 4, 2);
        let mut records = records(vec![listed("p", [])]);
        records.grant(&pod, "init", ids(["aaaaaaaa-0"]));
        assert_eq!(names(&candidate(&records, &facts([&pod]), &wanted(4))), Some(("p", "init")));
    }

    #[test]
    fn a_pod_with_a_grant_for_each_container_is_not_being_admitted() {
        let init_only = Arc::new(crate::fixtures::pod("p", A, &[("init", ContainerKind::Init, 2)]));
        let mut records = records(vec![listed("p", [])]);
        records.grant(&init_only, "init", ids(["aaaaaaaa-0", "aaaaaaaa-1"]));
        assert_eq!(candidate(&records, &facts([&init_only]), &wanted(2)), Found::None);
    }

    #[test]
    fn ids_that_must_be_included_name_the_pod() {
        let (one, two) = (with_init("one", A, 1, 2), with_init("two", A, 1, 2));
        let mut records = records(vec![listed("one", []), listed("two", [])]);
        records.grant(&one, "init", ids(["aaaaaaaa-0"]));
        records.grant(&two, "init", ids(["aaaaaaaa-1"]));
        let wanted = Wanted { size: 2, must_include: ids(["aaaaaaaa-1"]) };
        assert_eq!(
            names(&candidate(&records, &facts([&one, &two]), &wanted)),
            Some(("two", "main"))
        );
    }
}

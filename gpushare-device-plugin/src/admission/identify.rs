//! Identifies the pod and container that the kubelet is admitting.
//!
//! GetPreferredAllocation carries device ids only. But the kubelet lists a pod from just before its
//! admission on, and admits one pod at a time, so at that moment exactly one listed pod has a
//! container that requests units and holds none (kubelet.go:2852 in v1.36.2). Pods that were admitted
//! before the resource was registered look the same, but have a start time in their status. Init
//! containers are never listed; the records hold their grants.
//!
//! Invariant: while two pods are possible, none is chosen.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use cluster::PodFacts;
use futures::future::join_all;
use placement::gpu::{ContainerKind, ContainerRequest};
use tokio::time::{Instant, sleep};

use super::refusal::Refusal;
use super::sources::{READ_BUDGET, Sources};
use crate::cards::ids::Ids;
use crate::pods::{PodRef, container_requests};
use crate::records::pod_resources::ListedPod;
use crate::records::{GrantedPod, Records};

/// Pause before pods are read again.
const REREAD_PAUSE: Duration = Duration::from_millis(50);

/// The ids that the kubelet requests in one GetPreferredAllocation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdRequest {
    /// How many ids, those of `must_include` among them.
    pub size: usize,
    /// Ids of the same pod's init containers that must be among them.
    pub must_include: Ids,
}

/// Facts by the pods' names.
pub type FactsOf = HashMap<PodRef, Arc<PodFacts>>;

/// The pods that the kubelet may be admitting.
#[derive(Debug, Clone, PartialEq)]
pub enum Candidates {
    /// This pod, at this container.
    One(Arc<PodFacts>, ContainerRequest),
    /// No known pod fits.
    None,
    /// Each of these fits.
    Several(Vec<PodRef>),
}

/// The containers that may be the one being admitted, by the kubelet's list and the facts about its pods.
pub fn candidates(records: &Records, facts: &FactsOf, id_request: &IdRequest) -> Candidates {
    let fits = |listed: &ListedPod| {
        let facts = facts.get(&listed.pod).filter(|facts| is_waiting(facts))?;
        let ask = container(records, listed, facts, id_request)?;
        Some((facts.clone(), ask))
    };
    let mut fitting: Vec<_> = records.listed().filter_map(fits).collect();
    match (fitting.pop(), fitting.is_empty()) {
        (None, _) => Candidates::None,
        (Some((facts, ask)), true) => Candidates::One(facts, ask),
        (Some((last, _)), false) => {
            let all = fitting.iter().map(|(facts, _)| facts).chain([&last]);
            Candidates::Several(all.map(|facts| PodRef::of(facts)).collect())
        }
    }
}

/// Whether the kubelet may still have to admit the pod.
fn is_waiting(facts: &PodFacts) -> bool {
    !facts.finished && !facts.admitted
}

/// The pod's container that is admitted next, if it requests that many ids: the first in admission order
/// without a grant. An init container with a grant comes second: the kubelet repeats its request if it
/// died before it recorded the grant.
fn container(
    records: &Records,
    listed: &ListedPod,
    facts: &PodFacts,
    id_request: &IdRequest,
) -> Option<ContainerRequest> {
    if !may_reuse(records, facts, &id_request.must_include) {
        return None;
    }
    let granted = records.granted(&facts.uid);
    let has_grant = |ask: &ContainerRequest| {
        granted.is_some_and(|granted| granted.containers.contains_key(&ask.name))
    };
    let open = |ask: &&ContainerRequest| {
        ask.units.0 as usize == id_request.size && !is_listed_with_ids(listed, ask)
    };
    let mut first_choice = container_requests(facts).filter(open).filter(|ask| !has_grant(ask));
    let ask = first_choice.next().or_else(|| {
        container_requests(facts).filter(open).find(|ask| ask.kind == ContainerKind::Init)
    });
    // With a grant for every container the pod is admitted, even if its status does not show that yet.
    let complete = granted.is_some_and(|granted| granted.pending().next().is_none());
    ask.filter(|_| !complete).cloned()
}

fn is_listed_with_ids(listed: &ListedPod, ask: &ContainerRequest) -> bool {
    listed.containers.get(&ask.name).is_some_and(|ids| !ids.is_empty())
}

/// Whether no other pod holds one of the ids that must be included: the kubelet reuses only ids of the
/// pod's own init containers.
fn may_reuse(records: &Records, facts: &PodFacts, must_include: &Ids) -> bool {
    let others = records.all_granted().filter(|granted| granted.facts.uid != facts.uid);
    !others.flat_map(GrantedPod::ids).any(|id| must_include.contains(id))
}

/// The listed pods with a container that holds no ids of ours. One of them is being admitted; most request
/// no units at all.
pub fn open_pods(records: &Records) -> Vec<PodRef> {
    let open = |listed: &&ListedPod| listed.containers.values().any(Ids::is_empty);
    records.listed().filter(open).map(|listed| listed.pod.clone()).collect()
}

/// The pod and container being admitted.
///
/// Our watch may be later than the kubelet's, so the pod that fits by the cache is read from the API
/// server. If that read fails, the cached pod is used. If no cached pod fits, all open pods are read. Pods that
/// could not be read, and all that fit if several do, are read again until one pod is left or
/// [`READ_BUDGET`] is spent: the kubelet still lists a pod that it has just refused if the pod is being deleted, and
/// reports the refusal a moment later. One of several is ruled out once its status or the kubelet's list excludes it. A
/// deleted object does not rule it out: the pod being admitted can be deleted by force.
///
/// # Errors
/// If no pod fits, several still fit, or a pod that may fit could not be read in time.
pub async fn identify(
    sources: &Sources,
    id_request: &IdRequest,
) -> Result<(Arc<PodFacts>, ContainerRequest), Refusal> {
    let open = open_pods(&sources.records());
    let mut facts: FactsOf =
        open.iter().filter_map(|pod| Some((pod.clone(), sources.pods.get(pod)?))).collect();
    let fitting = |facts: &FactsOf| candidates(&sources.records(), facts, id_request);
    if let Candidates::One(cached, _) = fitting(&facts) {
        read(sources, &[PodRef::of(&cached)], &BTreeSet::new(), &mut facts).await;
        if let Candidates::One(facts, ask) = fitting(&facts) {
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
            (Candidates::One(facts, ask), _) => return Ok((facts, ask)),
            (Candidates::Several(pods), _) if is_time_left => contested.extend(pods),
            (Candidates::None, Some(_)) if is_time_left => {}
            (_, Some((pod, error))) => {
                return Err(Refusal::Unidentified(format!("read pod {pod}: {error}")));
            }
            (Candidates::None, None) => return Err(Refusal::NoPodAsks { size: id_request.size }),
            (Candidates::Several(pods), None) => {
                return Err(Refusal::Ambiguous { size: id_request.size, pods });
            }
        }
        // A set, so that a contested pod that could not be read is read only once.
        unread = again.union(&contested).cloned().collect();
        sleep(REREAD_PAUSE).await;
        if !contested.is_empty()
            && let Err(status) = sources.relist().await
        {
            tracing::debug!("PodResources List: {}", status.message());
        }
    }
}

/// Reads pods from the API server; a contested pod that is deleted keeps its last facts. Returns the pods that could not be read,
/// with the reason.
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

    fn id_request(size: usize) -> IdRequest {
        IdRequest { size, must_include: Ids::new() }
    }

    fn names(found: &Candidates) -> Option<(&str, &str)> {
        match found {
            Candidates::One(facts, ask) => Some((&facts.name, &ask.name)),
            Candidates::None | Candidates::Several(_) => None,
        }
    }

    #[test]
    fn the_pod_without_ids_is_being_admitted() {
        let (old, new) = (simple("old", A, 2), simple("new", B, 2));
        let records = records(vec![listed("old", ["aaaaaaaa-0", "aaaaaaaa-1"]), listed("new", [])]);
        let found = candidates(&records, &facts([&old, &new]), &id_request(2));
        assert_eq!(names(&found), Some(("new", "main")));
    }

    #[test]
    fn a_pod_of_another_size_or_admitted_or_finished_is_not_being_admitted() {
        let records = records(vec![listed("p", [])]);
        let waiting = simple("p", A, 2);
        assert_eq!(names(&candidates(&records, &facts([&waiting]), &id_request(3))), None);
        let admitted = Arc::new(PodFacts { admitted: true, ..PodFacts::clone(&waiting) });
        assert_eq!(candidates(&records, &facts([&admitted]), &id_request(2)), Candidates::None);
        let finished = Arc::new(PodFacts { finished: true, ..PodFacts::clone(&waiting) });
        assert_eq!(candidates(&records, &facts([&finished]), &id_request(2)), Candidates::None);
    }

    #[test]
    fn of_two_pods_that_fit_none_is_chosen() {
        let (one, two) = (simple("one", A, 2), simple("two", B, 2));
        let records = records(vec![listed("one", []), listed("two", [])]);
        let Candidates::Several(pods) = candidates(&records, &facts([&one, &two]), &id_request(2))
        else {
            panic!()
        };
        assert_eq!(pods.len(), 2);
    }

    #[test]
    fn an_init_container_comes_before_the_app_container() {
        let pod = with_init("p", A, 2, 2);
        let mut records = records(vec![listed("p", [])]);
        let known = facts([&pod]);
        assert_eq!(names(&candidates(&records, &known, &id_request(2))), Some(("p", "init")));
        records.grant(&pod, "init", ids(["aaaaaaaa-0", "aaaaaaaa-1"]));
        assert_eq!(names(&candidates(&records, &known, &id_request(2))), Some(("p", "main")));
    }

    #[test]
    fn an_init_container_whose_grant_the_kubelet_forgot_is_asked_for_again() {
        let pod = with_init("p", A, 4, 2);
        let mut records = records(vec![listed("p", [])]);
        records.grant(&pod, "init", ids(["aaaaaaaa-0"]));
        assert_eq!(
            names(&candidates(&records, &facts([&pod]), &id_request(4))),
            Some(("p", "init"))
        );
    }

    #[test]
    fn a_pod_with_a_grant_for_each_container_is_not_being_admitted() {
        let init_only = Arc::new(crate::fixtures::pod("p", A, &[("init", ContainerKind::Init, 2)]));
        let mut records = records(vec![listed("p", [])]);
        records.grant(&init_only, "init", ids(["aaaaaaaa-0", "aaaaaaaa-1"]));
        assert_eq!(candidates(&records, &facts([&init_only]), &id_request(2)), Candidates::None);
    }

    #[test]
    fn ids_that_must_be_included_name_the_pod() {
        let (one, two) = (with_init("one", A, 1, 2), with_init("two", A, 1, 2));
        let mut records = records(vec![listed("one", []), listed("two", [])]);
        records.grant(&one, "init", ids(["aaaaaaaa-0"]));
        records.grant(&two, "init", ids(["aaaaaaaa-1"]));
        let id_request = IdRequest { size: 2, must_include: ids(["aaaaaaaa-1"]) };
        assert_eq!(
            names(&candidates(&records, &facts([&one, &two]), &id_request)),
            Some(("two", "main"))
        );
    }
}

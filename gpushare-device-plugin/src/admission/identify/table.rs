//! The table of states by which the pod in admission is told from the other listed pods. Pure.
//!
//! Each version of a pod (as the watch shows it, as the API server answered) has a [`Verdict`]. The verdicts of one
//! listed pod become its [`PodState`], and [`decide`] compares the states of all listed pods.
//!
//! What the kubelet guarantees (v1.34 to v1.36):
//! - One listed pod is being admitted. It has a container that holds no ids.
//! - A pod that is bound later is not listed yet.
//! - A pod that was refused leaves the list at once, unless it is being deleted (kubelet_pods.go,
//!   `filterOutInactivePods`).
//! - A pod that was admitted before the resource was registered stays listed without ids. The extender binds no pod
//!   before that, so such a pod has no claim until its start is reported.
//!
//! So if the API server shows a claimed pod as waiting and not being deleted, it is the pod in admission. A pod that is
//! being deleted is a candidate only if no such pod is listed: it needs no GPU any more.
//!
//! Invariant: a pod is chosen only if no other listed pod may be the one in admission. Two exceptions end a wait in
//! which the API server answers nothing: a pod that it showed before is chosen although others could not be read, and a
//! pod that the watch showed is chosen if it is the only one. PreStartContainer then compares UIDs before a container
//! starts.

use std::collections::HashMap;
use std::sync::Arc;

use cluster::PodFacts;
use placement::gpu::{ContainerKind, ContainerRequest};

use super::IdRequest;
use crate::admission::refusal::Refusal;
use crate::admission::refused::RefusedPods;
use crate::gpus::ids::Ids;
use crate::pods::{PodRef, container_requests};
use crate::records::pod_resources::ListedPod;
use crate::records::{GrantedPod, Records};

/// The reason why a pod was not read when the time is over.
pub(super) const NO_TIME: &str = "no answer in time";

/// Facts by the pods' names.
pub(crate) type FactsOf = HashMap<PodRef, Arc<PodFacts>>;

/// What the API server answered in this admission.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Answer {
    /// The pod. A later answer without it does not replace this one: a pod can be deleted by force while it is
    /// admitted.
    Found(Arc<PodFacts>),
    /// No pod has that name.
    Gone,
    /// No answer, and why.
    Failed(String),
}

/// Answers by the pods' names.
pub(crate) type Answers = HashMap<PodRef, Answer>;

/// What is known when the kubelet asks for ids.
pub(crate) struct Evidence<'e> {
    /// The kubelet's list, and grants by UID.
    pub records: &'e Records,
    /// The listed pods that the watch shows.
    pub cached: &'e FactsOf,
    /// The pods that were read.
    pub answers: &'e Answers,
    /// The pods that this process refused.
    pub refused: &'e RefusedPods,
    /// The ids that the kubelet requests.
    pub id_request: &'e IdRequest,
    /// Whether a pod without a claim is put on a GPU.
    pub places_unclaimed: bool,
}

/// What follows from the evidence.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Step {
    /// This pod is being admitted, at this container.
    One(Arc<PodFacts>, ContainerRequest),
    /// These pods must be read first.
    Read(Vec<PodRef>),
    /// No pod is chosen.
    Refuse(Refusal),
}

/// A pod that fits the request, at this container.
#[derive(Debug, Clone, PartialEq)]
struct Fit {
    facts: Arc<PodFacts>,
    ask: ContainerRequest,
}

/// What one version of a pod says. Verdicts other than the last three are final for the pod's UID.
#[derive(Debug, Clone, PartialEq)]
enum Verdict {
    /// It requests no units.
    Plain,
    /// It requests units, and is not the pod in admission.
    Not {
        /// Whether a container that requests units is listed without ids. A later pod of the same name may be listed,
        /// then.
        lacks_ids: bool,
        /// Its refusal, if that is the reason.
        refused: Option<Refusal>,
    },
    /// It may be the pod, and has no claim that gives it a GPU.
    NoGpu(Fit),
    /// It may be the pod, and is being deleted.
    Leaving(Fit),
    /// It may be the pod.
    Waiting(Fit),
}

/// What all versions of one listed pod say together.
#[derive(Debug, Clone, PartialEq)]
enum PodState {
    /// It is not the pod in admission.
    Not { refused: Option<Refusal> },
    /// It must be read.
    Unread,
    /// As far as the watch shows it is not. Read if no other pod fits: a later pod of its name may be listed.
    NotByWatch,
    /// As far as the watch shows it is not, and the API server does not answer.
    Stale { refused: Option<Refusal>, error: String },
    /// Nothing is known of it: the watch does not show it, and the API server does not answer.
    Unknown(String),
    /// Neither the watch nor the API server has it: a static pod, or one that was deleted by force.
    Gone,
    /// It may be the pod, and has no claim that gives it a GPU.
    NoGpu(Fit),
    /// It may be the pod, and is being deleted or gone.
    Leaving(Fit),
    /// It may be the pod. The error says why the API server did not show it.
    Waiting(Fit, Option<String>),
}

/// The pod in admission, or what to do to find it. With `is_last` there is no time left to read.
pub(crate) fn decide(evidence: &Evidence<'_>, is_last: bool) -> Step {
    Compared::of(evidence, is_last).decide(evidence.id_request.size, is_last)
}

/// The listed pods by their states.
#[derive(Default)]
struct Compared<'e> {
    unread: Vec<&'e PodRef>,
    not_by_watch: Vec<&'e PodRef>,
    stale: Vec<(&'e PodRef, String)>,
    unknown: Vec<(&'e PodRef, String)>,
    gone: Vec<&'e PodRef>,
    no_gpu: Vec<Fit>,
    leaving: Vec<Fit>,
    waiting: Vec<(Fit, Option<String>)>,
    refused: Vec<Refusal>,
}

impl<'e> Compared<'e> {
    fn of(evidence: &Evidence<'e>, is_last: bool) -> Self {
        let mut all = Self::default();
        for listed in evidence.records.listed().filter(|listed| is_open(listed)) {
            let pod = &listed.pod;
            match evidence.state(listed) {
                PodState::Not { refused } => all.refused.extend(refused),
                PodState::Unread if is_last => all.unknown.push((pod, NO_TIME.to_owned())),
                PodState::Unread => all.unread.push(pod),
                PodState::NotByWatch if is_last => all.stale.push((pod, NO_TIME.to_owned())),
                PodState::NotByWatch => all.not_by_watch.push(pod),
                PodState::Stale { refused, error } => {
                    all.stale.push((pod, error));
                    all.refused.extend(refused);
                }
                PodState::Unknown(error) => all.unknown.push((pod, error)),
                PodState::Gone => all.gone.push(pod),
                PodState::NoGpu(fit) => all.no_gpu.push(fit),
                PodState::Leaving(fit) => all.leaving.push(fit),
                PodState::Waiting(fit, error) => all.waiting.push((fit, error)),
            }
        }
        all
    }

    fn decide(mut self, size: usize, is_last: bool) -> Step {
        if !self.unread.is_empty() {
            return read(self.unread);
        }
        if self.waiting.len() > 1 {
            return self.several_wait(size, is_last);
        }
        match self.waiting.pop() {
            None => self.none_waits(size, is_last),
            Some((fit, None)) => self.one_waits(fit, is_last),
            Some((fit, Some(error))) => self.one_waits_by_watch(fit, &error, is_last),
        }
    }

    /// One of them was refused, or has started, and its status does not say so yet; or a kubelet before v1.34.
    fn several_wait(self, size: usize, is_last: bool) -> Step {
        let waiting = self.waiting.iter().map(|(fit, _)| PodRef::of(&fit.facts));
        if !is_last {
            let unknown = self.unknown.iter().map(|(pod, _)| (*pod).clone());
            return Step::Read(waiting.chain(unknown).collect());
        }
        match self.unknown.first() {
            Some((pod, error)) => unidentified(pod, error),
            None => Step::Refuse(Refusal::Ambiguous { size, pods: waiting.collect() }),
        }
    }

    fn one_waits(self, fit: Fit, is_last: bool) -> Step {
        if self.unknown.is_empty() || is_last {
            return Step::One(fit.facts, fit.ask);
        }
        read(self.unknown.into_iter().map(|(pod, _)| pod))
    }

    fn one_waits_by_watch(self, fit: Fit, error: &str, is_last: bool) -> Step {
        let pod = PodRef::of(&fit.facts);
        let unread: Vec<&PodRef> =
            self.unknown.iter().chain(&self.stale).map(|(pod, _)| *pod).collect();
        if !is_last {
            return read(unread.into_iter().chain([&pod]));
        }
        let others = unread.len() + self.no_gpu.len() + self.leaving.len() + self.gone.len();
        if others == 0 { Step::One(fit.facts, fit.ask) } else { unidentified(&pod, error) }
    }

    fn none_waits(self, size: usize, is_last: bool) -> Step {
        let Self { not_by_watch, stale, unknown, gone, no_gpu, leaving, refused, .. } = self;
        // A pod without a claim is refused, also if a later pod of its name is listed.
        let stale = if no_gpu.is_empty() { stale } else { Vec::new() };
        let unread: Vec<_> = unknown.iter().chain(&stale).collect();
        if let Some((pod, error)) = unread.first() {
            return if is_last {
                unidentified(pod, error)
            } else {
                read(unread.iter().map(|(pod, _)| *pod))
            };
        }
        let one_at_most = no_gpu.is_empty() && gone.is_empty() && leaving.len() <= 1;
        if one_at_most && !not_by_watch.is_empty() {
            return read(not_by_watch);
        }
        let without = no_gpu.iter().chain(&leaving).map(|fit| PodRef::of(&fit.facts));
        let pods = without.chain(gone.iter().copied().cloned()).collect();
        match (&no_gpu[..], &leaving[..], &gone[..]) {
            ([], [], []) => Step::Refuse(not_found(size, refused)),
            ([fit], [], []) | ([], [fit], []) => Step::One(fit.facts.clone(), fit.ask.clone()),
            (_, [], []) => Step::Refuse(Refusal::NoneClaimed { size, pods }),
            ([], [], _) => Step::Refuse(Refusal::NotInApi { size, pods }),
            _ => Step::Refuse(Refusal::Ambiguous { size, pods }),
        }
    }
}

fn read<'e>(pods: impl IntoIterator<Item = &'e PodRef>) -> Step {
    Step::Read(pods.into_iter().cloned().collect())
}

fn unidentified(pod: &PodRef, error: &str) -> Step {
    Step::Refuse(Refusal::Unidentified(format!("read pod {pod}: {error}")))
}

/// A kubelet that died before it reported a refusal asks again for the same pod.
fn not_found(size: usize, refused: Vec<Refusal>) -> Refusal {
    match <[Refusal; 1]>::try_from(refused) {
        Ok([refusal]) => refusal,
        Err(_) => Refusal::NoPodAsks { size },
    }
}

impl Evidence<'_> {
    fn state(&self, listed: &ListedPod) -> PodState {
        let cached = self.cached.get(&listed.pod);
        let verdict = cached.map(|facts| self.verdict(listed, facts));
        match (verdict, self.answers.get(&listed.pod)) {
            // The watch may be later than the answer.
            (Some(Verdict::Not { refused, .. }), Some(Answer::Found(facts)))
                if cached.is_some_and(|cached| cached.uid == facts.uid) =>
            {
                PodState::Not { refused }
            }
            (_, Some(Answer::Found(facts))) => match self.verdict(listed, facts) {
                Verdict::Plain => PodState::Not { refused: None },
                Verdict::Not { refused, .. } => PodState::Not { refused },
                Verdict::NoGpu(fit) => PodState::NoGpu(fit),
                Verdict::Leaving(fit) => PodState::Leaving(fit),
                Verdict::Waiting(fit) => PodState::Waiting(fit, None),
            },
            (None, None) => PodState::Unread,
            (None, Some(Answer::Gone)) => PodState::Gone,
            (None, Some(Answer::Failed(error))) => PodState::Unknown(error.clone()),
            (Some(Verdict::Plain), _) => PodState::Not { refused: None },
            (Some(Verdict::NoGpu(fit)), _) => PodState::NoGpu(fit),
            (Some(Verdict::Not { lacks_ids: true, .. }), None) => PodState::Unread,
            (Some(Verdict::Not { lacks_ids: false, .. }), None) => PodState::NotByWatch,
            (Some(Verdict::Not { refused, .. }), Some(Answer::Gone)) => PodState::Not { refused },
            (Some(Verdict::Not { refused, .. }), Some(Answer::Failed(error))) => {
                PodState::Stale { refused, error: error.clone() }
            }
            (Some(Verdict::Leaving(_) | Verdict::Waiting(_)), None) => PodState::Unread,
            (Some(Verdict::Leaving(fit)), Some(Answer::Gone | Answer::Failed(_)))
            | (Some(Verdict::Waiting(fit)), Some(Answer::Gone)) => PodState::Leaving(fit),
            (Some(Verdict::Waiting(fit)), Some(Answer::Failed(error))) => {
                PodState::Waiting(fit, Some(error.clone()))
            }
        }
    }

    fn verdict(&self, listed: &ListedPod, facts: &Arc<PodFacts>) -> Verdict {
        if facts.gpu == Ok(None) {
            return Verdict::Plain;
        }
        let lacks_ids = lacks_ids(listed, facts);
        // Each of these stays as it is for the pod's life.
        if facts.finished || facts.admitted {
            return Verdict::Not { lacks_ids, refused: None };
        }
        let Some(ask) = next_container(self.records, listed, facts, self.id_request) else {
            return Verdict::Not { lacks_ids, refused: None };
        };
        if let Some(refusal) = self.refused.get(&facts.uid) {
            return Verdict::Not { lacks_ids, refused: Some(refusal) };
        }
        let fit = Fit { facts: facts.clone(), ask };
        let gets_gpu = match facts.gpu_pod().map(|gpu| &gpu.claim) {
            Some(Ok(claim)) => claim.is_some() || self.places_unclaimed,
            Some(Err(_)) | None => false,
        };
        if !gets_gpu {
            Verdict::NoGpu(fit)
        } else if facts.deleting {
            Verdict::Leaving(fit)
        } else {
            Verdict::Waiting(fit)
        }
    }
}

/// Whether a container of the pod holds no ids of ours. Most such pods request no units at all.
pub(crate) fn is_open(listed: &ListedPod) -> bool {
    listed.containers.values().any(Ids::is_empty)
}

/// Whether a container that requests units is listed without ids. Init containers are never listed.
fn lacks_ids(listed: &ListedPod, facts: &PodFacts) -> bool {
    container_requests(facts)
        .filter(|ask| ask.kind != ContainerKind::Init && !ask.units.is_zero())
        .any(|ask| !is_listed_with_ids(listed, ask))
}

/// The pod's container that is admitted next, if it requests that many ids: the first in admission order
/// without a grant. An init container with a grant comes second: the kubelet repeats its request if it
/// died before it recorded the grant.
fn next_container(
    records: &Records,
    listed: &ListedPod,
    facts: &PodFacts,
    id_request: &IdRequest,
) -> Option<ContainerRequest> {
    if !may_reuse(records, facts, &id_request.must_include) {
        return None;
    }
    let granted = records.granted(&facts.uid);
    // With a grant for every container the pod is admitted, even if its status does not show that yet.
    if granted.is_some_and(|granted| granted.pending().next().is_none()) {
        return None;
    }
    let open: Vec<&ContainerRequest> = container_requests(facts)
        .filter(|ask| ask.units.0 as usize == id_request.size && !is_listed_with_ids(listed, ask))
        .collect();
    let without_grant =
        open.iter().find(|ask| !granted.is_some_and(|granted| granted.has_grant(&ask.name)));
    let init = open.iter().find(|ask| ask.kind == ContainerKind::Init);
    without_grant.or(init).map(|ask| (*ask).clone())
}

fn is_listed_with_ids(listed: &ListedPod, ask: &ContainerRequest) -> bool {
    listed.containers.get(&ask.name).is_some_and(|ids| !ids.is_empty())
}

/// Whether no other pod holds one of the ids that must be included: the kubelet reuses only ids of the
/// pod's own init containers.
fn may_reuse(records: &Records, facts: &PodFacts, must_include: &Ids) -> bool {
    let holds_one = |pod: &GrantedPod| pod.ids().any(|id| must_include.contains(id));
    !records.all_granted().any(|pod| pod.facts.uid != facts.uid && holds_one(pod))
}

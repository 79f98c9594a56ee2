//! Carries evictions out: the limits, the dry runs, the GPUs that are kept, the evictions and their events.
//!
//! Invariant: no pod is evicted before a dry run of each of its set has succeeded, nor by a replica that does not lead.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use cluster::{
    Client, EventText, EventWriter, EvictOutcome, PodReference, evict, get_pod, try_evict,
};
use placement::moves::{Controller, Proposal};
use placement::names::Names;
use placement::units::{GpuId, NodeName, PodUid};
use tokio::time::Instant;

use super::events::{beneficiary_warning, moved_warning, moves_warning, victim_warning};
use super::moved_for::MovedFor;
use super::waiting::{KeptGpus, PodWithoutGpu};
use crate::metrics::Metrics;
use crate::replicas::Replicas;
use crate::victims::Eviction;
use crate::view::View;

/// A workload of which a pod was moved has none moved for so long: its successor has to start, and may itself be what
/// would be moved next.
const REST: Duration = Duration::from_secs(600);

/// The period of the eviction limit.
const MINUTE: Duration = Duration::from_secs(60);

/// The timeout of one call to the API server.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(2);

/// Limits of evictions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EvictionLimits {
    /// How long a pod has to wait before others are evicted for it.
    pub(crate) after: Duration,
    /// Evictions in a minute at most. A single set of victims may be larger if there was no eviction in the last
    /// minute.
    pub(crate) a_minute: usize,
}

/// What the evictor may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EvictionModes {
    /// Evict less important pods of one GPU.
    pub(crate) evict: bool,
    /// Move pods whose successors fit elsewhere.
    pub(crate) moves: bool,
}

/// Pods to evict, and the GPUs that are kept then.
pub(super) struct Victims {
    node: NodeName,
    gpus: Vec<GpuId>,
    pods: Vec<Victim>,
}

/// A pod to evict.
struct Victim {
    pod: PodReference,
    /// Where its successor fits; `None` where it is evicted because it is less important.
    moves_to: Option<NodeName>,
    /// Of a pod that is moved.
    controller: Option<Controller>,
}

impl From<Eviction> for Victims {
    fn from(Eviction { node, gpus, victims, .. }: Eviction) -> Self {
        let victim = |pod| Victim { pod, moves_to: None, controller: None };
        Self { node, gpus, pods: victims.into_iter().map(victim).collect() }
    }
}

impl From<Proposal> for Victims {
    fn from(Proposal { node, choice, moves }: Proposal) -> Self {
        let mut pods = Vec::new();
        for it in moves {
            let pod =
                PodReference { namespace: it.namespace, name: it.name, uid: it.uid.to_string() };
            pods.push(Victim { pod, moves_to: Some(it.to), controller: it.controller });
        }
        Self { node, gpus: choice.gpu_ids(), pods }
    }
}

/// The outcome of one round for a pod.
pub(super) enum RoundOutcome {
    /// The pod is bound, deleted, or no longer eligible.
    Over,
    /// Nothing can be done now.
    Later,
    /// Other pods were evicted, and a GPU is kept for the pod.
    Evicted,
    /// Earlier victims are still ending: the GPU stays kept.
    StillKept,
}

/// What was evicted lately.
#[derive(Default)]
pub(super) struct Evicted {
    /// When pods were evicted, in the last minute.
    times: VecDeque<Instant>,
    /// Workloads of which pods were moved, and when. As many as were moved in [`REST`] at most.
    moved: BTreeMap<Controller, Instant>,
    /// The pods that others were moved for.
    pub(super) moved_for: MovedFor,
}

impl Evicted {
    /// The workloads of which no pod is moved now.
    pub(super) fn resting(&mut self) -> BTreeSet<Controller> {
        self.moved.retain(|_, at| at.elapsed() < REST);
        self.moved.keys().cloned().collect()
    }

    /// Whether so many evictions may follow now.
    fn allow(&mut self, pods: usize, limits: EvictionLimits) -> bool {
        while self.times.front().is_some_and(|at| at.elapsed() >= MINUTE) {
            self.times.pop_front();
        }
        self.times.is_empty() || self.times.len() + pods <= limits.a_minute
    }
}

/// Evicts pods.
pub(crate) struct Evictor {
    /// The GPUs.
    pub(crate) view: Arc<View>,
    /// The API server's client.
    pub(crate) client: Client,
    /// Resource names and annotation keys.
    pub(crate) names: Arc<Names>,
    /// Whether this replica leads.
    pub(crate) replicas: Arc<Replicas>,
    /// Writes events about evictions.
    pub(crate) events: EventWriter,
    /// Counts evictions.
    pub(crate) metrics: Metrics,
    /// The limits.
    pub(crate) limits: EvictionLimits,
    /// What it may do.
    pub(crate) modes: EvictionModes,
}

impl Evictor {
    /// Keeps the GPUs for the waiting pod and evicts the victims, if the limit allows and all dry runs succeed. `None`
    /// where a dry run fails: then that pod is left out from now on.
    pub(super) async fn evict_all(
        &self,
        uid: &PodUid,
        waiting: &mut PodWithoutGpu,
        victims: Victims,
        evicted: &mut Evicted,
    ) -> Option<RoundOutcome> {
        if !evicted.allow(victims.pods.len(), self.limits) {
            self.metrics.count_gpu_eviction("rate-limited");
            return Some(RoundOutcome::Later);
        }
        for Victim { pod, .. } in &victims.pods {
            let outcome = try_evict(&self.client, pod, CALL_TIMEOUT).await;
            if let Some(why) = refusal(&outcome) {
                self.record_refusal(pod, &outcome, why);
                waiting.leave_out(PodUid::from(pod.uid.as_str()));
                return None;
            }
        }
        Some(self.carry_out(uid, waiting, victims, evicted).await)
    }

    fn record_refusal(&self, victim: &PodReference, outcome: &EvictOutcome, why: &str) {
        let PodReference { namespace, name: pod, uid } = victim;
        tracing::warn!(uid, namespace, pod, why, "this pod cannot be evicted for a GPU pod");
        self.metrics.count_gpu_eviction(label(outcome));
    }

    /// Keeps the GPUs for the waiting pod, then evicts the victims.
    async fn carry_out(
        &self,
        uid: &PodUid,
        waiting: &mut PodWithoutGpu,
        victims: Victims,
        evicted: &mut Evicted,
    ) -> RoundOutcome {
        let Victims { node, gpus, pods } = victims;
        for controller in pods.iter().filter_map(|victim| victim.controller.clone()) {
            evicted.moved.insert(controller, Instant::now());
        }
        let waits = self.view.change(|index| match &waiting.by_claim {
            Some(request) => index.keep_for_claim(uid, &node, &gpus, request),
            None => {
                index.keep(uid, &node, gpus.clone());
                true
            }
        });
        if !waits {
            return RoundOutcome::Later;
        }
        waiting.of_no_use.remove(&node);
        waiting.kept = Some(KeptGpus::new(node.clone(), gpus));
        let mut gone = 0;
        for Victim { pod: victim, moves_to, .. } in &pods {
            // The calls before took time, in which another replica may have taken over.
            if !self.replicas.leads() {
                return RoundOutcome::Over;
            }
            let outcome = self.evict(victim).await;
            if matches!(outcome, EvictOutcome::Evicted | EvictOutcome::Unknown(_)) {
                evicted.times.push_back(Instant::now());
            }
            if let Some(why) = refusal(&outcome) {
                self.record_refusal(victim, &outcome, why);
                waiting.leave_out(PodUid::from(victim.uid.as_str()));
                break;
            }
            gone += 1;
            self.metrics.count_gpu_eviction(label(&outcome));
            let warning = match moves_to {
                Some(to) => moved_warning(&waiting.pod, to),
                None => victim_warning(&waiting.pod),
            };
            self.write_event(victim, &warning).await;
        }
        if gone == 0 {
            return RoundOutcome::Later;
        }
        let are_moved = pods.iter().any(|victim| victim.moves_to.is_some());
        let warning =
            if are_moved { moves_warning(&node, gone) } else { beneficiary_warning(&node, gone) };
        self.write_event(&waiting.pod, &warning).await;
        RoundOutcome::Evicted
    }

    /// Evicts a pod. If the answer is unclear, as after a webhook's failure, reads the pod to find out.
    async fn evict(&self, victim: &PodReference) -> EvictOutcome {
        let outcome = evict(&self.client, victim, CALL_TIMEOUT).await;
        let EvictOutcome::Unknown(why) = outcome else { return outcome };
        match get_pod(&self.client, &victim.namespace, &victim.name, CALL_TIMEOUT).await {
            Ok(Some(pod)) if pod.uid().as_str() == victim.uid && !pod.is_deleting() => {
                EvictOutcome::Refused(why)
            }
            Ok(_) => EvictOutcome::Evicted,
            Err(_) => EvictOutcome::Unknown(why),
        }
    }

    async fn write_event(&self, pod: &PodReference, warning: &EventText) {
        if let Err(error) = self.events.warn(pod, warning, CALL_TIMEOUT).await {
            let PodReference { namespace, name: pod, uid } = pod;
            tracing::warn!(uid, namespace, pod, %error, "cannot write the event about an eviction");
        }
    }
}

/// Why a pod was not evicted; `None` if it was.
fn refusal(outcome: &EvictOutcome) -> Option<&str> {
    match outcome {
        EvictOutcome::Evicted => None,
        EvictOutcome::NotNow(why) | EvictOutcome::Refused(why) | EvictOutcome::Unknown(why) => {
            Some(why)
        }
    }
}

fn label(outcome: &EvictOutcome) -> &'static str {
    match outcome {
        EvictOutcome::Evicted => "evicted",
        EvictOutcome::NotNow(_) => "not-now",
        EvictOutcome::Refused(_) => "refused",
        EvictOutcome::Unknown(_) => "unknown",
    }
}

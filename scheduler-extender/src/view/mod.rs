//! The state of the cluster in memory: one index, one lock, one snapshot.
//!
//! ```text
//! watches, Bind, ticks ──change──> Index (plain data) ──publish──> Snapshot (immutable) ──read──> verbs, explain
//!                        one mutex, microseconds        atomic pointer                            no lock
//! ```
//!
//! Invariant: nothing else is synchronised. Filter, Prioritize, Preempt and explain read one snapshot, without the
//! lock, which a verb takes to begin or end a pod's entry in flight, or to ask what no snapshot has. No lock is held
//! across an await.

mod estimates;
#[cfg(test)]
pub(crate) mod fixtures;
mod index;
mod metrics;
mod new_node;
mod snapshot;
mod watches;

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use cluster::{
    Event, GpuPod, NodeFacts, Pod, PodFacts, PodGroup, WatchCause, WatchedResourceClaim,
};
use jiff::Timestamp;
use placement::estimate::EstimateRules;
use placement::gpu::fragmentation::{HeldParts, Measure};
use placement::gpu::{BeyondUnits, ChoiceRule, GivenOut, GpuRequest, NodeGpus};
use placement::names::Names;
use placement::policy::LoadPolicy;
use placement::units::PodUid;

pub use estimates::{ByWorkload, LearnedUses, PodEstimates};
#[cfg(test)]
pub(crate) use index::tabled;
pub use index::{
    BegunBackOff, BoundPod, ClaimingPod, GpuMemory, GpuPodId, HeldByDeleted, Index, OtherPod,
    PodOnGpu, PodUse, ReservationError, WatchedPod,
};
use index::{Notice, PodRequest};
pub(crate) use metrics::ViewMetrics;
pub(crate) use new_node::NewNode;
pub(crate) use snapshot::CHUNK;
pub use snapshot::{NodeBackOffs, NodeNames, NodeState, Place, Prepared, Snapshot, Totals};
pub use watches::{
    WatchState, follow_nodes, follow_pods, follow_resource_claims, select_pod, tick,
};

/// The state of the cluster.
pub struct View {
    index: Mutex<Index>,
    current: ArcSwap<Current>,
    /// The watch of nodes.
    pub nodes: WatchState,
    /// The watch of pods.
    pub pods: WatchState,
    /// The watch of ResourceClaims; `None` without `--claims`.
    pub claims: Option<WatchState>,
}

/// ResourceClaims of one pod that are looked up.
const MAX_CLAIMS: usize = 64;

/// The current snapshot, with what is computed from it for the verbs.
#[derive(Debug)]
pub struct Current {
    /// The state of the cluster.
    pub snapshot: Arc<Snapshot>,
    /// Values that are prepared for the verbs.
    pub prepared: Prepared,
    /// The pods that count on a node where they are not bound yet.
    pub(crate) in_flight: Arc<snapshot::PodUids>,
    /// Whether deleted pods may hold units of GPUs.
    deleted_may_hold: bool,
    /// Whether there are pods of groups.
    has_groups: bool,
    /// Learned use of workloads.
    pub learned: LearnedUses,
    /// The estimate rules of the shadow policy; `None` where it estimates nothing.
    pub shadow_estimates: Option<EstimateRules>,
}

impl View {
    /// The view of a cluster of which nothing is known. `believe_crane_hot_value`: as in [`Index::new`].
    #[must_use]
    pub fn new(
        policy: LoadPolicy,
        believe_crane_hot_value: bool,
        nodes: WatchState,
        pods: WatchState,
    ) -> Self {
        let mut index = Index::new(policy, believe_crane_hot_value);
        let current = ArcSwap::from_pointee(index.first());
        Self { index: Mutex::new(index), current, nodes, pods, claims: None }
    }

    /// The same, with a watch of ResourceClaims.
    #[must_use]
    pub fn with_claims(self, claims: WatchState) -> Self {
        Self { claims: Some(claims), ..self }
    }

    /// The current snapshot and what is prepared from it.
    #[must_use]
    pub fn current(&self) -> Arc<Current> {
        self.current.load_full()
    }

    /// The current snapshot.
    #[must_use]
    pub fn read(&self) -> Arc<Snapshot> {
        Arc::clone(&self.current.load().snapshot)
    }

    /// Changes the index, and publishes the next snapshot before it returns.
    pub fn change<T>(&self, change: impl FnOnce(&mut Index) -> T) -> T {
        let mut index = self.lock();
        let outcome = change(&mut index);
        let next = index.publish(&self.current.load());
        if let Some(next) = next {
            self.current.store(Arc::new(next));
        }
        let notices = index.take_notices();
        drop(index);
        notices.iter().for_each(log);
        outcome
    }

    /// Asks the index what no snapshot has.
    pub fn ask<T>(&self, question: impl FnOnce(&Index) -> T) -> T {
        question(&self.lock())
    }

    /// [`Index::waits_for_deleted`]. Takes the lock only while deleted pods may hold units.
    #[must_use]
    pub fn waits_for_deleted(&self, pod: &GpuPodId, request: &GpuRequest) -> Option<HeldByDeleted> {
        if !self.current.load().deleted_may_hold {
            return None;
        }
        self.ask(|index| index.waits_for_deleted(pod, request))
    }

    /// [`Index::half_bound_groups`]. Takes the lock only while there are pods of groups.
    #[must_use]
    pub fn half_bound_groups(&self) -> HashSet<PodGroup> {
        if !self.current.load().has_groups {
            return HashSet::new();
        }
        self.ask(Index::half_bound_groups)
    }

    /// [`Index::renew_places_of`]. Takes the lock only while there are pods of groups.
    pub fn renew_places_of(&self, pod: &PodUid, now: Timestamp) -> bool {
        self.current.load().has_groups && self.change(|index| index.renew_places_of(pod, now))
    }

    /// What the pod's ResourceClaims ask for and do not have yet: the largest share; `None` where they ask for none
    /// that can be counted. Takes the lock only for a pod with claims.
    #[must_use]
    pub fn claim_request(&self, pod: &Pod) -> Option<GpuRequest> {
        self.claims.as_ref().filter(|_| pod.has_resource_claims())?;
        let mut claims = pod.resource_claims();
        claims.truncate(MAX_CLAIMS);
        let ask = self.ask(|index| index.largest_ask(pod.namespace(), &claims).cloned())?;
        let request = GpuRequest::of_claim(ask.gpus, ask.memory, ask.cores, ask.isolation)?;
        Some(request.with_cpu(pod.cpu_request()).with_priority(pod.priority()))
    }

    // After a panic, a change may be partial. It concerns the pods and nodes of that change, and the next events of
    // these repair it.
    fn lock(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies an event of the pods' watch: [`Index::apply_pods`].
    #[must_use]
    pub fn apply_pods(
        &self,
        event: Event<WatchedPod>,
        settled: &mut HashSet<PodUid>,
        now: Timestamp,
    ) -> Vec<GpuPodId> {
        let is_list = matches!(event, Event::Listed(_));
        let to_look_up = self.change(|index| index.apply_pods(event, settled, now));
        if is_list {
            self.pods.set_listed();
        }
        to_look_up
    }

    /// Applies an event of the nodes' watch.
    pub fn apply_nodes(&self, event: Event<NodeFacts>, now: Timestamp) {
        let is_list = matches!(event, Event::Listed(_));
        self.change(|index| index.apply_nodes(event, now));
        if is_list {
            self.nodes.set_listed();
        }
    }

    /// Applies an event of the ResourceClaims' watch.
    pub fn apply_resource_claims(&self, event: Event<WatchedResourceClaim>, now: Timestamp) {
        let is_list = matches!(event, Event::Listed(_));
        self.change(|index| index.apply_resource_claims(event, now));
        if let Some(claims) = self.claims.as_ref().filter(|_| is_list) {
            claims.set_listed();
        }
    }

    /// Applies a pod that was read from the API server: [`Index::apply_known`].
    pub fn apply_known(&self, pod: &PodFacts, gpu: &GpuPod) {
        self.change(|index| index.apply_known(pod, gpu));
    }

    /// Counts a pod's CPU request, and what it declares of network and disk, on its node, by a watch event.
    pub fn count_requests(&self, pod: &Pod, names: &Names, seen: WatchCause, now: Timestamp) {
        if let Some(request) = PodRequest::of(pod, names, now) {
            self.change(|index| index.count_requests(&request, seen));
        }
    }

    /// Changes the learned use of workloads.
    pub fn change_learned(&self, change: impl FnOnce(&mut LearnedUses)) {
        self.change(|index| index.change_learned(change));
    }

    /// Computes the measure of fragmentation anew if that is due, and otherwise what it takes from the free room. Takes
    /// some milliseconds with 5,000 nodes, without the lock.
    pub fn renew_measure(&self) {
        for way in GivenOut::BOTH {
            let due = self.change(|index| index.due_measure(way));
            let snapshot = self.read();
            let measure = due.map(|input| input.compute(&held(&snapshot, way)));
            self.reprice_by(&snapshot, way, measure);
        }
    }

    /// Computes what the measure of fragmentation takes from the free room, as [`View::renew_measure`].
    pub fn reprice(&self) {
        let snapshot = self.read();
        GivenOut::BOTH.into_iter().for_each(|way| self.reprice_by(&snapshot, way, None));
    }

    /// Puts a measure in force with what it takes from the free room: a new one, or the last one where that changes.
    fn reprice_by(&self, snapshot: &Snapshot, way: GivenOut, new: Option<Measure>) {
        let last = snapshot.measures[way as usize].as_deref();
        let next = match &new {
            Some(measure) => repriced(snapshot, way, measure),
            None => last.and_then(|measure| repriced(snapshot, way, measure)),
        };
        if let Some(next) = next.or(new) {
            self.change(|index| index.set_measure(way, next));
        }
    }

    /// [`View::claim_request`] of a pod that has one ResourceClaim, which asks for one share of any GPU and for nothing
    /// else.
    pub(crate) fn sole_claim_request(&self, pod: &Pod) -> Option<GpuRequest> {
        let claim = pod.sole_resource_claim()?;
        let asks_once = self.ask(|index| index.asks_for_one_share(pod.namespace(), claim));
        self.claim_request(pod).filter(|_| asks_once)
    }

    /// The rule by which GPUs and nodes are chosen now.
    pub fn choice_rule(&self) -> ChoiceRule {
        self.current.load().snapshot.choice_rule()
    }

    /// What pods of a namespace may take of GPUs beyond their units, by the policy in force.
    pub fn beyond_units_of(&self, namespace: &str) -> BeyondUnits {
        self.current.load().snapshot.beyond_units_of(namespace)
    }

    /// Whether all nodes, pods and ResourceClaims have been listed once. Before that, a GPU that looks free may be in
    /// use.
    pub fn is_complete(&self) -> bool {
        let claims = self.claims.as_ref().is_none_or(WatchState::is_listed);
        self.nodes.is_listed() && self.pods.is_listed() && claims
    }
}

/// The measure by what is free in the snapshot; `None` where nothing changes.
fn repriced(snapshot: &Snapshot, way: GivenOut, measure: &Measure) -> Option<Measure> {
    measure.repriced(
        given_out(snapshot, way)
            .map(|node| (node.cpu(), node.accounts().iter().map(|account| &account.gpu))),
    )
}

/// The nodes whose GPUs are given out in that way.
fn given_out(snapshot: &Snapshot, way: GivenOut) -> impl Iterator<Item = &NodeGpus> {
    snapshot.nodes_with_gpus().filter_map(move |(_, gpus)| gpus.if_given_out(way))
}

/// What pods hold of GPUs that are given out in that way.
fn held(snapshot: &Snapshot, way: GivenOut) -> HeldParts {
    let mut held = HeldParts::default();
    for account in given_out(snapshot, way).flat_map(NodeGpus::accounts) {
        held.count_account(account);
    }
    held
}

fn log(notice: &Notice) {
    match notice {
        Notice::RefusedPod { uid, namespace, name: pod, error } => {
            tracing::warn!(%uid, namespace, pod, error, "pod refused, its units are not counted");
        }
        Notice::UnreadClaim { namespace, name: claim, error } => {
            tracing::warn!(
                namespace,
                claim,
                error,
                "a part of the ResourceClaim cannot be read, it counts as whole GPUs"
            );
        }
        Notice::RefusedGpus { node, error } => {
            tracing::warn!(%node, error, "report of GPUs refused");
        }
        Notice::RefusedSpeed { node, error } => {
            tracing::warn!(%node, error, "the node's annotation is ignored");
        }
        Notice::RefusedReading { node, metric, error } => {
            tracing::warn!(%node, metric, error, "reading refused, counts as missing");
        }
        Notice::BackedOff(BegunBackOff { node, namespace, until, all }) => {
            tracing::warn!(%node, namespace, %until, all, "the node refused several GPU pods, or could not start them: it gets none for a while");
        }
    }
}

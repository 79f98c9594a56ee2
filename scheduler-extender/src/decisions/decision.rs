//! A decision: one pod, the nodes of the request, and the state of the cluster at that time.
//!
//! Invariant: it never changes. An [`Evaluator`](super::Evaluator) computes what follows from it.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cluster::GpuRequestError;
use jiff::Timestamp;
use placement::gpu::fragmentation::{Cost, Measure};
use placement::gpu::{ChoiceRule, GivenOut, GpuRequest, NoFit, NodeGpus};
use placement::load::{NodeLoad, RecentPods, ResolvedPolicy};
use placement::names::ZONE_LABEL;
use placement::units::{NodeName, PodUid};

use super::DecidedPod;
use crate::node_request::CandidateNodes;
use crate::view::Snapshot;

/// All inputs of a decision about one pod. The state of the cluster is shared with the view, not copied.
#[derive(Debug)]
pub struct Decision {
    /// The pod, and the node that it was bound to.
    pub pod: Arc<DecidedPod>,
    /// The time of the decision, at which readings are fresh or stale.
    pub time: Timestamp,
    /// The pod's GPU request; `None` where it has none, or a faulty one.
    pub request: Option<GpuRequest>,
    /// The fault of a GPU request that cannot be read, or that no node can meet.
    pub fault: Option<GpuRequestError>,
    /// What the GPUs decide about the request of ResourceClaims, which is in MiB in place of units; `None` for one in
    /// units.
    pub by_claims: Option<ByClaims>,
    /// How GPUs are chosen.
    pub rule: ChoiceRule,
    /// The nodes in the order of the request.
    nodes: CandidateNodes,
    /// All nodes at that time, and the policy in force.
    snapshot: Arc<Snapshot>,
}

/// Which reasons keep a pod with ResourceClaims off a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ByClaims {
    /// Every one.
    All,
    /// Those that kube-scheduler does not know. By ResourceSlices it knows what a GPU has and whether it takes claims;
    /// not which processes of deleted pods are left, nor what the node can limit.
    BesideSlices,
    /// What the node cannot limit, and GPUs that are kept for others, where such processes are on every node: they end
    /// without an event that would make kube-scheduler try again, and the driver waits for that.
    BesideProcesses,
}

impl ByClaims {
    fn counts(self, why: NoFit, keeps_some: impl Fn() -> bool) -> bool {
        let is_room =
            matches!(why, NoFit::NoRoom | NoFit::NoCores | NoFit::TooFewGpus | NoFit::InUse);
        match self {
            _ if why == NoFit::WeakIsolation => true,
            Self::All => true,
            Self::BesideSlices => is_room,
            Self::BesideProcesses => is_room && keeps_some(),
        }
    }
}

impl Decision {
    /// A decision by the state of the cluster in `snapshot`.
    #[must_use]
    pub fn new(
        snapshot: Arc<Snapshot>,
        pod: DecidedPod,
        request: Option<GpuRequest>,
        nodes: CandidateNodes,
        time: Timestamp,
    ) -> Self {
        Self {
            pod: Arc::new(pod),
            time,
            request,
            fault: None,
            by_claims: None,
            rule: snapshot.choice_rule(),
            nodes,
            snapshot,
        }
    }

    /// The same decision with the fault of the pod's GPU request.
    #[must_use]
    pub fn with_fault(self, fault: Option<GpuRequestError>) -> Self {
        Self { fault, ..self }
    }

    /// The same decision with the request of the pod's ResourceClaims.
    #[must_use]
    pub fn with_claims(self, request: GpuRequest) -> Self {
        let rule = self.snapshot.choice_rule_of(GivenOut::Claims);
        Self { request: Some(request), by_claims: Some(ByClaims::All), rule, ..self }
    }

    /// The same decision about nodes where kube-scheduler has found room for the pod's ResourceClaims, if it has any.
    #[must_use]
    pub fn beside_slices(mut self) -> Self {
        if self.by_claims.is_some() {
            self.by_claims = Some(ByClaims::BesideSlices);
            let has_room = (0..self.len()).any(|position| self.no_fit(position).is_none());
            self.by_claims =
                self.by_claims.filter(|_| has_room).or(Some(ByClaims::BesideProcesses));
        }
        self
    }

    /// The same decision without the GPU request, for callers that check GPUs separately.
    #[must_use]
    pub fn without_gpus(self) -> Self {
        Self { request: None, ..self }
    }

    /// The policy in force.
    #[must_use]
    pub fn policy(&self) -> &Arc<ResolvedPolicy> {
        &self.snapshot.policy
    }

    /// The state of the cluster that was decided by.
    #[must_use]
    pub fn snapshot(&self) -> &Arc<Snapshot> {
        &self.snapshot
    }

    /// How many nodes the request named.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether the request named no node.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The name of the node at a position of the request.
    ///
    /// # Panics
    ///
    /// Where there is no such position.
    #[must_use]
    pub fn name(&self, position: usize) -> &NodeName {
        self.nodes.name(self.snapshot.names(), position)
    }

    /// The load of the node at a position, without the pod itself, which is in flight if kube-scheduler has just sent a
    /// request for it. `None` for an unknown node.
    #[must_use]
    pub fn load(&self, position: usize) -> Option<Cow<'_, NodeLoad>> {
        let load = self.snapshot.at(self.nodes.places()[position]?).load.as_ref()?;
        Some(self.without_pod(load))
    }

    fn without_pod<'n>(&self, load: &'n NodeLoad) -> Cow<'n, NodeLoad> {
        if !load.recent.has_in_flight(&self.pod.uid) {
            return Cow::Borrowed(load);
        }
        let mut recent = RecentPods::clone(&load.recent);
        recent.remove_in_flight(&self.pod.uid);
        Cow::Owned(NodeLoad { recent: Arc::new(recent), ..load.clone() })
    }

    /// The GPUs of the node at a position, as the pod finds them; `None` for a node without GPUs for it.
    pub(super) fn gpus(&self, position: usize) -> Option<&NodeGpus> {
        let gpus = self.snapshot.at(self.nodes.places()[position]?).gpus.as_deref()?;
        self.request.as_ref().map_or(Some(gpus), |request| gpus.found_by(request))
    }

    /// The zone of the node at a position, where its labels have one.
    pub(super) fn zone(&self, position: usize) -> Option<&str> {
        let load = self.snapshot.at(self.nodes.places()[position]?).load.as_ref()?;
        load.labels.get(ZONE_LABEL).map(|zone| &**zone)
    }

    /// What the CPU that the pod takes costs the GPUs of the node at a position, by the rules for pods without GPUs, as
    /// in [`GivenOut::BOTH`]; 0 for a node without GPUs, or where fragmentation is not measured.
    pub(super) fn cost_to_gpus(&self, position: usize, measures: [Option<&Measure>; 2]) -> Cost {
        let Some(gpus) = self.gpus(position) else { return Cost(0) };
        for (way, measure) in GivenOut::BOTH.into_iter().zip(measures) {
            if let (Some(gpus), Some(measure)) = (gpus.if_given_out(way), measure) {
                return gpus.cost_of_cpu(self.pod.cpu, measure);
            }
        }
        Cost(0)
    }

    /// The order of the names of the nodes at two positions.
    pub(super) fn compare_names(&self, one: usize, other: usize) -> Ordering {
        let names = self.snapshot.names();
        match (self.nodes.places()[one], self.nodes.places()[other]) {
            (Some(one), Some(other)) => names.rank(one).cmp(&names.rank(other)),
            _ => self.name(one).cmp(self.name(other)),
        }
    }

    /// Why the node at a position is rejected for its GPUs; `None` where it is not.
    pub fn no_fit(&self, position: usize) -> Option<NoFit> {
        let request = self.request.as_ref()?;
        if self.is_backed_off(position) {
            return Some(NoFit::BackedOff);
        }
        let gpus = self.gpus(position);
        self.counted(position, gpus.map(|gpus| gpus.check(&self.pod.uid, request).err()))
    }

    /// Of why the pod does not fit on the GPUs of the node at a position, what keeps it off; `None` of `why` is a node
    /// without GPUs for it.
    pub(super) fn counted(&self, position: usize, why: Option<Option<NoFit>>) -> Option<NoFit> {
        let Some(by_claims) = self.by_claims else { return why.unwrap_or(Some(NoFit::NoGpus)) };
        let keeps_some = || {
            let gpus = self.gpus(position).zip(self.request.as_ref());
            gpus.is_some_and(|(gpus, request)| gpus.keeps_from(&self.pod.uid, request))
        };
        why.unwrap_or(Some(NoFit::NoShares)).filter(|why| by_claims.counts(*why, keeps_some))
    }

    /// Whether GPUs of some node do for the pod once these pods are gone from it.
    pub fn fits_without(&self, leaving: &BTreeMap<NodeName, BTreeSet<PodUid>>) -> bool {
        let Some(request) = self.request.as_ref().filter(|_| !leaving.is_empty()) else {
            return false;
        };
        (0..self.len()).any(|position| {
            let Some(gone) = leaving.get(self.name(position)) else { return false };
            let Some(gpus) = self.gpus(position) else { return false };
            let fits =
                gpus.fit_without(|pod| gone.contains(pod), &self.pod.uid, request, &self.rule);
            fits.is_ok() && !self.is_backed_off(position)
        })
    }

    /// Whether the GPUs of the node at a position do for the pod; for a pod without GPUs, each node's do.
    pub fn has_gpus_for_pod(&self, position: usize) -> bool {
        self.fault.is_none() && self.no_fit(position).is_none()
    }

    /// Whether the node at a position takes no pods with units of the pod's namespace for a while.
    pub(super) fn is_backed_off(&self, position: usize) -> bool {
        self.by_claims.is_none()
            && self.snapshot.is_backed_off(self.name(position), &self.pod.namespace, self.time)
    }

    /// The nodes in the order of the request.
    pub(super) fn nodes(&self) -> &CandidateNodes {
        &self.nodes
    }

    /// The same decision between other nodes of its snapshot.
    pub(super) fn between(&self, nodes: CandidateNodes) -> Self {
        Self {
            pod: Arc::clone(&self.pod),
            time: self.time,
            request: self.request.clone(),
            fault: self.fault.clone(),
            by_claims: self.by_claims,
            rule: self.rule.clone(),
            nodes,
            snapshot: Arc::clone(&self.snapshot),
        }
    }
}

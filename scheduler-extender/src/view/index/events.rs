//! What each watch event does.
//!
//! Invariant: after a list, each pod of the index was in the list, or was bound after the list began and is looked up.
//! A list does not end a reservation: it stays until the API server has answered the binding.

use std::collections::HashSet;
use std::sync::Arc;

use api::gpus::GpusError;
use cluster::{ContainerRuns, Event, NodeFacts, PodFacts, WatchCause};
use jiff::Timestamp;
use placement::resources::Amounts;
use placement::units::{NodeName, PodUid};

use super::{ClaimingPod, GpuPodId, Index, Notice, PodRequest, is_recent, may_start};

/// The data of a pod that the view keeps.
#[derive(Debug, Clone, PartialEq)]
pub enum WatchedPod {
    /// A pod that requests GPU memory, or whose request cannot be read, with its use of CPU and memory.
    Gpu(Box<PodFacts>, PodUse),
    /// A pod with ResourceClaims and without a node, and for which one it waits, if it does.
    Claiming(PodUid, Option<ClaimingPod>),
    /// A pod without such a request, whose start or end affects decisions.
    Bound(BoundPod),
}

/// A pod that was bound recently, has ended recently, or is being deleted.
#[derive(Debug, Clone, PartialEq)]
pub struct BoundPod {
    pub(in crate::view) uid: PodUid,
    pub(in crate::view) node: NodeName,
    pub(in crate::view) at: Timestamp,
    pub(in crate::view) usage: PodUse,
    /// Whether it has ResourceClaims, and its deletion has begun.
    pub(in crate::view) ends_claims: bool,
}

/// What a pod uses of CPU and memory, and until when.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PodUse {
    /// Its estimated use.
    pub(in crate::view) expected: Amounts,
    /// When its containers ran; `None` while one has not started.
    pub(in crate::view) runs: Option<ContainerRuns>,
    /// When it ended; `None` while it runs.
    pub(in crate::view) ended_at: Option<Timestamp>,
}

impl Index {
    /// Counts what a pod requests and declares on its node, by a watch event.
    pub(in crate::view) fn count_requests(&mut self, pod: &PodRequest, seen: WatchCause) {
        if seen != WatchCause::Listed && !pod.declares.is_none() {
            self.loads.forget_declared(&mut self.nodes, pod);
        }
        self.nodes.count_requests(pod, seen);
    }

    /// Applies an event of the pods' watch. `settled` is state of the caller: the pods that were settled when the
    /// current list began. Returns the pods to look up: a list did not have them, and no event may come for their end.
    #[must_use]
    pub fn apply_pods(
        &mut self,
        event: Event<WatchedPod>,
        settled: &mut HashSet<PodUid>,
        now: Timestamp,
    ) -> Vec<GpuPodId> {
        self.at(now);
        match event {
            Event::Listing => {
                self.nodes.begin_list();
                *settled = self.settled();
            }
            Event::Listed(pods) => return self.apply_list(&pods, &std::mem::take(settled), now),
            Event::Applied(pod) => self.apply_pod(&pod, now),
            Event::Gone(WatchedPod::Gpu(facts, _)) => {
                if facts.may_run() {
                    self.depart(&facts.uid, now);
                } else {
                    self.forget(&facts.uid);
                }
                if let Some(node) = &facts.node {
                    self.loads.ended(&mut self.nodes, &facts.uid, node);
                }
            }
            Event::Gone(WatchedPod::Claiming(pod, _)) => self.end_claiming(&pod),
            // The binding still counts in the hot value.
            Event::Gone(WatchedPod::Bound(pod)) => {
                self.claims.ending.remove(&pod.uid);
                self.loads.ended(&mut self.nodes, &pod.uid, &pod.node);
            }
        }
        Vec::new()
    }

    fn apply_list(
        &mut self,
        pods: &[WatchedPod],
        settled: &HashSet<PodUid>,
        now: Timestamp,
    ) -> Vec<GpuPodId> {
        let mut gpu_pods = HashSet::new();
        let mut claiming = HashSet::new();
        for pod in pods {
            self.apply_pod(pod, now);
            if let WatchedPod::Gpu(facts, _) = pod {
                gpu_pods.insert(facts.uid.clone());
            }
            if let WatchedPod::Claiming(uid, _) | WatchedPod::Bound(BoundPod { uid, .. }) = pod {
                claiming.insert(uid);
            }
        }
        self.end_claiming_but(&claiming);
        let to_look_up = self.after_list(&gpu_pods, settled, now);
        let mut holding = Vec::new();
        for (uid, record) in &self.pods {
            let cpu = record.request.cpu();
            holding.extend(record.nodes.iter().map(|node| (uid, node, cpu)));
        }
        self.nodes.end_list(holding.into_iter());
        to_look_up
    }

    fn apply_pod(&mut self, pod: &WatchedPod, now: Timestamp) {
        match pod {
            WatchedPod::Claiming(uid, pod) => self.set_claiming(uid, pod.as_ref()),
            WatchedPod::Bound(BoundPod { uid, node, at, usage, ends_claims }) => {
                self.end_claiming(uid);
                if *ends_claims {
                    self.claims.ending.insert(uid.clone());
                }
                self.apply_use(uid, node, *at, usage, now);
            }
            WatchedPod::Gpu(facts, usage) => self.apply_gpu_pod(facts, usage, now),
        }
    }

    fn apply_gpu_pod(&mut self, facts: &PodFacts, usage: &PodUse, now: Timestamp) {
        self.end_claiming(&facts.uid);
        match &facts.gpu {
            Ok(Some(gpu)) => {
                self.count_start(facts, gpu, now);
                self.apply(facts, gpu);
            }
            Ok(None) => {}
            Err(fault) => {
                self.refused_objects += 1;
                let (namespace, name) = (facts.namespace.clone(), facts.name.clone());
                let error = fault.to_string();
                let uid = facts.uid.clone();
                self.notices.push(Notice::RefusedPod { uid, namespace, name, error });
            }
        }
        if let (Some(node), Some(at)) = (&facts.node, facts.bound_at) {
            self.apply_use(&facts.uid, node, at, usage, now);
        }
    }

    /// Counts the start and the end of a pod on its node.
    fn apply_use(
        &mut self,
        pod: &PodUid,
        node: &NodeName,
        bound_at: Timestamp,
        usage: &PodUse,
        now: Timestamp,
    ) {
        let resolved = Arc::clone(&self.policy);
        let policy = &resolved.policy;
        let starts = usage.runs.is_none_or(|runs| is_recent(policy, runs.started_at, now));
        let may_start = may_start(policy, bound_at, now);
        if is_recent(policy, bound_at, now) || (starts && may_start) {
            self.record_binding(pod, node, bound_at, Some(usage.expected));
        }
        if let Some(runs) = usage.runs {
            self.loads.change(&mut self.nodes, node, |recent| recent.started(pod, runs.started_at));
        }
        // The conditions of a pod that has never run do not change when it ends.
        if usage.ended_at.is_some_and(|at| is_recent(policy, at, now) || may_start) {
            self.loads.ended(&mut self.nodes, pod, node);
        }
    }

    /// Applies an event of the nodes' watch.
    pub fn apply_nodes(&mut self, event: Event<NodeFacts>, now: Timestamp) {
        self.at(now);
        match event {
            Event::Listing => {}
            Event::Listed(nodes) => {
                let names: HashSet<&NodeName> = nodes.iter().map(|node| &node.name).collect();
                let is_gone = |name: &&NodeName| !names.contains(name);
                let gone: Vec<NodeName> =
                    self.nodes.iter().map(|node| &node.name).filter(is_gone).cloned().collect();
                for name in gone {
                    self.remove_node(&name);
                }
                for node in &nodes {
                    self.apply_node(node, now);
                }
                self.loads.early.clear();
            }
            Event::Applied(node) => self.apply_node(&node, now),
            Event::Gone(node) => self.remove_node(&node.name),
        }
    }

    /// Forgets a node that is gone. Its machine may still run, so its pods stay charged.
    fn remove_node(&mut self, name: &NodeName) {
        self.loads.early.remove(name);
        self.nodes.change_known(name, |node| {
            node.load = None;
            node.sources = Default::default();
            node.is_unready = false;
            node.cpu.allocatable = None;
            node.measured = None;
            if !node.ledger.gpus().is_empty() {
                node.ledger.set_gpus(Vec::new());
            }
        });
    }

    fn apply_node(&mut self, facts: &NodeFacts, now: Timestamp) {
        let mut gpus = None;
        match &facts.gpus {
            Some(Ok(reported)) => gpus = Some(reported.clone()),
            None => gpus = Some(Vec::new()),
            // The last good report stays in force: a faulty report does not mean that the GPUs are gone. Of a Node
            // that cannot be read nothing is known, so it takes no GPU pod.
            Some(Err(error)) => {
                if *error == GpusError::UnreadNode {
                    gpus = Some(Vec::new());
                }
                self.refused_objects += 1;
                let (node, error) = (facts.name.clone(), error.to_string());
                self.notices.push(Notice::RefusedGpus { node, error });
            }
        }
        let counts_unmanaged = self.counts_unmanaged();
        self.set_load(facts);
        self.nodes.change(&facts.name, |node| {
            node.is_unready = facts.ready == Some(false);
            node.cpu.allocatable = facts.allocatable_cpu;
            if let Some(gpus) = gpus
                && node.ledger.gpus() != gpus
            {
                node.ledger.set_gpus(gpus);
            }
            node.set_measured(facts.measured.as_ref());
            node.count_unmanaged(counts_unmanaged, now);
        });
    }
}

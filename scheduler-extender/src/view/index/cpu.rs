//! What the pods of a node request of its CPU, which limits what its GPUs can be used for, and what they declare of
//! its network and disks.
//!
//! Invariant: a pod counts once at most on a node, from its reservation or the watch event of its binding until it has
//! ended or the reservation is released. A pod takes 8 bytes, so that 150,000 take 1.2 MB.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use cluster::Pod;
use jiff::Timestamp;
use placement::demand::Rates;
use placement::load::DeclaredPods;
use placement::names::Names;
use placement::units::{NodeName, PodUid};

/// The CPU of one node.
#[derive(Debug, Clone, Default)]
pub(super) struct NodeCpu {
    /// In thousandths of a core; `None` where the node does not report it.
    pub(super) allocatable: Option<u64>,
    pub(super) requests: Requests,
}

/// What the pods of one node request and declare.
#[derive(Debug, Clone, Default)]
pub(super) struct Requests {
    /// For each pod, 40 bits of its UID's hash and 24 bits of thousandths of a core.
    pub(super) pods: Vec<u64>,
    sum: u64,
    /// Those that declare something, by the same hash. Shared with the node's load.
    declared: Arc<DeclaredPods>,
}

/// What the pods request and declare of nodes without a slot, and how watch events are read.
#[derive(Debug, Clone, Default)]
pub(super) struct PodRequests {
    /// By the names that have no slot.
    pub(super) elsewhere: HashMap<NodeName, Requests>,
    /// Those of the list that is being read.
    pub(super) listing: Option<HashMap<NodeName, Requests>>,
    /// Whether a list of all pods has been applied. Before that, pods are missing.
    pub(super) are_complete: bool,
    /// Hashes UIDs for [`Requests`].
    pub(super) hasher: RandomState,
}

/// What a bound pod requests of its node's CPU, and declares of its network and disks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::view) struct PodRequest {
    /// The pod.
    pub(super) uid: PodUid,
    /// Its node.
    pub(super) node: NodeName,
    /// Thousandths of a core.
    pub(super) cpu: u64,
    pub(super) declares: Rates,
    /// When all of its containers had started; `None` while they have not.
    pub(super) started_at: Option<Timestamp>,
    /// Whether it has ended, so that it uses nothing.
    pub(super) is_finished: bool,
}

impl PodRequest {
    /// The request of a pod; `None` for one that is not bound.
    pub(in crate::view) fn of(pod: &Pod, names: &Names, now: Timestamp) -> Option<Self> {
        Some(Self::on(NodeName::from(pod.node()?), pod, names, now))
    }

    /// The request of a pod as if it were bound to that node.
    pub(in crate::view) fn on(node: NodeName, pod: &Pod, names: &Names, now: Timestamp) -> Self {
        let (uid, cpu, is_finished) = (pod.uid(), pod.cpu_request(), pod.is_finished());
        let declares = pod.declared(names).rates;
        let started_at = pod.container_runs(now).map(|runs| runs.started_at);
        Self { uid, node, cpu, declares, started_at, is_finished }
    }
}

/// More than any machine has: 16,777 cores.
const MOST: u64 = (1 << 24) - 1;

impl Requests {
    /// `hash` has zeros in its lower 24 bits.
    pub(super) fn set(&mut self, hash: u64, cpu: u64) {
        self.remove_cpu(hash);
        let counted = cpu.min(MOST);
        self.sum += counted;
        self.pods.push(hash | counted);
    }

    /// Whether these are a pod's request and what it declares; `None` for a pod that does not count.
    pub(super) fn has(&self, hash: u64, pod: Option<&PodRequest>) -> bool {
        let known = self.cpu(hash);
        let declares = pod.filter(|pod| !pod.declares.is_none());
        known == pod.map(|pod| pod.cpu.min(MOST))
            && self.declared.get(hash) == declares.map(|pod| (pod.declares, pod.started_at))
    }

    /// The request of a pod that counts, in thousandths of a core.
    pub(super) fn cpu(&self, hash: u64) -> Option<u64> {
        self.pods.iter().find(|pod| *pod & !MOST == hash).map(|pod| pod & MOST)
    }

    /// Sets the request of a pod and what it declares; `None` for a pod that no longer counts.
    pub(super) fn put(&mut self, hash: u64, pod: Option<&PodRequest>) {
        let Some(pod) = pod else { return self.remove(hash) };
        self.set(hash, pod.cpu);
        self.declare(hash, pod.declares, pod.started_at);
    }

    pub(super) fn remove(&mut self, hash: u64) {
        self.remove_cpu(hash);
        self.declare(hash, Rates::NONE, None);
    }

    fn remove_cpu(&mut self, hash: u64) {
        if let Some(at) = self.pods.iter().position(|pod| pod & !MOST == hash) {
            self.sum -= self.pods.swap_remove(at) & MOST;
        }
    }

    fn declare(&mut self, hash: u64, declares: Rates, started_at: Option<Timestamp>) {
        let next = Some((declares, started_at)).filter(|_| !declares.is_none());
        if self.declared.get(hash) != next {
            Arc::make_mut(&mut self.declared).set(hash, declares, started_at);
        }
    }

    /// What its pods declare.
    pub(super) fn declared(&self) -> &Arc<DeclaredPods> {
        &self.declared
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }
}

impl NodeCpu {
    /// The free CPU, in thousandths of a core; `None` where the node does not report what it has.
    pub(super) fn free(&self) -> Option<u64> {
        self.allocatable.map(|all| all.saturating_sub(self.requests.sum))
    }

    /// The requested CPU, in cores.
    pub(super) fn requested(&self) -> f64 {
        self.requests.sum as f64 / 1_000.0
    }
}

/// The hash of a UID, for [`Requests`].
pub(super) fn hash_of(hasher: &RandomState, pod: &PodUid) -> u64 {
    hasher.hash_one(pod) & !MOST
}

//! Everything that the extender knows of the cluster, as plain data.
//!
//! Invariants: no lock, no clock, no I/O: each method is one event, with its time where that matters, and changes the
//! data completely or not at all. [`Index::publish`] makes the next [`Snapshot`](super::Snapshot) from the nodes that
//! have changed. A node has one slot, its [`Place`](super::Place), for as long as snapshots have it.

mod back_offs;
mod cpu;
mod departures;
mod events;
mod gpu_pods;
mod groups;
mod in_flight;
mod load;
mod measure;
mod nodes;
mod nominations;
mod pod_record;
mod publish;
mod readings;
mod refused;
mod requests;
mod resource_claims;
#[cfg(test)]
pub(crate) mod tabled;
mod unmanaged;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use jiff::Timestamp;
use placement::estimate::EstimateRules;
#[cfg(doc)]
use placement::gpu::GivenOut;
use placement::load::{MetricTable, ResolvedPolicy};
use placement::policy::LoadPolicy;
use placement::units::{NodeName, PodUid};

use self::back_offs::BackOffs;
pub use self::back_offs::BegunBackOff;
pub(super) use self::cpu::PodRequest;
use self::departures::{Departure, Ended};
pub use self::events::{BoundPod, PodUse, WatchedPod};
use self::groups::Places;
use self::load::Loads;
pub(super) use self::load::{is_recent, may_start};
use self::measure::LearnedMeasure;
use self::nodes::Nodes;
use self::nominations::Plans;
use self::pod_record::PodRecord;
pub use self::pod_record::{GpuPodId, HeldByDeleted, OtherPod, PodOnGpu, ReservationError};
use self::publish::Changes;
use self::refused::RefusedReadings;
pub use self::resource_claims::ClaimingPod;
use self::resource_claims::Claims;
pub use self::unmanaged::GpuMemory;
use super::Current;
use super::estimates::LearnedUses;
use crate::tables::Table;

/// The state of the cluster, and what is learned of it.
#[derive(Debug, Clone)]
pub struct Index {
    policy: Arc<ResolvedPolicy>,
    metrics: MetricTable,
    /// Whether `node_hot_value` annotations count.
    believe_crane_hot_value: bool,
    nodes: Nodes,
    loads: Loads,
    /// The pods that request GPU memory, on any node or none.
    pods: HashMap<PodUid, PodRecord>,
    /// The GPUs that a pod would get on each node after kube-scheduler's evictions there.
    plans: Plans,
    /// GPUs that are kept for pods of groups.
    places: Places,
    /// The pods of groups.
    grouped: HashSet<PodUid>,
    /// Pods whose deletion has begun, evicted ones included.
    ending: HashMap<PodUid, Timestamp>,
    /// Deleted pods that may still have processes.
    departures: Vec<Departure>,
    /// Pods without processes that the report of their node still had.
    ended: Vec<Ended>,
    back_offs: BackOffs,
    /// As in [`GivenOut::BOTH`].
    measures: [LearnedMeasure; 2],
    learned: LearnedUses,
    /// The estimate rules of the shadow policy; `None` where it estimates nothing.
    shadow_estimates: Option<EstimateRules>,
    /// ResourceClaims of our own driver.
    claims: Claims,
    refused_readings: RefusedReadings,
    /// The number of annotations and ResourceClaims that could not be read.
    refused_objects: u64,
    changes: Changes,
    notices: Vec<Notice>,
    /// The latest time of an event.
    now: Timestamp,
}

/// What the operator should read in the log.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Notice {
    /// A pod's request for GPUs cannot be read.
    RefusedPod { uid: PodUid, namespace: String, name: String, error: String },
    /// A ResourceClaim cannot be read.
    UnreadClaim { namespace: String, name: String, error: String },
    /// A node's report of its GPUs cannot be read.
    RefusedGpus { node: NodeName, error: String },
    /// A node's annotation of what it can do cannot be read.
    RefusedSpeed { node: NodeName, error: String },
    /// A reading is not believed.
    RefusedReading { node: NodeName, metric: String, error: String },
    /// A node takes no GPU pods for a while.
    BackedOff(BegunBackOff),
}

impl Index {
    /// A cluster of which nothing is known. `believe_crane_hot_value`: whether `node_hot_value` annotations count, for
    /// clusters with crane's own annotator. Our annotator writes them for other readers only, and they stay after the
    /// hot value has fallen.
    #[must_use]
    pub fn new(policy: LoadPolicy, believe_crane_hot_value: bool) -> Self {
        let mut metrics = MetricTable::default();
        Self {
            policy: Arc::new(ResolvedPolicy::new(policy, &mut metrics)),
            metrics,
            believe_crane_hot_value,
            nodes: Nodes::default(),
            loads: Loads::default(),
            pods: HashMap::new(),
            plans: Table::Plans.empty(),
            places: Places::new(),
            grouped: HashSet::new(),
            ending: HashMap::new(),
            departures: Vec::new(),
            ended: Vec::new(),
            back_offs: BackOffs::default(),
            measures: Default::default(),
            learned: LearnedUses::default(),
            shadow_estimates: None,
            claims: Claims::default(),
            refused_readings: RefusedReadings::default(),
            refused_objects: 0,
            changes: Changes::default(),
            notices: Vec::new(),
            now: Timestamp::UNIX_EPOCH,
        }
    }

    /// The index of nodes that are none of a cluster, under its policy and with what is learned there.
    pub(super) fn beside(cluster: &Current) -> Self {
        let snapshot = &cluster.snapshot;
        let (policy, learned) = (snapshot.policy.policy.clone(), cluster.learned.clone());
        let measures = snapshot.measures.clone().map(LearnedMeasure::of);
        Self { learned, measures, ..Self::new(policy, false) }
    }

    /// Puts another policy in force.
    pub fn set_policy(&mut self, policy: LoadPolicy) {
        self.policy = self.resolve(policy);
        self.choose_all_readings();
        self.changes.others = true;
    }

    /// Resolves a policy that does not come into force, for decisions about these nodes.
    pub fn resolve(&mut self, policy: LoadPolicy) -> Arc<ResolvedPolicy> {
        Arc::new(ResolvedPolicy::new(policy, &mut self.metrics))
    }

    /// Sets the estimate rules of the shadow policy.
    pub fn set_shadow_estimates(&mut self, rules: Option<EstimateRules>) {
        self.shadow_estimates = rules;
        self.changes.others = true;
    }

    /// Changes the learned use of workloads.
    pub(super) fn change_learned(&mut self, change: impl FnOnce(&mut LearnedUses)) {
        change(&mut self.learned);
        self.changes.others = true;
    }

    /// The number of annotations and ResourceClaims that could not be read.
    #[must_use]
    pub fn refused_objects(&self) -> u64 {
        self.refused_objects
    }

    /// The readings that were not believed, by cause.
    #[must_use]
    pub fn refused_readings(&self) -> [(&'static str, u64); 3] {
        self.refused_readings.counts()
    }

    /// What is to be logged since the last call.
    pub(super) fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    /// Records the time of an event.
    fn at(&mut self, now: Timestamp) {
        self.now = now;
    }

    /// What becomes due by time alone: ends departures and places of groups, settles lost GPUs, and computes prepared
    /// values anew that are too old.
    pub fn tick(&mut self, now: Timestamp) {
        self.at(now);
        self.end_departures(now);
        self.end_old_places(now);
        self.settle_lost_gpus(now);
        self.release_held_readings();
        self.changes.too_old = true;
    }
}

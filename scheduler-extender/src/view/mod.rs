//! The state of the cluster in memory: node loads, cards, and the pods on them.
//!
//! Invariant: Filter, Prioritize, Preempt and explain take no lock that a watch event holds. The board of all nodes' loads and the
//! index of all nodes' cards are immutable values, each swapped as a whole; a ledger is locked for one change, never across an await.

mod board;
mod cards;
mod chunk_cache;
mod estimates;
mod feed;
mod in_flight;
mod refused;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwapOption;
use cluster::{GpuPod, PodFacts, WatchHealth};
use daemon::Condition;
use jiff::Timestamp;
use placement::estimate::EstimateRules;
use placement::gpu::{BeyondUnits, ChoiceRule};
use placement::policy::UnmanagedMemory;
use placement::units::NodeName;
use tokio::sync::watch;

pub use board::{Board, LoadBoard, NodeLoads, NodeNames, Place};
#[cfg(test)]
pub(crate) use cards::fixtures;
pub use cards::{
    BegunBackOff, CardBook, CardIndex, CardsOnBoard, GpuPodId, HeldByDeleted, NodeBackOffs,
    OtherPod, PodOnCard, ReservationError, Totals,
};
pub use estimates::{ByWorkload, LearnedUses, PodEstimates};
pub use feed::{
    BoundPod, PodUse, WatchedPod, end_departures, follow_nodes, follow_pods, select_pod,
};
pub use refused::RefusedReadings;

/// The state of the cluster.
pub struct View {
    /// Nodes' loads.
    pub load: LoadBoard,
    /// Nodes' cards and their ledgers.
    pub cards: CardBook,
    /// Learned use of workloads.
    pub learned: LearnedUses,
    /// The watch of nodes.
    pub nodes: WatchState,
    /// The watch of pods.
    pub pods: WatchState,
    /// The number of annotations that could not be read.
    pub refused: AtomicU64,
    /// The estimate rules of the shadow policy; `None` where it estimates nothing.
    shadow_estimates: ArcSwapOption<EstimateRules>,
}

impl View {
    /// An empty view.
    #[must_use]
    pub fn new(load: LoadBoard, nodes: WatchState, pods: WatchState) -> Self {
        Self {
            load,
            cards: CardBook::default(),
            learned: LearnedUses::default(),
            nodes,
            pods,
            refused: AtomicU64::new(0),
            shadow_estimates: ArcSwapOption::empty(),
        }
    }

    /// The rule by which cards and nodes are chosen now.
    pub fn choice_rule(&self) -> ChoiceRule {
        let strategy = self.load.read().policy.policy.gpu.placement;
        ChoiceRule { strategy, measure: self.cards.measure() }
    }

    /// Updates the unmanaged memory that counts on each node at `now`, by the policy in force.
    pub fn count_unmanaged(&self, now: Timestamp) {
        self.cards.nodes().iter().for_each(|node| self.count_unmanaged_on(node, now));
    }

    fn count_unmanaged_on(&self, node: &NodeName, now: Timestamp) {
        let rule = self.load.read().policy.policy.gpu.unmanaged_memory;
        self.cards.count_unmanaged(node, rule == UnmanagedMemory::Count, now);
    }

    /// What pods of a namespace may take of cards beyond their units, by the policy in force.
    pub fn beyond_units_of(&self, namespace: &str) -> BeyondUnits {
        self.load.read().policy.policy.gpu.beyond_units_of(namespace)
    }

    /// Applies a GPU pod from a watch event to the cards.
    fn apply_to_cards(&self, pod: &PodFacts, gpu: &GpuPod) {
        self.cards.apply(pod, &self.with_right(pod, gpu));
    }

    /// As [`CardBook::apply_known`].
    pub fn apply_known(&self, pod: &PodFacts, gpu: &GpuPod) {
        self.cards.apply_known(pod, &self.with_right(pod, gpu));
    }

    /// The pod with what its namespace may take.
    fn with_right(&self, pod: &PodFacts, gpu: &GpuPod) -> GpuPod {
        let beyond_units = self.beyond_units_of(&pod.namespace);
        let gpu = gpu.clone();
        GpuPod { request: gpu.request.with_beyond_units(beyond_units), ..gpu }
    }

    /// Whether all nodes and pods have been listed once. Before that, a card that looks free may be in use.
    pub fn is_complete(&self) -> bool {
        self.nodes.listed.load(Ordering::Acquire) && self.pods.listed.load(Ordering::Acquire)
    }
}

/// The state of one of the view's two watches.
pub struct WatchState {
    /// The health of the watch.
    pub health: WatchHealth,
    listed: AtomicBool,
    condition: Condition,
    /// The number of the last requested list.
    requested: watch::Sender<u64>,
    /// The number of the last requested list that is in the view.
    completed: watch::Sender<u64>,
}

impl WatchState {
    /// A watch without events yet; `condition` becomes ready with its first list.
    #[must_use]
    pub fn new(condition: Condition) -> Self {
        Self {
            health: WatchHealth::default(),
            listed: AtomicBool::new(false),
            condition,
            requested: watch::Sender::new(0),
            completed: watch::Sender::new(0),
        }
    }

    /// Requests a new list, and returns once a list that began after this call is in the view. `number` must be above that of
    /// every earlier call.
    pub async fn relist(&self, number: u64) {
        let mut completed = self.completed.subscribe();
        self.requested.send_replace(number);
        // Never closed: `self` holds the sender.
        let _ = completed.wait_for(|completed| *completed >= number).await;
    }

    fn set_listed(&self) {
        self.listed.store(true, Ordering::Release);
        self.condition.set_ready();
    }
}

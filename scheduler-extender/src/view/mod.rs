//! What is known of the cluster, in memory: node loads, cards, and who holds what.
//!
//! Invariant: Filter, Prioritize, Preempt and explain take no lock that a watch event holds. The board of all nodes' loads and all
//! nodes' cards are immutable values, each swapped as a whole; a ledger is locked for one change, never across an await.

mod board;
mod cards;
mod derived;
mod estimates;
mod feed;
mod in_flight;
mod refused;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwapOption;
use cluster::WatchHealth;
use daemon::Condition;
use jiff::Timestamp;
use placement::estimate::EstimateRules;
use placement::gpu::{ChoiceRule, NodeCards};
use placement::policy::UnmanagedMemory;
use placement::units::NodeName;
use tokio::sync::watch;

pub use board::{Board, LoadBoard, NodeLoads, NodeNames, Place};
#[cfg(test)]
pub(crate) use cards::fixtures;
pub use cards::{
    CardBook, CardIndex, CardsOnBoard, GpuPodId, OtherPod, PodOnCard, ReservationError, Totals,
};
pub use estimates::{ByWorkload, LearnedUses, PodEstimates};
pub use feed::{
    BoundPod, PodUse, WatchedPod, end_departures, follow_nodes, follow_pods, select_pod,
};
pub use refused::RefusedReadings;

/// Everything known of the cluster.
pub struct View {
    /// Nodes' loads.
    pub load: LoadBoard,
    /// Nodes' cards and their ledgers.
    pub cards: CardBook,
    /// What workloads were seen to use.
    pub learned: LearnedUses,
    /// The watch of nodes.
    pub nodes: Source,
    /// The watch of pods.
    pub pods: Source,
    /// Annotations that could not be read.
    pub refused: AtomicU64,
    /// How the shadow policy estimates pods; `None` where it does not.
    shadow_estimates: ArcSwapOption<EstimateRules>,
}

impl View {
    /// Nothing known yet.
    #[must_use]
    pub fn new(load: LoadBoard, nodes: Source, pods: Source) -> Self {
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

    /// How cards and nodes are chosen now.
    pub fn choice_rule(&self) -> ChoiceRule {
        let strategy = self.load.read().policy.policy.gpu.placement;
        ChoiceRule { strategy, measure: self.cards.measure() }
    }

    /// Has memory that nobody manages count as the policy in force says, at `now`.
    pub fn count_unmanaged(&self, now: Timestamp) {
        self.cards.nodes().iter().for_each(|node| self.count_unmanaged_on(node, now));
    }

    fn count_unmanaged_on(&self, node: &NodeName, now: Timestamp) {
        let rule = self.load.read().policy.policy.gpu.unmanaged_memory;
        self.cards.count_unmanaged(node, rule == UnmanagedMemory::Count, now);
    }

    /// Whether the node is known, reports no cards, and has no device plugin that offers units. kube-scheduler asks about such a node for a
    /// GPU pod only where a DRA driver serves the resource there.
    pub fn is_left_to_dra(&self, node: &NodeName) -> bool {
        let has_cards = |cards: &Arc<NodeCards>| !cards.accounts().is_empty();
        self.load.read().node(node.as_str()).is_some()
            && !self.cards.read().node(node.as_str()).is_some_and(has_cards)
            && !self.cards.unreported().contains(node)
    }

    /// Whether every node and pod has been seen once. Before that, a card that looks free may not be.
    pub fn is_complete(&self) -> bool {
        self.nodes.listed.load(Ordering::Acquire) && self.pods.listed.load(Ordering::Acquire)
    }
}

/// One of the watches that the view is fed from.
pub struct Source {
    /// How the watch fares.
    pub health: WatchHealth,
    listed: AtomicBool,
    condition: Condition,
    /// The number of the last list that was asked for.
    wanted: watch::Sender<u64>,
    /// The number of the last list that was asked for before one began that has arrived.
    arrived: watch::Sender<u64>,
}

impl Source {
    /// A watch without events yet; `condition` holds once it has listed everything.
    #[must_use]
    pub fn new(condition: Condition) -> Self {
        Self {
            health: WatchHealth::default(),
            listed: AtomicBool::new(false),
            condition,
            wanted: watch::Sender::new(0),
            arrived: watch::Sender::new(0),
        }
    }

    /// Has everything listed anew, and returns once a list is in the view that began after this call. `number` is above that of
    /// every call before.
    pub async fn list_anew(&self, number: u64) {
        let mut arrived = self.arrived.subscribe();
        self.wanted.send_replace(number);
        // Never closed: the sender is this one's.
        let _ = arrived.wait_for(|arrived| *arrived >= number).await;
    }

    fn set_listed(&self) {
        self.listed.store(true, Ordering::Release);
        self.condition.set_ready();
    }
}

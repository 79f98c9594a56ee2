//! Numbers about the fleet, and what each node adds to them.

use std::collections::BTreeMap;
use std::ops::{AddAssign, SubAssign};

use jiff::Timestamp;
use placement::units::MetricName;

/// Numbers about the fleet, for metrics and tests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    /// Nodes known.
    pub nodes: usize,
    /// Nodes whose last poll failed.
    pub silent: usize,
    /// Pairs of node and metric whose value is held back.
    pub held_back: usize,
    /// For each metric that the policy has fetched, the nodes whose exporter's last answer did not hold it.
    pub missing: BTreeMap<MetricName, usize>,
    /// Whether all pods were listed once.
    pub pods_listed: bool,
    /// Changes of single nodes taken over since the start, lists not counted.
    pub node_changes: u64,
    /// Changes of single pods taken over since the start, lists not counted.
    pub pod_changes: u64,
    /// Polls, since the start, whose readings were replaced by newer ones before they were written.
    pub writes_saved: u64,
    /// Jobs and writes of taints in flight.
    pub in_flight: usize,
    /// When a job, or a look for taints, is due next; `None` also where another replica leads.
    pub next: Option<Timestamp>,
}

/// What a node adds to the fleet's numbers: 0 or 1, but for `held_back`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// The last poll failed.
    pub(super) silent: usize,
    /// A poll succeeded, be it before the last one.
    pub(super) answering: usize,
    /// There was no poll.
    pub(super) unpolled: usize,
    /// Metrics that are held back.
    pub(super) held_back: usize,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.silent += other.silent;
        self.answering += other.answering;
        self.unpolled += other.unpolled;
        self.held_back += other.held_back;
    }
}

impl SubAssign for Counts {
    fn sub_assign(&mut self, other: Self) {
        self.silent -= other.silent;
        self.answering -= other.answering;
        self.unpolled -= other.unpolled;
        self.held_back -= other.held_back;
    }
}

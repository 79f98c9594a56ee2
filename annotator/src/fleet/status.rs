//! Numbers about the fleet, and each node's part of them.

use std::collections::BTreeMap;
use std::ops::{AddAssign, SubAssign};

use jiff::Timestamp;
use placement::units::MetricName;

/// Numbers about the fleet, for metrics and tests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    /// Nodes.
    pub nodes: usize,
    /// Nodes whose last poll failed.
    pub silent: usize,
    /// Pairs of node and metric whose value is held back.
    pub held_back: usize,
    /// For each metric of the policy's sync rules, the number of nodes whose exporter's last answer did not have it.
    pub missing: BTreeMap<MetricName, usize>,
    /// Whether all pods were listed once.
    pub pods_listed: bool,
    /// Watch events of single nodes since the start, lists not counted.
    pub node_changes: u64,
    /// Watch events of single pods since the start, lists not counted.
    pub pod_changes: u64,
    /// Polls, since the start, whose readings were replaced by newer ones before they were written.
    pub writes_saved: u64,
    /// Jobs and writes of taints in flight.
    pub in_flight: usize,
    /// When a job, or a check of taints, is due next; `None` also if another replica leads.
    pub next: Option<Timestamp>,
}

/// A node's part of the fleet's numbers: 0 or 1, except `held_back`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// The last poll failed.
    pub(super) silent: usize,
    /// A poll has succeeded, the last one or an earlier one.
    pub(super) answering: usize,
    /// The node was not polled yet.
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

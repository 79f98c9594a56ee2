//! Numbers about the fleet, and each node's part of them.

use std::collections::BTreeMap;
use std::ops::{AddAssign, SubAssign};

use jiff::Timestamp;
use placement::units::MetricName;

/// Numbers about the fleet, for metrics and tests. Only a leader polls: on another replica all that polls tell is 0.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    /// Nodes.
    pub nodes: usize,
    /// Nodes whose last poll failed.
    pub silent: usize,
    /// Nodes of which a poll has succeeded since this replica leads.
    pub answered: usize,
    /// For each metric of the policy's sync rules, and each reason
    /// ([`HoldReason::LABELS`](crate::exporter::statistics::HoldReason::LABELS)), the number of nodes whose value is
    /// held back.
    pub held_back: BTreeMap<(MetricName, &'static str), usize>,
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

/// A node's part of the fleet's numbers, each 0 or 1, and their sum.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// The last poll failed.
    pub(super) silent: usize,
    /// A poll has succeeded since this replica leads, the last one or an earlier one.
    pub(super) answered: usize,
    /// The node was not polled yet.
    pub(super) unpolled: usize,
    /// By metric and reason: its value is held back.
    pub(super) held_back: BTreeMap<(MetricName, &'static str), usize>,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.silent += other.silent;
        self.answered += other.answered;
        self.unpolled += other.unpolled;
        for (value, nodes) in other.held_back {
            *self.held_back.entry(value).or_default() += nodes;
        }
    }
}

impl SubAssign for Counts {
    fn sub_assign(&mut self, other: Self) {
        self.silent -= other.silent;
        self.answered -= other.answered;
        self.unpolled -= other.unpolled;
        for (value, nodes) in other.held_back {
            *self.held_back.entry(value).or_default() -= nodes;
        }
    }
}

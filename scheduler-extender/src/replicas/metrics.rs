//! The metrics of the leader election and of forwarded requests.

use daemon::metrics::{Counter, Gauge, Labelled, Registry, set_counter};
use settings::LeaseMetrics;

use super::Replicas;

/// The metrics of one replica among several; clones share them.
#[derive(Debug, Clone)]
pub struct ReplicaMetrics {
    leader: Gauge,
    lease: LeaseMetrics,
    forwarded: Labelled<Counter, 1>,
}

impl ReplicaMetrics {
    pub(crate) fn register(registry: &mut Registry) -> Self {
        Self {
            leader: registry.gauge(
                "plimsoll_extender_leader",
                "1 on the replica that assigns GPUs, 0 on the others",
            ),
            lease: LeaseMetrics::register(registry),
            forwarded: registry.counters(
                "plimsoll_extender_forwarded_requests_total",
                ["outcome"],
                "Requests about GPUs that came while this replica did not lead, by outcome",
            ),
        }
    }

    /// Counts a request that arrived while this replica was not the leader.
    pub(super) fn count_forwarded(&self, outcome: &'static str) {
        self.forwarded.with([outcome]).inc();
    }

    /// Counts that this replica has become the leader, which assigns GPUs.
    pub(super) fn count_term(&self) {
        self.lease.terms.inc();
    }

    /// Sets whether this replica is the leader.
    pub(crate) fn set(&self, replicas: &Replicas) {
        self.leader.set(replicas.leads().into());
        set_counter(&self.lease.failures, replicas.lease_failures());
    }
}

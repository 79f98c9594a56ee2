//! The program's metrics. Labels are bounded: reasons and outcomes come from fixed lists, metrics from the
//! policy.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cluster::{CallError, Leadership, TaintEffect, WatchHealth};
use daemon::metrics::{
    Counter, Gauge, Histogram, Labelled, Registry, WatchCounters, WatchMetrics,
    exponential_buckets, set_counter,
};

use settings::{LeaseMetrics, policy_warnings};

use crate::exporter::connections::ConnectionMetrics;
use crate::exporter::error::PollError;
use crate::fleet::Status;
use crate::pod_use::leaders_list::LeadersList;
use crate::pod_use::{ObservedPods, SharedLearner};

/// All metrics; clones share them.
#[derive(Debug, Clone)]
pub struct Metrics {
    polls: Labelled<Counter, 1>,
    poll_seconds: Histogram,
    late_seconds: Histogram,
    round_seconds: Histogram,
    connections: ConnectionMetrics,
    queries: Labelled<Counter, 1>,
    /// The outcome of the last query.
    last_query: Arc<Mutex<Option<&'static str>>>,
    nodes: Gauge,
    silent: Gauge,
    answered: Gauge,
    in_flight: Gauge,
    patches: Labelled<Counter, 1>,
    writes: Labelled<Counter, 1>,
    writes_saved: Counter,
    held_back_now: Labelled<Gauge, 2>,
    missing: Labelled<Gauge, 1>,
    tainted: Gauge,
    taint_writes: Labelled<Counter, 2>,
    band_writes: Labelled<Counter, 1>,
    leader: Gauge,
    lease: LeaseMetrics,
    policy_warnings: Gauge,
    pod_use_polls: Labelled<Counter, 1>,
    pod_uses: Labelled<Counter, 1>,
    workloads: Gauge,
    workloads_evicted: Counter,
    pub(crate) watches: WatchMetrics,
}

impl Metrics {
    /// Registers the metrics.
    pub fn register(registry: &mut Registry) -> Self {
        Self {
            polls: registry.counters(
                "plimsoll_annotator_polls_total",
                ["outcome"],
                "Polls of exporters, by outcome",
            ),
            poll_seconds: registry.histogram(
                "plimsoll_annotator_poll_duration_seconds",
                "Time from a poll to its whole answer, in seconds",
                // 0.5 ms to 16 s.
                Histogram::new(exponential_buckets(0.0005, 2.0, 16)),
            ),
            late_seconds: registry.histogram(
                "plimsoll_annotator_late_seconds",
                "Time from when a poll or write was due to its start, in seconds, without polls of silent and slow \
                 exporters",
                // 10 ms to 11 minutes. A reading is valid for its period plus 5 minutes.
                Histogram::new(exponential_buckets(0.01, 4.0, 9)),
            ),
            round_seconds: registry.histogram(
                "plimsoll_annotator_round_duration_seconds",
                "Time in which every node was polled once, in seconds, without those that were silent at its start",
                // 1 s to 68 minutes.
                Histogram::new(exponential_buckets(1.0, 2.0, 13)),
            ),
            connections: ConnectionMetrics::register(registry),
            queries: registry.counters(
                "plimsoll_annotator_source_queries_total",
                ["outcome"],
                "Requests to the source in place of exporters, by outcome",
            ),
            last_query: Arc::default(),
            nodes: registry.gauge("plimsoll_annotator_nodes", "Nodes known"),
            silent: registry
                .gauge("plimsoll_annotator_nodes_silent", "Nodes whose exporter does not answer"),
            answered: registry.gauge(
                "plimsoll_annotator_nodes_answered",
                "Nodes whose exporter, or the source in its place, has answered since this replica leads",
            ),
            in_flight: registry.gauge("plimsoll_annotator_jobs", "Polls and patches in flight"),
            patches: registry.counters(
                "plimsoll_annotator_patches_total",
                ["outcome"],
                "Patches with readings or shares of GPUs, by outcome",
            ),
            writes: registry.counters(
                "plimsoll_annotator_writes_total",
                ["reason"],
                "Patches that succeeded, by the most urgent reason",
            ),
            writes_saved: registry.counter(
                "plimsoll_annotator_writes_saved_total",
                "Polls whose readings were replaced by newer ones before they were worth a write",
            ),
            held_back_now: registry.gauges(
                "plimsoll_annotator_readings_held_back",
                ["metric", "reason"],
                "Nodes whose value of this metric of the policy is held back now, by reason",
            ),
            missing: registry.gauges(
                "plimsoll_annotator_metric_missing_nodes",
                ["metric"],
                "Nodes whose source answered without this metric of the policy",
            ),
            tainted: registry.gauge(
                "plimsoll_annotator_nodes_tainted",
                "Nodes that carry a taint for their load",
            ),
            taint_writes: registry.counters(
                "plimsoll_annotator_taint_writes_total",
                ["effect", "outcome"],
                "Writes that set or cleared that taint, by its effect and by outcome",
            ),
            band_writes: registry.counters(
                "plimsoll_annotator_band_writes_total",
                ["outcome"],
                "Writes of a node's bands, by outcome",
            ),
            leader: registry.gauge(
                "plimsoll_annotator_leader",
                "1 on the replica that polls and writes, 0 on the others",
            ),
            lease: LeaseMetrics::register(registry),
            policy_warnings: policy_warnings(registry),
            pod_use_polls: registry.counters(
                "plimsoll_annotator_pod_use_polls_total",
                ["outcome"],
                "Requests to exporters for what pods use, by outcome",
            ),
            pod_uses: registry.counters(
                "plimsoll_annotator_pod_uses_total",
                ["result"],
                "Pods in exporters' answers, by what became of their use",
            ),
            workloads: registry.gauge(
                "plimsoll_annotator_workloads",
                "Workloads whose pods' use is known",
            ),
            workloads_evicted: registry.counter(
                "plimsoll_annotator_workloads_evicted_total",
                "Workloads that made room for others",
            ),
            watches: WatchMetrics::register(registry),
        }
    }

    /// Counts a poll and how long it took.
    pub(crate) fn count_poll(&self, took: Duration, outcome: Result<(), &PollError>) {
        self.polls.with([outcome.map_or_else(PollError::reason, |()| "ok")]).inc();
        self.poll_seconds.observe(took.as_secs_f64());
    }

    /// Counts a query to the source in place of exporters.
    pub(crate) fn count_query(&self, outcome: &'static str) {
        self.queries.with([outcome]).inc();
        *self.last_query.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
    }

    /// The outcome of the last query to the source in place of exporters; `None` before the first.
    pub(crate) fn last_query(&self) -> Option<&'static str> {
        *self.last_query.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a round that took this long.
    pub(crate) fn count_round(&self, took: Duration) {
        self.round_seconds.observe(took.as_secs_f64());
    }

    /// The numbers about connections.
    pub(crate) fn connections(&self) -> ConnectionMetrics {
        self.connections.clone()
    }

    /// Counts a poll of pods' use.
    pub(crate) fn count_pod_use_poll(&self, outcome: Result<(), &PollError>) {
        let outcome = match outcome {
            Ok(()) => "ok",
            Err(PollError::Status(404)) => "not_known",
            Err(error) => error.reason(),
        };
        self.pod_use_polls.with([outcome]).inc();
    }

    /// Sets how many nodes carry a taint of ours.
    pub(crate) fn set_tainted_nodes(&self, nodes: usize) {
        self.tainted.set(count(nodes));
    }

    /// Counts a write that set a taint, or cleared it where there is no effect.
    pub(crate) fn count_taint_write(
        &self,
        effect: Option<TaintEffect>,
        outcome: Result<(), &CallError>,
    ) {
        let reason = outcome.map_or_else(call_reason, |()| "ok");
        self.taint_writes.with([effect.map_or("none", TaintEffect::name), reason]).inc();
    }

    /// Counts a write of a node's bands.
    pub(crate) fn count_band_write(&self, outcome: Result<(), &CallError>) {
        self.band_writes.with([outcome.map_or_else(call_reason, |()| "ok")]).inc();
    }

    /// Records that this replica began or ceased to lead.
    pub(crate) fn set_leading(&self, leads: bool) {
        self.leader.set(i64::from(leads));
        self.lease.terms.inc_by(leads.into());
    }

    /// Counts the pods of an exporter's answer, by result.
    pub(crate) fn count_observed_pods(&self, pods: ObservedPods) {
        let ObservedPods { observed, elsewhere, refused } = pods;
        for (label, count) in
            [("observed", observed), ("elsewhere", elsewhere), ("refused", refused)]
        {
            self.pod_uses.with([label]).inc_by(count);
        }
    }

    /// Counts a patch, made for this reason.
    pub(crate) fn count_patch(&self, reason: &'static str, outcome: Result<(), &CallError>) {
        if outcome.is_ok() {
            self.writes.with([reason]).inc();
        }
        self.patches.with([outcome.map_or_else(call_reason, |()| "ok")]).inc();
    }

    /// Counts a job that started this long after it was due.
    pub(crate) fn count_start(&self, late: Duration) {
        self.late_seconds.observe(late.as_secs_f64());
    }

    /// Sets the number of warnings about the policy in force.
    pub(crate) fn set_policy_warnings(&self, warnings: usize) {
        self.policy_warnings.set(count(warnings));
    }

    /// Another policy is in force: its metrics get gauges with the next status.
    pub(crate) fn clear_metrics_of_policy(&self) {
        self.missing.clear();
        self.held_back_now.clear();
    }

    /// Sets the gauges.
    pub(crate) fn set_status(&self, status: &Status) {
        self.nodes.set(count(status.nodes));
        self.silent.set(count(status.silent));
        self.answered.set(count(status.answered));
        self.in_flight.set(count(status.in_flight));
        set_counter(&self.writes_saved, status.writes_saved);
        set_counter(&self.watches.read_in_part, cluster::objects_read_in_part());
        for (metric, nodes) in &status.missing {
            self.missing.with([metric.to_string()]).set(count(*nodes));
        }
        for ((metric, reason), nodes) in &status.held_back {
            self.held_back_now
                .with([Cow::Owned(metric.to_string()), Cow::Borrowed(*reason)])
                .set(count(*nodes));
        }
    }

    /// Sets the number of failed calls about the Lease.
    pub(crate) fn set_lease(&self, leadership: &Leadership) {
        set_counter(&self.lease.failures, leadership.failures());
    }

    /// Sets the numbers of the learner, and of the leader's list, which a replica that does not lead has.
    pub(crate) fn set_learner(&self, (learner, leaders_list): &(SharedLearner, LeadersList)) {
        let stats = learner.lock().unwrap_or_else(PoisonError::into_inner).stats();
        let list = leaders_list.lock().unwrap_or_else(PoisonError::into_inner);
        self.workloads.set(count(stats.workloads.max(list.as_ref().map_or(0, Vec::len))));
        set_counter(&self.pod_uses.with(["implausible"]), stats.refused);
        set_counter(&self.workloads_evicted, stats.evicted);
    }
}

fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// The value of the label `outcome` of a failed call to the API server.
pub(crate) fn call_reason(error: &CallError) -> &'static str {
    match error {
        CallError::NotFound(_) => "not_found",
        CallError::Conflict(_) => "conflict",
        CallError::Refused { .. } => "refused",
        CallError::Unknown(_) => "unknown",
    }
}

/// Sets the metrics of a watch to what the watch itself counted.
pub(crate) fn set_watch(metrics: &WatchCounters, health: &WatchHealth) {
    set_counter(&metrics.events, health.events());
    set_counter(&metrics.lists, health.lists());
    set_counter(&metrics.errors, health.errors());
}

//! The program's metrics. Labels are bounded: reasons and outcomes come from fixed lists, metrics from the
//! policy.

use std::fmt;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cluster::{CallError, Leadership, TaintEffect, WatchHealth};
use daemon::Registry;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

use crate::exporter::connections::ConnectionMetrics;
use crate::exporter::error::PollError;
use crate::exporter::statistics::HoldReason;
use crate::fleet::Status;
use crate::pod_use::leaders_list::LeadersList;
use crate::pod_use::{ObservedPods, SharedLearner};

type Label = [(&'static str, &'static str); 1];

type MetricLabel = [(&'static str, String); 1];

/// All metrics; clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Metrics {
    polls: Family<Label, Counter>,
    poll_seconds: Histogram,
    round_seconds: Histogram,
    queries: Family<Label, Counter>,
    query_seconds: Histogram,
    connections: ConnectionMetrics,
    patches: Family<Label, Counter>,
    writes: Family<Label, Counter>,
    writes_saved: Counter,
    readings: Counter,
    late_seconds: Histogram,
    policy_reads: Family<Label, Counter>,
    policy_warnings: Gauge,
    credential_reads: Family<Label, Counter>,
    held_back: Family<Label, Counter>,
    held_back_now: Gauge,
    missing: Family<MetricLabel, Gauge>,
    nodes: Gauge,
    silent: Gauge,
    in_flight: Gauge,
    tainted: Gauge,
    taint_writes: Family<[(&'static str, &'static str); 2], Counter>,
    leader: Gauge,
    leader_changes: Counter,
    pod_use_polls: Family<Label, Counter>,
    pod_uses: Family<Label, Counter>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            polls: Family::default(),
            // 0.5 ms to 16 s.
            poll_seconds: Histogram::new(exponential_buckets(0.0005, 2.0, 16)),
            // 1 s to 68 minutes.
            round_seconds: Histogram::new(exponential_buckets(1.0, 2.0, 13)),
            queries: Family::default(),
            // 2 ms to 33 s.
            query_seconds: Histogram::new(exponential_buckets(0.002, 2.0, 15)),
            connections: ConnectionMetrics::default(),
            patches: Family::default(),
            writes: Family::default(),
            writes_saved: Counter::default(),
            readings: Counter::default(),
            // 10 ms to 11 minutes. A reading is valid for its period plus 5 minutes.
            late_seconds: Histogram::new(exponential_buckets(0.01, 4.0, 9)),
            policy_reads: Family::default(),
            policy_warnings: Gauge::default(),
            credential_reads: Family::default(),
            held_back: Family::default(),
            held_back_now: Gauge::default(),
            missing: Family::default(),
            nodes: Gauge::default(),
            silent: Gauge::default(),
            in_flight: Gauge::default(),
            tainted: Gauge::default(),
            taint_writes: Family::default(),
            leader: Gauge::default(),
            leader_changes: Counter::default(),
            pod_use_polls: Family::default(),
            pod_uses: Family::default(),
        }
    }
}

impl Metrics {
    /// Registers new metrics under the prefix `annotator`.
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let all = metrics.clone();
        let registry = registry.sub_registry_with_prefix("annotator");
        registry.register("polls", "Polls of exporters, by outcome", all.polls);
        registry.register(
            "poll_duration_seconds",
            "Time from a poll to the whole answer",
            all.poll_seconds,
        );
        registry.register(
            "round_duration_seconds",
            "Time in which every node was polled once, but those that were silent at its start",
            all.round_seconds,
        );
        registry.register(
            "source_queries",
            "Questions to the source in place of exporters, by outcome",
            all.queries,
        );
        registry.register(
            "source_query_duration_seconds",
            "Time from a question to that source to the whole answer",
            all.query_seconds,
        );
        let ConnectionMetrics { opened, idle } = all.connections;
        registry.register("connections_opened", "Connections made to exporters", opened);
        registry.register("connections_idle", "Connections kept for the next poll", idle);
        registry.register("patches", "Patches of nodes, by outcome", all.patches);
        registry.register(
            "writes",
            "Nodes written, by the most urgent reason; without readings it is the share of cards alone",
            all.writes,
        );
        registry.register(
            "writes_saved",
            "Polls whose readings were replaced by newer ones before they were worth a write",
            all.writes_saved,
        );
        registry.register("readings", "Readings written", all.readings);
        registry.register(
            "late_seconds",
            "Time from when a job was due to its start; polls of silent and slow exporters are not counted",
            all.late_seconds,
        );
        registry.register(
            "policy_reads",
            "Changes of the policy file, by outcome",
            all.policy_reads,
        );
        registry.register(
            "policy_warnings",
            "Parts of the policy in force that are probably not meant, as the log says",
            all.policy_warnings,
        );
        registry.register(
            "credential_reads",
            "Changes of the CA and token for exporters or Prometheus, by outcome",
            all.credential_reads,
        );
        registry.register(
            "held_back",
            "Values in answers that were not written, by reason",
            all.held_back,
        );
        registry.register(
            "readings_held_back",
            "Pairs of node and metric whose value is held back now",
            all.held_back_now,
        );
        registry.register(
            "metric_missing_nodes",
            "Nodes whose exporter, or the source in its place, did not tell the metric \
             of the policy",
            all.missing,
        );
        registry.register("nodes", "Nodes known", all.nodes);
        registry.register("nodes_silent", "Nodes whose exporter does not answer", all.silent);
        registry.register("jobs", "Polls and patches in flight", all.in_flight);
        registry.register("nodes_tainted", "Nodes that carry a taint for their load", all.tainted);
        registry.register(
            "taint_writes",
            "Writes of that taint, by its effect or none, and by outcome",
            all.taint_writes,
        );
        registry.register("leader", "1 where this replica leads: it polls and writes", all.leader);
        registry.register(
            "leader_transitions",
            "Times that this replica began or ceased to lead",
            all.leader_changes,
        );
        registry.register(
            "pod_use_polls",
            "Questions to exporters what pods use, by outcome",
            all.pod_use_polls,
        );
        registry.register(
            "pod_uses",
            "Pods in exporters' answers, by what was made of their use",
            all.pod_uses,
        );
        metrics
    }

    /// Counts a poll and how long it took.
    pub(crate) fn count_poll(&self, took: Duration, outcome: Result<(), &PollError>) {
        let outcome = outcome.map_or_else(PollError::reason, |()| "ok");
        self.polls.get_or_create(&[("outcome", outcome)]).inc();
        self.poll_seconds.observe(took.as_secs_f64());
    }

    /// Counts a query to the source in place of exporters, and its duration.
    pub(crate) fn count_query(&self, outcome: &'static str, took: Duration) {
        self.queries.get_or_create(&[("outcome", outcome)]).inc();
        self.query_seconds.observe(took.as_secs_f64());
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
        self.pod_use_polls.get_or_create(&[("outcome", outcome)]).inc();
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
        let effect = effect.map_or("none", TaintEffect::name);
        let outcome = outcome.map_or_else(call_reason, |()| "ok");
        self.taint_writes.get_or_create(&[("effect", effect), ("outcome", outcome)]).inc();
    }

    /// Records that this replica began or ceased to lead.
    pub(crate) fn set_leading(&self, leads: bool) {
        self.leader.set(i64::from(leads));
        self.leader_changes.inc();
    }

    /// Counts the pods of an exporter's answer, by result.
    pub(crate) fn count_observed_pods(&self, pods: ObservedPods) {
        let ObservedPods { observed, elsewhere, refused } = pods;
        for (label, count) in
            [("observed", observed), ("elsewhere", elsewhere), ("refused", refused)]
        {
            self.pod_uses.get_or_create(&[("result", label)]).inc_by(count);
        }
    }

    /// Counts a patch, made for this reason and with so many readings.
    pub(crate) fn count_patch(
        &self,
        reason: &'static str,
        readings: usize,
        outcome: Result<(), &CallError>,
    ) {
        if outcome.is_ok() {
            self.readings.inc_by(readings as u64);
            self.writes.get_or_create(&[("reason", reason)]).inc();
        }
        let outcome = outcome.map_or_else(call_reason, |()| "ok");
        self.patches.get_or_create(&[("outcome", outcome)]).inc();
    }

    /// Counts a job that started this long after it was due.
    pub(crate) fn count_start(&self, late: Duration) {
        self.late_seconds.observe(late.as_secs_f64());
    }

    /// Counts a change of the policy file.
    pub(crate) fn count_policy_read(&self, accepted: bool) {
        let outcome = if accepted { "changed" } else { "refused" };
        self.policy_reads.get_or_create(&[("outcome", outcome)]).inc();
    }

    /// Counts a change of the exporters' credentials.
    pub(crate) fn count_credentials_read(&self, accepted: bool) {
        let outcome = if accepted { "changed" } else { "refused" };
        self.credential_reads.get_or_create(&[("outcome", outcome)]).inc();
    }

    /// Counts a value that was held back.
    pub(crate) fn count_held_back(&self, reason: &HoldReason) {
        self.held_back.get_or_create(&[("reason", reason.label())]).inc();
    }

    /// Sets the number of warnings about the policy in force.
    pub(crate) fn set_policy_warnings(&self, warnings: usize) {
        self.policy_warnings.set(count(warnings));
    }

    /// Another policy is in force: its metrics get gauges with the next status.
    pub(crate) fn clear_missing(&self) {
        self.missing.clear();
    }

    /// Sets the gauges.
    pub(crate) fn set_status(&self, status: &Status) {
        self.nodes.set(count(status.nodes));
        self.silent.set(count(status.silent));
        self.held_back_now.set(count(status.held_back));
        self.in_flight.set(count(status.in_flight));
        self.writes_saved.inner().store(status.writes_saved, Ordering::Relaxed);
        for (metric, nodes) in &status.missing {
            let label = [("metric", metric.to_string())];
            self.missing.get_or_create(&label).set(count(*nodes));
        }
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

/// Registers numbers that are read at each scrape, under the prefix `annotator`.
pub(crate) fn register_collector(registry: &mut Registry, collector: impl Collector) {
    registry.sub_registry_with_prefix("annotator").register_collector(Box::new(collector));
}

/// The counters of one watch, read at each scrape.
#[derive(Debug)]
pub(crate) struct WatchMetrics {
    /// `nodes` or `pods`.
    pub what: &'static str,
    /// Its counters.
    pub health: WatchHealth,
}

impl Collector for WatchMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let WatchMetrics { what, health } = self;
        for (name, help, value) in [
            ("events", "Objects that the watch delivered", health.events()),
            (
                "lists",
                "Complete lists; more than one: the watch could not be resumed",
                health.lists(),
            ),
            ("errors", "Failures of the watch", health.errors()),
        ] {
            let name = format!("watch_{what}_{name}");
            let metric = ConstCounter::new(value);
            metric.encode(encoder.encode_descriptor(&name, help, None, metric.metric_type())?)?;
        }
        Ok(())
    }
}

/// The failed calls about the Lease, read at each scrape.
#[derive(Debug)]
pub(crate) struct LeaseMetrics(pub Leadership);

impl Collector for LeaseMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let failures = ConstCounter::new(self.0.failures());
        let help = "Times that the Lease could be neither read nor renewed";
        let metric_type = failures.metric_type();
        failures.encode(encoder.encode_descriptor("lease_failures", help, None, metric_type)?)
    }
}

/// The numbers of the learner, read at each scrape.
#[derive(Debug)]
pub(crate) struct LearnerMetrics(pub SharedLearner, pub LeadersList);

impl Collector for LearnerMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let stats = self.0.lock().unwrap_or_else(PoisonError::into_inner).stats();
        // A replica that does not lead has the leader's list.
        let in_list = self.1.lock().unwrap_or_else(PoisonError::into_inner).len();
        let known = ConstGauge::new(count(stats.workloads.max(in_list)));
        let help = "Workloads whose pods' use is known";
        known.encode(encoder.encode_descriptor("workloads", help, None, known.metric_type())?)?;
        for (name, help, value) in [
            ("workload_observations", "Uses of a pod that were learned from", stats.observations),
            ("workload_uses_refused", "Amounts that no pod can use", stats.refused),
            ("workloads_evicted", "Workloads that made room for others", stats.evicted),
        ] {
            let metric = ConstCounter::new(value);
            metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)?;
        }
        Ok(())
    }
}

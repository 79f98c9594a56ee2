//! The program's metrics. The values of labels are bounded: verbs, outcomes, the policy's metrics.

use std::borrow::Cow;
use std::sync::Arc;

use daemon::metrics::{
    Counter, Gauge, Histogram, Labelled, Registry, WatchCounters, WatchMetrics,
    exponential_buckets, set_counter,
};
use daemon::tls::TlsMetrics;
use jiff::Timestamp;
use settings::{LeaseMetrics, policy_warnings};

use crate::annotator_client::ReadError;
use crate::decisions::{DecisionLog, OverLimitCause};
use crate::health::Calls;
use crate::replicas::Replicas;
use crate::shadow::Comparison;
use crate::view::{Index, View, WatchState};

/// All metrics; clones share them.
#[derive(Debug, Clone)]
pub struct Metrics {
    /// kube-scheduler's, for the health.
    pub(crate) calls: Arc<Calls>,
    requests: Labelled<Counter, 2>,
    seconds: Labelled<Histogram, 1>,
    rejected: Labelled<Counter, 2>,
    passed_over_limits: Labelled<Counter, 1>,
    binds: Labelled<Counter, 1>,
    card_evictions: Labelled<Counter, 1>,
    leader: Gauge,
    lease: LeaseMetrics,
    forwarded: Labelled<Counter, 1>,
    pub(crate) tls: TlsMetrics,
    decisions_kept: Gauge,
    readings_reads: Labelled<Counter, 1>,
    readings_read: Gauge,
    view: ViewMetrics,
    /// The shadow policy's.
    pub(crate) shadow: ShadowMetrics,
}

/// Metrics that are served nowhere.
impl Default for Metrics {
    fn default() -> Self {
        Self::register(&mut Registry::default())
    }
}

impl Metrics {
    /// Registers the metrics.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            calls: Arc::default(),
            requests: registry.counters(
                "plimsoll_extender_requests_total",
                ["verb", "outcome"],
                "Requests that were answered, by verb and outcome",
            ),
            seconds: registry.histograms(
                "plimsoll_extender_request_duration_seconds",
                ["verb"],
                "Time from a request's body to its answer, in seconds",
                request_duration,
            ),
            rejected: registry.counters(
                "plimsoll_extender_rejected_nodes_total",
                ["verb", "reason"],
                "Nodes that calls of Filter rejected, by verb and reason",
            ),
            passed_over_limits: registry.counters(
                "plimsoll_extender_passed_over_limits_total",
                ["cause"],
                "Calls of Filter that let nodes pass over a limit, since every node was over one, by cause",
            ),
            binds: registry.counters(
                "plimsoll_extender_binds_total",
                ["outcome"],
                "Bindings by how they ended, and calls of Bind that joined one in progress",
            ),
            card_evictions: registry.counters(
                "plimsoll_extender_card_evictions_total",
                ["outcome"],
                "Evictions of pods for the cards of a pod that waits, by outcome",
            ),
            leader: registry.gauge(
                "plimsoll_extender_leader",
                "1 on the replica that assigns cards, 0 on the others",
            ),
            lease: LeaseMetrics::register(registry),
            forwarded: registry.counters(
                "plimsoll_extender_forwarded_requests_total",
                ["outcome"],
                "Requests about cards that came while this replica did not lead, by outcome",
            ),
            tls: TlsMetrics::register(registry),
            decisions_kept: registry.gauge(
                "plimsoll_extender_decisions_kept",
                "Pods whose last decision is kept",
            ),
            readings_reads: registry.counters(
                "plimsoll_extender_readings_reads_total",
                ["outcome"],
                "Reads of the annotator's readings over its own channel, by outcome",
            ),
            readings_read: registry.gauge(
                "plimsoll_extender_readings_read_seconds",
                "When such a read last succeeded, in Unix time; 0 if none has",
            ),
            view: ViewMetrics::register(registry),
            shadow: ShadowMetrics::register(registry),
        };
        // A rate sees the first of them only where there was a 0 before.
        for cause in OverLimitCause::ALL {
            metrics.passed_over_limits.with([cause.label()]);
        }
        metrics
    }

    /// Counts a call and its time in seconds.
    pub(crate) fn count_call(&self, verb: &'static str, outcome: &'static str, seconds: f64) {
        self.calls.count(verb, outcome);
        self.requests.with([verb, outcome]).inc();
        self.seconds.with([verb]).observe(seconds);
    }

    /// Counts nodes that were rejected for one reason.
    pub(crate) fn count_rejected_nodes(&self, verb: &'static str, reason: &str, nodes: u64) {
        self.rejected.with([Cow::Borrowed(verb), Cow::Owned(reason.to_owned())]).inc_by(nodes);
    }

    /// Counts a call that let nodes pass over their limits.
    pub(crate) fn count_passed_over_limits(&self, cause: OverLimitCause) {
        self.passed_over_limits.with([cause.label()]).inc();
    }

    /// Counts a binding by its outcome.
    pub(crate) fn count_bind(&self, outcome: &'static str) {
        self.binds.with([outcome]).inc();
    }

    /// Counts an eviction for a card by its outcome.
    pub(crate) fn count_card_eviction(&self, outcome: &'static str) {
        self.card_evictions.with([outcome]).inc();
    }

    /// Counts a request that arrived while this replica was not the leader.
    pub(crate) fn count_forwarded(&self, outcome: &'static str) {
        self.forwarded.with([outcome]).inc();
    }

    /// Counts that this replica has become the leader, which assigns cards.
    pub(crate) fn count_term(&self) {
        self.lease.terms.inc();
    }

    /// Counts a read of the annotator's readings that ended at `now`.
    pub(crate) fn count_readings_read(&self, error: Option<&ReadError>, now: Timestamp) {
        self.readings_reads.with([error.map_or("ok", ReadError::label)]).inc();
        if error.is_none() {
            self.readings_read.set(now.as_second());
        }
    }

    /// Sets whether this replica is the leader.
    pub(crate) fn set_replicas(&self, replicas: &Arc<Replicas>) {
        self.leader.set(replicas.leads().into());
        set_counter(&self.lease.failures, replicas.lease_failures());
    }

    /// Sets how many decisions are kept.
    pub(crate) fn set_decisions(&self, decisions: &Arc<DecisionLog>) {
        let size = decisions.size();
        self.decisions_kept.set(count(size.pods as u64));
    }

    /// Sets what the view contains.
    pub(crate) fn set_view(&self, view: &Arc<View>) {
        self.view.set(view, Timestamp::now());
    }
}

/// 50 µs (a handful of names) to 6.5 s (beyond any deadline).
fn request_duration() -> Histogram {
    Histogram::new(exponential_buckets(50e-6, 2.0, 18))
}

/// The contents of the view.
#[derive(Debug, Clone)]
struct ViewMetrics {
    nodes: Gauge,
    gpu_nodes: Gauge,
    gpu_cards: Gauge,
    gpu_cards_unhealthy: Gauge,
    gpu_units: Gauge,
    gpu_units_used: Gauge,
    gpu_units_overbooked: Gauge,
    gpu_reservations: Gauge,
    gpu_nodes_backed_off: Gauge,
    refused_gpu_pods: Counter,
    refused_objects: Counter,
    policy_warnings: Gauge,
    without_reading: Labelled<Gauge, 1>,
    refused_readings: Labelled<Counter, 1>,
    watches: WatchMetrics,
}

impl ViewMetrics {
    fn register(registry: &mut Registry) -> Self {
        Self {
            nodes: registry.gauge("plimsoll_extender_nodes", "Nodes known"),
            gpu_nodes: registry.gauge("plimsoll_extender_gpu_nodes", "Nodes that report cards"),
            gpu_cards: registry.gauge("plimsoll_extender_gpu_cards", "Cards reported"),
            gpu_cards_unhealthy: registry
                .gauge("plimsoll_extender_gpu_cards_unhealthy", "Cards reported as unhealthy"),
            gpu_units: registry.gauge("plimsoll_extender_gpu_units", "Units of all cards"),
            gpu_units_used: registry.gauge("plimsoll_extender_gpu_units_used", "Units that pods hold"),
            gpu_units_overbooked: registry.gauge(
                "plimsoll_extender_gpu_units_overbooked",
                "Units that pods hold beyond those of their cards",
            ),
            gpu_reservations: registry.gauge(
                "plimsoll_extender_gpu_reservations",
                "Reservations of cards that the API server has not confirmed",
            ),
            gpu_nodes_backed_off: registry.gauge(
                "plimsoll_extender_gpu_nodes_backed_off",
                "Nodes that take no GPU pods of some namespace for a while, since they refused several",
            ),
            refused_gpu_pods: registry.counter(
                "plimsoll_extender_refused_gpu_pods_total",
                "GPU pods that Bind had given a card and that their node refused, or could not start, by its own fault",
            ),
            refused_objects: registry.counter(
                "plimsoll_extender_refused_objects_total",
                "Events of pods and nodes whose GPU request, claim or cards could not be read",
            ),
            policy_warnings: policy_warnings(registry),
            without_reading: registry.gauges(
                "plimsoll_extender_nodes_without_fresh_reading",
                ["metric"],
                "Nodes without a fresh reading of a metric of the policy",
            ),
            refused_readings: registry.counters(
                "plimsoll_extender_refused_readings_total",
                ["cause"],
                "Readings that were not believed and count as missing, by cause",
            ),
            watches: WatchMetrics::register(registry),
        }
    }

    fn set(&self, view: &View, now: Timestamp) {
        let snapshot = view.read();
        let totals = snapshot.totals();
        self.nodes.set(count(snapshot.loads().count() as u64));
        self.gpu_nodes.set(count(totals.nodes));
        self.gpu_cards.set(count(totals.cards));
        self.gpu_cards_unhealthy.set(count(totals.unhealthy));
        self.gpu_units.set(count(totals.units));
        self.gpu_units_used.set(count(totals.used));
        self.gpu_units_overbooked.set(count(totals.overbooked));
        self.gpu_reservations.set(count(totals.reserved));
        let backed_off = snapshot.back_offs.values().filter(|node| node.is_on(now)).count();
        self.gpu_nodes_backed_off.set(count(backed_off as u64));
        set_counter(&self.refused_gpu_pods, view.ask(Index::refused_pods));
        set_counter(&self.refused_objects, view.ask(Index::refused_objects));
        set_counter(&self.watches.read_in_part, cluster::objects_read_in_part());
        let warnings = snapshot.policy.policy.warnings_of_any_source().len();
        self.policy_warnings.set(count(warnings as u64));
        // Another policy may have other metrics.
        self.without_reading.clear();
        for (metric, nodes) in snapshot.nodes_without_reading(now) {
            self.without_reading.with([metric.to_string()]).set(count(nodes));
        }
        for (cause, readings) in view.ask(Index::refused_readings) {
            set_counter(&self.refused_readings.with([cause]), readings);
        }
        set_watch(&self.watches.of("nodes"), &view.nodes);
        set_watch(&self.watches.of("pods"), &view.pods);
    }
}

/// Sets the metrics of a watch to what the watch itself counted.
fn set_watch(metrics: &WatchCounters, watch: &WatchState) {
    set_counter(&metrics.events, watch.health.events());
    set_counter(&metrics.lists, watch.health.lists());
    set_counter(&metrics.errors, watch.health.errors());
}

/// The shadow policy's metrics; clones share them.
#[derive(Debug, Clone)]
pub struct ShadowMetrics {
    compared: Counter,
    disagreements: Labelled<Counter, 1>,
    /// Decisions that were not compared because too many were waiting.
    pub skipped: Counter,
}

impl ShadowMetrics {
    fn register(registry: &mut Registry) -> Self {
        let decisions = registry.counters(
            "plimsoll_extender_shadow_decisions_total",
            ["outcome"],
            "Decisions that were compared with the shadow policy's, and that were not, by outcome",
        );
        Self {
            compared: decisions.with(["compared"]),
            skipped: decisions.with(["skipped"]),
            disagreements: registry.counters(
                "plimsoll_extender_shadow_disagreements_total",
                ["kind"],
                "Decisions that the shadow policy would have made otherwise, by what differs",
            ),
        }
    }

    /// Counts a comparison.
    pub(crate) fn count_comparison(&self, comparison: &Comparison) {
        self.compared.inc();
        let kinds =
            [("filter", comparison.differs_in_filter()), ("score", comparison.differs_in_score())];
        for (kind, differs) in kinds {
            self.disagreements.with([kind]).inc_by(u64::from(differs));
        }
    }
}

fn count(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

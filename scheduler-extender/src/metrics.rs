//! The program's metrics. The values of labels are bounded: verbs, outcomes, the policy's metrics.

use std::borrow::Cow;
use std::sync::Arc;

use daemon::metrics::{Counter, Gauge, Histogram, Labelled, Registry, exponential_buckets};
use daemon::tls::TlsMetrics;
use jiff::Timestamp;

use crate::annotator_client::ReadError;
use crate::decisions::{DecisionLog, OverLimitCause};
use crate::health::Calls;
use crate::replicas::{ReplicaMetrics, Replicas};
use crate::shadow::ShadowMetrics;
use crate::view::{View, ViewMetrics};

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
    gpu_evictions: Labelled<Counter, 1>,
    /// Those of the leader election.
    pub(crate) replicas: ReplicaMetrics,
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
            gpu_evictions: registry.counters(
                "plimsoll_extender_card_evictions_total",
                ["outcome"],
                "Evictions of pods for the GPUs of a pod that waits, by outcome",
            ),
            replicas: ReplicaMetrics::register(registry),
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

    /// Counts an eviction for a GPU by its outcome.
    pub(crate) fn count_gpu_eviction(&self, outcome: &'static str) {
        self.gpu_evictions.with([outcome]).inc();
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
        self.replicas.set(replicas);
    }

    /// Sets how many decisions are kept.
    pub(crate) fn set_decisions(&self, decisions: &Arc<DecisionLog>) {
        self.decisions_kept.set(i64::try_from(decisions.size().pods).unwrap_or(i64::MAX));
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

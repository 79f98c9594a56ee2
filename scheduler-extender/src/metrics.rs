//! Counters and gauges of the process. The values of labels are bounded: verbs, outcomes, the policy's metrics.

use std::fmt;
use std::sync::Arc;

use daemon::Registry;
use daemon::follow::Current;
use daemon::tls::ServerTls;
use jiff::Timestamp;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Unit;

use crate::decisions::DecisionLog;
use crate::replicas::Replicas;
use crate::shadow::Comparison;
use crate::view::{Index, View, WatchState};

/// Labels of a call: entry and verb, such as `load-aware/filter`, and the outcome.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct CallLabels {
    verb: &'static str,
    outcome: &'static str,
}

/// The label of a verb.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct VerbLabel {
    verb: &'static str,
}

/// Labels of rejected nodes: the verb and the reason.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RejectionLabels {
    verb: &'static str,
    reason: String,
}

/// The label of an outcome.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct OutcomeLabel {
    outcome: &'static str,
}

/// The counters; clones share them.
#[derive(Clone)]
pub struct Metrics {
    requests: Family<CallLabels, Counter>,
    seconds: Family<VerbLabel, Histogram, fn() -> Histogram>,
    rejected: Family<RejectionLabels, Counter>,
    passed_over_limits: Counter,
    binds: Family<OutcomeLabel, Counter>,
    card_evictions: Family<OutcomeLabel, Counter>,
    policy_reads: Family<OutcomeLabel, Counter>,
    forwarded: Family<OutcomeLabel, Counter>,
    terms: Counter,
    certificate_reads: Family<OutcomeLabel, Counter>,
    handshake_failures: Counter,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            requests: Family::default(),
            // 50 µs (a handful of names) to 6.5 s (beyond any deadline).
            seconds: Family::new_with_constructor(|| {
                Histogram::new(exponential_buckets(50e-6, 2.0, 18))
            }),
            rejected: Family::default(),
            passed_over_limits: Counter::default(),
            binds: Family::default(),
            card_evictions: Family::default(),
            policy_reads: Family::default(),
            forwarded: Family::default(),
            terms: Counter::default(),
            certificate_reads: Family::default(),
            handshake_failures: Counter::default(),
        }
    }
}

impl Metrics {
    /// Registers the metrics.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let registry = registry.sub_registry_with_prefix("extender");
        registry.register(
            "requests",
            "Calls of kube-scheduler, by verb and outcome",
            metrics.requests.clone(),
        );
        registry.register(
            "request_duration_seconds",
            "From a call's body to its answer",
            metrics.seconds.clone(),
        );
        registry.register(
            "rejected_nodes",
            "Nodes that Filter rejected, by reason",
            metrics.rejected.clone(),
        );
        registry.register(
            "passed_over_limits",
            "Calls of Filter that let the least loaded nodes pass, since every node was over a limit",
            metrics.passed_over_limits.clone(),
        );
        registry.register("binds", "Bindings by how they ended", metrics.binds.clone());
        let help = "Evictions of pods for the card of a more important one, by how they ended";
        registry.register("card_evictions", help, metrics.card_evictions.clone());
        registry.register(
            "policy_reads",
            "Readings of the policy file",
            metrics.policy_reads.clone(),
        );
        let help = "Requests about cards that came while this replica did not lead, by what became of them";
        registry.register("forwarded_requests", help, metrics.forwarded.clone());
        let help = "How often this replica has become the one that gives out cards";
        registry.register("terms", help, metrics.terms.clone());
        registry.register(
            "certificate_reads",
            "Changes of the files of TLS: changed, or refused with the ones before still in force",
            metrics.certificate_reads.clone(),
        );
        registry.register(
            "tls_handshake_failures",
            "Connections that ended before their TLS handshake was done, as those of clients without the right \
             certificate",
            metrics.handshake_failures.clone(),
        );
        metrics
    }

    /// Counts a call and its time in seconds.
    pub(crate) fn count_call(&self, verb: &'static str, outcome: &'static str, seconds: f64) {
        self.requests.get_or_create(&CallLabels { verb, outcome }).inc();
        self.seconds.get_or_create(&VerbLabel { verb }).observe(seconds);
    }

    /// Counts nodes that were rejected for one reason.
    pub(crate) fn count_rejected_nodes(&self, verb: &'static str, reason: &str, nodes: u64) {
        let rejection = RejectionLabels { verb, reason: reason.to_owned() };
        self.rejected.get_or_create(&rejection).inc_by(nodes);
    }

    /// Counts a call that let nodes pass over their limits.
    pub(crate) fn count_passed_over_limits(&self) {
        self.passed_over_limits.inc();
    }

    /// Counts a binding by its outcome.
    pub(crate) fn count_bind(&self, outcome: &'static str) {
        self.binds.get_or_create(&OutcomeLabel { outcome }).inc();
    }

    /// Counts an eviction for a card by its outcome.
    pub(crate) fn count_card_eviction(&self, outcome: &'static str) {
        self.card_evictions.get_or_create(&OutcomeLabel { outcome }).inc();
    }

    /// Counts a read of the policy file.
    pub(crate) fn count_policy_read(&self, outcome: &'static str) {
        self.policy_reads.get_or_create(&OutcomeLabel { outcome }).inc();
    }

    /// Counts a read of the TLS files after a change.
    pub(crate) fn count_certificate_read(&self, outcome: &'static str) {
        self.certificate_reads.get_or_create(&OutcomeLabel { outcome }).inc();
    }

    /// The counter of failed TLS handshakes.
    pub(crate) fn handshake_failures(&self) -> Counter {
        self.handshake_failures.clone()
    }

    /// Counts a request that arrived while this replica was not the leader.
    pub(crate) fn count_forwarded(&self, outcome: &'static str) {
        self.forwarded.get_or_create(&OutcomeLabel { outcome }).inc();
    }

    /// Counts that this replica has become the leader, which assigns cards.
    pub(crate) fn count_term(&self) {
        self.terms.inc();
    }
}

/// Whether this replica is the leader, read at each scrape.
#[derive(Debug)]
pub struct ReplicaMetrics(Arc<Replicas>);

impl ReplicaMetrics {
    /// Registers the metrics.
    pub fn register(replicas: Arc<Replicas>, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("extender");
        registry.register_collector(Box::new(Self(replicas)));
    }
}

impl Collector for ReplicaMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let help = "1 on the replica that gives out cards";
        encode_gauge(&mut encoder, "leader", help, u64::from(self.0.leads()))?;
        let failures = ConstCounter::new(self.0.lease_failures());
        let help = "Times that the Lease could be neither read nor renewed";
        failures.encode(encoder.encode_descriptor(
            "lease_failures",
            help,
            None,
            failures.metric_type(),
        )?)
    }
}

/// The label of a difference between the policies.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct KindLabel {
    kind: &'static str,
}

/// The shadow policy's counters; clones share them.
#[derive(Debug, Clone, Default)]
pub struct ShadowMetrics {
    decisions: Counter,
    disagreements: Family<KindLabel, Counter>,
    /// Decisions that were not compared because too many were waiting.
    pub skipped: Counter,
    policy_reads: Family<OutcomeLabel, Counter>,
}

impl ShadowMetrics {
    /// Registers the metrics.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let registry = registry.sub_registry_with_prefix("extender_shadow");
        let help = "Decisions that were compared with the shadow policy's";
        registry.register("decisions", help, metrics.decisions.clone());
        let help = "Decisions that the shadow policy would have made otherwise";
        registry.register("disagreements", help, metrics.disagreements.clone());
        let help = "Decisions that were not compared, since they came too fast";
        registry.register("skipped", help, metrics.skipped.clone());
        let help = "Readings of the shadow policy's file";
        registry.register("policy_reads", help, metrics.policy_reads.clone());
        metrics
    }

    /// Counts a comparison.
    pub(crate) fn count_comparison(&self, comparison: &Comparison) {
        self.decisions.inc();
        let kinds =
            [("filter", comparison.differs_in_filter()), ("score", comparison.differs_in_score())];
        for (kind, differs) in kinds {
            self.disagreements.get_or_create(&KindLabel { kind }).inc_by(u64::from(differs));
        }
    }

    /// Counts a read of the shadow policy's file.
    pub(crate) fn count_policy_read(&self, outcome: &'static str) {
        self.policy_reads.get_or_create(&OutcomeLabel { outcome }).inc();
    }
}

/// How many decisions are kept, counted at each scrape.
pub struct DecisionMetrics(Arc<DecisionLog>);

impl fmt::Debug for DecisionMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DecisionMetrics")
    }
}

impl DecisionMetrics {
    /// Registers the metrics.
    pub fn register(decisions: Arc<DecisionLog>, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("extender");
        registry.register_collector(Box::new(Self(decisions)));
    }
}

impl Collector for DecisionMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let size = self.0.size();
        let help = "Pods whose last decision is kept";
        encode_gauge(&mut encoder, "decisions_kept", help, size.pods as u64)?;
        let help = "Memory that the decisions that are kept take, by an estimate";
        encode_gauge(&mut encoder, "decisions_kept_bytes", help, size.bytes as u64)
    }
}

/// The contents of the view, counted at each scrape.
pub struct ViewMetrics(Arc<View>);

impl fmt::Debug for ViewMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ViewMetrics")
    }
}

impl ViewMetrics {
    /// Registers the metrics.
    pub fn register(view: Arc<View>, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("extender");
        registry.register_collector(Box::new(Self(view)));
    }
}

impl ViewMetrics {
    /// How many of the readings that the policy needs are known.
    fn encode_readings(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let snapshot = self.0.read();
        let warnings = snapshot.policy.policy.warnings_of_any_source().len() as u64;
        encode_gauge(
            encoder,
            "policy_warnings",
            "Things in the policy that are probably not meant",
            warnings,
        )?;
        let metric_type = MetricType::Gauge;
        let help = "Nodes that have no fresh reading of a metric of the policy";
        let mut descriptor =
            encoder.encode_descriptor("nodes_without_fresh_reading", help, None, metric_type)?;
        for (metric, nodes) in snapshot.nodes_without_reading(Timestamp::now()) {
            let gauge = ConstGauge::new(i64::try_from(nodes).unwrap_or(i64::MAX));
            gauge.encode(descriptor.encode_family(&[("metric", metric.as_str())])?)?;
        }
        let help = "Readings that were not believed and count as missing, by cause";
        let metric_type = MetricType::Counter;
        let mut descriptor =
            encoder.encode_descriptor("refused_readings", help, None, metric_type)?;
        for (cause, count) in self.0.ask(Index::refused_readings) {
            ConstCounter::new(count).encode(descriptor.encode_family(&[("cause", cause)])?)?;
        }
        Ok(())
    }
}

impl Collector for ViewMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let snapshot = self.0.read();
        let totals = snapshot.totals();
        let nodes = snapshot.loads().count() as u64;
        for (name, help, value) in [
            ("nodes", "Nodes known", nodes),
            ("gpu_nodes", "Nodes that report cards", totals.nodes),
            ("gpu_cards", "Cards reported", totals.cards),
            ("gpu_cards_unhealthy", "Cards reported unhealthy", totals.unhealthy),
            ("gpu_units", "Units of all cards", totals.units),
            ("gpu_units_used", "Units that pods hold", totals.used),
            ("gpu_units_overbooked", "Units held beyond what cards have", totals.overbooked),
            (
                "gpu_reservations",
                "Reservations that the API server has not confirmed",
                totals.reserved,
            ),
        ] {
            encode_gauge(&mut encoder, name, help, value)?;
        }
        encode_counter(
            &mut encoder,
            "refused_objects",
            "Pods and nodes that could not be read",
            self.0.ask(Index::refused_objects),
        )?;
        encode_counter(
            &mut encoder,
            "refused_gpu_pods",
            "GPU pods that Bind had given a card and that their kubelet refused",
            self.0.ask(Index::refused_pods),
        )?;
        let now = Timestamp::now();
        let backed_off = snapshot.back_offs.values().filter(|node| node.is_on(now)).count();
        encode_gauge(
            &mut encoder,
            "gpu_nodes_backed_off",
            "Nodes that take no GPU pods of some namespace for a while, since they have refused several",
            backed_off as u64,
        )?;
        self.encode_readings(&mut encoder)?;
        encode_watch(&mut encoder, "nodes", &self.0.nodes)?;
        encode_watch(&mut encoder, "pods", &self.0.pods)
    }
}

/// When the certificates in force end, read at each scrape.
#[derive(Debug)]
pub(crate) struct CertificateMetrics(pub(crate) Current<ServerTls>);

impl CertificateMetrics {
    pub(crate) fn register(self, registry: &mut Registry) {
        registry.sub_registry_with_prefix("extender").register_collector(Box::new(self));
    }
}

impl Collector for CertificateMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let tls = Arc::clone(&self.0.borrow());
        let help = "When the first certificate of a file of TLS ends, in Unix time";
        let unit = Some(&Unit::Seconds);
        let mut descriptor =
            encoder.encode_descriptor("certificate_not_after", help, unit, MetricType::Gauge)?;
        for (file, end) in [("certificate", tls.certificate_end), ("client_ca", tls.clients_end)] {
            if let Some(end) = end {
                let gauge = ConstGauge::new(end.as_second());
                gauge.encode(descriptor.encode_family(&[("file", file)])?)?;
            }
        }
        Ok(())
    }
}

fn encode_watch(encoder: &mut DescriptorEncoder, what: &str, source: &WatchState) -> fmt::Result {
    let health = &source.health;
    encode_counter(
        encoder,
        &format!("watch_{what}_events"),
        "Events of the watch",
        health.events(),
    )?;
    encode_counter(
        encoder,
        &format!("watch_{what}_lists"),
        "Whole lists; more than one: it lost its place",
        health.lists(),
    )?;
    encode_counter(
        encoder,
        &format!("watch_{what}_errors"),
        "Failures of the watch",
        health.errors(),
    )
}

fn encode_gauge(
    encoder: &mut DescriptorEncoder,
    name: &str,
    help: &str,
    value: u64,
) -> fmt::Result {
    let metric = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
    metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)
}

fn encode_counter(
    encoder: &mut DescriptorEncoder,
    name: &str,
    help: &str,
    value: u64,
) -> fmt::Result {
    let metric = ConstCounter::new(value);
    metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)
}

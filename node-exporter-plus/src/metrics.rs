//! What the exporter counts about itself; on the admin port, apart from the node's own figures.

use daemon::Registry;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

type Label = [(&'static str, &'static str); 1];

/// Counters of samples and scrapes.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    samples: Family<Label, Counter>,
    failures: Family<Label, Counter>,
    scrapes: Family<Label, Counter>,
    handshake_failures: Counter,
    credential_reads: Family<[(&'static str, &'static str); 2], Counter>,
}

impl Metrics {
    /// Registers them under the prefix `exporter`.
    #[must_use]
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let registry = registry.sub_registry_with_prefix("exporter");
        registry.register("samples", "Samples taken", metrics.samples.clone());
        registry.register("sample_failures", "Samples that failed", metrics.failures.clone());
        registry.register("scrapes", "Requests answered", metrics.scrapes.clone());
        let failures = metrics.handshake_failures.clone();
        registry.register(
            "tls_handshake_failures",
            "Connections without a TLS handshake",
            failures,
        );
        let reads = metrics.credential_reads.clone();
        registry.register("credential_reads", "Changes of the certificate and token files", reads);
        metrics
    }

    pub(crate) fn sampled(&self, collector: &'static str, ok: bool) {
        let family = if ok { &self.samples } else { &self.failures };
        family.get_or_create(&[("collector", collector)]).inc();
    }

    /// The counter of an endpoint's requests, looked up once.
    pub(crate) fn scrapes(&self, endpoint: &'static str) -> Counter {
        self.scrapes.get_or_create(&[("endpoint", endpoint)]).clone()
    }

    pub(crate) fn handshake_failures(&self) -> Counter {
        self.handshake_failures.clone()
    }

    pub(crate) fn credential_read(&self, file: &'static str, good: bool) {
        let outcome = if good { "ok" } else { "refused" };
        self.credential_reads.get_or_create(&[("file", file), ("outcome", outcome)]).inc();
    }
}

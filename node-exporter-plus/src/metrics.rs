//! The exporter's metrics about itself, served on the admin port. The node's metrics are on the exporter's own port.

use daemon::Registry;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

type Label = [(&'static str, &'static str); 1];

/// Counters under the prefix `plimsoll_exporter_`. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    samples: Family<Label, Counter>,
    failures: Family<Label, Counter>,
    requests: Family<Label, Counter>,
    handshake_failures: Counter,
    credential_reads: Family<[(&'static str, &'static str); 2], Counter>,
}

impl Metrics {
    /// Registers all of them.
    #[must_use]
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let registry = registry.sub_registry_with_prefix("exporter");
        let Self { samples, failures, requests, handshake_failures, credential_reads } =
            metrics.clone();
        registry.register("samples", "Samples taken, by collector", samples);
        registry.register("sample_failures", "Samples that failed, by collector", failures);
        registry.register("scrapes", "Requests answered, by path", requests);
        registry.register(
            "tls_handshake_failures",
            "Connections that ended before their TLS handshake was done",
            handshake_failures,
        );
        registry.register(
            "credential_reads",
            "Changes of the certificate and token files, by outcome: ok, or refused, with the one before still in force",
            credential_reads,
        );
        metrics
    }

    /// Counts one sample of a collector.
    pub(crate) fn sampled(&self, collector: &'static str, ok: bool) {
        let family = if ok { &self.samples } else { &self.failures };
        family.get_or_create(&[("collector", collector)]).inc();
    }

    /// The counter of the requests for a path.
    pub(crate) fn requests(&self, path: &'static str) -> Counter {
        self.requests.get_or_create(&[("endpoint", path)]).clone()
    }

    /// The counter of failed TLS handshakes.
    pub(crate) fn handshake_failures(&self) -> Counter {
        self.handshake_failures.clone()
    }

    /// Counts a changed certificate or token file.
    pub(crate) fn credential_read(&self, file: &'static str, good: bool) {
        let outcome = if good { "ok" } else { "refused" };
        self.credential_reads.get_or_create(&[("file", file), ("outcome", outcome)]).inc();
    }
}

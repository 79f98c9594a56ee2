//! The exporter's metrics about itself, served on the admin port. The node's metrics are on the exporter's own port.

use daemon::follow::Current;
use daemon::metrics::{Counter, Gauge, Labelled, Registry};
use daemon::tls::ServerTls;

/// Clones share the counters.
#[derive(Debug, Clone)]
pub struct Metrics {
    samples: Labelled<Counter, 1>,
    failures: Labelled<Counter, 1>,
    requests: Labelled<Counter, 1>,
    handshake_failures: Counter,
    credential_reads: Labelled<Counter, 2>,
    certificate_not_after: Labelled<Gauge, 1>,
}

/// Metrics that are served nowhere.
impl Default for Metrics {
    fn default() -> Self {
        Self::register(&mut Registry::default())
    }
}

impl Metrics {
    /// Registers all of them.
    #[must_use]
    pub fn register(registry: &mut Registry) -> Self {
        Self {
            samples: registry.counters(
                "plimsoll_exporter_samples_total",
                ["collector"],
                "Samples taken, by collector",
            ),
            failures: registry.counters(
                "plimsoll_exporter_sample_failures_total",
                ["collector"],
                "Samples that failed, by collector",
            ),
            requests: registry.counters(
                "plimsoll_exporter_scrapes_total",
                ["endpoint"],
                "Requests answered, by path",
            ),
            handshake_failures: registry.counter(
                "plimsoll_exporter_tls_handshake_failures_total",
                "Connections that ended before their TLS handshake was done",
            ),
            credential_reads: registry.counters(
                "plimsoll_exporter_credential_reads_total",
                ["file", "outcome"],
                "Changes of the certificate and token files, by outcome",
            ),
            certificate_not_after: registry.gauges(
                "plimsoll_exporter_certificate_not_after_seconds",
                ["file"],
                "When the first certificate of a file of TLS ends, in Unix time",
            ),
        }
    }

    /// Counts one sample of a collector.
    pub(crate) fn sampled(&self, collector: &'static str, ok: bool) {
        let family = if ok { &self.samples } else { &self.failures };
        family.with([collector]).inc();
    }

    /// The counter of the requests for a path.
    pub(crate) fn requests(&self, path: &'static str) -> Counter {
        self.requests.with([path])
    }

    /// The counter of failed TLS handshakes.
    pub(crate) fn handshake_failures(&self) -> Counter {
        self.handshake_failures.clone()
    }

    /// Sets when the certificate in force ends. An end that is unknown is absent.
    pub(crate) fn set_certificate(&self, tls: &Current<ServerTls>) {
        let end = tls.borrow().certificate_end;
        self.certificate_not_after.clear();
        if let Some(end) = end {
            self.certificate_not_after.with(["certificate"]).set(end.as_second());
        }
    }

    /// Counts a changed certificate or token file.
    pub(crate) fn credential_read(&self, file: &'static str, good: bool) {
        let outcome = if good { "ok" } else { "refused" };
        self.credential_reads.with([file, outcome]).inc();
    }
}

//! The exporter's metrics about itself, served on the admin port. The node's metrics are on the exporter's own port.

use daemon::metrics::{Counter, Labelled, Registry};
use daemon::tls::TlsMetrics;

/// Clones share the counters.
#[derive(Debug, Clone)]
pub struct Metrics {
    samples: Labelled<Counter, 1>,
    failures: Labelled<Counter, 1>,
    requests: Labelled<Counter, 1>,
    pub(crate) tls: TlsMetrics,
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
            tls: TlsMetrics::register(registry),
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
}

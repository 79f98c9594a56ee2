//! The exporter's metrics about itself, served on the admin port. The node's metrics are on the exporter's own port.

use daemon::metrics::{Counter, Labelled, Registry};
use daemon::tls::TlsMetrics;

/// Clones share the counters.
#[derive(Debug, Clone)]
pub struct Metrics {
    samples: Labelled<Counter, 2>,
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
                ["collector", "outcome"],
                "Samples, by collector and outcome",
            ),
            tls: TlsMetrics::register(registry),
        }
    }

    /// Counts one sample of a collector.
    pub(crate) fn sampled(&self, collector: &'static str, ok: bool) {
        self.samples.with([collector, if ok { "taken" } else { "failed" }]).inc();
    }
}

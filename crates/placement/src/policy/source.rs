//! Which metrics a source of readings has: exporters, a Prometheus, or metrics-server.
//!
//! A test of the annotator compares this with its queries.

use std::collections::BTreeSet;

use super::Exported;
use crate::units::MetricName;

/// The metrics that a Prometheus with node_exporter has, by the annotator's own queries.
const PROMETHEUS_METRICS: [&str; 15] = [
    "cpu_busy_avg_5m",
    "cpu_busy_max_avg_1h",
    "cpu_busy_max_avg_1d",
    "cpu_shared_busy_avg_5m",
    "cpu_shared_busy_max_avg_1h",
    "cpu_shared_busy_max_avg_1d",
    "cpu_foreground_busy_avg_5m",
    "cpu_foreground_busy_max_avg_1h",
    "cpu_foreground_busy_max_avg_1d",
    "cpu_usage_avg_5m",
    "cpu_usage_max_avg_1h",
    "cpu_usage_max_avg_1d",
    "mem_usage_avg_5m",
    "mem_usage_max_avg_1h",
    "mem_usage_max_avg_1d",
];

/// The metrics that can be computed from what metrics-server reports.
const METRICS_SERVER_METRICS: [&str; 10] = [
    "cpu_busy_active",
    "cpu_busy_avg_5m",
    "cpu_shared_busy_active",
    "cpu_shared_busy_avg_5m",
    "cpu_foreground_busy_active",
    "cpu_foreground_busy_avg_5m",
    "cpu_usage_active",
    "cpu_usage_avg_5m",
    "mem_usage_active",
    "mem_usage_avg_5m",
];

/// What the annotator takes readings from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ReadingSource {
    /// node-exporter-plus on each node.
    #[default]
    Exporters,
    /// A Prometheus.
    Prometheus {
        /// The metrics of the operator's own queries; `None` with the annotator's queries, for node_exporter.
        queries: Option<BTreeSet<MetricName>>,
    },
    /// metrics-server.
    MetricsServer,
}

impl ReadingSource {
    /// Whether it has `metric`.
    ///
    /// # Examples
    ///
    /// ```
    /// use placement::policy::ReadingSource;
    ///
    /// assert!(ReadingSource::Exporters.gives(&"load_usage_active".into()));
    /// assert!(!ReadingSource::MetricsServer.gives(&"load_usage_active".into()));
    /// ```
    #[must_use]
    pub fn gives(&self, metric: &MetricName) -> bool {
        match self {
            Self::Exporters => Exported::of(metric) != Exported::Never,
            Self::Prometheus { queries: Some(own) } => own.contains(metric),
            Self::Prometheus { queries: None } => PROMETHEUS_METRICS.contains(&metric.as_str()),
            Self::MetricsServer => METRICS_SERVER_METRICS.contains(&metric.as_str()),
        }
    }
}

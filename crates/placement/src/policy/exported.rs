//! Which metrics node-exporter-plus serves: by default, only when its configuration file names them, or never.
//!
//! A test in `deploy/` compares this with the exporter.

use jiff::SignedDuration;

use super::metric::{WindowStatistic, parse_aggregate};
use crate::units::MetricName;

/// Signals of the node.
const SIGNALS: [&str; 28] = [
    "cpu_usage",
    "cpu_busy",
    "cpu_shared_busy",
    "cpu_foreground_busy",
    "cpu_iowait",
    "cpu_steal",
    "mem_usage",
    "swap_usage",
    "load1",
    "load5",
    "load15",
    "load_usage",
    "psi_cpu_some",
    "psi_memory_some",
    "psi_memory_full",
    "psi_io_some",
    "psi_io_full",
    "disk_usage",
    "disk_read_bytes",
    "disk_written_bytes",
    "network_usage",
    "network_speed_bytes",
    "network_receive_bytes",
    "network_transmit_bytes",
    "fs_usage",
    "inode_usage",
    "gpu_usage",
    "gpu_mem_usage",
];

/// The signals that every node has. The others are of parts that a node may lack: GPUs, swap, pressure stall
/// information, network interfaces of a known speed, file systems and disks of some kinds.
const SIGNALS_OF_EVERY_NODE: [&str; 11] = [
    "cpu_usage",
    "cpu_busy",
    "cpu_shared_busy",
    "cpu_foreground_busy",
    "cpu_iowait",
    "cpu_steal",
    "mem_usage",
    "load1",
    "load5",
    "load15",
    "load_usage",
];

/// Prefix and suffix of the names of devices' signals, such as `disk_sda_usage`.
const DEVICE_SIGNALS: [(&str, &str); 14] = [
    ("fs_", "_usage"),
    ("inode_", "_usage"),
    ("disk_", "_usage"),
    ("disk_", "_read_bytes"),
    ("disk_", "_written_bytes"),
    ("network_", "_usage"),
    ("network_", "_receive_bytes"),
    ("network_", "_transmit_bytes"),
    ("gpu_", "_usage"),
    ("gpu_", "_mem_usage"),
    ("gpu_", "_mem_bytes"),
    ("gpu_", "_temperature_celsius"),
    ("gpu_", "_power_watts"),
    ("gpu_", "_healthy"),
];

/// The signals that exporters always keep for longer than the newest sample, and the aggregates of these that they
/// serve by default.
const ALWAYS_KEPT_SIGNALS: [&str; 5] =
    ["cpu_usage", "cpu_busy", "cpu_shared_busy", "cpu_foreground_busy", "mem_usage"];
const ALWAYS_KEPT_AGGREGATES: [&str; 5] =
    ["avg_5m", "avg_15m", "stddev_15m", "max_avg_1h", "max_avg_1d"];

/// The longest window.
const LONGEST_WINDOW: SignedDuration = SignedDuration::from_hours(24);

/// Whether exporters serve a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exported {
    /// Every exporter serves it, if the node has the device or file.
    ByDefault,
    /// Exporters serve it if their `--config.file` names it.
    WhenConfigured,
    /// No signal or no aggregate has this name.
    Never,
}

impl Exported {
    /// Whether exporters serve `metric`, by its name.
    ///
    /// # Examples
    ///
    /// ```
    /// use placement::policy::Exported;
    ///
    /// assert_eq!(Exported::of(&"cpu_usage_avg_5m".into()), Exported::ByDefault);
    /// assert_eq!(Exported::of(&"psi_io_full_p95_1h".into()), Exported::WhenConfigured);
    /// assert_eq!(Exported::of(&"cpu_usge_avg_5m".into()), Exported::Never);
    /// ```
    #[must_use]
    pub fn of(metric: &MetricName) -> Self {
        let name = metric.as_str();
        let mut exported = Self::Never;
        for (at, _) in name.match_indices('_').filter(|(at, _)| is_signal(&name[..*at])) {
            let (signal, aggregate) = (&name[..at], &name[at + 1..]);
            let is_kept = ALWAYS_KEPT_SIGNALS.contains(&signal)
                && ALWAYS_KEPT_AGGREGATES.contains(&aggregate);
            if is_kept || aggregate == "active" {
                return Self::ByDefault;
            }
            if is_aggregate(aggregate) {
                exported = Self::WhenConfigured;
            }
        }
        exported
    }
}

/// Whether exporters serve a metric, and there are nodes that cannot have it, such as `gpu_usage_avg_5m`.
pub(super) fn is_of_some_nodes(metric: &MetricName) -> bool {
    Exported::of(metric) != Exported::Never
        && !SIGNALS_OF_EVERY_NODE.iter().any(|signal| {
            metric.as_str().strip_prefix(signal).is_some_and(|rest| rest.starts_with('_'))
        })
}

fn is_signal(text: &str) -> bool {
    SIGNALS.contains(&text)
        || DEVICE_SIGNALS.iter().any(|(start, end)| {
            let rest = text.strip_prefix(start).and_then(|rest| rest.strip_suffix(end));
            rest.is_some_and(|device| !device.is_empty())
        })
}

/// A function and its window, which is a day at most.
fn is_aggregate(text: &str) -> bool {
    // A minimum has the same windows as a maximum.
    let maximum = text
        .strip_prefix("min_")
        .filter(|window| !window.starts_with("avg"))
        .map(|window| format!("max_{window}"));
    let (parse_aggregate, window) = parse_aggregate(maximum.as_deref().unwrap_or(text));
    let known = match parse_aggregate {
        WindowStatistic::Other | WindowStatistic::Last => false,
        WindowStatistic::MaxOfMeans(inner) => window.is_some_and(|window| inner <= window),
        WindowStatistic::Quantile(quantile) => quantile > 0.0 && quantile < 1.0,
        WindowStatistic::Mean | WindowStatistic::Max | WindowStatistic::Deviation => true,
    };
    known && window.is_some_and(|window| window <= LONGEST_WINDOW)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_served_by_default_or_when_configured_or_never() {
        for (name, expected) in [
            ("cpu_usage_avg_5m", Exported::ByDefault),
            ("mem_usage_stddev_15m", Exported::ByDefault),
            ("cpu_busy_avg_5m", Exported::ByDefault),
            ("cpu_foreground_busy_max_avg_1d", Exported::ByDefault),
            ("cpu_steal_avg_5m", Exported::WhenConfigured),
            ("psi_io_full_active", Exported::ByDefault),
            ("disk_sda_usage_active", Exported::ByDefault),
            ("cpu_usage_avg_10m", Exported::WhenConfigured),
            ("cpu_usage_min_1h", Exported::WhenConfigured),
            ("gpu_0_mem_usage_p95_1d", Exported::WhenConfigured),
            ("fs_var_lib_usage_max_avg_15m_6h", Exported::WhenConfigured),
            ("disk__usage_active", Exported::Never),
            ("cpu_usage", Exported::Never),
            ("cpu_usge_avg_5m", Exported::Never),
            ("cpu_usage_avg_2d", Exported::Never),
            ("cpu_usage_max_avg_2h_1h", Exported::Never),
            ("cpu_usage_min_avg_1h", Exported::Never),
            ("cpu_usage_p100_1h", Exported::Never),
            ("cpu_usage_median_5m", Exported::Never),
        ] {
            assert_eq!(Exported::of(&name.into()), expected, "{name}");
        }
    }

    #[test]
    fn some_nodes_cannot_have_what_their_parts_do_not_have() {
        for (name, of_some) in [
            ("cpu_usage_avg_5m", false),
            ("mem_usage_max_avg_1h", false),
            ("load_usage_p95_15m", false),
            ("gpu_usage_avg_5m", true),
            ("gpu_0_mem_usage_active", true),
            ("psi_io_full_avg_5m", true),
            ("swap_usage_avg_5m", true),
            ("network_usage_avg_5m", true),
            ("fs_usage_active", true),
            ("disk_sda_usage_avg_5m", true),
            // Of another program: nothing is known of it.
            ("licences_usage_avg_5m", false),
        ] {
            assert_eq!(is_of_some_nodes(&name.into()), of_some, "{name}");
        }
    }
}

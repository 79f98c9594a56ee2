//! The queries by metric: the defaults for node_exporter, or those of a file.
//!
//! Invariants: the default queries have no value for a node whose window has hardly begun. A mean over its first
//! seconds would look like the load of the whole window, and stay its maximum for a day. Neither have they one for a
//! name that two nodes have, as nodes of two clusters in one Prometheus: their mean would be the load of neither.
//!
//! The default queries measure the same as node-exporter-plus, as far as node_exporter knows.

use std::collections::BTreeMap;

use daemon::follow::{FileError, NamedFile, Source};
use placement::units::MetricName;
use serde::Deserialize;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Queries {
    /// The time of each node's newest sample, in Unix seconds. Without it a reading has the time of the query.
    pub time: Option<String>,
    /// The query that gives a metric of every node, in percent.
    pub metrics: BTreeMap<MetricName, String>,
}

impl Queries {
    /// The queries for node_exporter's metrics. `label` names the node.
    pub(crate) fn of_node_exporter(label: &str) -> Self {
        let idle = r#"node_cpu_seconds_total{mode="idle"}"#;
        // The modes in which CPUs work, not 1 less those in which they do not: node_exporter never lets idle time fall,
        // so time that the kernel moves from waiting to idle and back would count several times. And a sum of rates,
        // not their mean: where series got another label within the window, old and new ones each have a part of it.
        let share = |modes: &str, shared: &str| {
            let used = format!("rate(node_cpu_seconds_total{{mode{modes}}}[5m]){shared}");
            let by_cpus =
                format!("sum by ({label}) ({used}) / count by ({label}) ({idle}{shared})");
            // A node that was scraped for half of the window has half of a rate: there, of all its time.
            let all = format!("rate(node_cpu_seconds_total[5m]){shared}");
            let by_time = format!("sum by ({label}) ({used}) / sum by ({label}) ({all})");
            let for_all_of_it = format!("on ({label}) max by ({label}) ({idle} offset 5m)");
            to_percent(&format!("(({by_cpus}) and {for_all_of_it} or ({by_time}))"))
        };
        let usage = share(r#"!="idle""#, "");
        let busy = share(r#"!~"idle|iowait""#, "");
        // It knows neither the CPUs that are a pod's alone nor what best-effort pods use.
        let shared = share(
            r#"!~"idle|iowait""#,
            &format!(" unless on ({label}, cpu) (node_cpu_isolated == 1)"),
        );
        let memory = to_percent(&format!("avg by ({label}) ({})", memory_usage()));
        // One series for each thing that is scraped under this name.
        let is_one_node = format!("count by ({label}) (max without (cpu) ({idle})) == 1");
        let mut metrics = BTreeMap::new();
        for (signal, mean) in [
            ("cpu_busy", busy),
            ("cpu_shared_busy", shared.clone()),
            ("cpu_foreground_busy", shared),
            ("cpu_usage", usage),
            ("mem_usage", memory),
        ] {
            // Only of nodes with a sample from half a window, or a whole one, ago.
            let of_half = format!("{mean} and on ({label}) max by ({label}) ({idle} offset 150s)");
            let of_whole = format!("{mean} and on ({label}) max by ({label}) ({idle} offset 5m)");
            for (aggregate, query) in [
                ("avg_5m", of_half),
                ("max_avg_1h", format!("max_over_time(({of_whole})[1h:1m])")),
                ("max_avg_1d", format!("max_over_time(({of_whole})[1d:5m])")),
            ] {
                let query = format!("({query}) and on ({label}) ({is_one_node})");
                metrics.insert(format!("{signal}_{aggregate}").into(), query);
            }
        }
        Self { time: Some(format!("max by ({label}) (timestamp({idle}))")), metrics }
    }
}

/// A share of a whole in percent. Rates are extrapolated, so that of an idle CPU may be above 1.
fn to_percent(share: &str) -> String {
    format!("100 * clamp_max(clamp_min({share}, 0), 1)")
}

/// The mean of the memory in use over five minutes, from 0 to 1, as a share of the memory without huge pages. Memory
/// that the ZFS cache can give back counts as available. Swapped memory is in use, by its own size: of zswap its copy
/// in memory does not count, while node_exporter does not know that of zram.
fn memory_usage() -> String {
    let total = "node_memory_MemTotal_bytes";
    let available = "avg_over_time(node_memory_MemAvailable_bytes[5m])";
    // Kernels before Linux 4.16 have no Hugetlb, and those without huge pages have neither.
    let huge = format!(
        "(node_memory_Hugetlb_bytes or node_memory_HugePages_Total * node_memory_Hugepagesize_bytes or 0 * {total})"
    );
    // In a container with lxcfs, huge pages and cache of the host may be more than the container's memory: they do not
    // count.
    let all = format!("(({total} - {huge} >= {available}) or {total})");
    let cache = "avg_over_time(node_zfs_arc_size[5m])";
    let fits = format!("{cache} <= {total}");
    let reclaimable = format!("(clamp_min(({fits}) - node_zfs_arc_c_min, 0) or 0 * {total})");
    let mean = |name: &str| format!("avg_over_time(node_memory_{name}_bytes[5m])");
    let [swap, free, cached, zswap] = ["SwapTotal", "SwapFree", "SwapCached", "Zswap"].map(mean);
    // Kernels without swap have none of these lines, and those before Linux 5.19 no Zswap.
    let swapped = format!("(clamp_min({swap} - {free} - {cached}, 0) or 0 * {total})");
    let compressed = format!("({zswap} or 0 * {total})");
    format!("clamp_min(1 - ({available} + {reclaimable} + {compressed} - {swapped}) / {all}, 0)")
}

/// The file with the queries; without a file, those for node_exporter.
#[derive(Debug, Clone)]
pub(crate) struct QueriesFile {
    pub file: Option<NamedFile>,
    /// The label that names the node.
    pub label: String,
}

/// The file's content.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    #[serde(default)]
    time: Option<String>,
    metrics: BTreeMap<String, String>,
}

impl Source for QueriesFile {
    type Value = Queries;

    const WHAT: &'static str = "queries of Prometheus";

    fn files(&self) -> Vec<&NamedFile> {
        self.file.iter().collect()
    }

    fn parse(&self, contents: &[Vec<u8>]) -> Result<Queries, FileError> {
        let (Some(file), Some(content)) = (&self.file, contents.first()) else {
            return Ok(Queries::of_node_exporter(&self.label));
        };
        let expected = r#"expected {"time": QUERY, "metrics": {"cpu_usage_avg_5m": QUERY}}"#;
        let Content { time, metrics } = serde_json::from_slice(content)
            .map_err(|error| file.error(format!("{error}; {expected}")))?;
        if metrics.is_empty() {
            return Err(file.error(format!("`metrics` is empty; {expected}")));
        }
        let mut queries = BTreeMap::new();
        for (name, query) in metrics {
            let Some(metric) = MetricName::parse(&name) else {
                return Err(file.error(format!("`{name}` is no metric's name")));
            };
            queries.insert(metric, query);
        }
        Ok(Queries { time, metrics: queries })
    }
}

#[cfg(test)]
mod tests {
    use placement::policy::ReadingSource;

    use super::*;
    use crate::source::names_over;

    fn parse(content: &str) -> Result<Queries, String> {
        let file = NamedFile { flag: "--prometheus-queries-file", path: "/q".into() };
        let source = QueriesFile { file: Some(file), label: "instance".to_owned() };
        source.parse(&[content.into()]).map_err(|error| error.to_string())
    }

    #[test]
    fn the_default_queries_give_what_a_policy_is_checked_against() {
        let asked = Queries::of_node_exporter("instance").metrics;
        let source = ReadingSource::Prometheus { queries: None };
        let windows = ["active", "avg_5m", "avg_15m", "max_avg_1h", "max_avg_1d"];
        for metric in names_over(&windows) {
            assert_eq!(source.gives(&metric), asked.contains_key(&metric), "{metric}");
        }
    }

    #[test]
    fn a_file_replaces_all_default_queries() {
        let queries = parse(r#"{"metrics": {"cpu_usage_avg_5m": "q"}}"#).unwrap();
        let expected =
            Queries { time: None, metrics: [("cpu_usage_avg_5m".into(), "q".to_owned())].into() };
        assert_eq!(queries, expected);
    }

    #[test]
    fn a_fault_in_the_file_is_named_with_flag_and_file() {
        for (content, part) in [
            ("", "expected {\"time\""),
            ("{}", "missing field `metrics`"),
            (r#"{"metrics": {}}"#, "`metrics` is empty"),
            (r#"{"metrics": {"a b": "q"}}"#, "`a b` is no metric's name"),
            (r#"{"metrics": {}, "times": "q"}"#, "unknown field `times`"),
        ] {
            let error = parse(content).unwrap_err();
            assert!(error.starts_with("--prometheus-queries-file /q: "), "{error}");
            assert!(error.contains(part), "{error}");
        }
    }
}

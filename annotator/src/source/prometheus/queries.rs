//! The queries by metric: the defaults for node_exporter, or those of a file.
//!
//! Invariant: the default queries have no value for a node whose window has hardly begun. A mean over its first seconds would
//! look like the load of the whole window, and stay its maximum for a day.

use std::collections::BTreeMap;

use daemon::follow::{FileError, NamedFile, Source};
use placement::units::MetricName;
use serde::Deserialize;

/// The queries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Queries {
    /// The time of each node's newest sample, in Unix seconds. Without it a reading has the time of the query.
    pub time: Option<String>,
    /// The query that gives a metric of every node, in percent.
    pub metrics: BTreeMap<MetricName, String>,
}

impl Queries {
    /// The queries for node_exporter's metrics. `label` names the node.
    #[must_use]
    pub fn of_node_exporter(label: &str) -> Self {
        let idle = r#"node_cpu_seconds_total{mode="idle"}"#;
        // A rate is extrapolated, so the rate of an idle CPU may be above 1.
        let cpu = format!("100 * clamp_min(1 - avg by ({label}) (rate({idle}[5m])), 0)");
        let free = "avg_over_time(node_memory_MemAvailable_bytes[5m]) / node_memory_MemTotal_bytes";
        let mem = format!("100 * clamp_min(1 - avg by ({label}) ({free}), 0)");
        let mut metrics = BTreeMap::new();
        for (signal, mean) in [("cpu", cpu), ("mem", mem)] {
            // There was a sample this long ago.
            let sampled_for = |age: &str| {
                format!("{mean} and on ({label}) max by ({label}) ({idle} offset {age})")
            };
            metrics.insert(format!("{signal}_usage_avg_5m").into(), sampled_for("150s"));
            for (window, range) in [("1h", "1h:1m"), ("1d", "1d:5m")] {
                let query = format!("max_over_time(({})[{range}])", sampled_for("5m"));
                metrics.insert(format!("{signal}_usage_max_avg_{window}").into(), query);
            }
        }
        Self { time: Some(format!("max by ({label}) (timestamp({idle}))")), metrics }
    }
}

/// The file with the queries; without a file, those for node_exporter.
#[derive(Debug, Clone)]
pub struct QueriesFile {
    /// The file.
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
        let named = |(name, query): (String, String)| match MetricName::parse(&name) {
            Some(metric) => Ok((metric, query)),
            None => Err(file.error(format!("`{name}` is no metric's name"))),
        };
        Ok(Queries { time, metrics: metrics.into_iter().map(named).collect::<Result<_, _>>()? })
    }
}

#[cfg(test)]
mod tests {
    use placement::policy::ReadingSource;

    use super::*;

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
        let names = ["cpu", "mem", "load"].map(|it| windows.map(|of| format!("{it}_usage_{of}")));
        for name in names.as_flattened() {
            let metric = name.as_str().into();
            assert_eq!(source.gives(&metric), asked.contains_key(&metric), "{name}");
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

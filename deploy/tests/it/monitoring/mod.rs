//! What is shipped for Prometheus and Grafana: rules and dashboards name only what the programs expose, the documents
//! say what to do about each alert, and Prometheus' own programs take it all.

mod dashboards;
mod promql;
mod rules;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use daemon::metrics::Description;
use serde_json::Value;

use crate::manifests::yaml;
use crate::reference::all_metrics;
use crate::repository::read;

/// The rule file of Prometheus.
const RULES: &str = "manifests/rules.yaml";
/// Labels that Prometheus gives every series of a target, by the shipped PodMonitors, and that of a Prometheus of
/// several clusters.
const OF_TARGETS: [&str; 6] = ["cluster", "instance", "namespace", "node", "pod", "program"];
/// What others expose, with its labels: kube-scheduler, and Prometheus about its own alerts and targets.
const OF_OTHERS: [(&str, &[&str]); 3] = [
    ("scheduler_schedule_attempts_total", &["profile", "result"]),
    ("ALERTS", &["alertname", "alertstate", "severity"]),
    ("up", &[]),
];

/// The rules of all groups, in their order.
fn rules() -> Vec<Value> {
    let file = yaml(RULES);
    let groups = file["groups"].as_array().expect("groups");
    groups.iter().flat_map(|group| group["rules"].as_array().cloned().expect("rules")).collect()
}

fn alerts() -> Vec<Value> {
    rules().into_iter().filter(|rule| rule["alert"].is_string()).collect()
}

/// A dashboard's file name, without its folder and ending, with its JSON.
fn dashboard_files() -> BTreeMap<String, Value> {
    let folder = deploy::folder().join("chart/monitoring/dashboards");
    let mut found = BTreeMap::new();
    for file in fs::read_dir(folder).expect("dashboards") {
        let path = file.expect("a file").path();
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        let text = fs::read_to_string(&path).expect("a text");
        found.insert(name, serde_json::from_str(&text).expect("JSON"));
    }
    found
}

/// What is known of metrics: each name with the labels of its series.
struct Known(BTreeMap<String, BTreeSet<String>>);

impl Known {
    /// All that the programs expose, that the rules record, and that others expose.
    fn all() -> Self {
        let mut known = Self(BTreeMap::new());
        for Description { name, kind, labels, .. } in all_metrics() {
            let labels: Vec<&str> = labels.iter().copied().chain(OF_TARGETS).collect();
            if kind == "histogram" {
                known.add(&format!("{name}_sum"), &labels);
                known.add(&format!("{name}_count"), &labels);
                known.add(&format!("{name}_bucket"), &[&labels[..], &["le"]].concat());
            } else {
                known.add(&name, &labels);
            }
        }
        for line in read("node-exporter-plus/tests/golden/linux-6.18.prom").lines() {
            if let Some(name) = line.strip_prefix("# TYPE ").and_then(|it| it.split(' ').next()) {
                known.add(name, &OF_TARGETS);
            }
        }
        for (name, labels) in OF_OTHERS {
            known.add(name, &[labels, &OF_TARGETS[..]].concat());
        }
        for rule in rules() {
            if let Some(name) = rule["record"].as_str() {
                known.add(name, &["cluster", "namespace", "metric", "slo"]);
            }
        }
        known
    }

    fn add(&mut self, name: &str, labels: &[&str]) {
        let labels = labels.iter().map(|label| (*label).to_owned());
        self.0.entry(name.to_owned()).or_default().extend(labels);
    }

    /// What an expression names that is not there.
    fn unknown(&self, expression: &str) -> Vec<String> {
        let names = promql::names(expression);
        let mut unknown = Vec::new();
        let mut of_all: BTreeSet<&String> = BTreeSet::new();
        for (metric, labels) in &names.selectors {
            let Some(known) = self.0.get(metric) else {
                unknown.push(metric.clone());
                continue;
            };
            of_all.extend(known);
            let missing = labels.iter().filter(|label| !known.contains(*label));
            unknown.extend(missing.map(|label| format!("{metric}{{{label}}}")));
        }
        let missing = names.grouped.iter().filter(|label| !of_all.contains(label));
        unknown.extend(missing.map(|label| format!("by ({label})")));
        unknown
    }
}

#[test]
fn rules_name_only_metrics_and_labels_that_are_there() {
    let known = Known::all();
    for rule in rules() {
        let expression = rule["expr"].as_str().expect("an expression");
        assert_eq!(known.unknown(expression), [""; 0], "{expression}");
    }
}

#[test]
fn dashboards_name_only_metrics_and_labels_that_are_there() {
    let known = Known::all();
    let mut seen = 0;
    for (file, dashboard) in dashboard_files() {
        for expression in dashboards::expressions(&dashboard) {
            assert_eq!(known.unknown(&expression), [""; 0], "{file}: {expression}");
            seen += 1;
        }
    }
    assert!(seen > 80, "{seen}");
}

#[test]
fn a_misspelt_metric_or_label_is_unknown() {
    let known = Known::all();
    let right = "sum by (verb, le) (rate(plimsoll_extender_request_duration_seconds_bucket{verb=\"bind\"}[5m]))";
    assert_eq!(known.unknown(right), [""; 0]);
    for (wrong, what) in [
        ("sum(rate(plimsoll_extender_request_total[5m]))", "plimsoll_extender_request_total"),
        ("plimsoll_extender_binds_total{outcom=\"ok\"}", "plimsoll_extender_binds_total{outcom}"),
        ("sum by (outcom) (plimsoll_extender_binds_total)", "by (outcom)"),
        ("plimsoll_extender_leader / on (node_name) plimsoll_extender_nodes", "by (node_name)"),
        ("{__name__=~\"plimsoll_(extender|anotator)_leader\"}", "plimsoll_anotator_leader"),
    ] {
        assert_eq!(known.unknown(wrong), [what]);
    }
}

/// The bucket that an objective counts up to.
#[test]
fn the_extenders_histogram_has_the_edge_of_the_objective() {
    let source = read("scheduler-extender/src/metrics.rs");
    assert!(source.contains("Histogram::new(exponential_buckets(50e-6, 2.0, 18))"), "{source}");
    let mut registry = daemon::metrics::Registry::default();
    let buckets = daemon::metrics::exponential_buckets(50e-6, 2.0, 18);
    registry.histogram("x", "x", daemon::metrics::Histogram::new(buckets)).observe(1.0);
    let page = registry.page().expect("a page");
    assert!(page.contains("x_bucket{le=\"0.0512\"}"), "{page}");
    assert!(read(&format!("deploy/{RULES}")).contains("le=\"0.0512\""));
}

//! The tables of metrics.md: each program's metrics as it registers them, and in the last column what to look for,
//! which is written by hand.

use std::collections::BTreeMap;

use daemon::metrics::{Description, FileMetrics, Registry, WatchMetrics};
use daemon::tls::TlsMetrics;
use settings::{LeaseMetrics, policy_warnings};

use super::{START, START_ENDS, markdown, sentence};
use crate::links::documents;
use crate::manifests::PROGRAMS;
use crate::repository::read;

const DOCUMENT: &str = "docs/metrics.md";

/// The name of the table of what several programs have under one name.
const OF_SEVERAL_PROGRAMS: &str = "several programs";

/// A series that the extender answers queries with, and its label (docs/operations.md); on no page of metrics.
const OF_QUERIES: [&str; 2] = ["plimsoll_limit_ratio", "plimsoll_node"];

/// What a rule records (docs/monitoring.md).
const RECORDED: &str = "plimsoll_slo_errors";

/// The metrics of several programs, in the order of their registration.
fn shared() -> Vec<Description> {
    let mut registry = Registry::of_program(daemon::program!());
    FileMetrics::register(&mut registry);
    policy_warnings(&mut registry);
    TlsMetrics::register(&mut registry);
    LeaseMetrics::register(&mut registry);
    WatchMetrics::register(&mut registry);
    registry.descriptions().to_vec()
}

/// The metrics of a table, in the order of their registration.
fn metrics(program: &str) -> Vec<Description> {
    let mut registry = Registry::default();
    match program {
        "annotator" => drop(annotator::Metrics::register(&mut registry)),
        "gpushare-device-plugin" => {
            drop(gpushare_device_plugin::metrics::Metrics::register(&mut registry));
        }
        "node-exporter-plus" => drop(node_exporter_plus::Metrics::register(&mut registry)),
        "scheduler-extender" => {
            drop(scheduler_extender::metrics::Metrics::register(&mut registry));
        }
        OF_SEVERAL_PROGRAMS => return shared(),
        other => panic!("no program {other}"),
    }
    let shared = shared();
    registry.descriptions().iter().filter(|metric| !shared.contains(metric)).cloned().collect()
}

/// The metrics of all programs.
pub(crate) fn all_metrics() -> Vec<Description> {
    PROGRAMS.into_iter().chain([OF_SEVERAL_PROGRAMS]).flat_map(metrics).collect()
}

/// A program's table, with what the `kept` one says to look for.
pub(super) fn table(program: &str, kept: &str) -> String {
    let mut advice = advice(kept);
    let mut table =
        "| metric | type | what it counts | what to look for |\n|---|---|---|---|\n".to_owned();
    for metric in metrics(program) {
        let advice = advice.remove(&*metric.name).unwrap_or_default();
        let help = sentence(&markdown(metric.help));
        table += &format!("| `{}` | {} | {help} | {advice} |\n", signature(&metric), metric.kind);
    }
    advice.retain(|_, advice| !advice.is_empty());
    assert!(advice.is_empty(), "{DOCUMENT}: what to look for in metrics that are gone: {advice:?}");
    table
}

/// The name with its labels, as `polls_total{outcome}`.
fn signature(metric: &Description) -> String {
    if metric.labels.is_empty() {
        return metric.name.clone();
    }
    format!("{}{{{}}}", metric.name, metric.labels.join(", "))
}

/// The last cell of each row of a table of metrics, by the metric's name.
fn advice(table: &str) -> BTreeMap<&str, &str> {
    let rows = table.lines().filter_map(|row| row.strip_prefix("| `")?.strip_suffix('|'));
    rows.filter_map(|row| Some((name(row), row.rsplit_once("| ")?.1.trim()))).collect()
}

/// The name of a metric that a text begins with, as in `a{b}`.
fn name(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_ascii_lowercase() && !c.is_ascii_digit() && c != '_');
    &text[..end.unwrap_or(text.len())]
}

/// The names in a document's code that are of none of the `metrics`. One that ends in `_` is the start of several.
fn unknown_names<'a>(code: &'a str, metrics: &[Description]) -> Vec<&'a str> {
    let mut unknown = Vec::new();
    for (start, _) in code.match_indices("plimsoll_") {
        // The file of a library, as libplimsoll_nvml_standin.so.
        if code[..start].ends_with("lib") {
            continue;
        }
        let name = name(&code[start..]);
        let is_known = metrics.iter().any(|metric| {
            metric.name == name || name.ends_with('_') && metric.name.starts_with(name)
        });
        if !is_known && !OF_QUERIES.contains(&name) && name != RECORDED {
            unknown.push(name);
        }
    }
    unknown
}

#[test]
fn every_program_has_its_table() {
    let text = read(DOCUMENT);
    for program in PROGRAMS.into_iter().chain([OF_SEVERAL_PROGRAMS]) {
        let start = format!("{START}metrics of {program}{START_ENDS}");
        assert!(text.contains(&start), "{DOCUMENT}: no table `metrics of {program}`");
    }
}

#[test]
fn names_are_unique_and_those_of_counters_alone_end_in_total() {
    let mut names: Vec<String> = Vec::new();
    for Description { name, kind, .. } in all_metrics() {
        assert!(name.starts_with("plimsoll_") || name.starts_with("process_"), "{name}");
        assert_eq!(name.ends_with("_total"), kind == "counter", "{name} is a {kind}");
        assert!(!names.contains(&name), "{name} is registered twice");
        names.push(name);
    }
}

/// A time, memory or a fraction: the name ends in its unit, and the help text says it.
#[test]
fn help_texts_say_the_unit() {
    for Description { name, help, .. } in all_metrics() {
        let said = match name.trim_end_matches("_total").rsplit('_').next() {
            Some("seconds") => help.contains("in seconds") || help.contains("in Unix time"),
            Some("bytes") => help.contains("in bytes"),
            Some("ratio") => help.contains("0 to 1"),
            _ => true,
        };
        assert!(said, "{name}: {help}");
    }
}

#[test]
fn documents_name_only_metrics_that_are_there() {
    let metrics = all_metrics();
    for document in documents() {
        for code in document.code() {
            let unknown = unknown_names(code, &metrics);
            assert!(unknown.is_empty(), "{}: no metric {unknown:?}", document.path.display());
        }
    }
}

#[test]
#[should_panic = "metrics that are gone: {\"plimsoll_annotator_gone\": \"look\"}"]
fn what_to_look_for_in_a_metric_that_is_gone_is_not_dropped() {
    table("annotator", "| `plimsoll_annotator_gone{a}` | gauge | Old. | look |\n");
}

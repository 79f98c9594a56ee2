//! The tables of metrics.md: each program's metrics as it registers them, and in the last column what to look for,
//! which is written by hand.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use daemon::metrics::{Description, Registry};

use super::{END, START, START_ENDS, markdown, sentence};
use crate::links::documents;
use crate::manifests::PROGRAMS;
use crate::repository::{read, root};

const DOCUMENT: &str = "docs/metrics.md";

/// The name of the table of what every program has.
const OF_EVERY_PROGRAM: &str = "every program";

/// Words in the names of metrics that count faults.
const FAULTS: [&str; 16] = [
    "behind",
    "downgrades",
    "errors",
    "evicted",
    "failures",
    "findings",
    "lingering",
    "mismatches",
    "missing",
    "overbooked",
    "problems",
    "refusals",
    "refused",
    "silent",
    "unhealthy",
    "warnings",
];

/// Labels that tell faults from what is well.
const FAULT_LABELS: [&str; 3] = ["cause", "outcome", "reason"];

/// A series that the extender answers queries with, and its label (docs/descheduler.md); on no page of metrics.
const OF_QUERIES: [&str; 2] = ["plimsoll_limit_ratio", "plimsoll_node"];

/// The metrics of a program, in the order of their registration.
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
        OF_EVERY_PROGRAM => registry = Registry::of_program(daemon::program!()),
        other => panic!("no program {other}"),
    }
    registry.descriptions().to_vec()
}

fn all_metrics() -> Vec<Description> {
    PROGRAMS.into_iter().chain([OF_EVERY_PROGRAM]).flat_map(metrics).collect()
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
    let cells = rows.filter_map(|row| Some((row.split_once('`')?.0, row.rsplit_once("| ")?.1)));
    cells.map(|(metric, advice)| (name_and_labels(metric).0, advice.trim())).collect()
}

/// A metric in a document, as `a{b,c="d"}`: its name, and what stands in the braces.
fn name_and_labels(text: &str) -> (&str, &str) {
    let (name, rest) = text.split_at(text.find(|c| !is_of_name(c)).unwrap_or(text.len()));
    let labels = rest.strip_prefix('{').and_then(|rest| rest.split_once('}'));
    (name, labels.map_or("", |(labels, _)| labels))
}

fn is_of_name(c: char) -> bool {
    c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_'
}

/// Why a metric that a document names is none of `metrics`. A name that ends in `_` is the start of several.
fn fault(named: &str, metrics: &[Description]) -> Option<String> {
    let (name, labels) = name_and_labels(named);
    let is_start =
        name.ends_with('_') && metrics.iter().any(|metric| metric.name.starts_with(name));
    if is_start || OF_QUERIES.contains(&name) {
        return None;
    }
    let Some(metric) = metrics.iter().find(|metric| is_of(name, metric)) else {
        return Some(format!("no metric {name}"));
    };
    let names = labels.split(',').map(|label| label.split('=').next().unwrap_or_default().trim());
    let mut names = names.filter(|label| !["", "…", "le"].contains(label));
    let unknown = names.find(|label| !metric.labels.contains(label))?;
    Some(format!("{name} has no label {unknown}"))
}

/// Whether samples of this name are of the metric.
fn is_of(name: &str, metric: &Description) -> bool {
    let suffix = name.strip_prefix(&*metric.name);
    let of_histogram = metric.kind == "histogram";
    suffix == Some("")
        || of_histogram && suffix.is_some_and(|s| ["_bucket", "_sum", "_count"].contains(&s))
}

/// What is wrong with the metrics that a piece of code names.
fn faults(code: &str, metrics: &[Description]) -> Vec<String> {
    let named = code.match_indices("plimsoll_").map(|(at, _)| &code[at..]);
    named.filter_map(|named| fault(named, metrics)).collect()
}

#[test]
fn every_program_has_its_table() {
    let text = read(DOCUMENT);
    for program in PROGRAMS.into_iter().chain([OF_EVERY_PROGRAM]) {
        let start = format!("{START}metrics of {program}{START_ENDS}");
        assert!(text.contains(&start), "{DOCUMENT}: no table `metrics of {program}`");
    }
}

/// The tables are made from `Metrics::register` alone.
#[test]
fn a_program_registers_its_metrics_in_one_call() {
    for program in PROGRAMS {
        let mut calls = Vec::new();
        collect_calls(&root().join(program).join("src"), &mut calls);
        assert_eq!(calls, ["context.register(Metrics::register);"], "{program}");
    }
}

/// The calls of [`daemon::Context::register`] in a folder's sources, each up to the end of its line.
fn collect_calls(folder: &Path, calls: &mut Vec<String>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            collect_calls(&path, calls);
        } else {
            let text = fs::read_to_string(&path).expect("a source");
            let lines = text
                .lines()
                .filter_map(|line| line.find("context.register(").map(|at| &line[at..]));
            calls.extend(lines.map(str::to_owned));
        }
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

/// The unit of a time or of memory is in the help text too.
#[test]
fn help_texts_say_the_unit() {
    for Description { name, help, .. } in all_metrics() {
        for unit in ["seconds", "bytes"] {
            let in_name = name.trim_end_matches("_total").ends_with(unit);
            let said = help.contains(unit) || help.contains("Unix time");
            assert!(!in_name || said, "{name}: {help}");
        }
    }
}

#[test]
fn every_metric_of_faults_has_a_word_on_what_to_look_for() {
    let text = read(DOCUMENT);
    let advice = advice(&text);
    let mut without = Vec::new();
    for metric in all_metrics() {
        let of_faults = metric.name.split('_').any(|word| FAULTS.contains(&word))
            || metric.labels.iter().any(|label| FAULT_LABELS.contains(label));
        if of_faults && advice.get(&*metric.name).is_none_or(|advice| advice.is_empty()) {
            without.push(metric.name);
        }
    }
    assert!(without.is_empty(), "{DOCUMENT}: the last column is empty for {without:?}");
}

#[test]
fn documents_name_only_metrics_and_labels_that_are_there() {
    let metrics = all_metrics();
    let mut wrong = Vec::new();
    for document in documents() {
        for code in document.code() {
            let faults = faults(code, &metrics).into_iter();
            wrong.extend(faults.map(|fault| format!("{}: {fault}", document.path.display())));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The checks above look at something.
#[test]
fn a_wrong_name_and_a_wrong_label_are_faults() {
    let metrics = metrics("annotator");
    for good in [
        "plimsoll_annotator_polls_total",
        "plimsoll_annotator_polls_total{outcome} > 0",
        "rate(plimsoll_annotator_polls_total{outcome=\"ok\"}[5m])",
        "plimsoll_annotator_late_seconds_bucket{le=\"1\"}",
        "plimsoll_annotator_watch_*",
    ] {
        assert_eq!(faults(good, &metrics), [""; 0], "{good}");
    }
    let gone = "plimsoll_annotator_polls / plimsoll_annotator_nodes_total";
    let expected =
        ["no metric plimsoll_annotator_polls", "no metric plimsoll_annotator_nodes_total"];
    assert_eq!(faults(gone, &metrics), expected);
    let label = "plimsoll_annotator_polls_total{outcome=\"ok\",reason=\"x\"}";
    assert_eq!(faults(label, &metrics), ["plimsoll_annotator_polls_total has no label reason"]);
    assert_eq!(
        faults("plimsoll_annotator_nodes_sum", &metrics),
        ["no metric plimsoll_annotator_nodes_sum"]
    );
}

#[test]
fn the_last_column_is_kept_by_the_name_of_the_metric() {
    let kept = "| `plimsoll_annotator_polls_total{gone}` | gauge | Old. | look `a{b}` |\n";
    let row = "| `plimsoll_annotator_polls_total{outcome}` | counter | Polls of exporters, by outcome. | look `a{b}` |\n";
    let fresh = table("annotator", kept);
    assert!(fresh.contains(row), "{fresh}");
    assert_eq!(table("annotator", &fresh), fresh);
    assert!(!fresh.contains(END));
}

#[test]
#[should_panic = "metrics that are gone: {\"plimsoll_annotator_gone\": \"look\"}"]
fn what_to_look_for_in_a_metric_that_is_gone_is_not_dropped() {
    table("annotator", "| `plimsoll_annotator_gone{a}` | gauge | Old. | look |\n");
}

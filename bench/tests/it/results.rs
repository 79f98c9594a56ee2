//! The rows of the page of results are what was measured.

use std::fs;
use std::path::Path;

use bench::results::{CallCost, Figures};
use tempfile::TempDir;

const PAGE: &str =
    "before\n<!-- make bench writes this table -->\nold\n<!-- the end of the table -->\nafter\n";

/// The benchmarks with equal figures here.
const BENCHMARKS: [&str; 5] =
    ["load/filter", "load/score", "view/heartbeat", "view/two_changes", "view/join_and_leave"];

fn figures(folder: &TempDir) -> Figures {
    let calls = folder.path().join("calls.json");
    let mut costs = Vec::new();
    for (verb, cpu) in [("load-aware/filter", 450.0), ("load-aware/prioritize", 600.0)] {
        for nodes in [100, 1_000, 5_000] {
            let verb = verb.to_owned();
            costs.push(CallCost { verb, nodes, cpu, echo_cpu: 500.0 });
        }
    }
    fs::write(&calls, serde_json::to_vec(&costs).unwrap()).unwrap();
    for benchmark in BENCHMARKS {
        for nodes in [100, 1_000, 5_000] {
            estimate(folder.path(), &format!("{benchmark}/{nodes}"), 2_345.0);
        }
    }
    for nodes in [100, 1_000, 5_000] {
        estimate(folder.path(), &format!("verbs/shadow/{nodes}"), f64::from(nodes) * 1e3);
    }
    Figures { calls, criterion: folder.path().to_owned() }
}

/// Nanoseconds, as criterion keeps them.
fn estimate(folder: &Path, benchmark: &str, mean: f64) {
    let folder = folder.join(benchmark).join("new");
    fs::create_dir_all(&folder).unwrap();
    let estimates = serde_json::json!({ "mean": { "point_estimate": mean }, "slope": null });
    fs::write(folder.join("estimates.json"), estimates.to_string()).unwrap();
}

#[test]
fn the_table_between_the_marks_is_what_was_measured() {
    let folder = tempfile::tempdir().unwrap();
    let page = figures(&folder).write_into(PAGE, "2026-11-26, 5ae5e86").unwrap();
    assert_eq!(
        page,
        "before
<!-- make bench writes this table -->
| µs | 100 nodes | 1,000 nodes | 5,000 nodes | `make bench`, 2026-11-26, 5ae5e86 |
|---|---|---|---|---|
| Filter; the echo's; ratio | 450; 500; 0.90 | 450; 500; 0.90 | 450; 500; 0.90 | `cargo bench -p plimsoll-bench --bench extender_http` |
| Prioritize; the echo's; ratio | 600; 500; 1.20 | 600; 500; 1.20 | 600; 500; 1.20 | `cargo bench -p plimsoll-bench --bench extender_http` |
| the load rules of Filter alone; of Prioritize | 2.3; 2.3 | 2.3; 2.3 | 2.3; 2.3 | `cargo bench -p plimsoll-bench --bench placement -- --quick` |
| a Node's event: nothing new; new readings; a node joins or leaves | 2.3; 2.3; 2.3 | 2.3; 2.3; 2.3 | 2.3; 2.3; 2.3 | `cargo bench -p plimsoll-bench --bench view -- --quick` |
| a shadow policy, on another thread, for each pod | 100 | 1,000 | 5,000 | `cargo bench -p plimsoll-bench --bench verbs -- --quick` |
<!-- the end of the table -->
after
"
    );
    let again = figures(&folder).write_into(&page, "2026-11-26, 5ae5e86").unwrap();
    assert_eq!(again, page);
}

#[test]
fn a_figure_that_is_missing_leaves_the_page_as_it_is_and_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let figures = figures(&folder);
    fs::remove_file(folder.path().join("verbs/shadow/5000/new/estimates.json")).unwrap();
    let error = format!("{:#}", figures.write_into(PAGE, "now").unwrap_err());
    assert!(error.contains("verbs/shadow/5000/new/estimates.json"), "{error}");
    let error = format!("{:#}", figures.write_into("no marks", "now").unwrap_err());
    assert!(error.contains("no line before the table"), "{error}");
}

//! The rows of the page of results are what was measured.

use std::fs;
use std::path::Path;

use bench::results::{CallCost, Figures};
use tempfile::TempDir;

const PAGE: &str =
    "before\n<!-- make bench writes this table -->\nold\n<!-- the end of the table -->\nafter\n";

/// The benchmarks with equal figures here.
const BENCHMARKS: [&str; 7] = [
    "load/filter",
    "load/score",
    "view/heartbeat",
    "view/two_changes",
    "view/join_and_leave",
    "view/two_answers_of_all",
    "view/two_answers_of_a_quarter",
];

/// A record, a direction, and nanoseconds: ours, and by `serde_json`.
const CODECS: [(&str, &str, f64, f64); 16] = [
    ("claim_1", "encode", 100.0, 100.0),
    ("claim_1", "decode", 300.0, 100.0),
    ("claim_8", "encode", 500.0, 400.0),
    ("claim_8", "decode", 1_500.0, 1_600.0),
    ("cards_8", "encode", 3_000.0, 3_000.0),
    ("cards_8", "decode", 9_000.0, 7_000.0),
    ("reading", "encode", 80.0, 90.0),
    ("reading", "decode", 2.5, 7.5),
    ("call_100", "decode", 7_000.0, 9_000.0),
    ("call_1000", "decode", 9_000.0, 45_000.0),
    ("call_5000", "decode", 25_000.0, 200_000.0),
    ("answer_100", "encode", 1_000.0, 7_000.0),
    ("answer_1000", "encode", 11_000.0, 55_000.0),
    ("answer_5000", "encode", 75_000.0, 200_000.0),
    ("pods_110", "encode", 4_000.0, 5_000.0),
    ("pods_110", "decode", 20_000.0, 16_000.0),
];

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
    for (record, direction, ours, serde) in CODECS {
        estimate(folder.path(), &format!("codecs/{record}/ours_{direction}"), ours);
        estimate(folder.path(), &format!("codecs/{record}/serde_{direction}"), serde);
    }
    figures_of(folder)
}

fn figures_of(folder: &TempDir) -> Figures {
    let criterion = folder.path().to_owned();
    Figures { calls: criterion.join("calls.json"), criterion }
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
| two answers of the annotator with readings: of all nodes; of a quarter | 2.3; 2.3 | 2.3; 2.3 | 2.3; 2.3 | `cargo bench -p plimsoll-bench --bench view -- --quick` |
| a shadow policy, on another thread, for each pod | 100 | 1,000 | 5,000 | `cargo bench -p plimsoll-bench --bench verbs -- --quick` |
| of a call, its JSON read and the answer's written; by `serde_json` alone; ratio | 8.0; 16; 0.50 | 20; 100; 0.20 | 100; 400; 0.25 | `cargo bench -p plimsoll-bench --bench codecs -- --quick` |
<!-- the end of the table -->
after
"
    );
    let again = figures(&folder).write_into(&page, "2026-11-26, 5ae5e86").unwrap();
    assert_eq!(again, page);
}

#[test]
fn the_table_of_codecs_has_each_direction_and_the_ratio_of_both_together() {
    let folder = tempfile::tempdir().unwrap();
    let page = figures(&folder).write_codecs_into(PAGE, "2026-11-27, 5ae5e86").unwrap();
    let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| ")).collect();
    assert_eq!(rows.len(), 13, "{page}");
    for start in [
        "| 2026-11-27, 5ae5e86 | ns; `serde_json` alone | ratio |",
        "| a pod's claim of 1 GPU | encode 100; 100, decode 300; 100 | 2.00 |",
        "| a pod's claim of 8 GPUs | encode 500; 400, decode 1,500; 1,600 | 1.00 |",
        "| a reading | encode 80; 90, decode 2.5; 7.5 | 0.85 |",
        "| a call's pod and 5,000 names | decode 25,000; 200,000 | 0.12 |",
        "| Filter's answer, 100 nodes | encode 1,000; 7,000 | 0.14 |",
        "| `/v1/pods` of 110 pods, read by the annotator | decode 20,000; 16,000 | 1.25 |",
    ] {
        assert!(rows.iter().any(|row| row.starts_with(start)), "no {start}: {page}");
    }
    fs::remove_file(folder.path().join("codecs/reading/ours_decode/new/estimates.json")).unwrap();
    let error = format!("{:#}", figures_of(&folder).write_codecs_into(PAGE, "now").unwrap_err());
    assert!(error.contains("codecs/reading/ours_decode/new/estimates.json"), "{error}");
}

//! The tables of the page about large clusters are what was measured, and lines through that.

use std::fs;
use std::path::{Path, PathBuf};

use bench::slopes::{Figure, Quantity, SIZES_OF_VIEW, Slopes, check_sizes, write_json};
use tempfile::TempDir;

const PAGE: &str = "before\n<!-- make slopes writes these tables -->\nold\n<!-- the end of the tables -->\nafter\n";

/// What was measured: a constant, and what each node adds.
const MEASURED: [(Quantity, f64, f64); 14] = [
    (Quantity::ExtenderMemory, 10.0, 0.01),
    (Quantity::ExtenderMemoryWithPods, 10.0, 0.02),
    (Quantity::ExtenderStart, 0.1, 0.001),
    (Quantity::Listed, 0.0, 0.06),
    (Quantity::NodeChanges, 0.0, 0.072),
    (Quantity::Filter, 0.1, 0.0001),
    (Quantity::Prioritize, 0.1, 0.0002),
    (Quantity::CallBytes, 10.0, 0.2),
    (Quantity::AnnotatorMemory, 12.0, 0.02),
    (Quantity::Round, 0.0, 0.0001),
    (Quantity::WrittenRound, 0.0, 0.0003),
    (Quantity::ConnectionsMade, 0.0, 0.0),
    (Quantity::NodePatch, 360.0, 0.0),
    (Quantity::NodeEvent, 12_000.0, 0.0),
];

fn figures(sizes: &[usize]) -> Vec<Figure> {
    let mut figures = Vec::new();
    for nodes in sizes.iter().copied() {
        for (quantity, constant, each) in MEASURED {
            figures.push(Figure { quantity, nodes, value: constant + each * nodes as f64 });
        }
    }
    figures
}

/// The figures in two files, and those of the benchmark `view`.
fn written(folder: &TempDir, figures: &[Figure]) -> [PathBuf; 2] {
    let (one, other) = figures.split_at(figures.len() / 2);
    let files = ["one", "other"].map(|name| folder.path().join(name));
    write_json(one, &files[0]).unwrap();
    write_json(other, &files[1]).unwrap();
    for nodes in SIZES_OF_VIEW {
        // Nanoseconds: 4 µs for two changes.
        estimate(folder.path(), &format!("view/two_changes/{nodes}"), 4_000.0);
        estimate(folder.path(), &format!("view/join_and_leave/{nodes}"), nodes as f64 * 100.0);
    }
    files
}

fn estimate(folder: &Path, benchmark: &str, mean: f64) {
    let folder = folder.join(benchmark).join("new");
    fs::create_dir_all(&folder).unwrap();
    let estimates = serde_json::json!({ "mean": { "point_estimate": mean } });
    fs::write(folder.join("estimates.json"), estimates.to_string()).unwrap();
}

fn page_of(sizes: &[usize]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let files = written(&folder, &figures(sizes));
    let slopes = Slopes::read(&files, folder.path()).unwrap();
    slopes.write_into(PAGE, "2026-11-27, 5ae5e86").unwrap()
}

fn assert_rows(page: &str, rows: &[&str]) {
    for row in rows {
        assert!(page.lines().any(|line| line.starts_with(row)), "no {row}\n{page}");
    }
}

#[test]
fn a_slope_is_what_each_thousand_nodes_add_and_how_far_the_figures_are_off() {
    let page = page_of(&[100, 1_000, 5_000, 15_000]);
    assert_rows(
        &page,
        &[
            "| | 100 nodes | 1,000 nodes | 5,000 nodes | 15,000 nodes | each 1,000 nodes more |",
            "| extender: memory, without pods, MiB | 11 | 20 | 60 | 160 | 10 | 10 | 0% |",
            "| of one Node's change, the next snapshot, µs | 2.0 | 2.0 | 2.0 | 2.0 | 0 | 2.0 | 0% |",
            "| a Node joins and leaves, the next snapshots, µs | 10 | 100 | 500 | 1,500 | 100 |",
            "| annotator: CPU of a round of polls, no node written, s | 0.010 | 0.10 | 0.50 | 1.5 | 0.10 |",
        ],
    );
    assert!(page.starts_with("before\n<!--") && page.ends_with("-->\nafter\n"), "{page}");
}

#[test]
fn an_estimate_is_the_measured_figure_or_the_line_at_that_size() {
    let page = page_of(&[100, 1_000, 5_000]);
    assert_rows(
        &page,
        &[
            "| | 5,000 nodes | 15,000 nodes | 50,000 nodes | computed by |",
            "| extender: memory, without pods, MiB | **60** | 160 | 510 | its line |",
            "| extender: CPU of a pod, ms | 1.7 | 4.7 | 15 | Filter + Prioritize |",
            // 0.072 ms a Node, ten times an hour.
            "| extender: CPU of the written Nodes, % of a core | 0.10 | 0.30 | 1.0 |",
            // 1.6 rounds of 0.5 s in 60 s, and 1 s more for 5,000 writes ten times in 3,600 s.
            "| annotator that leads: CPU, % of a core, while it keeps all connections | 1.6 | 4.8 | 16 |",
            "| connections made anew for each round of polls | **0** | 5,000 | 40,000 |",
            "| writes of Nodes a second | 14 | 42 | 139 | nodes × 10 an hour |",
            "| the API server receives, kB/s | 5.0 | 15 | 50 |",
            "| the API server sends, kB/s | 1,000 | 3,000 | 10,000 |",
        ],
    );
}

#[test]
fn beyond_the_kept_connections_a_round_is_shown_and_does_not_bend_the_line() {
    let folder = tempfile::tempdir().unwrap();
    let mut figures = figures(&[100, 1_000, 5_000]);
    figures.push(Figure { quantity: Quantity::Round, nodes: 15_000, value: 9.0 });
    let files = written(&folder, &figures);
    let page = Slopes::read(&files, folder.path()).unwrap().write_into(PAGE, "now").unwrap();
    assert_rows(
        &page,
        &[
            "| annotator: CPU of a round of polls, no node written, s | 0.010 | 0.10 | 0.50 | 9.0 | 0.10 |",
            "| annotator that leads: CPU, % of a core, while it keeps all connections | 1.6 | 4.8 | 16 |",
        ],
    );
}

#[test]
fn what_is_missing_is_named_and_is_never_0() {
    let folder = tempfile::tempdir().unwrap();
    let one_size = written(&folder, &figures(&[100]));
    let error = Slopes::read(&one_size, folder.path()).unwrap().write_into(PAGE, "now");
    let error = format!("{:#}", error.unwrap_err());
    assert_eq!(
        error,
        "no line of `extender: memory, without pods, MiB`: measure at least two sizes"
    );
    let files = written(&folder, &figures(&[100, 1_000]));
    let slopes = Slopes::read(&files, folder.path()).unwrap();
    let error = format!("{:#}", slopes.write_into("no marks", "now").unwrap_err());
    assert_eq!(error, "no line before the tables");
    fs::remove_file(folder.path().join("view/two_changes/15000/new/estimates.json")).unwrap();
    let error = format!("{:#}", Slopes::read(&files, folder.path()).unwrap_err());
    assert!(error.contains("view/two_changes/15000/new/estimates.json"), "{error}");
    let error = format!("{:#}", Slopes::read(&["none"], folder.path()).unwrap_err());
    assert!(error.starts_with("none: "), "{error}");
}

#[test]
fn sizes_by_which_no_line_can_be_drawn_are_refused() {
    assert!(check_sizes(&[100, 1_000]).is_ok());
    for sizes in [&[][..], &[100], &[100, 100], &[5_000, 15_000]] {
        let error = check_sizes(sizes).unwrap_err().to_string();
        assert!(error.contains("needs two sizes of at most 10000 nodes"), "{error}");
    }
}

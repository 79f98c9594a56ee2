//! The rows of `bench/RESULTS.md` that `make bench` measures: what a call costs over HTTP, and what else grows with the
//! number of nodes.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};

/// The lines between which the rows stand.
const START: &str = "<!-- make bench writes this table -->\n";
const END: &str = "<!-- the end of the table -->\n";

/// The sizes of clusters, in nodes, a column each.
const NODES: [usize; 3] = [100, 1_000, 5_000];

/// The rows of criterion's figures: the first cell, and the benchmarks whose figures a cell has.
const CRITERION: [(&str, &[&str], &str); 3] = [
    ("the load rules of Filter alone; of Prioritize", &["load/filter", "load/score"], "placement"),
    (
        "a Node's event: nothing new; new readings; a node joins or leaves",
        &["view/heartbeat", "view/two_changes", "view/join_and_leave"],
        "view",
    ),
    ("a shadow policy, on another thread, for each pod", &["verbs/shadow"], "verbs"),
];

/// CPU of a verb's call over HTTP, in µs: of the extender, and of an echo of the same names.
#[derive(Debug, Serialize, Deserialize)]
pub struct CallCost {
    /// The verb's path.
    pub verb: String,
    /// How many nodes a call names.
    pub nodes: usize,
    /// Of the extender.
    pub cpu: f64,
    /// Of the echo.
    pub echo_cpu: f64,
}

/// Where the figures lie.
#[derive(Debug)]
pub struct Figures {
    /// A JSON list of [`CallCost`].
    pub calls: PathBuf,
    /// The folder of criterion.
    pub criterion: PathBuf,
}

impl Figures {
    /// The page with its rows replaced by those of these figures. `when` says which commit was measured, and when.
    ///
    /// # Errors
    ///
    /// Where a figure is missing, or the page has not the two lines between which the rows stand.
    pub fn write_into(&self, page: &str, when: &str) -> anyhow::Result<String> {
        let (before, rest) = page.split_once(START).context("no line before the table")?;
        let (_, after) = rest.split_once(END).context("no line after the table")?;
        Ok(format!("{before}{START}{}{END}{after}", self.table(when)?))
    }

    fn table(&self, when: &str) -> anyhow::Result<String> {
        let mut table = "| µs |".to_owned();
        for nodes in NODES {
            table += &format!(" {} nodes |", with_commas(nodes as f64));
        }
        table += &format!(" `make bench`, {when} |\n|---|---|---|---|---|\n");
        for (name, verb) in
            [("Filter", "load-aware/filter"), ("Prioritize", "load-aware/prioritize")]
        {
            table += &self.row_of_calls(name, verb)?;
        }
        for (name, benchmarks, target) in CRITERION {
            table += &self.row_of_criterion(name, benchmarks, target)?;
        }
        Ok(table)
    }

    fn row_of_calls(&self, name: &str, verb: &str) -> anyhow::Result<String> {
        let text = read(&self.calls)?;
        let costs: Vec<CallCost> =
            serde_json::from_str(&text).with_context(|| self.calls.display().to_string())?;
        let mut row = format!("| {name}; the echo's; ratio |");
        for nodes in NODES {
            let cost = costs.iter().find(|cost| cost.verb == verb && cost.nodes == nodes);
            let cost = cost.with_context(|| format!("no figure of {verb} with {nodes} nodes"))?;
            ensure!(cost.echo_cpu > 0.0, "the echo's figure of {verb} with {nodes} nodes is 0");
            let CallCost { cpu, echo_cpu, .. } = cost;
            row += &format!(" {cpu:.0}; {echo_cpu:.0}; {:.2} |", cpu / echo_cpu);
        }
        Ok(row + " `cargo bench -p plimsoll-bench --bench extender_http` |\n")
    }

    fn row_of_criterion(
        &self,
        name: &str,
        benchmarks: &[&str],
        target: &str,
    ) -> anyhow::Result<String> {
        let mut row = format!("| {name} |");
        for nodes in NODES {
            let mut figures = Vec::new();
            for benchmark in benchmarks {
                figures.push(short(self.mean(benchmark, nodes)?));
            }
            row += &format!(" {} |", figures.join("; "));
        }
        Ok(row + &format!(" `cargo bench -p plimsoll-bench --bench {target} -- --quick` |\n"))
    }

    /// The mean time of a benchmark, in µs.
    fn mean(&self, benchmark: &str, nodes: usize) -> anyhow::Result<f64> {
        let file = format!("{benchmark}/{nodes}/new/estimates.json");
        let path = self.criterion.join(file);
        let estimates: serde_json::Value =
            serde_json::from_str(&read(&path)?).with_context(|| path.display().to_string())?;
        let mean = estimates["mean"]["point_estimate"].as_f64();
        Ok(mean.with_context(|| format!("{}: no mean", path.display()))? / 1e3)
    }
}

fn read(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| path.display().to_string())
}

/// µs in two digits at least.
fn short(micros: f64) -> String {
    if micros < 10.0 { format!("{micros:.1}") } else { with_commas(micros) }
}

/// A whole number, with a comma before each three digits.
fn with_commas(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

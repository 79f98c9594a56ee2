//! What `make bench` writes down: the rows of `bench/RESULTS.md` of what a call costs over HTTP and what else grows
//! with the number of nodes, and the table of `bench/codecs.md`.

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
const CRITERION: [(&str, &[&str], &str); 4] = [
    ("the load rules of Filter alone; of Prioritize", &["load/filter", "load/score"], "placement"),
    (
        "a Node's event: nothing new; new readings; a node joins or leaves",
        &["view/heartbeat", "view/two_changes", "view/join_and_leave"],
        "view",
    ),
    (
        "two answers of the annotator with readings: of all nodes; of a quarter",
        &["view/two_answers_of_all", "view/two_answers_of_a_quarter"],
        "view",
    ),
    ("a shadow policy, on another thread, for each pod", &["verbs/shadow"], "verbs"),
];

/// What crosses a wire: its name in the table, its benchmark, the directions in which it is measured, and our own way.
const CODECS: [(&str, &str, &[&str], &str); 12] = [
    ("a pod's claim of 1 GPU", "claim_1", &BOTH, CLAIM),
    ("a pod's claim of 8 GPUs", "claim_8", &BOTH, CLAIM),
    (
        "a node's 8 GPUs with 40 pods",
        "cards_8",
        &BOTH,
        "the same `serde_json`, then the bounds of a node's text",
    ),
    (
        "a reading",
        "reading",
        &BOTH,
        "crane's text in the annotator's time zone, where the other is JSON in UTC",
    ),
    ("a call's pod and 100 names", "call_100", &DECODE, CALL),
    ("a call's pod and 1,000 names", "call_1000", &DECODE, CALL),
    ("a call's pod and 5,000 names", "call_5000", &DECODE, CALL),
    ("Filter's answer, 100 nodes", "answer_100", &ENCODE, ANSWER),
    ("Filter's answer, 1,000 nodes", "answer_1000", &ENCODE, ANSWER),
    ("Filter's answer, 5,000 nodes", "answer_5000", &ENCODE, ANSWER),
    (
        "`/v1/pods` of 110 pods, written by the exporter",
        "pods_110",
        &ENCODE,
        "written field by field: whole microseconds, no float",
    ),
    (
        "`/v1/pods` of 110 pods, read by the annotator",
        "pods_110",
        &DECODE,
        "the same `serde_json`, then the bounds of a node's text",
    ),
];
const ENCODE: [&str; 1] = ["encode"];
const DECODE: [&str; 1] = ["decode"];
const BOTH: [&str; 2] = ["encode", "decode"];
const CLAIM: &str =
    "`serde_json`; a name that stands twice is refused, and a share may be an object";
const CALL: &str =
    "a parser for Go's form, which also finds each node; any other form is read by `serde_json`";
const ANSWER: &str = "the request's own text of the names, cut and joined";

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
        between_marks(page, &self.table(when)?)
    }

    /// The page of codecs with its table replaced, likewise.
    ///
    /// # Errors
    ///
    /// As [`Figures::write_into`].
    pub fn write_codecs_into(&self, page: &str, when: &str) -> anyhow::Result<String> {
        let mut table = format!(
            "| {when} | ns; `serde_json` alone | ratio | our own way |\n|---|---|---|---|\n"
        );
        let mut last = "";
        for (name, record, directions, way) in CODECS {
            let mut figures = Vec::new();
            for direction in directions {
                let [ours, serde] = self.codec(record, direction)?;
                figures.push(format!("{direction} {}; {}", short(ours), short(serde)));
            }
            let ratio = self.codec_ratio(record, directions)?;
            let shown = if way == last { "as above" } else { way };
            table += &format!("| {name} | {} | {ratio:.2} | {shown} |\n", figures.join(", "));
            last = way;
        }
        between_marks(page, &table)
    }

    /// The mean times of a codec in one direction, ours and that of `serde_json` alone, in ns.
    fn codec(&self, record: &str, direction: &str) -> anyhow::Result<[f64; 2]> {
        let ours = self.mean(&format!("codecs/{record}/ours_{direction}"))?;
        let serde = self.mean(&format!("codecs/{record}/serde_{direction}"))?;
        Ok([ours * 1e3, serde * 1e3])
    }

    /// Our time of all directions together, divided by that of `serde_json` alone.
    fn codec_ratio(&self, record: &str, directions: &[&str]) -> anyhow::Result<f64> {
        let mut sums = [0.0, 0.0];
        for direction in directions {
            let [ours, serde] = self.codec(record, direction)?;
            sums = [sums[0] + ours, sums[1] + serde];
        }
        ensure!(sums[1] > 0.0, "the figure of {record} by `serde_json` is 0");
        Ok(sums[0] / sums[1])
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
        table += &self.row_of_codecs()?;
        Ok(table)
    }

    /// A call's pod and names read, and Filter's answer written.
    fn row_of_codecs(&self) -> anyhow::Result<String> {
        let mut row =
            "| of a call, its JSON read and the answer's written; by `serde_json` alone; ratio |"
                .to_owned();
        for nodes in NODES {
            let read = self.codec(&format!("call_{nodes}"), "decode")?;
            let written = self.codec(&format!("answer_{nodes}"), "encode")?;
            let [ours, serde] = [0, 1].map(|of| (read[of] + written[of]) / 1e3);
            ensure!(serde > 0.0, "the figures of {nodes} names by `serde_json` are 0");
            row += &format!(" {}; {}; {:.2} |", short(ours), short(serde), ours / serde);
        }
        Ok(row + " `cargo bench -p plimsoll-bench --bench codecs -- --quick` |\n")
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
                figures.push(short(self.mean(&format!("{benchmark}/{nodes}"))?));
            }
            row += &format!(" {} |", figures.join("; "));
        }
        Ok(row + &format!(" `cargo bench -p plimsoll-bench --bench {target} -- --quick` |\n"))
    }

    /// The mean time of a benchmark, in µs.
    fn mean(&self, benchmark: &str) -> anyhow::Result<f64> {
        mean(&self.criterion, benchmark)
    }
}

/// The mean time of a benchmark of criterion, whose figures lie in `folder`, in µs.
pub(crate) fn mean(folder: &Path, benchmark: &str) -> anyhow::Result<f64> {
    let path = folder.join(format!("{benchmark}/new/estimates.json"));
    let estimates: serde_json::Value =
        serde_json::from_str(&read(&path)?).with_context(|| path.display().to_string())?;
    let mean = estimates["mean"]["point_estimate"].as_f64();
    Ok(mean.with_context(|| format!("{}: no mean", path.display()))? / 1e3)
}

/// The page with what stands between the two lines replaced by `table`.
fn between_marks(page: &str, table: &str) -> anyhow::Result<String> {
    let (before, rest) = page.split_once(START).context("no line before the table")?;
    let (_, after) = rest.split_once(END).context("no line after the table")?;
    Ok(format!("{before}{START}{table}{END}{after}"))
}

pub(crate) fn read(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| path.display().to_string())
}

/// A time in two digits at least.
fn short(time: f64) -> String {
    if time < 10.0 { format!("{time:.1}") } else { with_commas(time) }
}

/// A whole number, with a comma before each three digits.
pub(crate) fn with_commas(number: f64) -> String {
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

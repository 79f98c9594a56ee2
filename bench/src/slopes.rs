//! What grows with the number of nodes: figures at several sizes, the line through each, and what the lines say of
//! sizes that were not measured. `make slopes` writes both tables into `docs/scale.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};

use crate::results::{mean, read, with_commas};

/// The lines between which the tables stand.
const START: &str = "<!-- make slopes writes these tables -->\n";
const END: &str = "<!-- the end of the tables -->\n";

/// Pods on each node, where a figure is with pods.
pub const PODS_A_NODE: usize = 10;

/// Images in the status of each Node, of which the kubelet reports at most 50 (`--node-status-max-images`).
pub const IMAGES: usize = 50;

/// Up to so many exporters the annotator keeps every connection; beyond, some are made anew for each poll.
const KEPT_CONNECTIONS: usize = 10_000;

/// How often a steady node is written, by `cargo test -p annotator --lib fleet::tests::writes`.
const WRITES_AN_HOUR: f64 = 10.0;

/// Questions to an exporter under the shipped policy in a minute (readings and pods), and in a measured round of 15 s,
/// where pods are asked for once a minute.
const QUESTIONS_A_MINUTE: f64 = 2.0;
const QUESTIONS_A_ROUND: f64 = 1.25;

/// Who gets a Node once it is written: the writer as its answer, kube-scheduler, two extenders and two annotators as a
/// watch.
const RECEIVERS: f64 = 6.0;

/// The sizes of the benchmark `view`, in nodes.
pub const SIZES_OF_VIEW: [usize; 4] = [100, 1_000, 5_000, 15_000];

/// The sizes of clusters that are estimated.
const ESTIMATED: [usize; 3] = [5_000, 15_000, 50_000];

/// What is measured at each size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Quantity {
    /// Memory of the extender that has read nodes without pods, in MiB.
    ExtenderMemory,
    /// The same with [`PODS_A_NODE`] pods a node.
    ExtenderMemoryWithPods,
    /// CPU of the extender until it has read nodes and pods, in seconds.
    ExtenderStart,
    /// What the API server sends for that, in MB.
    Listed,
    /// CPU of the extender where the readings of every node change once, in ms.
    NodeChanges,
    /// CPU of the extender for Filter of one pod with all names, in ms.
    Filter,
    /// The same of Prioritize.
    Prioritize,
    /// Requests and answers of both, in kB.
    CallBytes,
    /// What one Node's new readings take until the verbs read them, without JSON, in µs.
    Publish,
    /// The same where a Node joins and leaves.
    JoinAndLeave,
    /// Memory of the annotator that leads, in MiB.
    AnnotatorMemory,
    /// CPU of the annotator for a round of polls in which no node is written, in seconds.
    Round,
    /// The same where each node is written.
    WrittenRound,
    /// Connections that the annotator makes anew in a round of polls.
    ConnectionsMade,
    /// The annotator's patch of a Node, in bytes.
    NodePatch,
    /// The watch event that follows it, in bytes.
    NodeEvent,
}

use Quantity::*;

/// Each quantity with its name in the table.
const QUANTITIES: [(Quantity, &str); 16] = [
    (ExtenderMemory, "extender: memory, without pods, MiB"),
    (ExtenderMemoryWithPods, "extender: memory, 10 pods a node, MiB"),
    (ExtenderStart, "extender: CPU to read nodes and pods at a start, s"),
    (Listed, "what is listed for that, MB"),
    (NodeChanges, "extender: CPU where every Node changes once, ms"),
    (Filter, "extender: CPU of Filter with all names, ms"),
    (Prioritize, "extender: CPU of Prioritize with all names, ms"),
    (CallBytes, "requests and answers of both, kB"),
    (Publish, "of one Node's change, the next snapshot, µs"),
    (JoinAndLeave, "a Node joins and leaves, the next snapshots, µs"),
    (AnnotatorMemory, "annotator: memory, MiB"),
    (Round, "annotator: CPU of a round of polls, no node written, s"),
    (WrittenRound, "annotator: the same, each node written, s"),
    (ConnectionsMade, "annotator: connections made anew in a round"),
    (NodePatch, "a patch of a Node, bytes"),
    (NodeEvent, "the event that follows it, bytes"),
];

/// A quantity that was measured with this number of nodes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// What.
    pub quantity: Quantity,
    /// With how many nodes.
    pub nodes: usize,
    /// In the quantity's unit.
    pub value: f64,
}

/// Writes figures as a JSON list.
///
/// # Errors
///
/// Where the file cannot be written; the error names it.
pub fn write_json(figures: &[Figure], file: &Path) -> anyhow::Result<()> {
    fs::write(file, serde_json::to_vec(figures)?).with_context(|| file.display().to_string())
}

/// A straight line: `constant + each * nodes`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Line {
    /// At no nodes.
    pub constant: f64,
    /// For each node.
    pub each: f64,
}

impl Line {
    /// The line of least squares; `None` for fewer than two sizes.
    #[must_use]
    pub fn through(points: &[(f64, f64)]) -> Option<Self> {
        let count = points.len() as f64;
        let mean_x = points.iter().map(|(x, _)| x).sum::<f64>() / count;
        let mean_y = points.iter().map(|(_, y)| y).sum::<f64>() / count;
        let spread: f64 = points.iter().map(|(x, _)| (x - mean_x).powi(2)).sum();
        let common: f64 = points.iter().map(|(x, y)| (x - mean_x) * (y - mean_y)).sum();
        let each = common / spread;
        each.is_finite().then_some(Self { constant: mean_y - each * mean_x, each })
    }

    /// The value at a number of nodes.
    #[must_use]
    pub fn at(self, nodes: f64) -> f64 {
        self.constant + self.each * nodes
    }
}

/// The figures of all sizes.
#[derive(Debug, Default)]
pub struct Slopes {
    /// By quantity, then by number of nodes.
    figures: BTreeMap<Quantity, BTreeMap<usize, f64>>,
}

impl Slopes {
    /// Reads files of [`write_json`], and criterion's figures of the benchmark `view`, which lie in a folder.
    ///
    /// # Errors
    ///
    /// Where a file cannot be read, or a figure is missing; the error names it.
    pub fn read(files: &[impl AsRef<Path>], criterion: &Path) -> anyhow::Result<Self> {
        let mut slopes = Self::default();
        for file in files {
            let file = file.as_ref();
            let figures: Vec<Figure> =
                serde_json::from_str(&read(file)?).with_context(|| file.display().to_string())?;
            figures.into_iter().for_each(|figure| slopes.add(figure));
        }
        for nodes in SIZES_OF_VIEW {
            // The benchmark's change is there and back.
            for (quantity, benchmark, changes) in
                [(Publish, "view/two_changes", 2.0), (JoinAndLeave, "view/join_and_leave", 1.0)]
            {
                let value = mean(criterion, &format!("{benchmark}/{nodes}"))? / changes;
                slopes.add(Figure { quantity, nodes, value });
            }
        }
        Ok(slopes)
    }

    /// Adds a figure, in place of an earlier one of the same size.
    pub fn add(&mut self, figure: Figure) {
        self.figures.entry(figure.quantity).or_default().insert(figure.nodes, figure.value);
    }

    /// The sizes that were measured.
    fn sizes(&self) -> BTreeSet<usize> {
        self.figures.values().flat_map(BTreeMap::keys).copied().collect()
    }

    fn measured(&self, quantity: Quantity, nodes: usize) -> Option<f64> {
        self.figures.get(&quantity)?.get(&nodes).copied()
    }

    /// What a quantity was at the largest size: of one that does not grow, where a line would be drawn out of noise.
    fn largest(&self, quantity: Quantity) -> anyhow::Result<f64> {
        let figures = self.figures.get(&quantity).and_then(BTreeMap::last_key_value);
        let (_, value) = figures.with_context(|| format!("no figure of `{}`", name(quantity)))?;
        Ok(*value)
    }

    /// The line of a quantity. That of the annotator's CPU is through the sizes whose connections are all kept.
    fn line(&self, quantity: Quantity) -> anyhow::Result<Line> {
        let most = match quantity {
            Round | WrittenRound => KEPT_CONNECTIONS,
            _ => usize::MAX,
        };
        let figures = self.figures.get(&quantity).into_iter().flatten();
        let figures = figures.filter(|(nodes, _)| **nodes <= most);
        let points: Vec<_> = figures.map(|(nodes, value)| (*nodes as f64, *value)).collect();
        Line::through(&points)
            .with_context(|| format!("no line of `{}`: measure at least two sizes", name(quantity)))
    }

    /// The page with its tables replaced. `when` says which commit was measured, and when.
    ///
    /// # Errors
    ///
    /// Where a quantity was not measured with two sizes at least, or the page has not the two lines between which the
    /// tables stand.
    pub fn write_into(&self, page: &str, when: &str) -> anyhow::Result<String> {
        let (before, rest) = page.split_once(START).context("no line before the tables")?;
        let (_, after) = rest.split_once(END).context("no line after the tables")?;
        let tables = format!("{}\n{}", self.slopes(when)?, self.estimates()?);
        Ok(format!("{before}{START}{tables}{END}{after}"))
    }

    fn slopes(&self, when: &str) -> anyhow::Result<String> {
        let sizes = self.sizes();
        let mut table = "| |".to_owned();
        sizes.iter().for_each(|nodes| table += &format!(" {} nodes |", with_commas(*nodes as f64)));
        table += &format!(" each 1,000 nodes more | beside that | off the line by | {when} |\n");
        table += &"|---".repeat(sizes.len() + 5);
        table += "|\n";
        for (quantity, name) in QUANTITIES {
            table += &format!("| {name} |");
            for nodes in &sizes {
                let value = self.measured(quantity, *nodes);
                table += &value.map_or(" – |".to_owned(), |value| format!(" {} |", short(value)));
            }
            let line = self.line(quantity)?;
            let off = self.furthest(quantity, line)?;
            let Line { constant, each } = line;
            table += &format!(" {} | {} | {off:.0}% | |\n", short(each * 1e3), short(constant));
        }
        Ok(table)
    }

    /// How far the figures are off the line at most, in percent of the largest.
    fn furthest(&self, quantity: Quantity, line: Line) -> anyhow::Result<f64> {
        let figures = self.figures.get(&quantity).context("no figures")?;
        let largest = figures.values().copied().fold(0.0, f64::max);
        let off = figures.iter().map(|(nodes, value)| (line.at(*nodes as f64) - value).abs());
        let off = off.fold(0.0, f64::max);
        Ok(if largest > 0.0 { 100.0 * off / largest } else { 0.0 })
    }

    fn estimates(&self) -> anyhow::Result<String> {
        let mut table = "| |".to_owned();
        for nodes in ESTIMATED {
            table += &format!(" {} nodes |", with_commas(nodes as f64));
        }
        table += " computed by |\n|---|---|---|---|---|\n";
        for Estimate { name, measured, formula, value } in &ESTIMATES {
            table += &format!("| {name} |");
            for nodes in ESTIMATED {
                let figure = measured.and_then(|quantity| self.measured(quantity, nodes));
                table += &match figure {
                    Some(figure) => format!(" **{}** |", short(figure)),
                    None => format!(" {} |", short(value(self, nodes as f64)?)),
                };
            }
            table += &format!(" {formula} |\n");
        }
        Ok(table)
    }
}

/// A row of the table of estimates.
struct Estimate {
    name: &'static str,
    /// What the row is where it was measured.
    measured: Option<Quantity>,
    formula: &'static str,
    value: fn(&Slopes, f64) -> anyhow::Result<f64>,
}

const LINE: &str = "its line";

const ESTIMATES: [Estimate; 13] = [
    Estimate {
        name: "extender: memory, without pods, MiB",
        measured: Some(ExtenderMemory),
        formula: LINE,
        value: |slopes, nodes| Ok(slopes.line(ExtenderMemory)?.at(nodes)),
    },
    Estimate {
        name: "extender: memory, 10 pods a node, MiB",
        measured: Some(ExtenderMemoryWithPods),
        formula: LINE,
        value: |slopes, nodes| Ok(slopes.line(ExtenderMemoryWithPods)?.at(nodes)),
    },
    Estimate {
        name: "extender: CPU of a start, s",
        measured: Some(ExtenderStart),
        formula: LINE,
        value: |slopes, nodes| Ok(slopes.line(ExtenderStart)?.at(nodes)),
    },
    Estimate {
        name: "what one extender or annotator lists at a start, MB",
        measured: Some(Listed),
        formula: LINE,
        value: |slopes, nodes| Ok(slopes.line(Listed)?.at(nodes)),
    },
    Estimate {
        name: "extender: CPU of the written Nodes, % of a core",
        measured: None,
        formula: "CPU where every Node changes once × 10 an hour",
        value: |slopes, nodes| {
            let milliseconds = slopes.line(NodeChanges)?.at(nodes) * WRITES_AN_HOUR / 3600.0;
            Ok(milliseconds / 10.0)
        },
    },
    Estimate {
        name: "extender: CPU of a pod, ms",
        measured: None,
        formula: "Filter + Prioritize",
        value: |slopes, nodes| {
            Ok(slopes.line(Filter)?.at(nodes) + slopes.line(Prioritize)?.at(nodes))
        },
    },
    Estimate {
        name: "between kube-scheduler and extender for a pod, kB",
        measured: Some(CallBytes),
        formula: LINE,
        value: |slopes, nodes| Ok(slopes.line(CallBytes)?.at(nodes)),
    },
    Estimate {
        name: "annotator that leads: memory, MiB",
        measured: Some(AnnotatorMemory),
        formula: LINE,
        value: |slopes, nodes| Ok(slopes.line(AnnotatorMemory)?.at(nodes)),
    },
    Estimate {
        name: "annotator that leads: CPU, % of a core, while it keeps all connections",
        measured: None,
        formula: "(a round × 2 questions a minute ÷ 1.25 a round) ÷ 60 s + (a round with writes - one without) × 10 an hour",
        value: |slopes, nodes| {
            let (round, written) =
                (slopes.line(Round)?.at(nodes), slopes.line(WrittenRound)?.at(nodes));
            let polls = round * QUESTIONS_A_MINUTE / QUESTIONS_A_ROUND / 60.0;
            Ok(100.0 * (polls + (written - round) * WRITES_AN_HOUR / 3600.0))
        },
    },
    Estimate {
        name: "connections made anew for each round of polls",
        measured: Some(ConnectionsMade),
        formula: "nodes - the 10,000 that are kept",
        value: |_, nodes| Ok((nodes - KEPT_CONNECTIONS as f64).max(0.0)),
    },
    Estimate {
        name: "writes of Nodes a second",
        measured: None,
        formula: "nodes × 10 an hour",
        value: |_, nodes| Ok(writes(nodes)),
    },
    Estimate {
        name: "the API server receives, kB/s",
        measured: None,
        formula: "writes × a patch",
        value: |slopes, nodes| Ok(writes(nodes) * slopes.largest(NodePatch)? / 1e3),
    },
    Estimate {
        name: "the API server sends, kB/s",
        measured: None,
        formula: "writes × the event × 6 (the answer, kube-scheduler, 2 extenders, 2 annotators)",
        value: |slopes, nodes| Ok(writes(nodes) * slopes.largest(NodeEvent)? * RECEIVERS / 1e3),
    },
];

/// Writes of a steady cluster in a second.
fn writes(nodes: f64) -> f64 {
    nodes * WRITES_AN_HOUR / 3600.0
}

fn name(quantity: Quantity) -> &'static str {
    QUANTITIES.iter().find(|(other, _)| *other == quantity).map_or("", |(_, name)| name)
}

/// A number in two digits at least.
fn short(number: f64) -> String {
    match number.abs() {
        0.0 => "0".to_owned(),
        size if size < 0.095 => format!("{number:.3}"),
        size if size < 0.995 => format!("{number:.2}"),
        size if size < 9.95 => format!("{number:.1}"),
        _ if number < 0.0 => format!("-{}", with_commas(-number)),
        _ => with_commas(number),
    }
}

/// Refuses sizes by which no line can be drawn.
///
/// # Errors
///
/// Where fewer than two sizes are so small that the annotator keeps all connections.
pub fn check_sizes(sizes: &[usize]) -> anyhow::Result<()> {
    let kept: BTreeSet<_> = sizes.iter().filter(|nodes| **nodes <= KEPT_CONNECTIONS).collect();
    ensure!(
        kept.len() >= 2,
        "a line needs two sizes of at most {KEPT_CONNECTIONS} nodes; name them, as in 100,1000"
    );
    Ok(())
}

//! All nodes, one line each: verdict, score, the deciding limit, and each metric of the score. Metrics have letters, so
//! that a line fits a terminal; a second table explains the letters.

use std::cmp::Reverse;
use std::io::Write;

use anyhow::Result;
use api::explain::{
    ExplainedGpu, ExplainedGpus, Explanation, GpuOutcome, Limit, LimitOutcome, Node, Reading,
    ReadingStatus,
};

use crate::format::{self, duration, percent};
use crate::table::{self, NONE, or_none};

/// Marks the pod's own node.
const MARK: &str = "*";

/// The smallest shown addition to a reading: a tenth of a percent, after rounding.
const SHOWN: f64 = 0.0005;

/// How many of the nearest misses are shown below accepted nodes.
const MISSES: usize = 5;

/// What a node lacks whose lack is no number, as one that is not measured: more than any other.
const WITHOUT_NUMBER: f64 = 1e6;

/// All nodes: those that are accepted, the best first, then the others, those that lack least first.
pub(super) fn in_order(explained: &Explanation) -> Vec<&Node> {
    let mut nodes: Vec<&Node> = explained.nodes.iter().collect();
    nodes.sort_by(|a, b| {
        let score = |node: &Node| (Reverse(node.extender_score), Reverse(node.score));
        let by_kind = (!a.accepted).cmp(&!b.accepted);
        let by_lack = lack(a).total_cmp(&lack(b));
        by_kind
            .then(by_lack)
            .then_with(|| score(a).cmp(&score(b)))
            .then_with(|| a.name.cmp(&b.name))
    });
    nodes
}

/// How much a node lacks to accept the pod: the part of the limit that it is over, or of the asked units that its
/// emptiest GPU lacks, whichever is more; 0 if it accepts it.
fn lack(node: &Node) -> f64 {
    if node.accepted {
        return 0.0;
    }
    let mut lacks = Vec::new();
    for limit in limits(node) {
        let load = limit.reading.value.map(|value| value + added(limit.in_flight, limit.pod));
        match (limit.outcome, load) {
            (LimitOutcome::Exceeded, Some(load)) => {
                lacks.push((load - limit.max) / limit.max.max(f64::MIN_POSITIVE));
            }
            (LimitOutcome::Exceeded | LimitOutcome::UnknownRejected, _) => {
                lacks.push(WITHOUT_NUMBER);
            }
            _ => {}
        }
    }
    if let Some(gpus) = node.gpus.as_ref().filter(|gpus| gpus.chosen.is_empty()) {
        lacks.push(emptiest(gpus).map_or(WITHOUT_NUMBER, |gpu| {
            f64::from(gpus.asked.saturating_sub(gpu.free)) / f64::from(gpus.asked.max(1))
        }));
    }
    lacks.into_iter().reduce(f64::max).unwrap_or(WITHOUT_NUMBER)
}

/// The GPU with most free units of those that lack nothing else.
fn emptiest(gpus: &ExplainedGpus) -> Option<&ExplainedGpu> {
    let lacks_units = |gpu: &&ExplainedGpu| gpu.outcome == GpuOutcome::TooLittleFree;
    gpus.gpus.iter().filter(lacks_units).max_by_key(|gpu| (gpu.free, Reverse(gpu.index)))
}

/// The nodes that are shown: the best, the nearest misses, and the pod's own.
fn shown<'a>(explained: &Explanation, nodes: &[&'a Node], limit: usize) -> Vec<&'a Node> {
    let accepted = nodes.iter().filter(|node| node.accepted).count();
    let all = accepted == 0 || limit == usize::MAX;
    let misses = if all { limit } else { MISSES.min(limit) };
    let mut shown: Vec<&Node> = nodes[..accepted].iter().take(limit).copied().collect();
    shown.extend(nodes[accepted..].iter().take(misses).copied());
    let own = nodes.iter().find(|node| explained.node.as_ref() == Some(&node.name));
    if let Some(own) = own
        && !shown.iter().any(|node| node.name == own.name)
    {
        shown.push(own);
    }
    shown
}

/// Writes both tables, with at most `limit` of the best nodes.
///
/// # Errors
///
/// If `output` cannot be written.
pub(super) fn write(explained: &Explanation, limit: usize, output: &mut dyn Write) -> Result<()> {
    if explained.nodes.is_empty() {
        return Ok(writeln!(output, "No node is known.")?);
    }
    let metrics = Metric::all(&explained.nodes);
    let with_gpus = explained.nodes.iter().any(|node| node.gpus.is_some());
    let in_score: Vec<&Metric> = metrics.iter().filter(|metric| metric.share.is_some()).collect();
    // Signs in each of the cells below would make lines too long.
    let loads: Vec<_> = in_score.iter().map(|metric| format!("{} %", metric.letter)).collect();
    let mut heading = vec!["", "NODE", "VERDICT", "SCORE", "LIMIT"];
    heading.extend(with_gpus.then_some("GPU"));
    heading.extend(loads.iter().map(String::as_str));
    let nodes = in_order(explained);
    let shown = shown(explained, &nodes, limit);
    let mut rows: Vec<Vec<String>> = Vec::new();
    for node in &shown {
        let is_own = explained.node.as_ref() == Some(&node.name);
        let mut row = vec![
            if is_own { MARK.to_owned() } else { String::new() },
            node.name.clone(),
            verdict(node).to_owned(),
            node.score.to_string(),
            deciding_limit(node, &metrics),
        ];
        row.extend(with_gpus.then(|| gpu(node)));
        row.extend(in_score.iter().map(|metric| metric.cell(node)));
        rows.push(row);
    }
    table::write(output, heading, rows)?;
    write_others(&nodes, &shown, output)?;
    if !metrics.is_empty() {
        writeln!(output)?;
        let heading = ["", "METRIC", "LIMIT", "SCORE SHARE", "WINDOW"];
        table::write(output, heading, metrics.iter().map(Metric::row))?;
    }
    Ok(())
}

/// How many nodes are left out, by verdict.
fn write_others(nodes: &[&Node], shown: &[&Node], output: &mut dyn Write) -> Result<()> {
    let mut verdicts: Vec<(&str, usize)> = Vec::new();
    for node in nodes.iter().filter(|node| !shown.iter().any(|it| it.name == node.name)) {
        let verdict = verdict(node);
        match verdicts.iter_mut().find(|(known, _)| *known == verdict) {
            Some((_, count)) => *count += 1,
            None => verdicts.push((verdict, 1)),
        }
    }
    let (mut left, mut parts) = (0, Vec::new());
    for (verdict, count) in verdicts {
        left += count;
        parts.push(format!("{count} {verdict}"));
    }
    if left > 0 {
        let (more, parts) = (format::count(left, "more node"), parts.join(", "));
        writeln!(output, "and {more}: {parts} (--all shows all, --node NODE one in full)")?;
    }
    Ok(())
}

/// A metric that a limit or a term of any node reads.
struct Metric {
    letter: &'static str,
    name: String,
    /// The lowest of the nodes' limits.
    limit: Option<f64>,
    share: Option<f64>,
    window_seconds: Option<i64>,
}

/// A letter for each of 26 metrics; any more share the last.
const LETTERS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZ?";

impl Metric {
    /// In the order of the first node's limits, then of its terms, then of those of other pools' nodes.
    fn all(nodes: &[Node]) -> Vec<Self> {
        let mut metrics: Vec<Self> = Vec::new();
        for load in nodes.iter().filter_map(|node| node.load.as_ref()) {
            for limit in &load.limits {
                let metric = Self::of(&mut metrics, &limit.metric, &limit.reading);
                metric.limit = Some(metric.limit.map_or(limit.max, |max| max.min(limit.max)));
            }
            for term in &load.terms {
                let metric = Self::of(&mut metrics, &term.metric, &term.reading);
                metric.share = metric.share.or(Some(term.share));
            }
        }
        metrics
    }

    fn of<'a>(metrics: &'a mut Vec<Self>, name: &str, reading: &Reading) -> &'a mut Self {
        let known = metrics.iter().position(|metric| metric.name == name);
        let position = known.unwrap_or(metrics.len());
        if known.is_none() {
            let letter = position.min(LETTERS.len() - 1);
            metrics.push(Self {
                letter: &LETTERS[letter..=letter],
                name: name.to_owned(),
                limit: None,
                share: None,
                window_seconds: reading.window_seconds,
            });
        }
        &mut metrics[position]
    }

    fn row(&self) -> [String; 5] {
        [
            self.letter.to_owned(),
            self.name.clone(),
            or_none(self.limit.map(format::limit)),
            or_none(self.share.map(percent)),
            or_none(self.window_seconds.map(|seconds| duration(seconds as f64))),
        ]
    }

    /// The node's load by this metric.
    fn cell(&self, node: &Node) -> String {
        let terms = node.load.as_ref().map_or(&[][..], |load| &load.terms[..]);
        let term = terms.iter().find(|term| term.metric == self.name);
        or_none(term.map(|term| load(&term.reading, added(term.in_flight, term.pod), "")))
    }
}

fn limits(node: &Node) -> impl Iterator<Item = &Limit> {
    node.load.iter().flat_map(|load| &load.limits)
}

fn added(in_flight: Option<f64>, pod: Option<f64>) -> f64 {
    in_flight.unwrap_or(0.0) + pod.unwrap_or(0.0)
}

/// A reading and what is added to it, each with this sign: `61.2%`, `61.2%+4.0%`, `stale`.
fn load(reading: &Reading, added: f64, sign: &str) -> String {
    let value = reading.value.map(|value| format!("{}{sign}", format::load(value)));
    match (reading.status, value) {
        (ReadingStatus::Stale, _) => "stale".to_owned(),
        (ReadingStatus::Fresh, Some(value)) if added >= SHOWN => {
            format!("{value}+{}{sign}", format::load(added))
        }
        (ReadingStatus::Fresh, Some(value)) => value,
        (ReadingStatus::Fresh, None) => "infinite".to_owned(),
        (ReadingStatus::Missing | ReadingStatus::NotFetched, _) => NONE.to_owned(),
    }
}

fn verdict(node: &Node) -> &'static str {
    if node.accepted && !node.known {
        "unknown node"
    } else if node.accepted && node.passes_over_limit {
        "least loaded"
    } else if node.accepted {
        "accepted"
    } else if limits(node).any(|limit| limit.outcome == LimitOutcome::Exceeded) {
        "over limit"
    } else if limits(node).any(|limit| limit.outcome == LimitOutcome::UnknownRejected) {
        "not measured"
    } else if node.gpus.as_ref().is_some_and(|gpus| gpus.chosen.is_empty()) {
        "no card"
    } else {
        "rejected"
    }
}

/// The first limit that rejects the node, otherwise the limit that the node is nearest to.
fn deciding_limit(node: &Node, metrics: &[Metric]) -> String {
    let rejects = |limit: &&Limit| {
        matches!(limit.outcome, LimitOutcome::Exceeded | LimitOutcome::UnknownRejected)
    };
    let with_share = |limit| Some((limit, share_of_limit(limit)?));
    let nearest = || limits(node).filter_map(with_share).max_by(|a, b| a.1.total_cmp(&b.1));
    let Some(limit) = limits(node).find(rejects).or_else(|| Some(nearest()?.0)) else {
        let exempt = limits(node).any(|limit| limit.outcome == LimitOutcome::Exempt);
        return if exempt { "exempt".to_owned() } else { NONE.to_owned() };
    };
    let metric = metrics.iter().find(|metric| metric.name == limit.metric);
    let letter = metric.map_or("?", |metric| metric.letter);
    let load = load(&limit.reading, added(limit.in_flight, judged_pod(limit)), "%");
    let sign = if limit.outcome == LimitOutcome::Exceeded { '>' } else { '<' };
    match limit.outcome {
        LimitOutcome::UnknownRejected => format!("{letter} {load}"),
        _ => format!("{letter} {load} {sign} {}", format::limit(limit.max)),
    }
}

/// How much of a limit that is met the node uses, with what the pod adds.
fn share_of_limit(limit: &Limit) -> Option<f64> {
    if !matches!(limit.outcome, LimitOutcome::Met | LimitOutcome::MetWithoutPod) {
        return None;
    }
    Some((limit.reading.value? + added(limit.in_flight, judged_pod(limit))) / limit.max)
}

/// What the pod adds to the load that was compared with the limit.
fn judged_pod(limit: &Limit) -> Option<f64> {
    if limit.outcome == LimitOutcome::MetWithoutPod { None } else { limit.pod }
}

/// The chosen GPUs; of a node without, what its emptiest GPU has of what is asked for: `2: 17 of 20`.
fn gpu(node: &Node) -> String {
    let Some(gpus) = &node.gpus else { return NONE.to_owned() };
    if gpus.chosen.is_empty() {
        return match emptiest(gpus) {
            Some(gpu) => format!("{}: {} of {}", gpu.index, gpu.free, gpus.asked),
            None => NONE.to_owned(),
        };
    }
    gpus.chosen.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

//! `plimsoll top`: the hottest nodes, the pods that hold most, the fullest GPUs.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::Write;

use anyhow::Result;
use api::node::{AllGpus, ChargedGpu};
use api::state::{Metric, Replica, State};
use jiff::Timestamp;
use serde::Serialize;

use super::inspect::{bar, each_gpu};
use super::{chosen, out_of_use, short_model, write_doubts};
use crate::args::gpus::{Top, TopPods, TopRows};
use crate::cluster_access::Cluster;
use crate::extender;
use crate::format::{gibibytes, load, short_duration};
use crate::output::write_form;
use crate::pending::scope;
use crate::table::{self, NONE, or_none};

/// Shows nodes, pods or GPUs.
///
/// # Errors
///
/// If the extender does not answer.
pub(crate) fn top(what: &Top, output: &mut dyn Write) -> Result<()> {
    match what {
        Top::Nodes(flags) => nodes(flags, output),
        Top::Pods(flags) => pods(flags, output),
        Top::Gpus(flags) => gpus(flags, output),
    }
}

/// A node of `top nodes`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct HotNode {
    name: String,
    /// The load by the limit that is nearest, over that limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    limit_ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<String>,
    score: u8,
    #[serde(rename = "cards")]
    gpus: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    oldest_reading_seconds: Option<i64>,
    metrics: Vec<Loaded>,
}

/// One metric of a node, as fractions.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Loaded {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    reading: Option<f64>,
    in_flight: f64,
}

/// What is written as JSON.
#[derive(Serialize)]
struct Items<T> {
    time: Timestamp,
    /// The replica that answers: another than the leader, or one that has not listed everything yet, does not know all.
    replica: Replica,
    items: Vec<T>,
}

impl<T: Serialize> Items<T> {
    /// Writes the first of them in the form that is asked for: as a table, or as `none` where that is no empty text and
    /// there are no items.
    fn write<Row: AsRef<[String]>>(
        mut self,
        flags: &TopRows,
        name: impl Fn(&T) -> String,
        heading: &[&str],
        row: impl Fn(&T) -> Row,
        none: &str,
        output: &mut dyn Write,
    ) -> Result<()> {
        let shown = if flags.all { usize::MAX } else { flags.limit };
        let left = self.items.len().saturating_sub(shown);
        self.items.truncate(shown);
        if write_form(&self, self.items.iter().map(name), flags.query.format, output)? {
            return Ok(());
        }
        if self.items.is_empty() && !none.is_empty() {
            writeln!(output, "{none}")?;
        } else {
            table::write(output, heading, self.items.iter().map(row))?;
            if left > 0 {
                writeln!(output, "and {left} more (--all)")?;
            }
        }
        write_doubts(&self.replica, output)
    }
}

fn nodes(flags: &TopRows, output: &mut dyn Write) -> Result<()> {
    let cluster = Cluster::new(&flags.query.access);
    let state: State = extender::get(&cluster, "/v1/state")?;
    let is_chosen = chosen(flags.selector.as_deref(), &cluster)?;
    let mut nodes: Vec<HotNode> =
        (0..state.nodes.name.len()).map(|place| hot_node(&state, place)).collect();
    nodes.retain(|node| is_chosen(&node.name));
    nodes.sort_by(|a, b| {
        let ratio = |node: &HotNode| node.limit_ratio.unwrap_or(-1.0);
        ratio(b).total_cmp(&ratio(a)).then_with(|| a.name.cmp(&b.name))
    });
    let shown: Vec<usize> = (0..state.metrics.len())
        .filter(|place| flags.query.format.is_wide() || state.metrics[*place].max.is_some())
        .collect();
    let titles: Vec<String> = shown.iter().map(|place| title(&state.metrics[*place])).collect();
    let mut heading = vec!["NODE", "LIMIT RATIO", ""];
    heading.extend(titles.iter().map(String::as_str));
    heading.extend(["SCORE", "GPUS", "READ"]);
    let name = |node: &HotNode| format!("node/{}", node.name);
    let row = |node: &HotNode| node_row(node, &shown);
    let items = Items { time: state.time, replica: state.replica, items: nodes };
    items.write(flags, name, &heading, row, "", output)
}

/// A metric's name and its limit: `CPU_BUSY_AVG_5M < 80%`.
fn title(metric: &Metric) -> String {
    let name = metric.name.to_uppercase();
    match metric.max {
        Some(max) => format!("{name} < {}", crate::format::limit(max)),
        None => name,
    }
}

/// Thousandths as a fraction.
fn fraction(thousandths: impl Into<f64>) -> f64 {
    thousandths.into() / 1_000.0
}

fn hot_node(state: &State, place: usize) -> HotNode {
    let nodes = &state.nodes;
    let limit = nodes.limit.get(place).copied().flatten();
    let read_at = nodes.read_at.get(place).copied().flatten();
    let mut metrics = Vec::new();
    for (column, metric) in state.metrics.iter().enumerate() {
        let reading = nodes.readings.get(column).and_then(|it| it.get(place)).copied().flatten();
        let added = nodes.in_flight.get(column).and_then(|it| it.get(place)).copied();
        metrics.push(Loaded {
            name: metric.name.clone(),
            reading: reading.map(fraction),
            in_flight: fraction(added.unwrap_or_default()),
        });
    }
    HotNode {
        name: nodes.name[place].clone(),
        limit_ratio: nodes.limit_ratio.get(place).copied().flatten().map(fraction),
        limit: limit.and_then(|it| Some(state.metrics.get(it as usize)?.name.clone())),
        score: nodes.score.get(place).copied().unwrap_or_default(),
        gpus: nodes.gpus.get(place).copied().unwrap_or_default(),
        oldest_reading_seconds: read_at.map(|read_at| state.time.as_second() - read_at),
        metrics,
    }
}

fn node_row(node: &HotNode, shown: &[usize]) -> Vec<String> {
    let hot = node.limit_ratio.is_some_and(|ratio| ratio > 1.0);
    let mut row = vec![
        node.name.clone(),
        or_none(node.limit_ratio.map(|ratio| format!("{ratio:.2}"))),
        if hot { "HOT".to_owned() } else { String::new() },
    ];
    for metric in shown.iter().filter_map(|place| node.metrics.get(*place)) {
        row.push(match metric.reading {
            None => NONE.to_owned(),
            Some(reading) if metric.in_flight > 0.0 => {
                format!("{}%+{}%", load(reading), load(metric.in_flight))
            }
            Some(reading) if metric.in_flight < 0.0 => {
                format!("{}%-{}%", load(reading), load(-metric.in_flight))
            }
            Some(reading) => format!("{}%", load(reading)),
        });
    }
    let read = node.oldest_reading_seconds.map(short_duration);
    row.extend([node.score.to_string(), node.gpus.to_string(), or_none(read)]);
    row
}

/// A pod that holds units.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Holder {
    namespace: String,
    name: String,
    /// Whether it is a ResourceClaim, and no pod.
    #[serde(rename = "resourceClaim", skip_serializing_if = "std::ops::Not::not")]
    is_claim: bool,
    node: String,
    units: u32,
    /// Percent of the compute of its GPUs together.
    cores: u32,
    #[serde(rename = "cards")]
    gpus: Vec<u32>,
}

fn pods(flags: &TopPods, output: &mut dyn Write) -> Result<()> {
    let TopPods { namespaces, rows: flags } = flags;
    let cluster = Cluster::new(&flags.query.access);
    let gpus: AllGpus = extender::get(&cluster, "/v1/cards")?;
    let is_chosen = chosen(flags.selector.as_deref(), &cluster)?;
    let namespace = cluster.namespace_of(namespaces);
    let mut holders = holders(&gpus);
    holders.retain(|it| namespace.as_ref().is_none_or(|namespace| it.namespace == *namespace));
    holders.retain(|it| is_chosen(&it.node));
    let kind = |it: &Holder| if it.is_claim { "resourceclaim" } else { "pod" };
    let name = |it: &Holder| format!("{}/{}", kind(it), it.name);
    let heading = ["NAMESPACE", "POD", "UNITS", "COMPUTE", "NODE", "GPUS"];
    let none = format!("No pod holds units of GPUs{}.", scope(namespace.as_deref()));
    let items = Items { time: gpus.time, replica: gpus.replica, items: holders };
    items.write(flags, name, &heading, holder_row, &none, output)
}

/// The pods and ResourceClaims of all GPUs, those with most units first.
fn holders(gpus: &AllGpus) -> Vec<Holder> {
    let mut pods: BTreeMap<([&str; 3], bool), Holder> = BTreeMap::new();
    for (node, gpu) in each_gpu(gpus) {
        for charge in gpu.charges.iter().filter(|charge| !charge.name.is_empty()) {
            let name = [charge.namespace.as_str(), charge.name.as_str(), node];
            let key = (name, charge.resource_claim);
            let holder = pods.entry(key).or_insert_with(|| Holder {
                namespace: charge.namespace.clone(),
                name: charge.name.clone(),
                is_claim: charge.resource_claim,
                node: node.to_owned(),
                units: 0,
                cores: 0,
                gpus: Vec::new(),
            });
            holder.units += charge.units;
            holder.cores += charge.cores;
            holder.gpus.push(gpu.index);
        }
    }
    let mut holders: Vec<Holder> = pods.into_values().collect();
    holders.sort_by_key(|holder| Reverse(holder.units));
    holders
}

fn holder_row(holder: &Holder) -> [String; 6] {
    let gpus: Vec<String> = holder.gpus.iter().map(u32::to_string).collect();
    let namespace = &holder.namespace;
    [
        if namespace.is_empty() { NONE.to_owned() } else { namespace.clone() },
        format!("{}{}", holder.name, if holder.is_claim { " (ResourceClaim)" } else { "" }),
        holder.units.to_string(),
        if holder.cores == 0 { NONE.to_owned() } else { format!("{}%", holder.cores) },
        holder.node.clone(),
        gpus.join(","),
    ]
}

/// A GPU of `top gpus`.
#[derive(Serialize)]
struct NodeGpu<'a> {
    node: &'a str,
    #[serde(flatten)]
    gpu: &'a ChargedGpu,
}

fn gpus(flags: &TopRows, output: &mut dyn Write) -> Result<()> {
    let cluster = Cluster::new(&flags.query.access);
    let gpus: AllGpus = extender::get(&cluster, "/v1/cards")?;
    let is_chosen = chosen(flags.selector.as_deref(), &cluster)?;
    let mut all: Vec<NodeGpu<'_>> = each_gpu(&gpus)
        .filter(|(node, _)| is_chosen(node))
        .map(|(node, gpu)| NodeGpu { node, gpu })
        .collect();
    all.sort_by(|a, b| fullness(b.gpu).total_cmp(&fullness(a.gpu)));
    let name = |it: &NodeGpu<'_>| format!("{}/{}", it.node, it.gpu.index);
    let heading = ["NODE", "GPU", "MODEL", "HELD/UNITS", "USED", "COMPUTE HELD", "PODS"];
    let items = Items { time: gpus.time, replica: gpus.replica.clone(), items: all };
    items.write(flags, name, &heading, gpu_row, "", output)
}

/// The part of a GPU that is held, or in use if that is more.
fn fullness(gpu: &ChargedGpu) -> f64 {
    let held = f64::from(gpu.units.saturating_sub(gpu.free)) / f64::from(gpu.units.max(1));
    let used = gpu.used.map(|used| used as f64 / gpu.memory.max(1) as f64);
    held.max(used.unwrap_or_default())
}

fn gpu_row(it: &NodeGpu<'_>) -> [String; 7] {
    let NodeGpu { node, gpu } = it;
    let held = gpu.units.saturating_sub(gpu.free);
    let state = out_of_use(gpu).map(|why| format!(" {why}")).unwrap_or_default();
    [
        (*node).to_owned(),
        gpu.index.to_string(),
        short_model(&gpu.model).to_owned(),
        format!("{} {held}/{}{state}", bar(held, gpu.units), gpu.units),
        or_none(gpu.used.map(gibibytes)),
        format!("{}%", 100_u32.saturating_sub(gpu.free_cores)),
        gpu.charges.iter().filter(|charge| !charge.name.is_empty()).count().to_string(),
    ]
}

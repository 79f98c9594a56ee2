//! `plimsoll top`: the hottest nodes, the pods that hold most, the fullest cards.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::ExitCode;

use anyhow::Result;
use api::node::{AllCards, Card};
use api::state::{Metric, Replica, State};
use jiff::Timestamp;
use serde::Serialize;

use super::gpus::{bar, each_card};
use super::{out_of_use, short_model, write_doubts};
use crate::args::cards::{Top, TopPods, TopRows};
use crate::cluster_access::Cluster;
use crate::extender;
use crate::format::{gibibytes, load, short_duration};
use crate::output::{write_names, write_value};
use crate::table::{self, NONE, or_none};

/// Shows nodes, pods or cards.
///
/// # Errors
///
/// If the extender does not answer.
pub(crate) fn top(what: &Top, output: &mut dyn Write) -> Result<ExitCode> {
    match what {
        Top::Nodes(flags) => nodes(flags, output),
        Top::Pods(flags) => pods(flags, output),
        Top::Cards(flags) => cards(flags, output),
    }
}

/// The names of `--selector`; `None` if all nodes count.
fn chosen(flags: &TopRows, cluster: &Cluster) -> Result<Option<BTreeSet<String>>> {
    flags.selector.as_ref().map(|selector| cluster.nodes_with(selector)).transpose()
}

/// The first rows, and how many are left.
fn first<T>(mut rows: Vec<T>, flags: &TopRows) -> (Vec<T>, usize) {
    let shown = if flags.all { rows.len() } else { flags.limit.min(rows.len()) };
    let left = rows.len() - shown;
    rows.truncate(shown);
    (rows, left)
}

fn write_left(left: usize, output: &mut dyn Write) -> Result<()> {
    if left > 0 {
        writeln!(output, "and {left} more (--all)")?;
    }
    Ok(())
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
    cards: u32,
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

#[derive(Serialize)]
struct Items<T> {
    time: Timestamp,
    /// The replica that answers: another than the leader, or one that has not listed everything yet, does not know all.
    replica: Replica,
    items: Vec<T>,
}

fn nodes(flags: &TopRows, output: &mut dyn Write) -> Result<ExitCode> {
    let cluster = Cluster::new(&flags.access);
    let state: State = extender::get(&cluster, "/v1/state")?;
    let chosen = chosen(flags, &cluster)?;
    let mut nodes: Vec<HotNode> =
        (0..state.nodes.name.len()).map(|place| hot_node(&state, place)).collect();
    nodes.retain(|node| chosen.as_ref().is_none_or(|chosen| chosen.contains(&node.name)));
    nodes.sort_by(|a, b| {
        let ratio = |node: &HotNode| node.limit_ratio.unwrap_or(-1.0);
        ratio(b).total_cmp(&ratio(a)).then_with(|| a.name.cmp(&b.name))
    });
    let (nodes, left) = first(nodes, flags);
    let names = nodes.iter().map(|node| format!("node/{}", node.name));
    if write_names(names, flags.format, output)? {
        return Ok(ExitCode::SUCCESS);
    }
    let answer = Items { time: state.time, replica: state.replica.clone(), items: nodes };
    if write_value(&answer, flags.format, output)? {
        return Ok(ExitCode::SUCCESS);
    }
    let shown: Vec<usize> = (0..state.metrics.len())
        .filter(|place| flags.format.is_wide() || state.metrics[*place].max.is_some())
        .collect();
    let titles: Vec<String> = shown.iter().map(|place| title(&state.metrics[*place])).collect();
    let mut heading = vec!["NODE", "LIMIT RATIO", ""];
    heading.extend(titles.iter().map(String::as_str));
    heading.extend(["SCORE", "CARDS", "READ"]);
    let rows: Vec<Vec<String>> = answer.items.iter().map(|node| node_row(node, &shown)).collect();
    table::write(output, heading, &rows)?;
    write_left(left, output)?;
    write_doubts(&answer.replica, output)?;
    Ok(ExitCode::SUCCESS)
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
    let limit = limit.and_then(|metric| state.metrics.get(metric as usize));
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
        limit: limit.map(|metric| metric.name.clone()),
        score: nodes.score.get(place).copied().unwrap_or_default(),
        cards: nodes.cards.get(place).copied().unwrap_or_default(),
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
    row.extend([node.score.to_string(), node.cards.to_string(), or_none(read)]);
    row
}

/// A pod that holds units.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Holder {
    namespace: String,
    name: String,
    node: String,
    units: u32,
    /// Percent of the compute of its cards together.
    cores: u32,
    cards: Vec<u32>,
}

fn pods(flags: &TopPods, output: &mut dyn Write) -> Result<ExitCode> {
    let TopPods { namespaces, rows: flags } = flags;
    let cluster = Cluster::new(&flags.access);
    let cards: AllCards = extender::get(&cluster, "/v1/cards")?;
    let chosen = chosen(flags, &cluster)?;
    let namespace = cluster.namespace_of(namespaces);
    let mut holders = holders(&cards);
    holders.retain(|it| namespace.as_ref().is_none_or(|namespace| it.namespace == *namespace));
    holders.retain(|it| chosen.as_ref().is_none_or(|chosen| chosen.contains(&it.node)));
    let (holders, left) = first(holders, flags);
    let names = holders.iter().map(|it| format!("pod/{}", it.name));
    if write_names(names, flags.format, output)? {
        return Ok(ExitCode::SUCCESS);
    }
    let answer = Items { time: cards.time, replica: cards.replica.clone(), items: holders };
    if write_value(&answer, flags.format, output)? {
        return Ok(ExitCode::SUCCESS);
    }
    if answer.items.is_empty() {
        let scope = namespace.map(|name| format!(" in namespace {name} (-A: all)"));
        writeln!(output, "No pod holds units of cards{}.", scope.unwrap_or_default())?;
        write_doubts(&answer.replica, output)?;
        return Ok(ExitCode::SUCCESS);
    }
    let rows: Vec<[String; 6]> = answer.items.iter().map(holder_row).collect();
    table::write(output, ["NAMESPACE", "POD", "UNITS", "COMPUTE", "NODE", "CARDS"], &rows)?;
    write_left(left, output)?;
    write_doubts(&cards.replica, output)?;
    Ok(ExitCode::SUCCESS)
}

/// The pods of all cards, those with most units first.
fn holders(cards: &AllCards) -> Vec<Holder> {
    let mut pods: BTreeMap<[&str; 3], Holder> = BTreeMap::new();
    for (node, card) in each_card(cards) {
        for charge in card.charges.iter().filter(|charge| !charge.name.is_empty()) {
            let key = [charge.namespace.as_str(), charge.name.as_str(), node];
            let holder = pods.entry(key).or_insert_with(|| Holder {
                namespace: charge.namespace.clone(),
                name: charge.name.clone(),
                node: node.to_owned(),
                units: 0,
                cores: 0,
                cards: Vec::new(),
            });
            holder.units += charge.units;
            holder.cores += charge.cores;
            holder.cards.push(card.index);
        }
    }
    let mut holders: Vec<Holder> = pods.into_values().collect();
    holders.sort_by_key(|holder| Reverse(holder.units));
    holders
}

fn holder_row(holder: &Holder) -> [String; 6] {
    let cards: Vec<String> = holder.cards.iter().map(u32::to_string).collect();
    let namespace = &holder.namespace;
    [
        if namespace.is_empty() { NONE.to_owned() } else { namespace.clone() },
        holder.name.clone(),
        holder.units.to_string(),
        if holder.cores == 0 { NONE.to_owned() } else { format!("{}%", holder.cores) },
        holder.node.clone(),
        cards.join(","),
    ]
}

/// A card of `top cards`.
#[derive(Serialize)]
struct NodeCard<'a> {
    node: &'a str,
    #[serde(flatten)]
    card: &'a Card,
}

fn cards(flags: &TopRows, output: &mut dyn Write) -> Result<ExitCode> {
    let cluster = Cluster::new(&flags.access);
    let cards: AllCards = extender::get(&cluster, "/v1/cards")?;
    let chosen = chosen(flags, &cluster)?;
    let mut all: Vec<NodeCard<'_>> = each_card(&cards)
        .filter(|(node, _)| chosen.as_ref().is_none_or(|chosen| chosen.contains(*node)))
        .map(|(node, card)| NodeCard { node, card })
        .collect();
    all.sort_by(|a, b| fullness(b.card).total_cmp(&fullness(a.card)));
    let (all, left) = first(all, flags);
    let names = all.iter().map(|it| format!("{}/{}", it.node, it.card.index));
    if write_names(names, flags.format, output)? {
        return Ok(ExitCode::SUCCESS);
    }
    let answer = Items { time: cards.time, replica: cards.replica.clone(), items: all };
    if write_value(&answer, flags.format, output)? {
        return Ok(ExitCode::SUCCESS);
    }
    let rows: Vec<[String; 7]> = answer.items.iter().map(card_row).collect();
    let heading = ["NODE", "CARD", "MODEL", "HELD/UNITS", "USED", "COMPUTE HELD", "PODS"];
    table::write(output, heading, &rows)?;
    write_left(left, output)?;
    write_doubts(&cards.replica, output)?;
    Ok(ExitCode::SUCCESS)
}

/// The part of a card that is held, or in use if that is more.
fn fullness(card: &Card) -> f64 {
    let held = f64::from(card.units.saturating_sub(card.free)) / f64::from(card.units.max(1));
    let used = card.used.map(|used| used as f64 / card.memory.max(1) as f64);
    held.max(used.unwrap_or_default())
}

fn card_row(it: &NodeCard<'_>) -> [String; 7] {
    let NodeCard { node, card } = it;
    let held = card.units.saturating_sub(card.free);
    let state = out_of_use(card).map(|why| format!(" {why}")).unwrap_or_default();
    [
        (*node).to_owned(),
        card.index.to_string(),
        short_model(&card.model).to_owned(),
        format!("{} {held}/{}{state}", bar(held, card.units), card.units),
        or_none(card.used.map(gibibytes)),
        format!("{}%", 100_u32.saturating_sub(card.free_cores)),
        card.charges.iter().filter(|charge| !charge.name.is_empty()).count().to_string(),
    ]
}

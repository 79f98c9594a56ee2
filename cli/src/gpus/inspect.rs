//! `plimsoll gpus`: GPUs, who holds what of each, and what still fits.

use std::collections::BTreeMap;
use std::io::Write;

use anyhow::{Result, bail};
use api::capacity::Question;
use api::inspect::Inspected;
use api::node::{AllGpus, ChargedGpu, NodeDetail, NodeGpus, Sharing};

use super::capacity;
use super::{chosen, holder, out_of_use, short_model, write_doubts};
use crate::args::gpus::{Gpus, Inspect};
use crate::cluster_access::Cluster;
use crate::extender;
use crate::format::{count, gibibytes};
use crate::output::{json, write_form};
use crate::table::{self, NONE, or_none};

/// The width of the bar that shows how much of a GPU is held.
const BAR: u64 = 10;
/// How many sizes of pods the last line tells of.
const SIZES: usize = 3;

/// Shows the GPUs.
///
/// # Errors
///
/// If the extender does not answer, or has no such node.
pub(crate) fn gpus(flags: &Gpus, output: &mut dyn Write) -> Result<()> {
    let cluster = Cluster::new(&flags.query.access);
    let gpus = read(flags, &cluster)?;
    let name = |node: &NodeGpus| format!("node/{}", node.name);
    if write_form(&gpus, gpus.nodes.iter().map(name), flags.query.format, output)? {
        return Ok(());
    }
    let wide = flags.query.format.is_wide();
    let rows: Vec<Vec<String>> = each_gpu(&gpus).map(|(node, gpu)| row(node, gpu, wide)).collect();
    if rows.is_empty() {
        writeln!(output, "No node reports GPUs.")?;
    } else {
        let mut heading = vec!["NODE", "GPU", "MODEL", "HELD/UNITS", "USED", "PODS"];
        if wide {
            heading.extend(["FREE COMPUTE", "MEMORY", "UUID"]);
        }
        table::write(output, heading, rows)?;
        writeln!(output, "\n{}\n{}", summary(&gpus), still_fit(flags, &gpus, &cluster)?)?;
    }
    write_doubts(&gpus.replica, output)
}

/// The former `inspect --json`: the answer of the inspect API, as other tools of gpushare read it.
///
/// # Errors
///
/// As for [`gpus`].
pub(crate) fn inspect(flags: &Inspect, output: &mut dyn Write) -> Result<()> {
    let flags = &flags.gpus;
    if !flags.query.format.json {
        return gpus(flags, output);
    }
    let node = flags.node.as_ref().map(|node| format!("/{node}")).unwrap_or_default();
    let cluster = Cluster::new(&flags.query.access);
    let inspected: Inspected =
        extender::get(&cluster, &format!("/gpushare-scheduler/inspect{node}"))?;
    if !inspected.error.is_empty() {
        bail!("{}", inspected.error);
    }
    Ok(writeln!(output, "{}", json(&inspected)?)?)
}

fn read(flags: &Gpus, cluster: &Cluster) -> Result<AllGpus> {
    if let Some(node) = &flags.node {
        let NodeDetail { time, replica, name, gpus, .. } =
            extender::get(cluster, &format!("/v1/nodes/{node}"))?;
        if gpus.is_empty() {
            bail!(
                "node {node} reports no GPUs: `kubectl plimsoll doctor` says what its device plugin lacks"
            );
        }
        return Ok(AllGpus { time, replica, nodes: vec![NodeGpus { name, gpus }] });
    }
    let mut gpus: AllGpus = extender::get(cluster, "/v1/cards")?;
    let is_chosen = chosen(flags.selector.as_deref(), cluster)?;
    gpus.nodes.retain(|node| is_chosen(&node.name));
    Ok(gpus)
}

/// Every GPU with its node.
pub(super) fn each_gpu(gpus: &AllGpus) -> impl Iterator<Item = (&str, &ChargedGpu)> {
    gpus.nodes.iter().flat_map(|node| node.gpus.iter().map(|gpu| (node.name.as_str(), gpu)))
}

fn row(node: &str, gpu: &ChargedGpu, wide: bool) -> Vec<String> {
    let held = gpu.units.saturating_sub(gpu.free);
    let numbers = format!("{held}/{}", gpu.units);
    let state = match out_of_use(gpu) {
        Some(why) => format!("{numbers} {why}"),
        None => format!("{} {numbers}", bar(held, gpu.units)),
    };
    let mut row = vec![
        node.to_owned(),
        gpu.index.to_string(),
        short_model(&gpu.model).to_owned(),
        state + &sharing(gpu),
        or_none(gpu.used.map(gibibytes)),
        pods(gpu),
    ];
    if wide {
        let cores = format!("{}%", gpu.free_cores);
        row.extend([cores, gibibytes(gpu.memory), gpu.uuid.clone()]);
    }
    row
}

/// As ` mps 12/48` for a GPU with clients of MPS.
fn sharing(gpu: &ChargedGpu) -> String {
    let kind = match gpu.sharing {
        Some(Sharing::Mps) => " mps",
        Some(Sharing::Mixed) => " mps and turns",
        Some(Sharing::Turns | Sharing::Other) | None => return String::new(),
    };
    match (gpu.mps_clients, gpu.most_mps_clients) {
        (Some(clients), Some(most)) => format!("{kind} {clients}/{most}"),
        (Some(clients), None) => format!("{kind} {clients}"),
        (None, _) => kind.to_owned(),
    }
}

fn pods(gpu: &ChargedGpu) -> String {
    let holders: Vec<String> =
        gpu.charges.iter().map(|charge| format!("{} {}", holder(charge), charge.units)).collect();
    if holders.is_empty() { NONE.to_owned() } else { holders.join(", ") }
}

/// A bar: full blocks for what is held.
pub(super) fn bar(held: u32, units: u32) -> String {
    let full = match units {
        0 => 0,
        _ => (u64::from(held) * BAR).div_ceil(u64::from(units)).min(BAR) as usize,
    };
    format!("{}{}", "█".repeat(full), "░".repeat(BAR as usize - full))
}

/// Totals, and what is too little for the sizes that pods have.
fn summary(gpus: &AllGpus) -> String {
    let all: Vec<&ChargedGpu> = each_gpu(gpus).map(|(_, gpu)| gpu).collect();
    let units: u64 = all.iter().map(|gpu| u64::from(gpu.units)).sum();
    let free: u64 = all.iter().map(|gpu| u64::from(gpu.free)).sum();
    let (out, open): (Vec<&ChargedGpu>, Vec<&ChargedGpu>) =
        all.iter().partition(|gpu| out_of_use(gpu).is_some());
    let closed: u64 = out.iter().map(|gpu| u64::from(gpu.free)).sum();
    let sizes = sizes(&all);
    let held = (units - free.min(units)) as f64 * 100.0 / units.max(1) as f64;
    let mut text = format!("Total: {}, {units} units, {held:.0}% held", count(all.len(), "GPU"));
    if let Some((used, memory)) = measured(&all) {
        text += &format!(", {:.0}% of the memory used", used as f64 * 100.0 / memory.max(1) as f64);
    }
    if closed > 0 {
        text += &format!(", {closed} free on GPUs that take no pods");
    }
    if let Some(smallest) = sizes.iter().min() {
        let stranded: u32 = open.iter().map(|gpu| gpu.free).filter(|free| free < smallest).sum();
        text += &format!(", {stranded} stranded (less than {smallest} on a GPU)");
    }
    text + "."
}

/// How many pods of the usual sizes fit, as Filter decides, and the largest that does.
fn still_fit(flags: &Gpus, gpus: &AllGpus, cluster: &Cluster) -> Result<String> {
    let names = || gpus.nodes.iter().map(|node| node.name.clone()).collect();
    let mut sizes = sizes(&each_gpu(gpus).map(|(_, gpu)| gpu).collect::<Vec<_>>());
    // Of no pod, for the largest size alone.
    sizes.push(1);
    let question = Question {
        sizes,
        count: 1,
        cores: 0,
        node_names: (flags.node.is_some() || flags.selector.is_some()).then(names),
    };
    let mut answers = capacity::ask(cluster, &question)?;
    let largest = answers.pop().map_or(0, |of_any| of_any.total.largest);
    let mut fits: Vec<String> = Vec::new();
    for answer in answers.iter().filter(|answer| answer.total.pods > 0) {
        fits.push(format!("{} units {}x", answer.size, answer.total.pods));
    }
    fits.push(format!("{largest} units at most"));
    Ok(format!("Still fit: {}.", fits.join(", ")))
}

/// Memory in use and all memory, in MiB, of the GPUs whose use is measured.
fn measured(gpus: &[&ChargedGpu]) -> Option<(u64, u64)> {
    let measured = |gpu: &&ChargedGpu| Some((gpu.used?, gpu.memory));
    gpus.iter().filter_map(measured).reduce(|sum, gpu| (sum.0 + gpu.0, sum.1 + gpu.1))
}

/// The sizes that most pods have, at most [`SIZES`], the smallest first.
fn sizes(gpus: &[&ChargedGpu]) -> Vec<u32> {
    let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
    for charge in gpus.iter().flat_map(|gpu| &gpu.charges) {
        if charge.units > 0 && !charge.name.is_empty() {
            *counts.entry(charge.units).or_default() += 1;
        }
    }
    let mut sizes: Vec<u32> = counts.keys().copied().collect();
    sizes.sort_by_key(|size| std::cmp::Reverse(counts[size]));
    sizes.truncate(SIZES);
    sizes.sort_unstable();
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_empty_only_where_nothing_is_held_and_full_only_where_all_is() {
        assert_eq!(bar(0, 80), "░░░░░░░░░░");
        assert_eq!(bar(1, 80), "█░░░░░░░░░");
        assert_eq!(bar(80, 80), "██████████");
        assert_eq!(bar(90, 80), "██████████");
        assert_eq!(bar(3, 0), "░░░░░░░░░░");
    }
}

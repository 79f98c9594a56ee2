//! What grows with the number of nodes: memory, what a start reads, what changed Nodes cost, and calls with all names.

use std::path::Path;

use anyhow::Context as _;
use bench::slopes::{Figure, IMAGES, PODS_A_NODE, Quantity, check_sizes, write_json};
use tokio::runtime::Runtime;

use crate::Args;
use crate::client::Client;
use crate::cluster::{CALLS, Cluster, Load, Order, requests};
use crate::load::{Measured, ask_all};
use crate::report;

pub(super) fn measure(args: &Args) -> anyhow::Result<()> {
    check_sizes(&args.nodes)?;
    let file: &Path = args.slopes.as_deref().context("no --slopes FILE")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mut figures = Vec::new();
    for nodes in &args.nodes {
        println!("the extender with {nodes} nodes");
        measure_size(args, &runtime, *nodes, &mut |quantity, value| {
            figures.push(Figure { quantity, nodes: *nodes, value });
        })?;
    }
    write_json(&figures, file)
}

fn measure_size(
    args: &Args,
    runtime: &Runtime,
    nodes: usize,
    note: &mut impl FnMut(Quantity, f64),
) -> anyhow::Result<()> {
    let with_pods = nodes * PODS_A_NODE;
    for bound in [0, with_pods] {
        let cluster = Cluster { bound, images: IMAGES, ..Cluster::new(args, nodes, Load::Low) };
        let extender = Measured::start(runtime, args, cluster)?;
        let [rss, _] = extender.server.memory()?;
        let memory = rss as f64 / 1024.0;
        if bound == 0 {
            note(Quantity::ExtenderMemory, memory);
            continue;
        }
        note(Quantity::ExtenderMemoryWithPods, memory);
        note(Quantity::ExtenderStart, extender.server.cpu()? / 1e6);
        note(Quantity::Listed, extender.api.listed() as f64 / 1e6);
        note(Quantity::NodeChanges, changes(&extender, nodes)? / 1e3);
        calls(&extender, &cluster, args.rounds, note)?;
    }
    Ok(())
}

/// CPU of the extender where the readings of every Node change once, in microseconds. The first time warms up.
fn changes(extender: &Measured, nodes: usize) -> anyhow::Result<f64> {
    let server = &extender.server;
    let mut used = 0.0;
    for round in 1..=2 {
        let (before, events) = (server.cpu()?, server.events_of_nodes()?);
        extender.api.change_nodes(round);
        server.wait_for_events(events + nodes)?;
        server.settle()?;
        used = server.cpu()? - before;
    }
    Ok(used)
}

/// CPU and bytes of a call of each verb with all names. The first round warms up.
fn calls(
    extender: &Measured,
    cluster: &Cluster,
    rounds: usize,
    note: &mut impl FnMut(Quantity, f64),
) -> anyhow::Result<()> {
    let mut client = Client::new(extender.server.address)?;
    let mut bytes = 0;
    for (verb, quantity) in [("filter", Quantity::Filter), ("prioritize", Quantity::Prioritize)] {
        let requests = requests(&format!("/load-aware/{verb}"), cluster, Order::Workers);
        let mut figures = report::Figures::default();
        for round in 0..=rounds {
            let (times, cpu) = ask_all(&extender.server, &mut client, &requests)?;
            if round > 0 {
                figures.add(times, cpu / CALLS as f64);
            }
        }
        note(quantity, figures.cpu() / 1e3);
        bytes += requests[0].len() + client.ask(&requests[0])?.len();
    }
    note(Quantity::CallBytes, bytes as f64 / 1e3);
    Ok(())
}

//! What grows with the number of nodes: CPU and memory of the annotator, connections, and the bytes of its writes.

use std::path::Path;

use anyhow::Context as _;
use bench::slopes::{Figure, Quantity, check_sizes, write_json};

use crate::{Args, Measured, measure};

/// Flags with which each poll is written.
const EACH_POLL: [&str; 2] = ["--dead-band=0", "--burst-interval=0s"];

/// Measures every size, and writes the figures into a file.
pub(crate) async fn measure_all(args: &Args, file: &Path) -> anyhow::Result<()> {
    let sizes: Vec<usize> = args.sizes.iter().map(|nodes| *nodes as usize).collect();
    check_sizes(&sizes)?;
    let mut figures = Vec::new();
    for nodes in &args.sizes {
        let mut note = |quantity, value| {
            figures.push(Figure { quantity, nodes: *nodes as usize, value });
        };
        without_writes(&of_size(args, *nodes, true, &[]), &mut note).await?;
        with_writes(&of_size(args, *nodes, false, &EACH_POLL), &mut note).await?;
    }
    write_json(&figures, file)
}

/// The same settings for another number of nodes. Where they are `steady`, no node is worth a write.
#[expect(clippy::print_stdout, reason = "it says how far it is")]
fn of_size(args: &Args, nodes: u32, steady: bool, flags: &[&str]) -> Args {
    println!("the annotator with {nodes} nodes {}", flags.join(" "));
    let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
    Args { nodes, steady, flags, ..args.clone() }
}

async fn without_writes(args: &Args, note: &mut impl FnMut(Quantity, f64)) -> anyhow::Result<()> {
    let Measured { before, after, .. } = measure(args).await?;
    let rounds = f64::from(args.rounds);
    note(Quantity::Round, (after.cpu() - before.cpu()) / rounds);
    note(Quantity::ConnectionsMade, (after.connections - before.connections) / rounds);
    note(Quantity::AnnotatorMemory, after.rss as f64 / 1024.0);
    Ok(())
}

async fn with_writes(args: &Args, note: &mut impl FnMut(Quantity, f64)) -> anyhow::Result<()> {
    let Measured { running, before, after } = measure(args).await?;
    note(Quantity::WrittenRound, (after.cpu() - before.cpu()) / f64::from(args.rounds));
    let [patch, event] = running.cluster.last_patch().context("no Node was written")?;
    note(Quantity::NodePatch, patch as f64);
    note(Quantity::NodeEvent, event as f64);
    Ok(())
}

//! What a round of the annotator over thousands of nodes costs it: CPU, memory, connections and writes.
//!
//! The annotator is the real program, as a process of its own. This process holds what is around it: the stand-in of
//! the API server, and one server that answers as the exporters of all nodes, at 127.0.0.0/8. Invariant: every figure
//! is of the annotator's process alone, read from `/proc` and from its own metrics.

mod annotator;
mod answers;
mod cluster;
mod exporters;
mod slopes;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser;
use tempfile::TempDir;

use crate::annotator::{Annotator, Sample};
use crate::cluster::Cluster;
use crate::exporters::Exporters;

/// Measures the annotator over some rounds, and prints a table for docs/scale.md.
#[derive(Debug, Clone, Parser)]
#[command(version)]
struct Args {
    /// The annotator's program.
    #[arg(long, default_value = "target/release/annotator", value_name = "FILE")]
    annotator: PathBuf,

    /// How many nodes there are.
    #[arg(long, default_value_t = 5000, value_name = "NODES")]
    nodes: u32,

    /// How often each node is polled: the period of the policy's metrics, and the length of a round.
    #[arg(long, default_value = "15s", value_parser = daemon::positive_duration, value_name = "DURATION")]
    period: Duration,

    /// How many rounds are measured, after as many as it takes for the figures to settle.
    #[arg(long, default_value_t = 8, value_name = "ROUNDS")]
    rounds: u32,

    /// Exporters speak TLS.
    #[arg(long)]
    tls: bool,

    /// The part of nodes whose exporters take connections and never answer, in percent.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(..100), value_name = "PERCENT")]
    silent: u32,

    /// Values stay the same from poll to poll. By default each poll reads others.
    #[arg(long)]
    steady: bool,

    /// Measure with each of these numbers of nodes, without writes and with, and write the figures into a file.
    #[arg(long, value_name = "FILE")]
    slopes: Option<PathBuf>,

    /// The numbers of nodes for that.
    #[arg(long, value_delimiter = ',', default_values_t = [100, 1_000, 5_000, 15_000], value_name = "NODES")]
    sizes: Vec<u32>,

    /// Further flags of the annotator.
    #[arg(last = true)]
    flags: Vec<String>,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    match &args.slopes {
        Some(file) => runtime.block_on(slopes::measure_all(&args, file)),
        None => runtime.block_on(async {
            let Measured { running, before, after } = measure(&args).await?;
            report(&args, &before, &after);
            answers::report(&running).await
        }),
    }
}

/// The annotator, polling what is around it.
struct Running {
    annotator: Annotator,
    exporters: Exporters,
    cluster: Cluster,
    _folder: TempDir,
}

impl Running {
    /// Returns once every exporter that answers was polled.
    async fn start(args: &Args) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir().context("no folder for files")?;
        let exporters = Exporters::start(args.tls, args.silent, args.steady).await?;
        let cluster = Cluster::start(args.nodes, args.period, folder.path()).await?;
        let mut flags = cluster.flags();
        flags.extend(exporters.flags(folder.path())?);
        flags.extend(args.flags.iter().cloned());
        let annotator = Annotator::start(&args.annotator, &flags)?;
        annotator.settle(args.nodes * (100 - args.silent) / 100).await?;
        Ok(Self { annotator, exporters, cluster, _folder: folder })
    }

    async fn sample(&self) -> anyhow::Result<Sample> {
        self.annotator.sample(self.exporters.connections()).await
    }
}

/// The annotator before and after the measured rounds.
struct Measured {
    running: Running,
    before: Sample,
    after: Sample,
}

async fn measure(args: &Args) -> anyhow::Result<Measured> {
    let running = Running::start(args).await?;
    // Rounds of all nodes that answer are spread by then, and what is asked once a minute was asked.
    let settling = Duration::from_secs(60).max(args.period * 2);
    tokio::time::sleep(settling).await;
    let before = running.sample().await?;
    tokio::time::sleep(args.period * args.rounds).await;
    let after = running.sample().await?;
    Ok(Measured { running, before, after })
}

#[expect(clippy::print_stdout, reason = "the table is what it is for")]
fn report(args: &Args, before: &Sample, after: &Sample) {
    let tls = if args.tls { "TLS" } else { "plain HTTP" };
    let Args { nodes, silent, period, rounds, .. } = args;
    let count = f64::from(*rounds);
    println!(
        "{nodes} nodes, {silent}% silent, every {period:?}, {tls}, {rounds} rounds; a round:\n"
    );
    println!("| | |\n|---|---|");
    println!("| CPU, user | {:.3} s |", (after.user - before.user) / count);
    println!("| CPU, system | {:.3} s |", (after.system - before.system) / count);
    println!("| CPU | {:.3} s |", (after.cpu() - before.cpu()) / count);
    for (name, now, then) in [
        ("polls that were answered", after.polls, before.polls),
        ("polls that failed", after.failures, before.failures),
        ("questions about pods", after.pod_asks, before.pod_asks),
        ("writes of nodes", after.patches, before.patches),
        ("connections made", after.connections, before.connections),
    ] {
        println!("| {name} | {:.0} |", (now - then) / count);
    }
    println!("| started over 1 s late, of those | {:.0} |", (after.late - before.late) / count);
    println!("| RSS at the end, largest | {} KiB, {} KiB |", after.rss, after.most_rss);
}

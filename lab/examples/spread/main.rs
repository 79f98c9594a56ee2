//! How the replicas of a service spread over nodes of unequal load: with a stock kube-scheduler, and with one that asks
//! the extender. `lab/spread.sh` starts etcd and the API server, and says what else is needed.
//!
//! Invariant: each run begins alike. Its nodes have fresh readings of exact values, no replica of another run is left,
//! and the extender has just started.

mod case;
mod cluster;
mod report;
mod system;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Parser;
use placement::policy::LoadPolicy;

use crate::case::{Case, Constraint, Load, NODES, REPLICAS};
use crate::cluster::Cluster;
use crate::report::Row;
use crate::system::System;

/// Readings are written anew after this time, since policies let them count for some minutes only.
const READINGS_LAST: Duration = Duration::from_secs(60);

/// Places replicas, and prints a table of where they went.
#[derive(Debug, Clone, Parser)]
#[command(version)]
struct Args {
    /// Where the API server is.
    #[arg(long, value_name = "URL")]
    api: String,

    /// A token of an administrator.
    #[arg(long, value_name = "TOKEN")]
    token: String,

    /// The same as a file.
    #[arg(long, value_name = "FILE")]
    kubeconfig: PathBuf,

    /// A folder for configurations and logs.
    #[arg(long, value_name = "FOLDER")]
    work: PathBuf,

    /// kube-scheduler.
    #[arg(long, value_name = "PROGRAM")]
    scheduler: PathBuf,

    /// scheduler-extender.
    #[arg(long, value_name = "PROGRAM")]
    extender: PathBuf,

    /// plimsoll, which writes kube-scheduler's configuration.
    #[arg(long, value_name = "PROGRAM")]
    plimsoll: PathBuf,

    /// The extender's policy.
    #[arg(long, value_name = "FILE")]
    policy: PathBuf,

    /// Another policy to show beside it.
    #[arg(long, value_name = "NAME=FILE", value_parser = named_file)]
    beside: Vec<(String, PathBuf)>,

    /// Show beside it a kube-scheduler that asks nobody, for pods that prefer nodes by their bands. The API server has
    /// the admission policy, for pods of a scheduler of the name `bands`.
    #[arg(long)]
    bands: bool,

    /// How often each case is tried: ties are broken at random, and uneven loads are drawn anew.
    #[arg(long, default_value_t = 5, value_name = "TIMES")]
    repetitions: u64,

    /// Only cases whose title has this text, such as `10 nodes, none`.
    #[arg(long, default_value = "", value_name = "TEXT")]
    only: String,

    /// Write each repetition's figures to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn named_file(text: &str) -> Result<(String, PathBuf), String> {
    let (name, file) = text.split_once('=').ok_or("expected NAME=FILE")?;
    Ok((name.to_owned(), file.into()))
}

#[tokio::main]
#[expect(clippy::print_stdout, reason = "the table is what it is for")]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let mut policies = vec![("plimsoll".to_owned(), args.policy.clone())];
    policies.extend(args.beside.iter().cloned());
    let parsed: Vec<LoadPolicy> =
        policies.iter().map(|(_, file)| read(file)).collect::<anyhow::Result<_>>()?;
    let mut cluster = Cluster::new(&args.api, &args.token, &parsed).await?;
    let mut systems = vec![System::start(&args, "stock", None)?];
    for (name, policy) in &policies {
        systems.push(System::start(&args, name, Some(policy))?);
    }
    if args.bands {
        systems.push(System::start(&args, "bands", None)?);
    }
    let start = Instant::now();
    let mut rows = Vec::new();
    for nodes in NODES {
        for load in Load::ALL {
            let cases = cases(&args, load, nodes);
            rows.extend(measure(&args, &mut cluster, &mut systems, cases).await?);
            eprintln!("{load}, {nodes} nodes: after {:.0?}", start.elapsed());
        }
    }
    let names: Vec<String> = systems.iter().map(|system| system.name.clone()).collect();
    if let Some(file) = &args.json {
        let text = format!("{:#}\n", report::json(&rows, &names));
        fs::write(file, text).with_context(|| file.display().to_string())?;
    }
    print!("{}", report::markdown(&rows, &names));
    Ok(())
}

fn read(file: &Path) -> anyhow::Result<LoadPolicy> {
    let name = file.display();
    let text = fs::read_to_string(file).with_context(|| name.to_string())?;
    LoadPolicy::from_yaml(&text).with_context(|| name.to_string())
}

fn cases(args: &Args, load: Load, nodes: usize) -> Vec<Case> {
    let mut cases = Vec::new();
    for constraint in Constraint::ALL {
        for replica in REPLICAS {
            cases.push(Case { load, nodes, constraint, replica });
        }
    }
    cases.retain(|case| case.to_string().contains(&args.only));
    cases
}

/// Measures the cases of one load.
async fn measure(
    args: &Args,
    cluster: &mut Cluster,
    systems: &mut [System],
    cases: Vec<Case>,
) -> anyhow::Result<Vec<Row>> {
    let mut rows: Vec<Row> = cases
        .into_iter()
        .map(|case| Row { case, placed: vec![Vec::new(); systems.len()] })
        .collect();
    let Some(Case { load, nodes: count, .. }) = rows.first().map(|row| row.case) else {
        return Ok(rows);
    };
    let mut written: Option<Instant> = None;
    for repetition in 0..args.repetitions {
        let nodes = load.nodes(count, repetition);
        let is_fresh = written.is_some_and(|at| at.elapsed() < READINGS_LAST);
        if load.is_drawn() || !is_fresh {
            let pods = cluster.set_nodes(&nodes).await?;
            written = Some(Instant::now());
            for system in &*systems {
                system.wait_until_it_knows(nodes.len(), pods).await?;
            }
        }
        for row in &mut rows {
            for (system, placed) in systems.iter_mut().zip(&mut row.placed) {
                system.start_extender().await?;
                let Case { constraint, replica, .. } = row.case;
                let outcome = cluster.place(&system.name, &nodes, constraint, replica).await;
                let outcome = outcome.with_context(|| format!("{}: {}", system.name, row.case))?;
                system.end_extender().await?;
                placed.push(outcome);
            }
        }
    }
    Ok(rows)
}

//! `openb`: replays a trace of GPU pods with several placement policies. See `lab::openb`.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use anyhow::{Context, anyhow};
use clap::Parser;
use lab::openb::args::Args;
use lab::openb::objects;
use lab::openb::report::{Row, Table, run, run_departures};
use lab::openb::tables::default_trace;
use lab::openb::trace::Trace;

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let mut out = io::stdout().lock();
    for (variant, trace) in traces(&args)? {
        if let (Some(folder), Some(seed)) = (&args.objects, args.seeds.0.first()) {
            let written = objects::write(&trace, *seed, args.by_claims, folder);
            written.with_context(|| format!("cannot write to {}", folder.display()))?;
            continue;
        }
        if args.departures {
            departures(&args, &variant, &trace, &mut out)?;
            continue;
        }
        let runs =
            args.policies().into_iter().map(|name| run(&variant, &trace, name, &args.seeds.0));
        writeln!(out, "{}", Table(&runs.collect::<Vec<Row>>()))?;
    }
    Ok(())
}

fn departures(
    args: &Args,
    variant: &str,
    trace: &Trace,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    for policy in args.policies() {
        let row = run_departures(variant, trace, policy, &args.seeds.0).ok_or_else(|| {
            anyhow!("the list {variant} has no columns creation_time and deletion_time, or asks for no GPU time")
        })?;
        writeln!(out, "{row}")?;
    }
    Ok(())
}

fn traces(args: &Args) -> anyhow::Result<Vec<(String, Trace)>> {
    let Some(nodes) = &args.nodes else {
        return Ok(vec![("default".to_owned(), default_trace()?)]);
    };
    let node_list = read(nodes)?;
    let mut traces = Vec::new();
    for pods in &args.pods {
        let pod_list = read(pods)?;
        let nodes = nodes.display().to_string();
        let file = pods.display().to_string();
        traces.push((variant(pods), Trace::read((&nodes, &node_list), (&file, &pod_list))?));
    }
    Ok(traces)
}

fn read(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// `openb_pod_list_default.csv` is `default`.
fn variant(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    stem.strip_prefix("openb_pod_list_").unwrap_or(&stem).to_owned()
}

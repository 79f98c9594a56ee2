//! `closed-loop`: the table of placement policies in a simulated cluster. `WORKLOAD.md` says what is simulated.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, ensure};
use clap::Parser;
use closed_loop::args::Args;
use closed_loop::cell::Cell;
use closed_loop::cluster::Scale;
use closed_loop::policies::Entry;
use closed_loop::report::{PolicyRun, Run, Summary, Tables, summaries};
use closed_loop::simulation::Simulation;
use closed_loop::workload::{Traces, Workload};
use closed_loop::world::InTree;
use serde::Serialize;

/// What `--json` writes.
#[derive(Serialize)]
struct Json<'a> {
    workload: String,
    summaries: &'a [Summary],
    runs: &'a [Run],
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let scale = if args.quick { Scale::QUICK } else { Scale::FULL };
    let cells = args.cells();
    let seeds = args.seeds();
    let tasks: Vec<(Cell, u64)> =
        cells.iter().flat_map(|cell| seeds.iter().map(move |seed| (*cell, *seed))).collect();
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let policies = args.policies()?;
    let traces = args.traces.as_deref().map(Traces::read).transpose()?.map(Arc::new);
    for cell in &cells {
        let is_traced = cell.shape.is_traced();
        ensure!(is_traced == traces.is_some(), "cell {cell} needs --traces, or must be without");
    }
    let runs = run_all(
        &tasks,
        &|(cell, seed): (Cell, u64)| {
            let workload = match &traces {
                Some(traces) => Workload::replayed(cell, seed, scale, traces),
                None => Workload::new(cell, seed, scale),
            };
            run(&workload, args.in_tree, &policies)
        },
        args.jobs.unwrap_or(cores),
    )?;
    let summaries = summaries(&runs);
    write!(io::stdout().lock(), "{}", Tables(&summaries))?;
    if let Some(path) = &args.json {
        let file =
            File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
        let workload = format!("{:?}", args.workload).to_lowercase();
        let json = Json { workload, summaries: &summaries, runs: &runs };
        serde_json::to_writer_pretty(BufWriter::new(file), &json)?;
    }
    Ok(())
}

/// Runs all tasks, `jobs` at a time. The answer is in their order.
fn run_all(
    tasks: &[(Cell, u64)],
    one: &(dyn Fn((Cell, u64)) -> anyhow::Result<Run> + Sync),
    jobs: usize,
) -> anyhow::Result<Vec<Run>> {
    let next = AtomicUsize::new(0);
    let done = AtomicUsize::new(0);
    let begin = Instant::now();
    let runs: Mutex<Vec<Option<anyhow::Result<Run>>>> =
        Mutex::new(tasks.iter().map(|_| None).collect());
    thread::scope(|scope| {
        for _ in 0..jobs.clamp(1, tasks.len().max(1)) {
            scope.spawn(|| {
                loop {
                    let place = next.fetch_add(1, Ordering::Relaxed);
                    let Some(task) = tasks.get(place) else { break };
                    let run = one(*task);
                    let done = done.fetch_add(1, Ordering::Relaxed) + 1;
                    progress(done, tasks.len(), begin.elapsed());
                    if let Ok(mut runs) = runs.lock() {
                        runs[place] = Some(run);
                    }
                }
            });
        }
    });
    let _ = writeln!(io::stderr());
    let runs = runs.into_inner().map_err(|_| anyhow!("a run panicked"))?;
    runs.into_iter().map(|run| run.unwrap_or_else(|| Err(anyhow!("a run is missing")))).collect()
}

fn run(workload: &Workload, in_tree: InTree, policies: &[Entry]) -> anyhow::Result<Run> {
    let (figures, alone_minutes) = Simulation::new(workload, in_tree, policies)?.run();
    let named = policies.iter().zip(figures);
    let named =
        named.map(|(entry, figures)| PolicyRun { policy: entry.to_string(), figures }).collect();
    Ok(Run::new(workload, named, alone_minutes))
}

fn progress(done: usize, all: usize, elapsed: Duration) {
    let left = elapsed.as_secs_f64() / done as f64 * (all - done) as f64;
    let _ = write!(io::stderr(), "\r{done} of {all} runs, about {left:.0} s left   ");
}

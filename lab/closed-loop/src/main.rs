//! `closed-loop`: the table of placement policies in a simulated cluster. `WORKLOAD.md` says what is simulated.

use std::io::{self, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use clap::Parser;
use closed_loop::args::Args;
use closed_loop::cell::Cell;
use closed_loop::cluster::Scale;
use closed_loop::report::{Run, Table};
use closed_loop::simulation::Simulation;
use closed_loop::workload::Workload;

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let scale = if args.quick { Scale::QUICK } else { Scale::FULL };
    let cells = args.cells();
    let seeds = args.seeds();
    let tasks: Vec<(Cell, u64)> =
        cells.iter().flat_map(|cell| seeds.iter().map(move |seed| (*cell, *seed))).collect();
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let policies = args.policies()?;
    let runs = run_all(
        &tasks,
        &|(cell, seed): (Cell, u64)| {
            let workload = Workload::new(cell, seed, scale);
            Ok(Run { cell, figures: Simulation::new(&workload, &policies)?.run() })
        },
        args.jobs.unwrap_or(cores),
    )?;
    write!(io::stdout().lock(), "{}", Table { policies: &policies, runs: &runs })?;
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

fn progress(done: usize, all: usize, elapsed: Duration) {
    let left = elapsed.as_secs_f64() / done as f64 * (all - done) as f64;
    let _ = write!(io::stderr(), "\r{done} of {all} runs, about {left:.0} s left   ");
}

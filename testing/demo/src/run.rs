//! The demo from its first process to its exit status.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tokio::sync::watch;

use crate::args::DemoArgs;
use crate::baseline::Baseline;
use crate::cluster::{Cluster, PATIENCE};
use crate::interrupt::Interrupt;
use crate::observer::{self, Observer};
use crate::scenario::{BIG_POD, Pace, Scenario};
use crate::summary::{Ending, Summary};
use crate::temp_dir;
use crate::view::{Log, Snapshot};

/// Time between two looks at the cluster.
const TICK: Duration = Duration::from_millis(125);
/// Longest wait for checker and baseline to see the newest events, at the end of a run.
const CATCH_UP: Duration = Duration::from_secs(10);

/// Runs the demo.
///
/// # Errors
/// When the cluster cannot be started.
pub(crate) async fn run(args: DemoArgs) -> anyhow::Result<ExitCode> {
    let mut interrupt = Interrupt::new()?;
    let directory = temp_dir::create()?;
    let (mut summary, last, cluster) = perform(directory.path(), &args, &mut interrupt).await?;
    if summary.keeps_files() {
        if let Err(error) = cluster.dump_objects() {
            summary.file_errors.push(format!("cannot write the cluster's objects: {error}"));
        }
        print_error(&format!("logs and objects are kept in {}", directory.keep().display()));
    }
    summary.errors().iter().for_each(|error| print_error(error));
    // Where stdout is closed, the exit status still shows the outcome.
    let _ = print_summary(&summary, &last);
    Ok(ExitCode::from(summary.exit_code()))
}

/// Everything from the first program's start to the last one's end.
async fn perform(
    root: &Path,
    args: &DemoArgs,
    interrupt: &mut Interrupt,
) -> anyhow::Result<(Summary, Snapshot, Arc<Cluster>)> {
    let start = Instant::now();
    let (cluster, events) = Cluster::start(root, args).await?;
    let (caption, captions) = watch::channel(
        "Twenty programs start: an API server with 12 kubelets, and Plimsoll's.".to_owned(),
    );
    let (baseline, baseline_decisions) =
        Baseline::start(cluster.loads.clone()).await.context("cannot listen on the loopback")?;
    let observer = Arc::new(Observer::new(&cluster, baseline));
    let tasks = observer::spawn(&cluster, &observer, events, baseline_decisions);
    let mut log = Log::default();
    let pace = if args.fast { Pace::FAST } else { Pace::CALM };
    let sabotage = args.sabotage;
    let scenario = Scenario::new(cluster.clone(), observer.clone(), caption, sabotage, pace);
    let complete = AtomicBool::new(false);
    let outcome = tokio::select! {
        outcome = play(&scenario, &observer, &complete, args.once) => {
            outcome.map(|()| Ending::Complete)
        }
        error = show(&mut log, || observer.snapshot(&cluster, &captions, start)) => Ok(Ending::StdoutClosed(error)),
        () = interrupt.received() => Ok(Ending::Interrupted),
    };
    catch_up(&cluster, &observer).await;
    if sabotage.is_none() && complete.load(Ordering::Relaxed) {
        observer.checker().check_at_end(&scenario.created(), BIG_POD, Instant::now());
    }
    let last = observer.snapshot(&cluster, &captions, start);
    // An error here is a closed stdout, which is in the outcome already.
    let _ = log.write(&last);
    tasks.into_iter().for_each(|task| task.abort());
    cluster.kill_all().await;
    let ending = match outcome {
        Err(error) => Ending::Failed(error),
        // A signal after the scenario is how an endless demo is ended.
        Ok(Ending::Interrupted) if complete.load(Ordering::Relaxed) => Ending::Complete,
        Ok(ending) => ending,
    };
    let choices = observer.baseline.choices();
    let summary = Summary::new(ending, &observer.checker(), &choices, sabotage);
    Ok((summary, last, cluster))
}

/// The whole scenario; sets `complete` at its end. Without `once`, pods come and go from then on.
async fn play(
    scenario: &Scenario,
    observer: &Observer,
    complete: &AtomicBool,
    once: bool,
) -> anyhow::Result<()> {
    scenario.start().await?;
    scenario.play().await?;
    wait_for_checker(observer, scenario).await?;
    complete.store(true, Ordering::Relaxed);
    if once { Ok(()) } else { scenario.go_on().await }
}

/// Waits until the checker, too, has seen every pod run that should.
///
/// # Errors
/// When it does not, with what is missing.
async fn wait_for_checker(observer: &Observer, scenario: &Scenario) -> anyhow::Result<()> {
    // A sabotage may leave pods that do not run. The checker counts what comes of that.
    if scenario.is_sabotaged() {
        return Ok(());
    }
    let start = Instant::now();
    loop {
        let unfinished = observer.checker().unfinished(scenario.created().len(), BIG_POD);
        if unfinished.is_empty() {
            return Ok(());
        }
        if start.elapsed() > PATIENCE {
            bail!("{}", unfinished.join("; "));
        }
        tokio::time::sleep(TICK).await;
    }
}

/// Writes what is new until stdout is closed.
async fn show(log: &mut Log, snapshot: impl Fn() -> Snapshot) -> std::io::Error {
    loop {
        if let Err(error) = log.write(&snapshot()) {
            return error;
        }
        tokio::time::sleep(TICK).await;
    }
}

/// Waits until everything that has happened has been checked, but no longer than [`CATCH_UP`]: an interrupted run may
/// never come to rest.
async fn catch_up(cluster: &Cluster, observer: &Observer) {
    let start = Instant::now();
    while !observer.is_up_to_date(cluster) && start.elapsed() < CATCH_UP {
        tokio::time::sleep(TICK).await;
    }
}

/// Prints to stderr, which may be closed.
fn print_error(text: &str) {
    let _ = writeln!(std::io::stderr(), "plimsoll-demo: {text}");
}

/// Prints the summary and the last line.
fn print_summary(summary: &Summary, last: &Snapshot) -> std::io::Result<()> {
    // A struct of numbers always serialises.
    let counts = serde_json::to_string(&last.counts).unwrap_or_default();
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}{counts}", summary.text(last))
}

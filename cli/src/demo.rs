//! `plimsoll demo`: the four programs at work on an embedded cluster, shown, and judged.
//!
//! `world` is the cluster, `scenario` what happens in it, `checker` the judge; `story`, `screen` and
//! `journal` show it.

mod cast;
mod checker;
mod fleet;
mod journal;
mod loads;
mod ports;
mod programs;
mod scenario;
mod screen;
mod still;
mod story;
mod terminal;
mod world;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use sim::kubelet::ProcessEvent;
use sim::scheduler::Decision;
use sim::{NODES, PODS, Seen};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::watch;

use crate::args::DemoArgs;
use checker::{Checker, Tally};
use scenario::{BIG_POD, Pace, Scenario};
use screen::Picture;
use story::{Decisions, scene};
use terminal::Outlets;
use world::{Wires, World};

/// Between two pictures.
const FRAME: Duration = Duration::from_millis(125);

/// What is learned while the demo runs.
struct Notes {
    checker: Mutex<Checker>,
    decisions: Mutex<Decisions>,
}

impl Notes {
    fn checker(&self) -> MutexGuard<'_, Checker> {
        self.checker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn decisions(&self) -> MutexGuard<'_, Decisions> {
        self.decisions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs the demo.
///
/// # Errors
/// When the cluster cannot be started.
pub async fn run(args: DemoArgs) -> anyhow::Result<ExitCode> {
    let directory = tempfile::Builder::new().prefix("plimsoll-").tempdir();
    let directory = directory.context("cannot make a temporary directory")?;
    let start = Instant::now();
    let (world, wires) = World::start(directory.path(), &args).await?;
    let (caption, captions) = watch::channel("Twenty processes are starting.".to_owned());
    let checker = Mutex::new(Checker::new(world.loads.clone()));
    let notes = Arc::new(Notes { checker, decisions: Mutex::new(BTreeMap::new()) });
    let tasks = look_on(&world, &notes, wires);
    let mut outlets = Outlets::open(args.record.as_deref()).context("cannot write to stdout")?;
    let pace = if args.fast { Pace::FAST } else { Pace::CALM };
    let scenario = Scenario { world: world.clone(), caption, sabotage: args.sabotage, pace };
    let picture = || picture(&world, &notes, &captions, start);
    let outcome = tokio::select! {
        outcome = perform(&scenario, args.once) => outcome,
        shown = show(&mut outlets, &picture) => shown,
        () = interrupted() => Ok(()),
    };
    let last = settle(&picture).await;
    let shown = outlets.show(&last);
    outlets.close(&last);
    tasks.into_iter().for_each(|task| task.abort());
    world.kill_all().await;
    shown.context("cannot write to stdout")?;
    let held = held(&outcome, &last.tally, &notes.checker().complaints, args.once);
    if !held && args.sabotage.is_none() {
        world.write_down().context("cannot keep the cluster's objects")?;
        eprintln!("plimsoll: logs and objects are kept in {}", directory.keep().display());
    }
    if let Some(file) = &args.still {
        std::fs::write(file, still::svg(&last)).with_context(|| file.display().to_string())?;
    }
    tell(&last.tally);
    Ok(if held { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn perform(scenario: &Scenario, once: bool) -> anyhow::Result<()> {
    scenario.world.until_known().await?;
    scenario.play().await?;
    if once { Ok(()) } else { scenario.go_on().await }
}

/// Follows everything that the notes are made of.
fn look_on(
    world: &Arc<World>,
    notes: &Arc<Notes>,
    wires: Wires,
) -> Vec<tokio::task::JoinHandle<()>> {
    let loads = world.loads.clone();
    vec![
        // A disk that is full shows as loads that stand still.
        tokio::spawn(async { drop(loads.advance_forever().await) }),
        tokio::spawn(follow_pods(world.clone(), notes.clone())),
        tokio::spawn(follow_processes(world.clone(), notes.clone(), wires.processes)),
        tokio::spawn(follow_decisions(notes.clone(), wires.decisions)),
    ]
}

async fn follow_pods(world: Arc<World>, notes: Arc<Notes>) {
    let mut pods = world.sim.follow(PODS);
    loop {
        for seen in pods.next().await {
            match seen {
                Seen::Applied(pod) => notes.checker().pod_applied(&pod, Instant::now()),
                Seen::Gone(pod) => notes.checker().pod_gone(&pod),
            }
        }
    }
}

async fn follow_processes(
    world: Arc<World>,
    notes: Arc<Notes>,
    mut events: UnboundedReceiver<ProcessEvent>,
) {
    while let Some(event) = events.recv().await {
        let pod = match &event {
            ProcessEvent::Started(process) => world.sim.pod("default", &process.pod),
            ProcessEvent::Ended { .. } => None,
        };
        notes.checker().process(&event, pod.as_ref());
    }
}

async fn follow_decisions(notes: Arc<Notes>, mut decisions: UnboundedReceiver<Decision>) {
    while let Some(decision) = decisions.recv().await {
        notes.decisions().insert(decision.uid.clone(), decision);
    }
}

fn picture(
    world: &World,
    notes: &Notes,
    captions: &watch::Receiver<String>,
    start: Instant,
) -> Picture {
    Picture {
        seconds: start.elapsed().as_secs(),
        caption: captions.borrow().clone(),
        scene: scene(
            &world.sim.list(NODES),
            &world.pods(),
            &notes.decisions(),
            jiff::Timestamp::now(),
        ),
        tally: notes.checker().tally(),
    }
}

async fn show(outlets: &mut Outlets, picture: &impl Fn() -> Picture) -> anyhow::Result<()> {
    loop {
        outlets.show(&picture())?;
        tokio::time::sleep(FRAME).await;
    }
}

/// The last picture, once what has happened has also been looked at.
async fn settle(picture: &impl Fn() -> Picture) -> Picture {
    tokio::time::sleep(FRAME * 2).await;
    picture()
}

/// Whether everything held; says what did not.
fn held(
    outcome: &anyhow::Result<()>,
    tally: &Tally,
    complaints: &[String],
    complete: bool,
) -> bool {
    complaints.iter().for_each(|complaint| eprintln!("plimsoll: {complaint}"));
    if let Err(error) = outcome {
        eprintln!("plimsoll: {error:#}");
    }
    // All that was placed ran, and only what fits nowhere waits.
    let whole = !complete || (tally.running == tally.bound && tally.pending == 1);
    if !whole {
        eprintln!("plimsoll: a pod that was placed did not run, or others wait than {BIG_POD}");
    }
    outcome.is_ok() && tally.is_clean() && whole
}

/// The last line.
#[expect(clippy::print_stdout, reason = "this is the command's answer")]
fn tell(tally: &Tally) {
    // Numbers by name: serialising them cannot fail.
    println!("{}", serde_json::to_string(tally).unwrap_or_default());
}

/// Waits for Ctrl-C or SIGTERM.
pub(crate) async fn interrupted() {
    let (Ok(mut int), Ok(mut term), Ok(mut hangup)) = (
        signal(SignalKind::interrupt()),
        signal(SignalKind::terminate()),
        signal(SignalKind::hangup()),
    ) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = int.recv() => {}
        _ = term.recv() => {}
        _ = hangup.recv() => {}
    }
}

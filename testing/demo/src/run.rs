//! The demo: the four programs at work on an embedded cluster, shown, and judged.
//!
//! `world` is the cluster, `scenario` what happens in it, `checker` the judge, `alone` what would happen
//! without Plimsoll; `story`, `screen` and `journal` show it, `verdict` sums it up.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tokio::sync::watch;

use crate::alone::Alone;
use crate::args::DemoArgs;
use crate::interrupt::Interrupt;
use crate::rehearsal::until_the_extender_knows;
use crate::scenario::{BIG_POD, Pace, Scenario};
use crate::scratch;
use crate::screen::Picture;
use crate::terminal::Outlets;
use crate::verdict::{Ending, Verdict};
use crate::witness::Notes;
use crate::world::{PATIENCE, World};

/// Between two pictures.
const FRAME: Duration = Duration::from_millis(125);

/// Runs the demo.
///
/// # Errors
/// When the cluster cannot be started.
pub(crate) async fn run(args: DemoArgs) -> anyhow::Result<ExitCode> {
    [&args.still, &args.record].into_iter().flatten().try_for_each(|file| check_file(file))?;
    let mut interrupt = Interrupt::new()?;
    let directory = scratch::directory()?;
    let (mut verdict, last, world) = perform(directory.path(), &args, &mut interrupt).await?;
    if verdict.needs_a_look() {
        if let Err(error) = world.write_down() {
            verdict.troubles.push(format!("cannot write the cluster's objects: {error}"));
        }
        complain(&format!("logs and objects are kept in {}", directory.keep().display()));
    }
    if let Some(file) = &args.still
        && let Err(error) = std::fs::write(file, crate::still::svg(&last))
    {
        verdict.troubles.push(format!("cannot write the picture {}: {error}", file.display()));
    }
    verdict.wrongs().iter().for_each(|wrong| complain(wrong));
    // Where that fails, the exit status has to do.
    let _ = tell(&verdict, &last);
    Ok(ExitCode::from(verdict.code()))
}

/// Makes the file, or leaves it as it is: whether it can be written is told before anything runs.
fn check_file(file: &Path) -> anyhow::Result<()> {
    let opened = File::options().write(true).create(true).truncate(false).open(file);
    opened.map(drop).with_context(|| format!("cannot write {}", file.display()))
}

/// Everything from the first program's start to the last one's end.
async fn perform(
    root: &Path,
    args: &DemoArgs,
    interrupt: &mut Interrupt,
) -> anyhow::Result<(Verdict, Picture, Arc<World>)> {
    let start = Instant::now();
    let (world, wires) = World::start(root, args).await?;
    let (caption, captions) = watch::channel(
        "Twenty programs start: an API server with 12 kubelets, and Plimsoll's.".to_owned(),
    );
    let (alone, choices) =
        Alone::start(world.loads.clone()).await.context("cannot listen on the loopback")?;
    let notes = Arc::new(Notes::new(&world, alone));
    let tasks = crate::witness::look_on(&world, &notes, wires, choices);
    let mut outlets = Outlets::open(args.record.as_deref())?;
    let pace = if args.fast { Pace::FAST } else { Pace::CALM };
    let (sabotage, made) = (args.sabotage, Mutex::default());
    let scenario = Scenario { world: world.clone(), caption, sabotage, pace, made };
    let played = AtomicBool::new(false);
    let picture = || crate::witness::picture(&world, &notes, &captions, start);
    let outcome = tokio::select! {
        outcome = play(&scenario, &notes, &played, args.once) => outcome.map(|()| Ending::Played),
        error = show(&mut outlets, &picture) => Ok(Ending::Unseen(error)),
        () = interrupt.came() => Ok(Ending::Interrupted),
    };
    let last = settle(&picture).await;
    if sabotage.is_none() && played.load(Ordering::Relaxed) {
        notes.checker().take_leave(&scenario.made(), BIG_POD, Instant::now());
    }
    // Where nothing can be shown any more, the outcome says so.
    let _ = outlets.show(&last);
    let trouble = outlets.close(&last);
    tasks.into_iter().for_each(|task| task.abort());
    world.kill_all().await;
    let ending = match outcome {
        Err(error) => Ending::Failed(error),
        // Whoever ends it later has seen all.
        Ok(Ending::Interrupted) if played.load(Ordering::Relaxed) => Ending::Played,
        Ok(ending) => ending,
    };
    let mut verdict = Verdict::new(ending, &notes.checker(), &notes.alone.choices(), sabotage);
    verdict.troubles.extend(trouble);
    Ok((verdict, last, world))
}

async fn play(
    scenario: &Scenario,
    notes: &Notes,
    played: &AtomicBool,
    once: bool,
) -> anyhow::Result<()> {
    scenario.world.until("every node is annotated", World::is_known).await?;
    until_the_extender_knows(&scenario.world).await?;
    scenario.play().await?;
    take_stock(notes, scenario).await?;
    played.store(true, Ordering::Relaxed);
    if once { Ok(()) } else { scenario.go_on().await }
}

/// Waits until the judge, too, has seen every pod run that should; fails where it never does.
async fn take_stock(notes: &Notes, scenario: &Scenario) -> anyhow::Result<()> {
    // What is broken on purpose may leave pods that do not run: the judge's counts tell of that.
    if scenario.sabotage.is_some() {
        return Ok(());
    }
    let start = Instant::now();
    loop {
        let missing = notes.checker().missing(scenario.made().len(), BIG_POD);
        if missing.is_empty() {
            return Ok(());
        }
        if start.elapsed() > PATIENCE / 6 {
            bail!("{}", missing.join("; "));
        }
        tokio::time::sleep(FRAME).await;
    }
}

/// Shows pictures until it cannot.
async fn show(outlets: &mut Outlets, picture: &impl Fn() -> Picture) -> std::io::Error {
    loop {
        if let Err(error) = outlets.show(&picture()) {
            return error;
        }
        tokio::time::sleep(FRAME).await;
    }
}

/// The last picture, once what has happened has also been looked at.
async fn settle(picture: &impl Fn() -> Picture) -> Picture {
    tokio::time::sleep(FRAME * 2).await;
    picture()
}

/// To stderr, which may be as closed as the terminal that this was started from.
fn complain(words: &str) {
    let _ = writeln!(std::io::stderr(), "plimsoll-demo: {words}");
}

/// The summary, and the last line.
fn tell(verdict: &Verdict, last: &Picture) -> std::io::Result<()> {
    // Numbers by name: serialising them cannot fail.
    let counts = serde_json::to_string(&last.tally).unwrap_or_default();
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}{counts}", verdict.words(last))
}

//! The GPU cards, through a process of its own: `gpu-probe` loads NVIDIA's library and reports on its standard
//! output.
//!
//! NVML is a shared library of some tens of MiB in memory, and a call into it can hang for ever when a card falls
//! off the bus. Apart from the exporter it costs nothing on nodes without cards, lets the exporter be static,
//! and takes nothing down with it: a probe that hangs is silent, and what is silent grows stale.

mod report;

use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use daemon::Shutdown;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, ChildStdout, Command};

use crate::series::{Clock, Interval, Moment};

pub use report::{CardReport, END, Reading};

/// The exit code of a probe that found no library: most nodes have none, and that is no fault.
pub const NO_LIBRARY: u8 = 3;
/// Until a probe that never reported is started again. Drivers are installed while nodes run.
const RETRY: Duration = Duration::from_secs(300);
/// Until one is that did report: there are cards, and their values are missed. Each time after that it is twice as
/// long, up to [`RETRY`], until a probe has lived that long.
const SOON: Duration = Duration::from_secs(10);
/// A probe that talks without end is not listened to: 64 cards have 6 KiB of lines.
const LONGEST_REPORT: u64 = 64 << 10;

/// The newest whole report, shared between the probe's task and the collector.
#[derive(Debug, Clone, Default)]
pub struct Latest(Arc<Mutex<Option<Told>>>);

/// When, and what.
type Told = (Moment, Vec<CardReport>);

impl Latest {
    /// Puts a report in the place of the one before.
    pub fn set(&self, at: Moment, cards: Vec<CardReport>) {
        *self.lock() = Some((at, cards));
    }

    /// The newest report, unless it says nothing about `now` any more.
    #[must_use]
    pub fn get(&self, interval: Interval, now: Moment) -> Option<Vec<CardReport>> {
        let fresh = self.lock().as_ref().filter(|(at, _)| !interval.is_stale(*at, now)).cloned();
        fresh.map(|(_, cards)| cards)
    }

    /// When the newest report was told.
    fn told(&self) -> Option<Moment> {
        self.lock().as_ref().map(|(at, _)| *at)
    }

    // Replaced whole: a panic elsewhere leaves nothing half done.
    fn lock(&self) -> MutexGuard<'_, Option<Told>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How to run the probe.
#[derive(Debug, Clone)]
pub struct Probe {
    /// The program.
    pub program: PathBuf,
    /// The library that it loads: a path, or a name that the loader finds.
    pub library: PathBuf,
    /// The time between two reports.
    pub interval: Interval,
}

impl Probe {
    fn start(&self) -> io::Result<Child> {
        Command::new(&self.program)
            .arg(&self.library)
            .arg(self.interval.duration().as_secs().to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
    }
}

/// Keeps a probe running and `latest` up to date, until the shutdown.
pub(crate) async fn forever(
    probe: Probe,
    latest: Latest,
    clock: Clock,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let mut told = None;
    let mut pause = None;
    let watch = async {
        loop {
            let start = clock().boot;
            let outcome = watch(&probe, &latest, &clock).await;
            let reported = latest.told().filter(|at| *at >= start);
            if reported.is_some() {
                // There have been signals since: that there are none is news again.
                told = None;
            }
            let why =
                outcome.unwrap_or_else(|error| format!("{}: {error}", probe.program.display()));
            if told.as_ref() != Some(&why) {
                tracing::info!(why, "no GPU signals");
                told = Some(why);
            }
            pause = next_pause(pause, reported.map(|at| at.since(start)));
            tokio::time::sleep(pause.unwrap_or(RETRY)).await;
        }
    };
    shutdown.run_until_cancelled(watch).await;
    Ok(())
}

/// How long to wait for the next start, where it was `before` for the last one; `reported` is for how long the probe did.
/// None is as long as where none ever did.
fn next_pause(before: Option<Duration>, reported: Option<Duration>) -> Option<Duration> {
    match (before, reported) {
        (None, None) => None,
        (Some(before), lasted) if lasted.is_none_or(|lasted| lasted < RETRY) => {
            Some(RETRY.min(2 * before))
        }
        _ => Some(SOON),
    }
}

/// Listens to one probe to its end, and tells why it ended.
async fn watch(probe: &Probe, latest: &Latest, clock: &Clock) -> io::Result<String> {
    let mut child = probe.start()?;
    if let Some(output) = child.stdout.take() {
        listen(output, latest, clock).await?;
    }
    // One that closed its output without ending is ended.
    child.start_kill()?;
    let status = child.wait().await?;
    Ok(match status.code() {
        Some(code) if code == i32::from(NO_LIBRARY) => {
            format!("no NVML library {}", probe.library.display())
        }
        _ => format!("{} ended: {status}", probe.program.display()),
    })
}

async fn listen(output: ChildStdout, latest: &Latest, clock: &Clock) -> io::Result<()> {
    let mut output = BufReader::with_capacity(1 << 10, output);
    while let Some(cards) = read_report(&mut output).await? {
        latest.set(clock().boot, cards);
    }
    Ok(())
}

/// The next whole report; none at the end, and when the probe speaks no language of ours.
async fn read_report(output: &mut BufReader<ChildStdout>) -> io::Result<Option<Vec<CardReport>>> {
    let mut lines = output.take(LONGEST_REPORT).lines();
    let mut cards = Vec::new();
    while let Some(line) = lines.next_line().await? {
        match CardReport::parse(&line) {
            Some(card) => cards.push(card),
            None if line == END => return Ok(Some(cards)),
            None => return Ok(None),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::series::Now;

    /// When a shell that runs `script` as a probe is started, in seconds, and when it reports: so many times.
    async fn told(script: &str, count: usize) -> Vec<u64> {
        let folder = tempfile::tempdir().unwrap();
        let library = folder.path().join("script");
        std::fs::write(&library, script).unwrap();
        let interval = Interval::new(Duration::from_secs(10)).unwrap();
        let probe = Probe { program: "/bin/sh".into(), library, interval };
        let shutdown = Shutdown::new();
        let times = Arc::new(Mutex::new(Vec::new()));
        let (seen, end, start) = (times.clone(), shutdown.clone(), tokio::time::Instant::now());
        let clock: Clock = Arc::new(move || {
            let passed = start.elapsed();
            let mut seen = seen.lock().unwrap();
            seen.push(passed.as_secs());
            if seen.len() == count {
                end.cancel();
            }
            Now { boot: Moment(passed), wall: SystemTime::UNIX_EPOCH }
        });
        forever(probe, Latest::default(), clock, shutdown).await.unwrap();
        times.lock().unwrap().clone()
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_that_had_reported_is_soon_started_again() {
        assert_eq!(told("echo .", 8).await, [0, 0, 10, 10, 30, 30, 70, 70]);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_never_reported_is_left_alone_for_minutes() {
        assert_eq!(told("exit 3", 3).await, [0, 300, 600]);
        assert_eq!(told("echo nonsense", 3).await, [0, 300, 600]);
    }

    #[test]
    fn pauses_grow_to_minutes_and_are_short_again_after_a_long_life() {
        let seconds = Duration::from_secs;
        let mut pauses = vec![next_pause(None, Some(seconds(0)))];
        (0..6).for_each(|_| pauses.push(next_pause(pauses[pauses.len() - 1], None)));
        assert_eq!(pauses, [10, 20, 40, 80, 160, 300, 300].map(|pause| Some(seconds(pause))));
        assert_eq!(next_pause(Some(RETRY), Some(RETRY)), Some(SOON));
    }
}

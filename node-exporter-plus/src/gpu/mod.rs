//! GPU cards, read by a process of its own: `gpu-probe` loads NVIDIA's library (NVML) and reports on its standard output.
//!
//! NVML is a shared library of some tens of MiB in memory, and a call into it can block for ever when a card falls off the
//! bus. In another process it costs nothing on nodes without cards, lets the exporter be linked statically, and cannot
//! block it: the report of a probe that hangs becomes stale.

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

/// The exit code of a probe that found no library, as on most nodes: no error.
pub const NO_LIBRARY: u8 = 3;
/// The time before a probe that never reported is started again: a driver may have been installed meanwhile.
const RETRY: Duration = Duration::from_secs(300);
/// The time before a probe that did report is started again: the node has cards, whose values are missing now. It doubles
/// with each further start, up to [`RETRY`], until a probe has run for that long.
const RETRY_SOON: Duration = Duration::from_secs(10);
/// The longest report that is read, in bytes: 64 cards have 6 KiB.
const MAX_REPORT: u64 = 64 << 10;

/// The newest whole report, shared between the probe's task and the collector.
#[derive(Debug, Clone, Default)]
pub struct LatestReport(Arc<Mutex<Option<Report>>>);

/// The cards at one time.
#[derive(Debug)]
struct Report {
    at: Moment,
    cards: Vec<CardReport>,
}

impl LatestReport {
    /// Replaces the report by one of `at`.
    pub fn set(&self, at: Moment, cards: Vec<CardReport>) {
        *self.lock() = Some(Report { at, cards });
    }

    /// The cards of the newest report; `None` without one, and when it is stale at `now`.
    #[must_use]
    pub fn get(&self, interval: Interval, now: Moment) -> Option<Vec<CardReport>> {
        let report = self.lock();
        let fresh = report.as_ref().filter(|report| !interval.is_stale(report.at, now));
        fresh.map(|report| report.cards.clone())
    }

    /// The time of the newest report.
    fn time(&self) -> Option<Moment> {
        self.lock().as_ref().map(|report| report.at)
    }

    // A report is replaced whole, so a panic leaves a whole one behind.
    fn lock(&self) -> MutexGuard<'_, Option<Report>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How to run the probe.
#[derive(Debug, Clone)]
pub struct Probe {
    /// The program.
    pub program: PathBuf,
    /// The library that it loads: a path, or a name that the dynamic loader finds.
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
    latest: LatestReport,
    clock: Clock,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let mut logged = None;
    let mut pause = None;
    let watch = async {
        loop {
            let start = clock().boot;
            let outcome = watch(&probe, &latest, &clock).await;
            let reported = latest.time().filter(|at| *at >= start);
            if reported.is_some() {
                // There were signals meanwhile, so that there are none now is logged again.
                logged = None;
            }
            let why =
                outcome.unwrap_or_else(|error| format!("{}: {error}", probe.program.display()));
            if logged.as_ref() != Some(&why) {
                tracing::info!(why, "no GPU signals");
                logged = Some(why);
            }
            pause = next_pause(pause, reported.map(|at| at.since(start)));
            tokio::time::sleep(pause.unwrap_or(RETRY)).await;
        }
    };
    shutdown.run_until_cancelled(watch).await;
    Ok(())
}

/// The time before the next start, where it was `before` for the last one and the probe went on to report for `reported`.
/// `None` (then [`RETRY`]) while no probe ever reported.
fn next_pause(before: Option<Duration>, reported: Option<Duration>) -> Option<Duration> {
    match (before, reported) {
        (None, None) => None,
        (Some(before), lasted) if lasted.is_none_or(|lasted| lasted < RETRY) => {
            Some(RETRY.min(2 * before))
        }
        _ => Some(RETRY_SOON),
    }
}

/// Starts a probe, takes its reports until it ends, and returns why it ended.
async fn watch(probe: &Probe, latest: &LatestReport, clock: &Clock) -> io::Result<String> {
    let mut child = probe.start()?;
    if let Some(output) = child.stdout.take() {
        listen(output, latest, clock).await?;
    }
    // It may have closed its output and run on.
    child.start_kill()?;
    let status = child.wait().await?;
    Ok(match status.code() {
        Some(code) if code == i32::from(NO_LIBRARY) => {
            format!("no NVML library {}", probe.library.display())
        }
        _ => format!("{} ended: {status}", probe.program.display()),
    })
}

async fn listen(output: ChildStdout, latest: &LatestReport, clock: &Clock) -> io::Result<()> {
    let mut output = BufReader::with_capacity(1 << 10, output);
    while let Some(cards) = read_report(&mut output).await? {
        latest.set(clock().boot, cards);
    }
    Ok(())
}

/// The next whole report; `None` at the end of the output, and when a line is no report.
async fn read_report(output: &mut BufReader<ChildStdout>) -> io::Result<Option<Vec<CardReport>>> {
    let mut lines = output.take(MAX_REPORT).lines();
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

    /// Runs `script` with a shell as the probe. The first `count` times, in seconds, at which it starts or reports.
    async fn times(script: &str, count: usize) -> Vec<u64> {
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
        forever(probe, LatestReport::default(), clock, shutdown).await.unwrap();
        times.lock().unwrap().clone()
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_that_had_reported_is_started_again_soon() {
        assert_eq!(times("echo .", 8).await, [0, 0, 10, 10, 30, 30, 70, 70]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_that_never_reported_is_started_again_after_minutes() {
        assert_eq!(times("exit 3", 3).await, [0, 300, 600]);
        assert_eq!(times("echo nonsense", 3).await, [0, 300, 600]);
    }

    #[test]
    fn pauses_grow_to_minutes_and_are_short_again_after_a_long_run() {
        let seconds = Duration::from_secs;
        let mut pauses = vec![next_pause(None, Some(seconds(0)))];
        (0..6).for_each(|_| pauses.push(next_pause(pauses[pauses.len() - 1], None)));
        assert_eq!(pauses, [10, 20, 40, 80, 160, 300, 300].map(|pause| Some(seconds(pause))));
        assert_eq!(next_pause(Some(RETRY), Some(RETRY)), Some(RETRY_SOON));
    }
}

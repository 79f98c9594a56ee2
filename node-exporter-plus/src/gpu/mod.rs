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
/// Until a probe that ended is started again. Drivers are installed while nodes run.
const RETRY: Duration = Duration::from_secs(300);
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
    let watch = async {
        loop {
            let outcome = watch(&probe, &latest, &clock).await;
            let why =
                outcome.unwrap_or_else(|error| format!("{}: {error}", probe.program.display()));
            if told.as_ref() != Some(&why) {
                tracing::info!(why, "no GPU signals");
                told = Some(why);
            }
            tokio::time::sleep(RETRY).await;
        }
    };
    shutdown.run_until_cancelled(watch).await;
    Ok(())
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

//! GPUs, read by a process of its own: `gpu-probe` loads NVIDIA's library (NVML) and reports on its standard
//! output.
//!
//! NVML is a shared library of some tens of MiB in memory, and a call into it can block for ever when a GPU falls off
//! the bus. In another process it costs nothing on nodes without GPUs, lets the exporter be linked statically, and
//! cannot block it: the report of a probe that hangs becomes stale, and the probe is killed and started again.
//!
//! Invariant: one probe runs at a time. A probe that hangs in the kernel cannot be killed, and no second one is started
//! while it exists.

pub mod contexts;
mod report;

use std::io;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::bail;
use daemon::Shutdown;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::series::{Clock, Interval, Moment};

pub use report::{END, GpuReading, GpuReport};

/// The exit code of a probe that found no library, as on most nodes: no error.
pub const NO_LIBRARY: u8 = 3;
/// The time before a probe that never reported is started again: a driver may have been installed meanwhile.
const RETRY: Duration = Duration::from_secs(300);
/// The time before a probe that did report is started again: the node has GPUs, whose values are missing now. It
/// doubles with each further start, up to [`RETRY`], until a probe has run for that long.
const RETRY_SOON: Duration = Duration::from_secs(10);
/// Starts in a row without a report, after one has reported in this process, with which the process ends: ten minutes.
/// A new container may have the GPUs where this one has lost them, as to `systemctl daemon-reload` under NVIDIA's
/// older runtime.
const GIVE_UP_AFTER: u32 = 6;
/// The time for a report, in addition to the interval between two. Without persistence mode the driver initialises each
/// GPU at the first call, which takes some seconds for each GPU.
const ANSWER: Duration = Duration::from_secs(120);
/// The time in which a killed process ends, unless it hangs in the kernel.
const KILLED: Duration = Duration::from_secs(5);
/// The longest report that is read, in bytes: 64 GPUs have 6 KiB.
const MAX_REPORT: u64 = 64 << 10;

/// The newest whole report, shared between the probe's task and the collector.
#[derive(Debug, Clone, Default)]
pub struct LatestReport(Arc<Mutex<Option<Report>>>);

/// The GPUs at one time.
#[derive(Debug)]
struct Report {
    at: Moment,
    gpus: Vec<GpuReport>,
}

impl LatestReport {
    /// Replaces the report by one of `at`.
    pub fn set(&self, at: Moment, gpus: Vec<GpuReport>) {
        *self.lock() = Some(Report { at, gpus });
    }

    /// The GPUs of the newest report; `None` without one, and when it is stale at `now`.
    #[must_use]
    pub fn get(&self, interval: Interval, now: Moment) -> Option<Vec<GpuReport>> {
        let report = self.lock();
        let fresh = report.as_ref().filter(|report| !interval.is_stale(report.at, now));
        fresh.map(|report| report.gpus.clone())
    }

    /// The time of the newest report.
    fn time(&self) -> Option<Moment> {
        self.lock().as_ref().map(|report| report.at)
    }

    // A report is replaced as a whole, so a panic cannot leave a partial one.
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
    /// The time within which each report comes.
    fn limit(&self) -> Duration {
        self.interval.duration() + ANSWER
    }

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
///
/// # Errors
///
/// After [`GIVE_UP_AFTER`] starts.
pub(crate) async fn forever(
    probe: Probe,
    latest: LatestReport,
    clock: Clock,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let probes = repeat(|| run(&probe, &latest, &clock), &latest, &clock);
    match shutdown.run_until_cancelled(probes).await {
        Some(why) => bail!("no GPU signals for ten minutes, after there were some: {why}"),
        None => Ok(()),
    }
}

/// Runs a probe until it ends. Returns why it ended.
async fn run(probe: &Probe, latest: &LatestReport, clock: &Clock) -> String {
    let outcome = watch(probe, probe.limit(), latest, clock).await;
    outcome.unwrap_or_else(|error| format!("{}: {error}", probe.program.display()))
}

/// Repeats `run`, which runs a probe until it ends and returns why it ended, with pauses. Returns after
/// [`GIVE_UP_AFTER`] starts, with why the last one ended.
async fn repeat<F>(run: impl Fn() -> F, latest: &LatestReport, clock: &Clock) -> String
where
    F: Future<Output = String>,
{
    let mut logged = None;
    let mut pause = None;
    let mut silent = 0;
    loop {
        let start = clock().boot;
        let why = run().await;
        let reported = latest.time().filter(|at| *at >= start);
        if reported.is_some() {
            // There were signals meanwhile, so that there are none now is logged again.
            logged = None;
            silent = 0;
        } else if latest.time().is_some() {
            silent += 1;
        }
        if silent >= GIVE_UP_AFTER {
            return why;
        }
        if logged.as_ref() != Some(&why) {
            tracing::info!(why, "no GPU signals: gpu-probe has ended");
            logged = Some(why);
        }
        pause = next_pause(pause, reported.map(|at| at.since(start)));
        tokio::time::sleep(pause.unwrap_or(RETRY)).await;
    }
}

/// The pause before the next start of the probe. `before` is the pause before its last start, `reported` the time for
/// which it then ran and reported. `None` (then [`RETRY`]) while no probe ever reported.
fn next_pause(before: Option<Duration>, reported: Option<Duration>) -> Option<Duration> {
    match (before, reported) {
        (None, None) => None,
        (Some(before), lasted) if lasted.is_none_or(|lasted| lasted < RETRY) => {
            Some(RETRY.min(2 * before))
        }
        _ => Some(RETRY_SOON),
    }
}

/// Starts a probe, takes its reports until it ends or one is not there within `limit`, and returns why it ended.
async fn watch(
    probe: &Probe,
    limit: Duration,
    latest: &LatestReport,
    clock: &Clock,
) -> io::Result<String> {
    let mut child = probe.start()?;
    let heard = match child.stdout.take() {
        Some(output) => listen(output, limit, latest, clock).await,
        None => Ok(()),
    };
    // It may hang, or have closed its output and run on.
    child.start_kill()?;
    let status = ended(&mut child).await?;
    heard?;
    Ok(match status.code() {
        Some(code) if code == i32::from(NO_LIBRARY) => {
            format!("no NVML library {}", probe.library.display())
        }
        _ => format!("{} ended: {status}", probe.program.display()),
    })
}

async fn ended(child: &mut Child) -> io::Result<ExitStatus> {
    if let Ok(status) = timeout(KILLED, child.wait()).await {
        return status;
    }
    tracing::warn!(
        pid = child.id(),
        "gpu-probe was killed and does not end: a call into NVIDIA's driver hangs. No GPU signals until it ends; \
         the kernel's log may say which GPU does not answer"
    );
    child.wait().await
}

async fn listen(
    output: impl AsyncRead + Unpin,
    limit: Duration,
    latest: &LatestReport,
    clock: &Clock,
) -> io::Result<()> {
    let mut output = BufReader::with_capacity(1 << 10, output);
    loop {
        let hangs =
            |_| io::Error::new(io::ErrorKind::TimedOut, format!("no report within {limit:?}"));
        match timeout(limit, read_report(&mut output)).await.map_err(hangs)?? {
            Some(gpus) => latest.set(clock().boot, gpus),
            None => return Ok(()),
        }
    }
}

/// The next whole report; `None` at the end of the output, and when a line is no report.
async fn read_report(
    output: &mut (impl AsyncBufRead + Unpin),
) -> io::Result<Option<Vec<GpuReport>>> {
    let mut lines = output.take(MAX_REPORT).lines();
    let mut gpus = Vec::new();
    while let Some(line) = lines.next_line().await? {
        match GpuReport::parse(&line) {
            Some(gpu) => gpus.push(gpu),
            None if line == END => return Ok(Some(gpus)),
            None => return Ok(None),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use tokio::io::AsyncWriteExt;
    use tokio::time::Instant;

    use super::*;
    use crate::series::Now;

    fn clock() -> Clock {
        let start = Instant::now();
        Arc::new(move || Now { boot: Moment(start.elapsed()), wall: SystemTime::UNIX_EPOCH })
    }

    /// The first `count` times, in seconds, at which a probe is started that ends at once, the first `reporting` of
    /// them after a report; and why the last one ended, if that ends the process.
    async fn starts(count: usize, reporting: usize) -> (Vec<u64>, Option<String>) {
        let latest = LatestReport::default();
        let clock = clock();
        let times = Mutex::new(Vec::new());
        let (enough, mut all) = tokio::sync::mpsc::channel(1);
        let run = || async {
            let now = clock().boot;
            times.lock().unwrap().push(now.0.as_secs());
            let number = times.lock().unwrap().len();
            if number <= reporting {
                latest.set(now, Vec::new());
            }
            if number == count {
                enough.send(()).await.unwrap();
                std::future::pending::<()>().await;
            }
            format!("{number} ended")
        };
        let why = tokio::select! {
            why = repeat(run, &latest, &clock) => Some(why),
            _ = all.recv() => None,
        };
        (times.into_inner().unwrap(), why)
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_that_had_reported_is_started_again_soon() {
        assert_eq!(starts(4, 4).await, (vec![0, 10, 30, 70], None));
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_that_never_reported_is_started_again_after_minutes() {
        assert_eq!(starts(3, 0).await, (vec![0, 300, 600], None));
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_whose_probes_reported_and_do_so_no_more_ends_after_ten_minutes() {
        let ended = (vec![0, 10, 30, 70, 150, 310, 610], Some("7 ended".to_owned()));
        assert_eq!(starts(20, 1).await, ended);
        let (times, why) = starts(20, 0).await;
        assert_eq!((times.len(), why), (20, None), "no driver is installed yet");
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_hangs_once_a_report_is_not_there_in_time() {
        let (mut probe, output) = tokio::io::duplex(1 << 10);
        let latest = LatestReport::default();
        let clock = clock();
        let limit = Duration::from_secs(130);
        let reports = async {
            for _ in 0..3 {
                tokio::time::sleep(Duration::from_secs(129)).await;
                probe.write_all(b"0 GPU-a lost\n.\n").await.unwrap();
            }
            // The next one begins, and goes on to be written: only its end counts.
            loop {
                tokio::time::sleep(Duration::from_secs(50)).await;
                probe.write_all(b"0 GPU-a lost\n").await.unwrap();
            }
        };
        let begin = Instant::now();
        let error = tokio::select! {
            heard = listen(output, limit, &latest, &clock) => heard.unwrap_err(),
            () = reports => unreachable!(),
        };
        assert_eq!(error.to_string(), "no report within 130s");
        assert_eq!(begin.elapsed().as_secs(), 3 * 129 + 130);
        assert_eq!(latest.time().unwrap().0.as_secs(), 3 * 129);
    }

    /// Runs `script` with a shell as the probe, and returns why it ended.
    async fn outcome(script: &str, limit: Duration, latest: &LatestReport) -> io::Result<String> {
        let folder = tempfile::tempdir().unwrap();
        let library = folder.path().join("script");
        std::fs::write(&library, script).unwrap();
        let interval = Interval::new(Duration::from_secs(10)).unwrap();
        let probe = Probe { program: "/bin/sh".into(), library, interval };
        watch(&probe, limit, latest, &clock()).await
    }

    #[tokio::test]
    async fn a_probe_that_hangs_is_killed_and_one_that_ends_says_why() {
        let limit = Duration::from_secs(60);
        let latest = LatestReport::default();
        let ended = outcome("exit 3", limit, &latest).await.unwrap();
        assert!(ended.starts_with("no NVML library "), "{ended}");
        let ended = outcome("echo nonsense", limit, &latest).await.unwrap();
        assert!(ended.starts_with("/bin/sh ended: "), "{ended}");
        assert_eq!(latest.time(), None);
        outcome("echo .", limit, &latest).await.unwrap();
        assert!(latest.time().is_some());
        let hangs = "exec sleep 1000";
        let soon = Duration::from_millis(50);
        let hung = timeout(Duration::from_secs(60), outcome(hangs, soon, &latest)).await.unwrap();
        assert_eq!(hung.unwrap_err().to_string(), "no report within 50ms");
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

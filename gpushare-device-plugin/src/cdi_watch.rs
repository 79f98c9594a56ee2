//! Polls NVIDIA's CDI specification, reports its problems (as events on the Node, in the metrics, in the log), and
//! publishes which modes of isolation the node can enforce and which GPUs take no new pods, by that specification, by
//! their compute modes or for want of a CUDA context. Restores our own specification if it was deleted.
//!
//! Invariant: an event is written when a problem appears and every half hour while it persists; problems of one kind
//! share an event.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cluster::EventText;
use placement::gpu::Closed;
use rustix::fs::{Access, access, statvfs};
use rustix::io::Errno;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::container::cdi::SpecFile;
use crate::gpus::Gpus;
use crate::gpus::closed::{ByClaims, ClosedGpus};
use crate::gpus::compute_mode::{BarredGpu, barred};
use crate::gpus::context::{FailedContexts, FailedGpu, failed};
use crate::gpus::offered::OfferedGpus;
use crate::isolation::report::ReportedMode;
use crate::isolation::support::{Host, IsolationSupport, Missing};
use crate::isolation::{Decision, Isolation, IsolationError, Policy};
use crate::metrics::Metrics;
use crate::node_events::{NodeEvents, REPEAT_AFTER};
use crate::nvidia::{CdiLocation, Problem, closed_gpus};

/// Time between two checks; a change of the GPUs triggers a check at once.
const EVERY: Duration = Duration::from_secs(10);

/// Checks NVIDIA's specification for the GPUs of this node.
pub(crate) struct SpecWatch {
    /// The location of NVIDIA's specification.
    pub location: CdiLocation,
    /// Our own specification; `None` unless `--response=cdi`.
    pub own: Option<Arc<SpecFile>>,
    /// The other inputs of the node's support.
    pub host: Host,
    /// Why the driver's limit is not to be relied on, once a container ran without it.
    pub not_held: watch::Receiver<Option<Missing>>,
    /// The policy for containers.
    pub policy: Policy,
    /// Publishes the node's support.
    pub support: watch::Sender<Option<IsolationSupport>>,
    /// Publishes the GPUs that take no new pods.
    pub closed: watch::Sender<Arc<ClosedGpus>>,
    /// The GPUs that a DRA driver offers as well; `None` until that is known. Nothing is published before.
    pub offered: watch::Receiver<Option<Arc<OfferedGpus>>>,
    /// The GPUs that ResourceClaims have for themselves.
    pub by_claims: watch::Receiver<Option<Arc<ByClaims>>>,
    /// The GPUs on which CUDA opens no context.
    pub failed: watch::Receiver<Arc<FailedContexts>>,
    /// The GPUs that NVIDIA's specification must have.
    pub gpus: watch::Receiver<Arc<Gpus>>,
    /// Writes problems as events.
    pub events: NodeEvents,
    /// Counts problems.
    pub metrics: Metrics,
}

/// The outcome of a check.
struct Checked {
    problems: Vec<Problem>,
    support: IsolationSupport,
    /// Why our own specification could not be restored.
    not_restored: Option<String>,
    /// Why the folder of our own specification takes no new file.
    not_writable: Option<String>,
}

/// The problems that were reported, and when.
#[derive(Debug)]
struct Reported<P> {
    known: BTreeSet<P>,
    at: Option<Instant>,
}

impl<P: Ord + Clone> Reported<P> {
    fn none() -> Self {
        Self { known: BTreeSet::new(), at: None }
    }

    /// The problems to report at `now`: the new ones, or all of them after half an hour.
    fn due(&mut self, problems: Vec<P>, now: Instant) -> Vec<P> {
        let all_are_due = self.at.is_none_or(|at| now.duration_since(at) >= REPEAT_AFTER);
        if all_are_due {
            self.at = Some(now);
        }
        let known = std::mem::replace(&mut self.known, problems.into_iter().collect());
        let is_due = |problem: &&P| all_are_due || !known.contains(problem);
        self.known.iter().filter(is_due).cloned().collect()
    }
}

impl SpecWatch {
    /// Checks until the shutdown.
    pub(crate) async fn run(mut self, shutdown: daemon::Shutdown) {
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = self.follow() => {}
        }
    }

    async fn follow(&mut self) {
        let mut reported = Reported::none();
        let mut reported_barred = Reported::none();
        let mut reported_failed = Reported::none();
        let mut mode = ReportedMode::default();
        let mut folder = None;
        if self.offered.wait_for(Option::is_some).await.is_err()
            || self.by_claims.wait_for(Option::is_some).await.is_err()
        {
            return;
        }
        loop {
            let gpus = self.gpus.borrow_and_update().clone();
            let Some(checked) = self.check(gpus.clone()).await else { return };
            if !gpus.is_empty() {
                let decided = self.policy.decide(None, &checked.support);
                let barred = barred(&gpus, decided.as_ref().ok().map(|decided| decided.isolation));
                let failed = failed(&gpus, &self.failed.borrow_and_update().clone());
                self.close(&checked, &decided, &barred, &failed, &mut folder).await;
                self.publish(checked.support, decided, &mut mode).await;
                let now = Instant::now();
                self.report_gpus("GPUComputeMode", &reported_barred.due(barred, now)).await;
                self.report_gpus("GPUContextFailed", &reported_failed.due(failed, now)).await;
            }
            let problems = checked.problems;
            self.count(&problems);
            if problems.is_empty() && !reported.known.is_empty() {
                tracing::info!("NVIDIA's CDI specification has every GPU now");
            }
            self.report(&reported.due(problems, Instant::now())).await;
            tokio::select! {
                changed = self.gpus.changed() => if changed.is_err() { return },
                changed = self.offered.changed() => if changed.is_err() { return },
                changed = self.not_held.changed() => if changed.is_err() { return },
                changed = self.by_claims.changed() => if changed.is_err() { return },
                // An error means no sender: no context is opened.
                Ok(()) = self.failed.changed() => {}
                () = sleep(EVERY) => {}
            }
        }
    }

    /// Logs each problem, and writes one event for each kind: a fault of the specification is often one of every GPU.
    async fn report(&self, problems: &[Problem]) {
        for problem in problems {
            tracing::warn!(problem = problem.label(), "{problem}");
        }
        for label in Problem::LABELS {
            let mut alike = problems.iter().filter(|problem| problem.label() == label);
            let Some(first) = alike.next() else { continue };
            let note = with_more(first, alike.count());
            let reason = first.reason();
            self.events.warn(&EventText { reason, action: "CheckCDI", note }).await;
        }
    }

    /// Logs each GPU that programs cannot use, and writes one event for all of them.
    async fn report_gpus(&self, reason: &'static str, unusable: &[impl Display]) {
        for gpu in unusable {
            tracing::warn!("{gpu}");
        }
        let Some(first) = unusable.first() else { return };
        let note = with_more(first, unusable.len() - 1);
        self.events.warn(&EventText { reason, action: "CheckCards", note }).await;
    }

    /// Publishes the GPUs that take no new pods. `decided` is the mode of a pod without an annotation, `barred` are
    /// the GPUs with a wrong compute mode, `failed` those without a context, and `reported` is the problem of our
    /// folder that the last event had.
    async fn close(
        &mut self,
        checked: &Checked,
        decided: &Result<Decision, IsolationError>,
        barred: &[BarredGpu],
        failed: &[FailedGpu],
        reported: &mut Option<String>,
    ) {
        // A new limit is a new device in our file.
        let limits = decided.as_ref().is_ok_and(|decided| decided.isolation != Isolation::None);
        let not_writable = if limits { checked.not_writable.as_ref() } else { None };
        let folder = checked.not_restored.as_ref().or(not_writable);
        let mut closed = closed_gpus(&checked.problems);
        for gpu in barred {
            closed.gpus.entry(gpu.uuid.clone()).or_insert(Closed::ComputeMode);
        }
        for gpu in failed {
            closed.gpus.entry(gpu.uuid.clone()).or_insert(Closed::Context);
        }
        closed.by_claims = self.by_claims.borrow_and_update().clone().unwrap_or_default();
        closed.offered = self.offered.borrow_and_update().clone().unwrap_or_default();
        closed.all = match (decided, folder) {
            (Err(_), _) => Some(Closed::Isolation),
            (Ok(_), Some(_)) => Some(Closed::CdiFolder),
            (Ok(_), None) => closed.all,
        };
        daemon::publish(&self.closed, Arc::new(closed));
        if *reported != folder.cloned() {
            *reported = folder.cloned();
            if let Some(why) = folder {
                let note = format!("GPU pods cannot be started: {why}");
                tracing::warn!("{note}");
                let reason = "CDIFolderNotWritable";
                self.events.warn(&EventText { reason, action: "CheckCDI", note }).await;
            }
        }
    }

    /// Publishes the node's support, and the mode of a pod without an annotation.
    async fn publish(
        &self,
        support: IsolationSupport,
        decided: Result<Decision, IsolationError>,
        reported: &mut ReportedMode,
    ) {
        for mode in Isolation::ALL {
            let in_force = decided.as_ref().is_ok_and(|decided| decided.isolation == mode);
            self.metrics.isolation.with([mode.name()]).set(in_force.into());
        }
        daemon::publish(&self.support, Some(support));
        if let Some(note) = reported.due(decided) {
            let reason = "GPUIsolationUnavailable";
            self.events.warn(&EventText { reason, action: "CheckIsolation", note }).await;
        }
    }

    /// Reads the files, and restores our own, on a thread that may block; `None` if that thread panicked.
    async fn check(&mut self, gpus: Arc<Gpus>) -> Option<Checked> {
        let not_held = self.not_held.borrow_and_update().clone();
        let location = self.location.clone();
        let host = self.host.clone();
        // Our file has the GPUs before they are published. Without published GPUs it may be the file of an earlier
        // process.
        let own = if gpus.is_empty() { None } else { self.own.clone() };
        let look = tokio::task::spawn_blocking(move || {
            let restored = own.as_ref().map_or(Ok(()), |own| own.restore());
            let folder = own.as_ref().and_then(|own| own.path().parent());
            let writable = folder.map_or(Ok(()), check_writable);
            let specs = location.specs();
            let mut support = host.support(&specs, &gpus);
            if let (Ok(()), Some(missing)) = (&support.driver, not_held) {
                support.driver = Err(missing);
            }
            let problems = if host.by_cdi { location.problems(&specs, &gpus) } else { Vec::new() };
            Checked {
                problems,
                support,
                not_restored: restored.err().map(|error| error.to_string()),
                not_writable: writable.err(),
            }
        });
        look.await
            .inspect_err(|error| tracing::error!("reading NVIDIA's specification: {error}"))
            .ok()
    }

    fn count(&self, problems: &[Problem]) {
        for label in Problem::LABELS {
            let count = problems.iter().filter(|problem| problem.label() == label).count();
            let gauge = self.metrics.cdi_problems.with([label]);
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }
}

/// The text of an event about a problem, and how many others are like it.
fn with_more(first: &impl Display, more: usize) -> String {
    match more {
        0 => first.to_string(),
        more => format!("{first} ({more} more alike in the device plugin's log)"),
    }
}

/// Checks that a folder takes another file. Writes nothing.
fn check_writable(folder: &Path) -> Result<(), String> {
    takes_file(folder).map_err(|error| {
        format!(
            "{} takes no new CDI specification: {}. Make the host's CDI directory writable, and make room",
            folder.display(),
            io::Error::from(error)
        )
    })
}

/// Whether a folder can be written, and its file system has room.
fn takes_file(folder: &Path) -> Result<(), Errno> {
    access(folder, Access::WRITE_OK)?;
    let system = statvfs(folder)?;
    // File systems that make inodes as needed report none at all.
    let full = system.f_bavail == 0 || (system.f_files > 0 && system.f_favail == 0);
    if full { Err(Errno::NOSPC) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(gpu: &str) -> Problem {
        Problem::GpuMissing { kind: "k".into(), gpu: gpu.into() }
    }

    #[test]
    fn a_problem_is_due_once_and_again_after_half_an_hour() {
        let start = Instant::now();
        let mut reported = Reported::none();
        for (second, found, due) in [
            (0, &["a"][..], &["a"][..]),
            (10, &["a", "b"], &["b"]),
            (20, &["a"], &[]),
            (1800, &["a"], &["a"]),
            (1810, &[], &[]),
            (1820, &["a"], &["a"]),
        ] {
            let now = start + Duration::from_secs(second);
            let found = found.iter().map(|gpu| problem(gpu)).collect();
            let due: Vec<Problem> = due.iter().map(|gpu| problem(gpu)).collect();
            assert_eq!(reported.due(found, now), due, "second {second}");
        }
    }
}

//! The periodic audit: repairs some findings, and reports findings that count as metrics, log lines and events.
//!
//! Invariant: only claims and this program's own records are repaired, and only from the kubelet's records. An event is
//! written when a finding begins to count, and not while it persists.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use cluster::{EventText, PodFacts};
use placement::units::{GpuId, MiB, PodUid};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::compare::{Facts, compare};
use super::limits::{self, DriverLimit};
use super::report::{AuditHistory, AuditOutcome};
use super::{AffectedPod, Finding, Findings, Kind};
use crate::gpus::Gpus;
use crate::isolation::support::Missing;
use crate::metrics::Metrics;
use crate::node_events::NodeEvents;
use crate::pods::{PodCache, PodFields};
use crate::processes::Snapshot;
use crate::records::SharedRecords;
use crate::records::checkpoint::{Checkpoint, CheckpointFile};

/// The largest number of events of one audit. The rest is only logged.
const MAX_EVENTS: usize = 20;

/// Pods with a process that MPS is to limit and that is no client of it, each with the GPU that the process is on.
pub(crate) type OutsideMps = BTreeSet<(GpuId, PodUid)>;

/// Audits this node.
pub(crate) struct Audit {
    /// Time between two audits.
    pub every: Duration,
    /// GPU memory of one unit.
    pub unit: MiB,
    /// The node's GPUs, as they change.
    pub gpus: watch::Receiver<Arc<Gpus>>,
    /// Its pods, from a watch.
    pub pods: Arc<PodCache>,
    /// Which container holds which ids.
    pub records: Arc<SharedRecords>,
    /// The kubelet's checkpoint.
    pub checkpoint: CheckpointFile,
    /// The processes on the GPUs.
    pub processes: watch::Receiver<Arc<Snapshot>>,
    /// What NVML tells of the limits by the driver.
    pub limits: watch::Receiver<Arc<Vec<DriverLimit>>>,
    /// Publishes that the driver has not held a pod to its limit: for the rest of this process the node cannot enforce
    /// isolation `driver`.
    pub not_held: watch::Sender<Option<Missing>>,
    /// Publishes the pods with a process outside of MPS, each with the GPU that the process is on.
    pub outside_mps: watch::Sender<OutsideMps>,
    /// Writes findings as events.
    pub events: NodeEvents,
    /// Counts findings.
    pub metrics: Metrics,
}

impl Audit {
    /// Audits until the shutdown.
    pub(crate) async fn run(self, shutdown: daemon::Shutdown) {
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = self.follow() => {}
        }
    }

    async fn follow(self) {
        let mut history = AuditHistory::default();
        let mut ticks = interval_at(Instant::now() + self.every, self.every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.audit(&mut history).await;
        }
    }

    async fn audit(&self, history: &mut AuditHistory) {
        let checkpoint = self.read_checkpoint().await;
        let gpus = self.gpus.borrow().clone();
        // Without GPUs or pods nothing can be compared.
        let is_comparable = !gpus.is_empty() && self.pods.is_listed();
        let pods = self.pods.by_uids();
        let processes = self.processes.borrow().clone();
        let claimed = self.records.lock().claimed().clone();
        let mut findings = if is_comparable {
            compare(&Facts {
                gpus: &gpus,
                unit: self.unit,
                pods: &pods,
                checkpoint: checkpoint.as_ref(),
                held_by: &|facts: &PodFacts| self.records.lock().held_by(facts),
                claimed: &claimed,
                processes: &processes,
            })
        } else {
            Findings::default()
        };
        if is_comparable {
            limits::compare(&self.limits.borrow(), &pods, &mut findings);
        }
        let outcome = history.record(&findings, &pods, Instant::now());
        self.count(&outcome);
        self.take_back(history.counting());
        self.publish_outside_mps(history.counting());
        self.repair(history.counting(), checkpoint);
        self.report(&outcome.new).await;
    }

    /// The checkpoint; `None` if it is missing or cannot be read.
    async fn read_checkpoint(&self) -> Option<Checkpoint> {
        let file = self.checkpoint.clone();
        let read = tokio::task::spawn_blocking(move || file.find()).await;
        match read {
            Ok(Ok(checkpoint)) => checkpoint,
            Ok(Err(error)) => {
                tracing::debug!("{error}");
                None
            }
            Err(panicked) => {
                tracing::error!("reading the kubelet's checkpoint: {panicked}");
                None
            }
        }
    }

    /// Adds the kubelet's records that this program lacks, and triggers the write of claims that differ from the
    /// records.
    fn repair(&self, counting: &BTreeSet<Finding>, checkpoint: Option<Checkpoint>) {
        let lacks_records = counting.iter().any(|finding| finding.kind == Kind::RecordUnknown);
        if lacks_records && let Some(checkpoint) = checkpoint {
            self.records.lock().restore(checkpoint.held, &self.pods);
        }
        if counting.iter().any(|finding| finding.kind.is_repaired()) {
            // The reporter writes claims from the records.
            self.records.notify();
        }
    }

    /// Takes the mode `driver` back where it did not hold.
    fn take_back(&self, counting: &BTreeSet<Finding>) {
        let unheld = |finding: &&Finding| finding.kind == Kind::LimitNotHeld;
        let pod =
            counting.iter().filter(unheld).find_map(|found| found.pod.as_ref()?.name.as_ref());
        if let Some(pod) = pod {
            self.not_held.send_if_modified(|known| {
                let is_first = known.is_none();
                known.get_or_insert_with(|| Missing::NotHeld(pod.to_string()));
                is_first
            });
        }
    }

    fn publish_outside_mps(&self, counting: &BTreeSet<Finding>) {
        let mut outside = OutsideMps::new();
        for Finding { kind, pod, gpu, .. } in counting {
            if let (Kind::ProcessOutsideMps, Some(pod), Some(gpu)) = (kind, pod, gpu) {
                outside.insert((gpu.clone(), pod.uid.clone()));
            }
        }
        daemon::publish(&self.outside_mps, outside);
    }

    fn count(&self, outcome: &AuditOutcome) {
        self.metrics.audits.inc();
        for kind in Kind::ALL {
            match outcome.counts.get(&kind) {
                Some(count) => {
                    let count = i64::try_from(*count).unwrap_or(i64::MAX);
                    self.metrics.audit_findings.with([kind.label()]).set(count);
                }
                None => self.metrics.audit_findings.remove([kind.label()]),
            }
        }
        for finding in &outcome.repaired {
            let PodFields { uid, namespace, pod } = pod_fields(finding);
            let kind = finding.kind.label();
            tracing::info!(uid, namespace, pod, kind, "the audit has repaired: {finding}");
            self.metrics.audit_repairs.with([kind]).inc();
        }
    }

    /// Logs each finding, and writes an event for each of the first.
    async fn report(&self, new: &[(Finding, String)]) {
        for (finding, note) in new {
            let PodFields { uid, namespace, pod } = pod_fields(finding);
            let kind = finding.kind.label();
            tracing::warn!(uid, namespace, pod, kind, "audit: {finding}: {note}");
        }
        for (finding, note) in new.iter().take(MAX_EVENTS) {
            let reason = finding.kind.reason();
            let warning = EventText { reason, action: "Audit", note: note.clone() };
            match &finding.pod {
                Some(AffectedPod { uid, name: Some(pod) }) => {
                    self.events.warn_of_pod(pod, uid, &warning).await;
                }
                _ => self.events.warn(&warning).await,
            }
        }
    }
}

/// The fields of a log line about a finding's pod. A pod that no longer exists has its UID alone.
fn pod_fields(finding: &Finding) -> PodFields<'_> {
    let pod = finding.pod.as_ref();
    PodFields::named(pod.map(|pod| &pod.uid), pod.and_then(|pod| pod.name.as_ref()))
}

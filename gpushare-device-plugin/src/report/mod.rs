//! Reports to the API server: the GPUs and their pods in the node's annotation, with `--report-gpu-count` the number
//! of GPUs in its status, and on each pod with a claim that its GPU was allocated.
//!
//! A round writes what differs from the last write, so a failed write or a restart loses nothing. Everything is written
//! again every five minutes and after a registration, in case another program changed it. The number of GPUs is
//! written by a task of its own: its failure delays nothing else.
//!
//! [`mod@gpus`] makes the annotation, [`claims`] the claims that pods lack, [`count`] writes the number of GPUs, and
//! [`refused`] keeps the pods that the API server takes no write for.

mod claims;
mod count;
mod gpus;
mod refused;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use cluster::{CallError, EventText, PodFacts};
use jiff::Timestamp;
use placement::gpu::Closed;
use placement::names::Names;
use placement::units::{NodeName, PodUid};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use crate::audit::watch::OutsideMps;
use crate::departure::Phase;
use crate::gpus::closed::ClosedGpus;
use crate::gpus::ids::Ids;
use crate::gpus::{Gpus, units_of};
use crate::isolation::NodeIsolation;
use crate::lingering::Lingering;
use crate::metrics::Metrics;
use crate::node_events::NodeEvents;
use crate::pods::PodCache;
use crate::records::SharedRecords;
use crate::records::checkpoint::CheckpointFile;
use claims::claim_from_record;
pub(crate) use claims::is_on_other_gpu;
use gpus::{PodCharge, report};
use refused::RefusedWrites;

/// Pause between two rounds. Each write of a node makes kube-scheduler retry pods that an extender rejected.
const ROUND_PAUSE: Duration = Duration::from_secs(2);
/// Age at which everything is written again. An unchanged object costs the API server one read.
const REWRITE_AFTER: Duration = Duration::from_secs(300);
/// Time for one write.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);

/// Reports to the API server.
pub(crate) struct Reporter {
    /// The API server's client.
    pub client: cluster::Client,
    /// The node that is reported on.
    pub node: NodeName,
    /// Resource and annotation names.
    pub names: Names,
    /// Its GPUs, as they change.
    pub gpus: watch::Receiver<Arc<Gpus>>,
    /// Its pods, from a watch.
    pub pods: Arc<PodCache>,
    /// Which container holds which ids.
    pub records: Arc<SharedRecords>,
    /// Deleted pods whose processes still run.
    pub lingering: Arc<Lingering>,
    /// How containers are limited to their share.
    pub isolation: NodeIsolation,
    /// Whether the number of GPUs is written into the Node's status.
    pub gpu_count: bool,
    /// The kubelet's checkpoint.
    pub checkpoint: CheckpointFile,
    /// The GPUs that take no new pods.
    pub closed: watch::Receiver<Arc<ClosedGpus>>,
    /// The pods with a process outside of MPS.
    pub outside_mps: watch::Receiver<OutsideMps>,
    /// Whether this plugin serves the kubelet. While it does not, all GPUs are closed.
    pub phase: watch::Receiver<Phase>,
    /// The phase that was last reported.
    pub reported: watch::Sender<Option<Phase>>,
    /// Whether containers get their GPUs by CDI.
    pub by_cdi: bool,
    /// Writes events on the node.
    pub events: NodeEvents,
    /// Counts corrections.
    pub metrics: Metrics,
}

/// What the last rounds wrote.
#[derive(Default)]
struct LastWritten {
    gpus: Option<GpusWritten>,
    /// Pods that are on another GPU than their claim's, already counted.
    on_other_gpus: BTreeSet<PodUid>,
    refused: RefusedWrites,
    /// Whether the node's container runtime was checked for CDI, and reported if it may have none.
    runtime_checked: bool,
}

struct GpusWritten {
    gpus: api::gpus::Gpus,
    isolation: Option<&'static str>,
    at: Instant,
    /// The number of registrations at that time. A kubelet that starts sets resources without a plugin to 0.
    registrations: u64,
}

impl Reporter {
    /// Reports until the shutdown.
    pub(crate) async fn run(self, shutdown: daemon::Shutdown) {
        tokio::select! {
            () = shutdown.cancelled() => {}
            ((), ()) = async { tokio::join!(self.rounds(), self.counts()) } => {}
        }
    }

    /// Reports once; errors are logged.
    pub(crate) async fn report_once(&self) {
        if let Err(error) = self.round(&mut LastWritten::default()).await {
            tracing::warn!("cannot report to the API server: {error}");
        }
    }

    async fn rounds(&self) {
        let mut written = LastWritten::default();
        let mut pods = self.pods.changes();
        let mut records = self.records.changes();
        let mut gpus = self.gpus.clone();
        let mut support = self.isolation.support.clone();
        let mut closed = self.closed.clone();
        let mut outside_mps = self.outside_mps.clone();
        let mut phase = self.phase.clone();
        // The kubelet usually has its list within milliseconds: one write in place of two.
        let _ = timeout(ROUND_PAUSE, phase.wait_for(|phase| *phase != Phase::Starting)).await;
        loop {
            phase.mark_unchanged();
            let outcome = self.round(&mut written).await;
            tokio::select! {
                changed = phase.changed() => if changed.is_ok() { continue } else { return },
                () = sleep(ROUND_PAUSE) => {}
            }
            if let Err(error) = outcome {
                tracing::warn!("cannot report to the API server, trying again: {error}");
                continue;
            }
            tokio::select! {
                changed = pods.changed() => if changed.is_err() { return },
                changed = records.changed() => if changed.is_err() { return },
                changed = gpus.changed() => if changed.is_err() { return },
                changed = support.changed() => if changed.is_err() { return },
                changed = closed.changed() => if changed.is_err() { return },
                changed = outside_mps.changed() => if changed.is_err() { return },
                changed = phase.changed() => if changed.is_err() { return },
                () = sleep(REWRITE_AFTER) => {}
            }
        }
    }

    /// One round. A write for a pod that is refused does not stop the others; after any other error the rest waits for
    /// the next round, which writes the GPUs first.
    async fn round(&self, written: &mut LastWritten) -> Result<(), CallError> {
        self.lingering.update();
        let pods: Vec<(Arc<PodFacts>, Ids)> = self.holders();
        let gpus = self.gpus.borrow().clone();
        let others = [self.lingering(&gpus), self.held_elsewhere(&gpus)].concat();
        self.count_corrections(&gpus, &pods, &mut written.on_other_gpus);
        let phase = *self.phase.borrow();
        if !gpus.is_empty() {
            let mut closed = ClosedGpus::clone(&self.closed.borrow());
            if phase != Phase::Serving {
                closed.all = Some(Closed::Plugin);
            }
            let support = self.isolation.support.borrow().clone();
            let mut report = report(&gpus, &closed, support.as_ref(), &pods, others);
            // A plugin that ends takes no finding back.
            if phase == Phase::Serving {
                for (on, pod) in self.outside_mps.borrow().iter() {
                    for gpu in report.0.iter_mut().filter(|gpu| gpu.uuid == *on) {
                        gpu.outside_mps.push(pod.clone());
                    }
                }
            }
            self.write_gpus(report, written).await?;
        }
        self.reported.send_replace(Some(phase));
        written.refused.retain(&pods);
        self.record_claims(&gpus, &pods, &mut written.refused).await?;
        for facts in pods.iter().map(|(facts, _)| facts).filter(|facts| is_to_be_marked(facts)) {
            if !written.refused.contains(&facts.uid) {
                let marked = self.mark(facts).await;
                written.refused.keep(facts, marked)?;
            }
        }
        Ok(())
    }

    /// Writes claims from the kubelet's records for admitted pods without a claim, and for those on other GPUs than
    /// their claim's if this plugin chose these GPUs for the pod: the claim was edited since. Else the pod may have
    /// got another pod's GPUs, and is held back at its start.
    async fn record_claims(
        &self,
        gpus: &Gpus,
        pods: &[(Arc<PodFacts>, Ids)],
        refused: &mut RefusedWrites,
    ) -> Result<(), CallError> {
        for (facts, ids) in pods.iter().filter(|(facts, _)| facts.admitted && !facts.deleting) {
            let is_anothers = facts.claim().is_some() && !self.records.lock().chose_for(&facts.uid);
            if is_anothers || refused.contains(&facts.uid) {
                continue;
            }
            let Some((request, reservation)) = claim_from_record(facts, &units_of(ids, gpus), gpus)
            else {
                continue;
            };
            let at = Timestamp::now();
            let claim = cluster::claim_annotations(&self.names, &request, &reservation, at);
            let recorded = self.record_claim(facts, claim).await;
            if recorded.is_ok() {
                self.metrics.claims_written.inc();
            }
            refused.keep(facts, recorded)?;
        }
        Ok(())
    }

    async fn record_claim(
        &self,
        facts: &PodFacts,
        claim: cluster::Annotations,
    ) -> Result<(), CallError> {
        let PodFacts { namespace, name, uid, .. } = facts;
        tracing::warn!(%uid, namespace, pod = name, "writing the pod's claim from the kubelet's record");
        cluster::record_claim(&self.client, namespace, name, uid, claim, WRITE_TIMEOUT).await
    }

    /// The pods that hold ids. A finished pod holds none.
    fn holders(&self) -> Vec<(Arc<PodFacts>, Ids)> {
        let mut holders = Vec::new();
        for facts in self.pods.all() {
            if facts.finished {
                continue;
            }
            let ids = self.records.lock().held_by(&facts);
            if !ids.is_empty() {
                holders.push((facts, ids));
            }
        }
        holders
    }

    /// The charges of pods that linger, and of claims that are not prepared any more.
    fn lingering(&self, gpus: &Gpus) -> Vec<PodCharge> {
        let records = self.records.lock();
        let by_units = records.lingering().map(|(uid, pod)| (uid.clone(), pod.charge(gpus)));
        by_units.chain(records.resource_claims.unprepared(gpus)).collect()
    }

    /// The charges of pods that hold GPUs through another plugin's resource, or by resource claims: whole GPUs.
    fn held_elsewhere(&self, gpus: &Gpus) -> Vec<PodCharge> {
        // If the checkpoint cannot be read, the GPUs that were read last count.
        match self.checkpoint.read() {
            Ok(checkpoint) => {
                if self.records.lock().set_elsewhere(&checkpoint, &self.pods) {
                    self.records.notify();
                }
            }
            Err(error) => tracing::debug!("{error}"),
        }
        let mut charges: Vec<PodCharge> = Vec::new();
        for held in self.records.lock().elsewhere() {
            let Some(gpu) = gpus.get(&held.gpu) else { continue };
            // Not under the pod's own UID: what it holds by our resource is another charge.
            let holder = PodUid::from(format!("{}/{}", held.pod, held.resource));
            charges.push((holder, [(gpu.uuid.clone(), gpu.units)].into()));
        }
        charges
    }

    async fn write_gpus(
        &self,
        gpus: api::gpus::Gpus,
        written: &mut LastWritten,
    ) -> Result<(), CallError> {
        let registrations = self.metrics.registrations.get();
        let isolation = self.isolation.annotation_value();
        if let Some(last) = &written.gpus
            && last.gpus == gpus
            && last.isolation == isolation
            && last.registrations == registrations
            && last.at.elapsed() < REWRITE_AFTER
        {
            return Ok(());
        }
        let annotations = [
            (self.names.gpus(), Some(gpus.to_json())),
            (self.names.isolation(), isolation.map(str::to_owned)),
        ];
        // The GPUs are those of this machine, also if its Node object was deleted and made again.
        let runtime =
            cluster::patch_own_node(&self.client, &self.node, annotations, WRITE_TIMEOUT).await?;
        if self.by_cdi && !written.runtime_checked && !runtime.is_empty() {
            written.runtime_checked = true;
            if let Some(note) = crate::nvidia::runtime::cdi_may_be_off(&runtime) {
                tracing::warn!("{note}");
                let reason = "CDIMayBeOff";
                self.events.warn(&EventText { reason, action: "CheckCDI", note }).await;
            }
        }
        written.gpus = Some(GpusWritten { gpus, isolation, at: Instant::now(), registrations });
        Ok(())
    }

    /// Marks the pod as assigned.
    async fn mark(&self, facts: &PodFacts) -> Result<(), CallError> {
        let PodFacts { namespace, name, uid, .. } = facts;
        cluster::mark_assigned(&self.client, namespace, name, uid, WRITE_TIMEOUT).await
    }

    fn count_corrections(
        &self,
        gpus: &Gpus,
        pods: &[(Arc<PodFacts>, Ids)],
        known: &mut BTreeSet<PodUid>,
    ) {
        let mut wrong = BTreeSet::new();
        for (facts, ids) in pods {
            if !is_on_other_gpu(facts, &units_of(ids, gpus)) {
                continue;
            }
            let PodFacts { uid, namespace, name: pod, .. } = &**facts;
            wrong.insert(uid.clone());
            if !known.contains(uid) {
                tracing::error!(
                    %uid, namespace, pod,
                    "a pod is on another GPU than its claim's; the node's annotation shows the real one"
                );
                self.metrics.corrections.inc();
            }
        }
        *known = wrong;
    }
}

/// Logs why a part of the Node's status was not written, unless that is the `logged` reason.
pub(crate) fn log_unwritten_status(part: &str, error: &CallError, logged: &mut String) {
    let why = error.to_string();
    if why != *logged {
        tracing::warn!("cannot write {part} into the Node's status, trying again: {why}");
        *logged = why;
    }
}

fn is_to_be_marked(facts: &PodFacts) -> bool {
    let assigned = facts.gpu_pod().is_some_and(|gpu| gpu.assigned);
    facts.claim().is_some() && !assigned && !facts.deleting
}

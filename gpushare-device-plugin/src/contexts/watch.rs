//! Has contexts opened on this node's GPUs, and publishes those on which CUDA opens none.
//!
//! Invariant: one question at a time, and only where a gibibyte is free by the units and by NVML: a context takes
//! memory of the GPU for less than a second, and must take none of a tenant's. Missing memory values are not free ones.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cluster::{MPS_PIPES, PodFacts};
use nvml::cuda::{Answer, Question};
use placement::gpu::Closed;
use placement::units::{GpuId, MiB, PodUid};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use super::client::ask;
use super::schedule::{Change, Schedule};
use crate::gpus::closed::ClosedGpus;
use crate::gpus::context::FailedContexts;
use crate::gpus::watch::OpenNvml;
use crate::gpus::{Gpu, Gpus, units_of};
use crate::isolation::support::IsolationSupport;
use crate::pods::PodCache;
use crate::records::SharedRecords;

/// The memory that must be free: a context takes some 500 MiB.
const ROOM: MiB = MiB(1024);
/// The pause before it is looked again whether a GPU that is due has that room.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// The pause after changes of pods, which come in groups.
const TOGETHER: Duration = Duration::from_secs(1);
/// Namespaces in which pods of a GPU fail at their start before it is asked: one author's programs may fail by
/// themselves.
const NAMESPACES: usize = 2;

/// Has contexts opened.
pub(crate) struct ContextWatch {
    /// The socket of `gpu-probe contexts`.
    pub socket: PathBuf,
    /// The size of a unit.
    pub unit: MiB,
    /// The node's GPUs.
    pub gpus: watch::Receiver<Arc<Gpus>>,
    /// The GPUs that take no new pods, for this reason or another.
    pub closed: watch::Receiver<Arc<ClosedGpus>>,
    /// The node's support of MPS: where it has it, contexts are opened by MPS.
    pub support: watch::Receiver<Option<IsolationSupport>>,
    /// The node's pods.
    pub pods: Arc<PodCache>,
    /// Which units are held.
    pub records: Arc<SharedRecords>,
    /// NVML, while it is open.
    pub probe: watch::Receiver<OpenNvml>,
    /// Publishes the GPUs that failed.
    pub failed: watch::Sender<Arc<FailedContexts>>,
}

impl ContextWatch {
    /// Asks until the shutdown.
    pub(crate) async fn run(self, shutdown: daemon::Shutdown) {
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = self.follow() => {}
        }
    }

    async fn follow(mut self) {
        let mut schedule = Schedule::default();
        let mut failing = FailingPods::default();
        let mut not_learnt = None;
        let mut changes = self.pods.changes();
        // By then it is known which GPUs are closed.
        if self.support.wait_for(Option::is_some).await.is_err() {
            return;
        }
        loop {
            let now = Instant::now();
            let gpus = self.gpus.borrow_and_update().clone();
            schedule.set_gpus(&gpus, now);
            for gpu in failing.gpus_to_ask(&self.pods.failing_at_start()) {
                schedule.hasten(&gpu, now);
            }
            let due = schedule.due(now);
            if let Some(gpu) = self.first_with_room(&due, &gpus).await {
                let answer = ask(&self.socket, &self.question(gpu)).await;
                say_what_is_not_learnt(gpu, &answer, &mut not_learnt);
                let change = schedule.record(&gpu.uuid, answer.ok().as_ref(), Instant::now());
                if change == Some(Change::Opened) {
                    tracing::info!(gpu = %gpu.uuid, "CUDA opens contexts on the GPU again");
                }
                self.failed.send_replace(Arc::new(schedule.failed()));
                continue;
            }
            let look = (!due.is_empty()).then_some(now + LOOK_AGAIN);
            let wake = look.into_iter().chain(schedule.next(now)).min();
            tokio::select! {
                () = sleep_until(wake.unwrap_or(now + LOOK_AGAIN)) => {}
                changed = self.gpus.changed() => if changed.is_err() { return },
                _ = changes.changed() => sleep(TOGETHER).await,
            }
        }
    }

    /// The first of these GPUs that may be asked now.
    async fn first_with_room<'c>(&self, due: &[GpuId], gpus: &'c Gpus) -> Option<&'c Gpu> {
        for gpu in due.iter().filter_map(|uuid| gpus.get(uuid)) {
            let closed = self.closed.borrow().of(&gpu.uuid);
            let is_ours = matches!(closed, None | Some(Closed::Context));
            if is_ours && self.has_free_units(gpu, gpus) && self.has_free_memory(gpu).await {
                return Some(gpu);
            }
        }
        None
    }

    fn has_free_units(&self, gpu: &Gpu, gpus: &Gpus) -> bool {
        let records = self.records.lock();
        if records.elsewhere().any(|held| held.gpu == gpu.uuid) {
            return false;
        }
        let held = units_of(&records.in_use(), gpus).remove(&gpu.uuid).unwrap_or_default();
        let free = u64::from(gpu.units.0.saturating_sub(held.0));
        free.saturating_mul(self.unit.0) >= ROOM.0
    }

    /// While NVML hangs, so does this: no GPU is asked then.
    async fn has_free_memory(&self, gpu: &Gpu) -> bool {
        let Some(probe) = self.probe.borrow().clone() else { return false };
        let uuid = gpu.uuid.to_string();
        let read = tokio::task::spawn_blocking(move || probe.status(&uuid).ok()?.used_mib);
        let used = read.await.ok().flatten();
        used.is_some_and(|used| gpu.memory.0.saturating_sub(used) >= ROOM.0)
    }

    fn question(&self, gpu: &Gpu) -> Question {
        let by_mps = self.support.borrow().as_ref().is_some_and(|support| support.mps.is_ok());
        let mps = by_mps.then(|| PathBuf::from(MPS_PIPES));
        Question { uuid: gpu.uuid.to_string(), mps }
    }
}

/// Logs once why nothing is learnt, until something is.
fn say_what_is_not_learnt(gpu: &Gpu, answer: &Result<Answer, String>, said: &mut Option<String>) {
    let why = match answer {
        Ok(Answer::Passed | Answer::Failed(_)) => None,
        Ok(Answer::Unknown(why)) | Err(why) => Some(why),
    };
    if let Some(why) = why.filter(|why| said.as_ref() != Some(*why)) {
        tracing::info!(gpu = %gpu.uuid, why, "it is not known whether CUDA opens contexts");
    }
    *said = why.cloned();
}

/// The pods that failed at their start and have been asked for.
#[derive(Debug, Default)]
struct FailingPods {
    asked_for: BTreeSet<PodUid>,
}

impl FailingPods {
    /// The GPUs on which pods of several namespaces fail, those left out for which a GPU was asked before.
    fn gpus_to_ask(&mut self, failing: &[Arc<PodFacts>]) -> Vec<GpuId> {
        self.asked_for.retain(|uid| failing.iter().any(|pod| pod.uid == *uid));
        let mut on_gpus: BTreeMap<&GpuId, Vec<&PodFacts>> = BTreeMap::new();
        for pod in failing.iter().filter(|pod| !self.asked_for.contains(&pod.uid)) {
            for gpu in pod.claim().into_iter().flat_map(|claim| claim.gpus().keys()) {
                on_gpus.entry(gpu).or_default().push(pod);
            }
        }
        on_gpus.retain(|_, pods| {
            let namespaces: BTreeSet<&str> = pods.iter().map(|pod| &*pod.namespace).collect();
            namespaces.len() >= NAMESPACES
        });
        let asked_for: Vec<PodUid> =
            on_gpus.values().flatten().map(|pod| pod.uid.clone()).collect();
        let gpus = on_gpus.into_keys().cloned().collect();
        self.asked_for.extend(asked_for);
        gpus
    }
}

#[cfg(test)]
mod tests {
    use placement::gpu::ContainerKind;

    use super::*;
    use crate::fixtures::{A, B, pod};

    #[test]
    fn pods_that_fail_in_two_namespaces_have_their_gpu_asked_once() {
        let failing = |name: &str, namespace: &str, gpu| {
            let pod = pod(name, gpu, &[("main", ContainerKind::App, 1)]);
            Arc::new(PodFacts { namespace: namespace.to_owned(), ..pod })
        };
        let mut pods = FailingPods::default();
        let mut all = vec![failing("p", "x", A), failing("q", "x", A), failing("r", "y", B)];
        assert!(pods.gpus_to_ask(&all).is_empty(), "one namespace each");
        all.push(failing("s", "y", A));
        assert_eq!(pods.gpus_to_ask(&all), [GpuId::from(A)]);
        assert!(pods.gpus_to_ask(&all).is_empty(), "the same pods");
        all.push(failing("t", "x", A));
        assert!(pods.gpus_to_ask(&all).is_empty(), "one new pod");
        all.push(failing("u", "y", A));
        assert_eq!(pods.gpus_to_ask(&all), [GpuId::from(A)]);
        // A pod that ran meanwhile counts again.
        all.retain(|pod| pod.uid.as_str() != "p" && pod.uid.as_str() != "s");
        assert!(pods.gpus_to_ask(&all).is_empty());
        all.extend([failing("p", "x", A), failing("s", "y", A)]);
        assert_eq!(pods.gpus_to_ask(&all), [GpuId::from(A)]);
    }
}

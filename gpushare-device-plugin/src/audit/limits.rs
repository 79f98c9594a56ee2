//! Whether the containers that the driver limits have their limit, by NVML.
//!
//! Invariant: what NVML does not tell is no finding, and a container whose control group is not found is not looked at.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nvml::{MemoryLimit, Probe};
use placement::units::{GpuId, MiB, PodUid};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use super::{AffectedPod, Finding, Findings, Kind};
use crate::gpus::watch::OpenNvml;
use crate::gpus::{Gpus, units_of};
use crate::pods::{ContainerId, NodePod, PodCache, PodRef};
use crate::processes::group::container_of_folder;
use crate::records::checkpoint::{Checkpoint, CheckpointFile};

/// The largest number of pods whose control groups are looked for: more than a kubelet runs.
const MAX_PODS: usize = 4_096;

/// A limit may read back as this part of it more than was given: NVIDIA's own example reads 8,192 MiB back for 8,000
/// (<https://docs.nvidia.com/deploy/mps/mpsv3-memory-partitioning.html>).
const ROUNDED: u64 = 16;

/// The limit of a container on one GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DriverLimit {
    /// Its pod.
    pub pod: PodUid,
    /// Its name.
    pub container: String,
    /// The GPU.
    pub gpu: GpuId,
    /// The limit that it was given.
    pub given: MiB,
    /// The limit that NVML tells.
    pub told: MemoryLimit,
}

impl DriverLimit {
    /// What the driver lets the container use instead; `None` if it has its limit, or NVML does not tell.
    fn instead(&self) -> Option<String> {
        let most = self.given.0.saturating_add(self.given.0 / ROUNDED).saturating_mul(1 << 20);
        match self.told {
            MemoryLimit::Unlimited => Some("all of it".to_owned()),
            MemoryLimit::Bytes(bytes) if bytes > most => Some(format!("{} MiB", bytes >> 20)),
            MemoryLimit::Bytes(_) | MemoryLimit::Unknown => None,
        }
    }
}

/// Adds a finding for each container without its limit.
pub(super) fn compare(
    limits: &[DriverLimit],
    pods: &HashMap<PodUid, NodePod>,
    findings: &mut Findings,
) {
    if limits.iter().any(|limit| limit.told != MemoryLimit::Unknown) {
        findings.checked.insert(Kind::LimitNotHeld);
    }
    for limit in limits {
        let (Some(instead), Some(pod)) = (limit.instead(), pods.get(&limit.pod)) else { continue };
        let DriverLimit { container, gpu, given, .. } = limit;
        let finding = Finding {
            kind: Kind::LimitNotHeld,
            pod: Some(AffectedPod { uid: limit.pod.clone(), name: Some(PodRef::of(&pod.facts)) }),
            container: Some(container.clone()),
            gpu: Some(gpu.clone()),
        };
        let note = format!(
            "container {container} was given {} MiB of GPU {gpu}, and by NVML the driver lets it use {instead}: the node \
             takes no further pods with isolation `driver`. Delete the pod and create it again",
            given.0
        );
        findings.found.insert(finding, note);
    }
}

/// Reads the limits of this node's containers.
pub(crate) struct LimitWatch {
    /// NVML, while it is open.
    pub probe: watch::Receiver<OpenNvml>,
    /// The root of the control groups.
    pub cgroups: PathBuf,
    /// The kubelet's checkpoint, which has the limits that were given.
    pub checkpoint: CheckpointFile,
    /// The node's pods.
    pub pods: Arc<PodCache>,
    /// The node's GPUs.
    pub gpus: watch::Receiver<Arc<Gpus>>,
    /// Time between two reads.
    pub every: Duration,
    /// Publishes them.
    pub limits: watch::Sender<Arc<Vec<DriverLimit>>>,
}

impl LimitWatch {
    /// Reads until the shutdown. While NVML hangs, the last limits stay.
    pub(crate) async fn run(self, shutdown: daemon::Shutdown) {
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = self.follow() => {}
        }
    }

    async fn follow(self) {
        let mut ticks = interval(self.every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let Some(probe) = self.probe.borrow().clone() else { continue };
            let (cgroups, file) = (self.cgroups.clone(), self.checkpoint.clone());
            let (pods, gpus) = (self.pods.by_uids(), self.gpus.borrow().clone());
            let read = tokio::task::spawn_blocking(move || {
                let Ok(checkpoint) = file.read() else { return Vec::new() };
                read(&*probe, &cgroups, &checkpoint, &pods, &gpus)
            });
            match read.await {
                Ok(limits) => drop(self.limits.send_replace(Arc::new(limits))),
                Err(panicked) => tracing::error!("reading the driver's limits: {panicked}"),
            }
        }
    }
}

/// The limits of the containers that the driver limits. May block.
fn read(
    probe: &dyn Probe,
    cgroups: &Path,
    checkpoint: &Checkpoint,
    pods: &HashMap<PodUid, NodePod>,
    gpus: &Gpus,
) -> Vec<DriverLimit> {
    let mut limits = Vec::new();
    if checkpoint.container_limits.values().all(|limit| limit.by_driver().is_none()) {
        return limits;
    }
    let groups = groups(cgroups);
    for held in &checkpoint.held {
        let key = (held.pod.clone(), held.container.clone());
        let limit = checkpoint.container_limits.get(&key);
        let Some(given) = limit.and_then(|limit| limit.by_driver()) else { continue };
        let Some(pod) = pods.get(&held.pod) else { continue };
        for (id, _) in pod.containers.iter().filter(|(_, name)| **name == held.container) {
            let Some(group) = groups.get(id) else { continue };
            for gpu in units_of(&held.ids, gpus).into_keys() {
                let told = probe.memory_limit(gpu.as_str(), group);
                limits.push(DriverLimit {
                    pod: held.pod.clone(),
                    container: held.container.clone(),
                    gpu,
                    given,
                    told: told.unwrap_or(MemoryLimit::Unknown),
                });
            }
        }
    }
    limits
}

/// The control groups of containers within their pods', by the container's id.
fn groups(cgroups: &Path) -> BTreeMap<ContainerId, PathBuf> {
    let mut groups = BTreeMap::new();
    for pod in cgroups::pods(cgroups, &cgroups::kubepods(cgroups), MAX_PODS).0 {
        for entry in fs::read_dir(cgroups.join(pod.path)).into_iter().flatten().flatten() {
            let name = entry.file_name();
            if let Some(id) = name.to_str().and_then(container_of_folder) {
                groups.insert(id, entry.path());
            }
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use nvml::Scripted;

    use super::*;
    use crate::fixtures::{A, B, gpus, ids, simple};
    use crate::isolation::limit::{Limit, MpsLimit};
    use crate::records::checkpoint::HeldIds;

    const P: &str = "8b1f4a9e-0d4c-4a63-9d6e-2f6a1c0b7e55";
    const GIB: u64 = 1 << 30;

    /// What NVML tells of a container `main` with 1 GiB of GPU A.
    fn told(limit: MemoryLimit) -> DriverLimit {
        DriverLimit {
            pod: "p".into(),
            container: "main".to_owned(),
            gpu: A.into(),
            given: MiB(1024),
            told: limit,
        }
    }

    fn found(limits: &[DriverLimit]) -> (usize, bool) {
        let mut findings = Findings::default();
        let pods = HashMap::from([("p".into(), NodePod::from((*simple("p", A, 1)).clone()))]);
        compare(limits, &pods, &mut findings);
        (findings.found.len(), findings.checked.contains(&Kind::LimitNotHeld))
    }

    #[test]
    fn a_container_without_its_limit_is_found_and_one_that_nvml_does_not_tell_of_is_not() {
        for (limit, expected) in [
            (MemoryLimit::Bytes(GIB), (0, true)),
            (MemoryLimit::Bytes(GIB + GIB / 40), (0, true)),
            (MemoryLimit::Bytes(GIB / 2), (0, true)),
            (MemoryLimit::Bytes(2 * GIB), (1, true)),
            (MemoryLimit::Unlimited, (1, true)),
            (MemoryLimit::Unknown, (0, false)),
        ] {
            assert_eq!(found(&[told(limit)]), expected, "{limit:?}");
        }
        let gone = DriverLimit { pod: "gone".into(), ..told(MemoryLimit::Unlimited) };
        assert_eq!(found(&[gone]), (0, true), "its pod is gone");
        assert_eq!(found(&[]), (0, false));
    }

    #[test]
    fn each_limited_containers_group_is_asked_on_each_of_its_gpus() {
        let dir = tempfile::tempdir().unwrap();
        let slice = format!("kubepods-burstable-pod{}.slice", P.replace('-', "_"));
        let pod = dir.path().join("kubepods.slice/kubepods-burstable.slice").join(slice);
        let id = |digit: &str| ContainerId::parse(&digit.repeat(64)).unwrap();
        let group = |digit: &str| pod.join(format!("cri-containerd-{}.scope", id(digit)));
        for digit in ["a", "b"] {
            fs::create_dir_all(group(digit)).unwrap();
        }
        let facts = (*simple(P, A, 1)).clone();
        let containers = [
            (id("a"), "main".to_owned()),
            (id("b"), "mps".to_owned()),
            (id("c"), "ended".to_owned()),
        ];
        let containers = Arc::new(BTreeMap::from(containers));
        let pods = HashMap::from([(P.into(), NodePod { containers, ..facts.into() })]);
        let mps = MpsLimit { gpus: 1, limit: MiB(1), threads: 25 };
        let limits = [
            ("main", Limit::Driver { limit: MiB(1024) }),
            ("mps", Limit::Mps(mps)),
            ("ended", Limit::DriverAndMps(mps)),
        ];
        let held = limits.map(|(container, _)| HeldIds {
            pod: P.into(),
            container: container.to_owned(),
            ids: ids(["aaaaaaaa-0", "bbbbbbbb-0"]),
            unit: None,
        });
        let container_limits =
            limits.map(|(container, limit)| ((PodUid::from(P), container.to_owned()), limit));
        let checkpoint = Checkpoint {
            held: held.into(),
            container_limits: container_limits.into(),
            ..Checkpoint::default()
        };
        let gpu = |uuid: &str| nvml::Gpu { uuid: uuid.to_owned(), ..nvml::Gpu::default() };
        let probe = Scripted::new(vec![gpu(A), gpu(B)]);
        probe.set_memory_limit(A, &group("a"), MemoryLimit::Bytes(GIB));
        probe.set_lost(B, true);
        let read = read(&probe, dir.path(), &checkpoint, &pods, &gpus(&[(A, 4), (B, 4)]));
        let read: Vec<_> = read
            .iter()
            .map(|limit| (limit.container.as_str(), limit.gpu.as_str(), limit.told))
            .collect();
        let expected = [("main", A, MemoryLimit::Bytes(GIB)), ("main", B, MemoryLimit::Unknown)];
        assert_eq!(read, expected);
    }
}

//! Compares the processes on the GPUs with the GPUs that their containers hold.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use cluster::PodFacts;
use placement::load::PodKind;
use placement::units::{GpuId, MiB, PodUid, Units};

use super::Facts;
use crate::audit::{AffectedPod, Finding, Findings, Kind};
use crate::gpus::units_of;
use crate::isolation::limit::Limit;
use crate::pods::{NodePod, container_requests};
use crate::processes::GpuProcess;
use crate::processes::host::Membership;
use crate::processes::rows::{ProcessOwner, Usage, owner, rows};
use crate::records::checkpoint::{Checkpoint, is_static};

/// The GPUs that a container holds, by the kubelet's checkpoint.
#[derive(Default)]
struct HeldGpus {
    /// Units of our resource on each GPU.
    units: BTreeMap<GpuId, Units>,
    /// GPUs that it holds through another plugin's resource, or by resource claims.
    other_plugin: BTreeSet<GpuId>,
}

/// What the processes of a container use of one GPU.
struct ContainerUsage<'u> {
    pod: &'u NodePod,
    container: &'u str,
    gpu: GpuId,
    used: Usage,
}

type HeldByContainer<'c> = HashMap<(&'c PodUid, &'c str), HeldGpus>;

impl Facts<'_> {
    /// Compares the processes of all GPUs on which they are known.
    pub(super) fn compare_processes(&self, findings: &mut Findings) {
        if self.processes.iter().all(|gpu| gpu.processes.is_err()) {
            return;
        }
        self.find_processes_outside_pods(findings);
        if let Some(checkpoint) = self.checkpoint {
            self.compare_containers(&self.held_by_container(checkpoint), findings);
            self.find_processes_outside_mps(&checkpoint.container_limits, findings);
        }
    }

    /// Finds processes outside of pods, and processes of deleted pods.
    fn find_processes_outside_pods(&self, findings: &mut Findings) {
        findings.checks([Kind::UnmanagedProcess, Kind::ProcessOfGonePod]);
        for gpu in self.processes {
            for process in gpu.processes.as_ref().into_iter().flatten() {
                let (kind, pod, note) = match &process.of {
                    Membership::NoPod => {
                        let note = "processes outside of all pods use the GPU";
                        (Kind::UnmanagedProcess, None, note)
                    }
                    Membership::Pod(group) if self.is_gone(&group.pod) => {
                        let pod = AffectedPod { uid: group.pod.clone(), name: None };
                        let note = "processes of a pod that no longer exists use the GPU";
                        (Kind::ProcessOfGonePod, Some(pod), note)
                    }
                    _ => continue,
                };
                let finding = Finding { kind, pod, container: None, gpu: Some(gpu.id()) };
                findings.add(finding, format!("{note} {}", gpu.gpu.uuid));
            }
        }
    }

    /// Whether no pod has this UID.
    fn is_gone(&self, uid: &PodUid) -> bool {
        !is_static(uid) && !self.pods.contains_key(uid)
    }

    fn held_by_container<'c>(&'c self, checkpoint: &'c Checkpoint) -> HeldByContainer<'c> {
        let mut held_gpus = HeldByContainer::new();
        for held in &checkpoint.held {
            let to: &mut HeldGpus = held_gpus.entry((&held.pod, &held.container)).or_default();
            to.units = units_of(&held.ids, self.gpus);
        }
        for whole in checkpoint.other_plugin_gpus.iter().chain(self.claimed_gpus()) {
            let to = held_gpus.entry((&whole.pod, &whole.container)).or_default();
            to.other_plugin.insert(whole.gpu.clone());
        }
        held_gpus
    }

    /// Finds processes on GPUs that their container does not hold, and memory beyond its share.
    fn compare_containers(&self, held_gpus: &HeldByContainer<'_>, findings: &mut Findings) {
        findings.checks([Kind::ProcessElsewhere, Kind::MemoryOverShare]);
        let none = HeldGpus::default();
        for (gpu, rows) in rows(self.processes, Some(self.pods)) {
            for (owner, used) in rows {
                let ProcessOwner::Container { uid, container, .. } = owner else { continue };
                let Some(pod) = self.pods.get(&uid) else { continue };
                // The kubelet has not reported the container yet.
                if container.is_empty() {
                    continue;
                }
                let held = held_gpus.get(&(&uid, &container)).unwrap_or(&none);
                let usage = ContainerUsage { pod, container: &container, gpu: gpu.id(), used };
                self.compare_container(&usage, held, findings);
            }
        }
    }

    /// Finds processes with memory of a GPU that are no clients of MPS, in containers that MPS limits: begun while no
    /// control daemon answered, or without its pipes.
    fn find_processes_outside_mps(
        &self,
        limits: &BTreeMap<(PodUid, String), Limit>,
        findings: &mut Findings,
    ) {
        // Else the driver does not tell which are clients.
        let mut is_told = true;
        for gpu in self.processes {
            for GpuProcess { process, of } in gpu.processes.iter().flatten() {
                is_told &= process.mps.is_some();
                let ProcessOwner::Container { container, uid, .. } = owner(of, Some(self.pods))
                else {
                    continue;
                };
                let Some(pod) = self.pods.get(&uid) else { continue };
                let limit = limits.get(&(uid, container.clone()));
                let is_limited = limit.is_some_and(|limit| limit.by_mps().is_some());
                let has_memory = process.used_bytes.is_some_and(|bytes| bytes > 0);
                if is_limited && has_memory && process.mps == Some(false) {
                    let note = format!(
                        "a process of container {container} is no client of MPS, which is to limit it on GPU {}: it \
                         takes what memory it wants for as long as it runs. It began while no control daemon answered, \
                         or without CUDA_MPS_PIPE_DIRECTORY; delete the pod",
                        gpu.gpu.uuid
                    );
                    let finding = Finding::of_container(
                        Kind::ProcessOutsideMps,
                        &pod.facts,
                        &container,
                        &gpu.id(),
                    );
                    findings.add(finding, note);
                }
            }
        }
        if is_told {
            findings.checks([Kind::ProcessOutsideMps]);
        }
    }

    /// Compares the processes of one container on one GPU with the GPUs that it holds.
    fn compare_container(
        &self,
        usage: &ContainerUsage<'_>,
        held_gpus: &HeldGpus,
        findings: &mut Findings,
    ) {
        let ContainerUsage { pod, container, gpu: id, used } = usage;
        let facts = &pod.facts;
        let has_none = held_gpus.units.is_empty() && held_gpus.other_plugin.is_empty();
        // Agents of the node, such as MPS, use GPUs without a request. Some devices of resource claims are not known,
        // as those of init containers.
        let has_unknown = pod.has_resource_claims && !self.knows_claims_of(&facts.uid, container);
        let may_have_none = facts.kind == PodKind::Daemon || has_unknown;
        if !held_gpus.units.contains_key(id) && !held_gpus.other_plugin.contains(id) {
            if !(has_none && may_have_none) {
                let note =
                    format!("container {container} runs on GPU {id}, which it was not given");
                findings
                    .add(Finding::of_container(Kind::ProcessElsewhere, facts, container, id), note);
            }
            return;
        }
        let Some(share) = self.share(facts, container, held_gpus, id) else { return };
        if let Some(bytes) = used.bytes.filter(|bytes| *bytes > share.0.saturating_mul(1 << 20)) {
            let (mib, processes) = (bytes >> 20, used.processes);
            let note = format!(
                "container {container} uses {mib} MiB of GPU {id}, {} are its own; it has {processes} processes there, and \
                 the CUDA context of each, mostly some 500 MiB, counts",
                share.0
            );
            findings.add(Finding::of_container(Kind::MemoryOverShare, facts, container, id), note);
        }
    }

    /// The memory of a GPU that a container may use; `None` if it holds the whole GPU.
    fn share(
        &self,
        facts: &PodFacts,
        container: &str,
        held_gpus: &HeldGpus,
        gpu: &GpuId,
    ) -> Option<MiB> {
        if held_gpus.other_plugin.contains(gpu) {
            return None;
        }
        let units = held_gpus.units.get(gpu)?;
        let gpu_use =
            container_requests(facts).find(|ask| ask.name == container).map(|ask| ask.gpu_use);
        if gpu_use.is_some_and(|gpu_use| gpu_use.exclusive) {
            return None;
        }
        let gpus = u32::try_from(held_gpus.units.len()).unwrap_or(u32::MAX);
        let burst = gpu_use.and_then(|gpu_use| gpu_use.limit).map(|limit| limit.0.div_ceil(gpus));
        let units = burst.unwrap_or_default().max(units.0);
        Some(MiB(self.unit.0.saturating_mul(units.into())))
    }
}

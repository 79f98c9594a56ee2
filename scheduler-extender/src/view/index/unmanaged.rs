//! Unmanaged memory on GPUs: memory in use beyond the units that pods hold, by the annotation
//! `plimsoll.dev/gpu-share`.

use jiff::Timestamp;
use placement::gpu::{Gpu, MeasuredMemory, in_both_measurements};
use placement::policy::UnmanagedMemory;
use placement::units::{GpuId, MiB, NodeName, Units};

use super::Index;

/// Units, by GPU.
pub(super) type OnGpus = Vec<(GpuId, Units)>;

/// The memory of a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuMemory {
    /// The GPU.
    pub uuid: GpuId,
    /// All of it.
    pub memory: MiB,
    /// What is in use, as last measured; `None` without a fresh measurement.
    pub used: Option<MiB>,
}

/// The last two measurements of a node's GPUs.
#[derive(Debug, Clone)]
pub(super) struct LastMeasurements {
    last: MeasuredMemory,
    /// The unmanaged memory by `last`.
    unmanaged: OnGpus,
    before: Option<(MeasuredMemory, OnGpus)>,
}

impl LastMeasurements {
    pub(super) fn new(measured: &MeasuredMemory, gpus: &[Gpu], known: Option<Self>) -> Self {
        let before = match known {
            // The same measurement.
            Some(known) if known.last.at >= measured.at => return known,
            Some(Self { last, unmanaged, .. }) => Some((last, unmanaged)),
            None => None,
        };
        Self { last: measured.clone(), unmanaged: measured.unmanaged(gpus), before }
    }

    /// The unmanaged memory that both measurements show, if both are fresh at `now`.
    pub(super) fn unmanaged(&self, now: Timestamp) -> OnGpus {
        match &self.before {
            Some((before, unmanaged))
                if before.is_fresh(self.last.at) && self.last.is_fresh(now) =>
            {
                in_both_measurements(&self.unmanaged, unmanaged)
            }
            _ => Vec::new(),
        }
    }
}

impl Index {
    /// The memory of a node's GPUs, with what is in use by a measurement that is fresh at `now`.
    #[must_use]
    pub fn gpu_memory(&self, node: &NodeName, now: Timestamp) -> Vec<GpuMemory> {
        let Some(node) = self.nodes.get(node) else { return Vec::new() };
        let last = node.measured.as_ref().map(|measured| &measured.last);
        let fresh = last.filter(|last| last.is_fresh(now));
        let memory = |gpu: &Gpu| {
            let used = fresh.and_then(|measured| measured.on(&gpu.uuid));
            GpuMemory { uuid: gpu.uuid.clone(), memory: gpu.memory, used }
        };
        node.ledger.gpus().iter().map(memory).collect()
    }

    /// Whether the policy in force counts unmanaged memory.
    pub(super) fn counts_unmanaged(&self) -> bool {
        self.policy.policy.gpu.unmanaged_memory == UnmanagedMemory::Count
    }

    /// Updates the unmanaged memory that counts on each node at `now`, by the policy in force.
    pub fn count_unmanaged(&mut self, now: Timestamp) {
        self.at(now);
        let counts = self.counts_unmanaged();
        let mut names: Vec<NodeName> = Vec::new();
        for node in self.nodes.iter() {
            // Most nodes have none, before and after.
            if node.ledger.has_unmanaged() || !node.unmanaged(counts, now).is_empty() {
                names.push(node.name.clone());
            }
        }
        for name in names {
            self.nodes.change_known(&name, |node| node.count_unmanaged(counts, now));
        }
    }
}

//! ResourceClaims of our own driver: what an allocation of kube-scheduler takes of a node's GPUs.
//!
//! Invariant: what is missing or unknown never counts as zero. Without memory a device takes the whole GPU, and a
//! device that is none of the reported GPUs takes each GPU of the node on which the claim has no other device.

use super::{Gpu, GpuRequest, GpuShare, Isolation};
use crate::units::{Cores, GpuId, MiB, PodUid, ResourceClaimUid};

/// The devices on one node that a ResourceClaim has.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ResourceClaim {
    /// The claim's UID.
    pub uid: ResourceClaimUid,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The pods that it is reserved for.
    pub pods: Vec<PodUid>,
    /// Whether it ends once these are gone.
    pub ends_with_pods: bool,
    /// Its devices on the node, without those of administrators' access, which take no room.
    pub devices: Vec<ClaimedDevice>,
}

/// One device of a ResourceClaim.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClaimedDevice {
    /// Its name: the GPU's UUID in lower case.
    pub name: String,
    /// The memory that is taken; `None` where the allocation does not say: then all.
    pub memory: Option<MiB>,
    /// Percent of the compute that is set aside; `None` where the allocation does not say.
    pub cores: Option<Cores>,
}

impl ResourceClaim {
    /// The memory that the claim takes of a GPU; `None` where it has none of it or does not say.
    #[must_use]
    pub fn memory_on(&self, gpu: &GpuId) -> Option<MiB> {
        let mut sum = None;
        for device in self.devices.iter().filter(|device| device.is(gpu)) {
            let before = sum.unwrap_or(MiB(0)).0;
            sum = Some(MiB(device.memory?.0.saturating_add(before)));
        }
        sum
    }

    /// What was asked for, by its first device; `None` where that is none of the node's GPUs, `gpus`. All memory of one
    /// counts as all of any.
    #[must_use]
    pub fn request(&self, gpus: &[Gpu]) -> Option<GpuRequest> {
        let device = self.devices.first()?;
        let gpu = gpus.iter().find(|gpu| device.is(&gpu.uuid))?;
        let memory = device.memory.filter(|memory| *memory < gpu.memory);
        let count = u32::try_from(self.devices.len()).ok()?;
        GpuRequest::of_claim(count, memory, device.cores.unwrap_or_default(), Isolation::None)
    }

    /// What the claim takes of a GPU where it has a device; `None` elsewhere.
    pub(super) fn share_of(&self, gpu: &Gpu) -> Option<GpuShare> {
        let mut sum: Option<GpuShare> = None;
        for device in self.devices.iter().filter(|device| device.is(&gpu.uuid)) {
            let share = device.share(gpu);
            sum = Some(sum.map_or(share, |sum| sum.plus(share)));
        }
        sum.map(|sum| GpuShare { processes: self.processes(), ..sum })
    }

    /// What the claim may take of any GPU where it has no device; `None` if each of its devices is one of `gpus`.
    pub(super) fn share_of_unknown(&self, gpus: &[Gpu]) -> Option<GpuShare> {
        let is_known = |device: &ClaimedDevice| gpus.iter().any(|gpu| device.is(&gpu.uuid));
        let whole =
            GpuShare { exclusive: true, processes: self.processes(), ..GpuShare::default() };
        (!self.devices.iter().all(is_known)).then_some(whole)
    }

    /// Of each pod one: how many there are is not known.
    fn processes(&self) -> u16 {
        u16::try_from(self.pods.len().max(1)).unwrap_or(u16::MAX)
    }
}

impl ClaimedDevice {
    fn is(&self, gpu: &GpuId) -> bool {
        self.name.eq_ignore_ascii_case(gpu.as_str())
    }

    fn share(&self, gpu: &Gpu) -> GpuShare {
        let cores = self.cores.unwrap_or_default();
        match self.memory {
            Some(memory) if gpu.memory > MiB(0) => {
                GpuShare { cores, ..GpuShare::of(gpu.units_of(memory)) }
            }
            _ => GpuShare { exclusive: true, ..GpuShare::default() },
        }
    }
}

//! A kind of pod, and the GPUs that its pods fit.

use super::GpuPart;
use super::room::GpuRoom;
use crate::gpu::GpuShare;
use crate::units::Units;

/// A kind of pod.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Kind {
    pub(super) cpu: u64,
    pub(super) gpus: usize,
    pub(super) part: GpuPart,
    /// The models that it accepts, one bit each; the last bit is for models that no node class has.
    pub(super) models: u64,
    pub(super) weight: f64,
}

/// What is free of a GPU that takes new pods.
#[derive(Clone, Copy)]
pub(super) struct PricedGpu {
    pub(super) room: GpuRoom,
    /// The free part of the GPU, 0 to 1.
    pub(super) part: f64,
    /// The model's number.
    pub(super) model: usize,
}

impl Kind {
    /// Whether its pods fit a GPU of this model with this free room.
    pub(super) fn fits(&self, model: usize, gpu: GpuRoom) -> bool {
        self.models >> model & 1 == 1 && self.part.fits(gpu)
    }

    /// A kind that accepts every model, and that was never requested.
    pub(super) fn any_model(cpu: u64, gpus: usize, part: GpuPart) -> Self {
        Self { cpu, gpus, part, models: u64::MAX, weight: 0.0 }
    }

    /// How many of its pods fit a node with this CPU, `None` where it is not known, and so many GPUs that fit.
    pub(super) fn places(&self, fitting: usize, cpu: Option<u64>) -> usize {
        let by_cpu = cpu.and_then(|cpu| cpu.checked_div(self.cpu)).unwrap_or(u64::MAX);
        (fitting / self.gpus.max(1)).min(usize::try_from(by_cpu).unwrap_or(usize::MAX))
    }

    /// Whether each place for one of its pods is one for a pod of the other kind too.
    pub(super) fn is_as_large_as(&self, other: &Self) -> bool {
        self.gpus >= other.gpus
            && self.cpu >= other.cpu
            && self.part >= other.part
            && self.models & !other.models == 0
    }
}

impl PricedGpu {
    /// The GPU with this share on it.
    pub(super) fn with(self, share: GpuShare) -> Self {
        let GpuRoom { free, units } = self.room;
        let free = if share.exclusive { Units::ZERO } else { free.saturating_sub(share.units) };
        let room = GpuRoom { free, units };
        Self { room, part: room.part(), ..self }
    }
}

/// How many of the GPUs a pod of the kind fits.
pub(super) fn fitting<'c>(gpus: impl Iterator<Item = &'c PricedGpu>, kind: &Kind) -> usize {
    gpus.filter(|gpu| kind.fits(gpu.model, gpu.room)).count()
}

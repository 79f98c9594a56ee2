//! What a pod requests and what a GPU has free, in the form that fragmentation is computed from.

use crate::gpu::{GpuRequest, Patterns};
use crate::units::Units;

/// How much of each of its GPUs a pod takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GpuPart {
    /// This number of units.
    Units(Units),
    /// The whole GPU, which has to be idle.
    Whole,
}

/// A pod's request. Pods with equal requests are of one kind.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodShape {
    /// CPU in thousandths of a core.
    pub cpu: u64,
    /// GPUs; never 0.
    pub gpus: usize,
    /// What it takes of each.
    pub part: GpuPart,
    /// The models that it accepts.
    pub models: Patterns,
}

impl PodShape {
    /// The shape of a request. Each GPU counts with the largest share. An exclusive GPU counts whole only if the pod
    /// may have it for fewer units than the GPU has.
    pub fn of(request: &GpuRequest) -> Self {
        let share = request.largest();
        Self {
            cpu: request.cpu(),
            gpus: request.shares().len(),
            part: if share.exclusive && request.may_be_exclusive() {
                GpuPart::Whole
            } else {
                GpuPart::Units(share.units)
            },
            models: request.filter().models.clone(),
        }
    }
}

/// What is free on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct GpuRoom {
    /// Units free.
    pub(super) free: Units,
    /// All its units.
    pub(super) units: Units,
}

impl GpuPart {
    /// Whether a GPU has room for it.
    pub(super) fn fits(self, gpu: GpuRoom) -> bool {
        match self {
            Self::Units(units) => gpu.free >= units,
            Self::Whole => gpu.free == gpu.units,
        }
    }

    /// The units that it takes of a GPU with `units` units.
    pub(super) fn of(self, units: Units) -> Units {
        match self {
            Self::Units(part) => part,
            Self::Whole => units,
        }
    }
}

impl GpuRoom {
    /// The free part of the GPU, 0 to 1.
    pub(super) fn part(self) -> f64 {
        f64::from(self.free.0.min(self.units.0)) / f64::from(self.units.0.max(1))
    }
}

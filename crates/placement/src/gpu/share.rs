//! What is requested of one GPU, and what a container requests of its GPUs beyond units.

use std::collections::BTreeMap;

use crate::units::{Cores, GpuId, Units};

/// The share of each GPU.
pub type GpuShares = BTreeMap<GpuId, GpuShare>;

/// What a container or a pod has of one GPU: a part of its memory and of its compute, or the whole GPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GpuShare {
    /// Units of memory, as the kubelet counts them.
    pub units: Units,
    /// Percent of the compute; zero if none is reserved.
    pub cores: Cores,
    /// Whether no other pod may be on the GPU. The whole GPU is then charged, whatever the value of `units`.
    pub exclusive: bool,
    /// Processes that use the GPU at the same time: each is a client of MPS where the pod shares GPUs by MPS.
    pub processes: u16,
}

impl GpuShare {
    /// A share of the memory alone.
    pub const fn of(units: Units) -> Self {
        Self { units, cores: Cores::ZERO, exclusive: false, processes: 0 }
    }

    /// Whether nothing of the GPU is requested.
    pub fn is_zero(self) -> bool {
        self.units.is_zero() && self.cores == Cores::ZERO && !self.exclusive
    }

    /// The sum: what two containers have that run at the same time.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            units: self.units.saturating_add(other.units),
            cores: self.cores.saturating_add(other.cores),
            exclusive: self.exclusive || other.exclusive,
            processes: self.processes.saturating_add(other.processes),
        }
    }

    /// The larger value of each field: what two containers need that run one after the other.
    #[must_use]
    pub fn larger(self, other: Self) -> Self {
        Self {
            units: self.units.max(other.units),
            cores: self.cores.max(other.cores),
            exclusive: self.exclusive || other.exclusive,
            processes: self.processes.max(other.processes),
        }
    }
}

/// What a container requests of GPUs beyond units, by pod annotations: the kubelet counts units only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GpuUse {
    /// GPUs, each with an equal part of the units; never zero.
    pub gpus: u32,
    /// Whether no other pod may be on these GPUs.
    pub exclusive: bool,
    /// Percent of each GPU's compute that is reserved for it.
    pub cores: Cores,
    /// The most units on all its GPUs together that it may use while they are free, on nodes that can enforce it.
    pub limit: Option<Units>,
    /// Processes that use its GPUs at the same time; never zero.
    pub processes: u16,
}

impl GpuUse {
    /// Whether it asks for a part of the compute of GPUs that it shares.
    pub fn asks_for_compute(self) -> bool {
        !self.exclusive && self.cores > Cores::ZERO && self.cores < Cores::ALL
    }
}

impl Default for GpuUse {
    /// A part of one GPU's memory.
    fn default() -> Self {
        Self { gpus: 1, exclusive: false, cores: Cores::ZERO, limit: None, processes: 1 }
    }
}

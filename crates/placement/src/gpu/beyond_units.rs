//! What pods may take of GPUs beyond their units.
//!
//! kube-scheduler, the kubelet and ResourceQuota count units alone. So without a right by the policy, a pod takes no
//! more of a GPU than its units are of it.

/// What a namespace's pods may take of GPUs beyond their units; nothing by default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct BeyondUnits {
    /// Whole GPUs for fewer units than the GPUs have.
    pub exclusive: bool,
    /// A larger part of a GPU's compute than their part of its memory.
    pub cores: bool,
    /// A memory limit above the request.
    pub memory_limit: bool,
}

/// What a pod would take of a GPU beyond its units.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Excess {
    /// The whole GPU, for fewer units than it has.
    Exclusive,
    /// A larger part of its compute than of its memory.
    Cores,
    /// More memory than its request.
    MemoryLimit,
}

impl BeyondUnits {
    /// All of it.
    pub const ALL: Self = Self { exclusive: true, cores: true, memory_limit: true };

    /// What either allows.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            exclusive: self.exclusive || other.exclusive,
            cores: self.cores || other.cores,
            memory_limit: self.memory_limit || other.memory_limit,
        }
    }
}

impl Excess {
    /// The text for Filter's answer, events and conditions.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Exclusive => reason!(
                "exclusive GPUs cost all their units: request as many as the GPUs have, or let the policy's gpu.beyondUnits allow `exclusive`"
            ),
            Self::Cores => reason!(
                "gpu-cores exceed the pod's part of the GPU's memory: request less compute or more memory, or let the policy's gpu.beyondUnits allow `cores`"
            ),
            Self::MemoryLimit => reason!(
                "gpu-mem-limit exceeds the pod's GPU memory: lower it to the request, or let the policy's gpu.beyondUnits allow `memoryLimit`"
            ),
        }
    }

    /// A short text, for metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::Exclusive => "exclusive beyond units",
            Self::Cores => "cores beyond units",
            Self::MemoryLimit => "memory limit beyond units",
        }
    }
}

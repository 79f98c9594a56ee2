//! How pods that request GPU memory are placed.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::gpu::{BeyondUnits, Strategy};

/// How pods that request GPU memory are placed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GpuRules {
    /// How nodes and GPUs are chosen for pods without the annotation `gpu-placement`.
    pub placement: Strategy,
    /// Whether unmanaged memory counts.
    pub unmanaged_memory: UnmanagedMemory,
    /// Namespaces whose pods may take more of GPUs than their units.
    pub beyond_units: Vec<BeyondUnitsRule>,
}

/// The name that stands for all namespaces in a [`BeyondUnitsRule`].
pub(crate) const ALL_NAMESPACES: &str = "*";

/// Pods of these namespaces may take this of GPUs beyond their units.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BeyondUnitsRule {
    /// The namespaces, by name; `*` for all.
    pub namespaces: Vec<Arc<str>>,
    /// What their pods may take.
    pub allowed: BeyondUnits,
}

/// Something that pods take of GPUs beyond units.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum BeyondUnitsName {
    /// Whole GPUs (`gpu-card-count: exclusive`) for fewer units than the GPUs have.
    Exclusive,
    /// A larger part of a GPU's compute (`gpu-cores`) than their part of its memory.
    Cores,
    /// A memory limit (`gpu-mem-limit`) above the request.
    MemoryLimit,
}

impl GpuRules {
    /// What pods of a namespace may take of GPUs beyond their units: what any rule for it allows.
    #[must_use]
    pub fn beyond_units_of(&self, namespace: &str) -> BeyondUnits {
        let is_meant = |name: &Arc<str>| **name == *namespace || **name == *ALL_NAMESPACES;
        let mut allowed = BeyondUnits::default();
        for rule in self.beyond_units.iter().filter(|rule| rule.namespaces.iter().any(is_meant)) {
            allowed = allowed.or(rule.allowed);
        }
        allowed
    }
}

impl BeyondUnitsName {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Exclusive, Self::Cores, Self::MemoryLimit];

    /// Its name in policies.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Exclusive => "exclusive",
            Self::Cores => "cores",
            Self::MemoryLimit => "memoryLimit",
        }
    }

    /// Whether it is allowed.
    #[must_use]
    pub fn is_in(self, allowed: BeyondUnits) -> bool {
        match self {
            Self::Exclusive => allowed.exclusive,
            Self::Cores => allowed.cores,
            Self::MemoryLimit => allowed.memory_limit,
        }
    }

    /// This alone.
    pub(super) fn alone(self) -> BeyondUnits {
        BeyondUnits {
            exclusive: self == Self::Exclusive,
            cores: self == Self::Cores,
            memory_limit: self == Self::MemoryLimit,
        }
    }
}

/// Whether unmanaged memory counts: memory in use on a GPU beyond what pods hold there, as by processes outside of
/// Kubernetes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum UnmanagedMemory {
    /// It does not count: all that pods do not hold is free.
    #[default]
    Ignore,
    /// It counts as not free, as last measured. A measurement that is too old does not count.
    Count,
}

impl UnmanagedMemory {
    /// Its name in policies.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ignore => "ignore",
            Self::Count => "count",
        }
    }
}

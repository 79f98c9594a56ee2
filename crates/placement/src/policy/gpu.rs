//! How pods that request GPU memory are placed.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::gpu::Strategy;

/// How pods that request GPU memory are placed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GpuRules {
    /// How nodes and cards are chosen for pods without the annotation `gpu-placement`.
    pub placement: Strategy,
    /// Whether unmanaged memory counts.
    pub unmanaged_memory: UnmanagedMemory,
}

/// Whether unmanaged memory counts: memory in use on a card beyond what pods hold there, as by processes outside of Kubernetes.
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

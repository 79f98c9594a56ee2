//! How pods that ask for GPU memory are placed.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::gpu::Strategy;

/// How pods that ask for GPU memory are placed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GpuRules {
    /// How nodes and cards are chosen for pods that do not say it themselves.
    pub placement: Strategy,
    /// What becomes of memory that is in use on a card beyond what pods hold there.
    pub unmanaged_memory: UnmanagedMemory,
}

/// What becomes of memory that is in use on a card beyond what pods hold there, as by processes outside of Kubernetes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum UnmanagedMemory {
    /// Only what pods hold counts.
    #[default]
    Ignore,
    /// It is not free either, as last measured. A measurement that is too old counts for nothing.
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

//! A GPU as its node reports it.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{GivenOut, GpuIsolation, Topology};
use crate::units::{GpuId, GpuModel, MiB, PodUid, Units};

/// One GPU of a node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Gpu {
    /// NVML's UUID, the GPU's lasting name.
    pub uuid: GpuId,
    /// NVML's index on this boot; what Aliyun's annotations speak of.
    pub index: u32,
    /// The product's name, e.g. `NVIDIA A10`.
    pub model: GpuModel,
    /// The GPU's memory.
    pub memory: MiB,
    /// Units of it that pods can request.
    pub units: Units,
    /// Where it is in its machine.
    pub topology: Topology,
    /// Whether it works.
    pub healthy: bool,
    /// Why it takes no new pods although it may be healthy; `None` if it takes some.
    pub closed: Option<Closed>,
    /// The isolation that its node reports for it.
    pub isolation: GpuIsolation,
    /// Pods with a process on it that MPS is to limit and that is no client of it.
    pub outside_mps: Vec<PodUid>,
    /// Units that the kubelet's records say each pod holds here.
    pub pods: BTreeMap<PodUid, Units>,
}

impl Gpu {
    /// The memory of one unit, in MiB, rounded down; at least 1. The report does not say what the node has set.
    pub(super) fn unit(&self) -> u64 {
        self.memory.0.checked_div(u64::from(self.units.0)).unwrap_or(0).max(1)
    }

    /// All of it, as it is counted where GPUs are given out in that way: its units, or its MiB.
    pub fn size(&self, way: GivenOut) -> Units {
        match way {
            GivenOut::Units => self.units,
            GivenOut::Claims => Units(u32::try_from(self.memory.0).unwrap_or(u32::MAX)),
        }
    }

    /// The units that this memory takes, rounded up; at most all of the GPU.
    pub(super) fn units_of(&self, memory: MiB) -> Units {
        let units = memory.0.div_ceil(self.unit());
        Units(u32::try_from(units).unwrap_or(u32::MAX).min(self.units.0))
    }
}

/// Why a GPU takes no new pods.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Closed {
    /// The node's policy refuses containers, since the isolation that it requires cannot be enforced.
    Isolation,
    /// NVIDIA's CDI specification has no device of the GPU that a container could start with and use CUDA on.
    Cdi,
    /// The folder of the device plugin's own CDI specification cannot be written.
    CdiFolder,
    /// Its compute mode admits one process, or none: a container would start, and its program find no GPU.
    ComputeMode,
    /// CUDA opens no context on it: a container would start, and its program fail.
    Context,
    /// A driver of dynamic resource allocation (DRA) offers it as well, and kube-scheduler would give it out twice.
    Dra,
    /// It is given out by ResourceClaims, or its last one has not ended.
    Claims,
    /// The node's device plugin starts, ends or is gone: the kubelet would refuse a pod.
    Plugin,
    /// A reason of a newer writer.
    #[serde(other)]
    Other,
}

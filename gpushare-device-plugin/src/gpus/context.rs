//! GPUs on which CUDA opens no context: containers start, and their programs fail.

use std::collections::BTreeMap;
use std::fmt;

use placement::units::GpuId;

use super::{Gpu, Gpus};

/// Why CUDA opens no context, by GPU.
pub(crate) type FailedContexts = BTreeMap<GpuId, String>;

/// A GPU that takes no new pods for it. Its text becomes an event of the Node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FailedGpu {
    index: u32,
    /// The GPU.
    pub uuid: GpuId,
    why: String,
}

impl fmt::Display for FailedGpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { index, uuid, why } = self;
        write!(
            f,
            "GPU {index} ({uuid}) takes no new pods: NVML answers for it, and CUDA opens no context: {why}"
        )
    }
}

/// Those of the GPUs that failed.
pub(crate) fn failed(gpus: &Gpus, failed: &FailedContexts) -> Vec<FailedGpu> {
    let with_why = |gpu: &Gpu| {
        let why = failed.get(&gpu.uuid)?.clone();
        Some(FailedGpu { index: gpu.index, uuid: gpu.uuid.clone(), why })
    };
    gpus.iter().filter_map(with_why).collect()
}

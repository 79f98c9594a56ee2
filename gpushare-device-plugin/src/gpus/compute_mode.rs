//! GPUs whose compute mode keeps the programs of pods from them: containers start, and CUDA finds no GPU in them.

use std::fmt;

use nvml::ComputeMode;
use placement::gpu::Isolation;
use placement::units::GpuId;

use super::{Gpu, Gpus};

/// A GPU, and the compute mode for which it takes no new pods. Its text becomes an event of the Node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BarredGpu {
    index: u32,
    /// The GPU.
    pub uuid: GpuId,
    mode: ComputeMode,
}

impl fmt::Display for BarredGpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { index, uuid, mode } = self;
        let (admits, or) = match mode {
            ComputeMode::Prohibited => ("no process", ""),
            _ => (
                "one process at a time",
                ", or have it shared by MPS (value mps.enabled, --isolation=mps)",
            ),
        };
        write!(
            f,
            "GPU {index} ({uuid}) takes no new pods: its compute mode {mode} admits {admits}. Run `nvidia-smi -i {uuid} \
             -c DEFAULT` on the node{or}"
        )
    }
}

/// The GPUs that take no new pods for their mode. `isolation` is the mode of pods without an annotation: where that is
/// MPS, its server is the one process of a GPU.
pub(crate) fn barred(gpus: &Gpus, isolation: Option<Isolation>) -> Vec<BarredGpu> {
    let is_barred = |mode: &ComputeMode| match mode {
        ComputeMode::Default => false,
        ComputeMode::ExclusiveProcess => isolation != Some(Isolation::Mps),
        ComputeMode::Prohibited => true,
    };
    let with_mode = |gpu: &Gpu| {
        let mode = gpu.compute_mode.filter(is_barred)?;
        Some(BarredGpu { index: gpu.index, uuid: gpu.uuid.clone(), mode })
    };
    gpus.iter().filter_map(with_mode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{A, B, gpus};
    use crate::gpus::Gpu;

    fn barred_in(mode: Option<ComputeMode>, isolation: Option<Isolation>) -> Vec<String> {
        let all = gpus(&[(A, 4), (B, 4)]);
        let all = all.iter().map(|gpu| {
            let compute_mode = if gpu.uuid.as_str() == B { mode } else { None };
            Gpu { compute_mode, ..gpu.clone() }
        });
        let barred = barred(&Gpus::new(all.collect()), isolation);
        barred.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_gpu_for_one_process_is_for_mps_and_one_for_none_is_closed() {
        use Isolation::{Driver, Mps};
        let (exclusive, prohibited) =
            (Some(ComputeMode::ExclusiveProcess), Some(ComputeMode::Prohibited));
        for isolation in [None, Some(Isolation::None), Some(Driver), Some(Mps)] {
            assert!(barred_in(None, isolation).is_empty(), "unknown is not exclusive");
            assert!(barred_in(Some(ComputeMode::Default), isolation).is_empty());
            let is_shared = isolation == Some(Mps);
            assert_eq!(barred_in(exclusive, isolation).is_empty(), is_shared, "{isolation:?}");
            assert_eq!(barred_in(prohibited, isolation).len(), 1, "{isolation:?}");
        }
    }

    #[test]
    fn the_text_names_the_gpu_the_mode_and_the_fix() {
        let exclusive = &barred_in(Some(ComputeMode::ExclusiveProcess), None)[0];
        let prohibited = &barred_in(Some(ComputeMode::Prohibited), None)[0];
        for (text, mode, admits) in [
            (exclusive, "EXCLUSIVE_PROCESS", "one process"),
            (prohibited, "PROHIBITED", "no process"),
        ] {
            let parts = [mode, admits, &format!("nvidia-smi -i {B} -c DEFAULT")];
            assert!(parts.iter().all(|part| text.contains(*part)), "{text}");
        }
        assert!(exclusive.contains("mps.enabled") && !prohibited.contains("mps.enabled"));
    }
}

//! Unmanaged memory: memory in use on GPUs beyond what pods hold there, by processes outside of pods with a charge, or
//! by pods that use more than they requested.
//!
//! A GPU's free units are all its units less what pods hold now and less its unmanaged units. The memory in use was
//! measured some time ago, so it is compared with what pods held at that time. A pod that has ended since is then not
//! counted as in use, and a pod that has started since is not counted twice.
//!
//! Invariants: a measurement that is missing or too old counts for nothing. Only what two measurements in a row show
//! counts: the first one after a pod's end may have been taken before it.

use jiff::{SignedDuration, Timestamp};

use super::Gpu;
use crate::units::{GpuId, MiB, Units};

/// How long a measurement counts: the annotator renews the annotation after 10 minutes at most.
const MAX_AGE: SignedDuration = SignedDuration::from_mins(15);

/// The driver may use 1/32 of a GPU's memory by itself.
const DRIVER_DIVISOR: u64 = 32;

/// What was measured on a node's GPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeasuredMemory {
    /// When it was measured.
    pub at: Timestamp,
    /// The GPUs whose memory in use is known.
    pub gpus: Vec<MeasuredGpu>,
}

/// What was measured on one GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeasuredGpu {
    /// The GPU.
    pub uuid: GpuId,
    /// Memory in use.
    pub used: MiB,
    /// Units that pods held at that time.
    pub held: Units,
}

impl MeasuredMemory {
    /// Whether it still counts at `now`. A time too far in the future comes from a wrong clock.
    pub fn is_fresh(&self, now: Timestamp) -> bool {
        now.duration_since(self.at).abs() <= MAX_AGE
    }

    /// The memory in use on a GPU; `None` where that is not known.
    pub fn on(&self, gpu: &GpuId) -> Option<MiB> {
        let measured = self.gpus.iter().find(|measured| measured.uuid == *gpu);
        measured.map(|measured| measured.used)
    }

    /// The units of each GPU that are in use beyond what pods held; GPUs without such units are left out.
    pub fn unmanaged(&self, gpus: &[Gpu]) -> Vec<(GpuId, Units)> {
        gpus.iter()
            .filter_map(|gpu| {
                let measured = self.gpus.iter().find(|measured| measured.uuid == gpu.uuid)?;
                let units = measured.beyond_held(gpu);
                (!units.is_zero()).then(|| (gpu.uuid.clone(), units))
            })
            .collect()
    }
}

impl MeasuredGpu {
    /// The units in use beyond what pods held, rounded up. The driver's own memory is not counted.
    fn beyond_held(&self, gpu: &Gpu) -> Units {
        let memory = gpu.memory.0;
        let units = u64::from(gpu.units.0);
        let unit = gpu.unit();
        let kept_back = memory.saturating_sub(unit.saturating_mul(units));
        let of_pods = unit.saturating_mul(u64::from(self.held.0));
        let expected = of_pods.saturating_add(kept_back.max(memory / DRIVER_DIVISOR));
        gpu.units_of(MiB(self.used.0.saturating_sub(expected)))
    }
}

/// For each GPU in both lists, the smaller number of units.
pub fn in_both_measurements(
    one: &[(GpuId, Units)],
    other: &[(GpuId, Units)],
) -> Vec<(GpuId, Units)> {
    one.iter()
        .filter_map(|(gpu, units)| {
            let (_, also) = other.iter().find(|(known, _)| known == gpu)?;
            Some((gpu.clone(), *units.min(also)))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::{GpuIsolation, Topology};

    fn gpu(memory: u64, units: u32) -> Gpu {
        Gpu {
            uuid: "GPU-0".into(),
            index: 0,
            model: "NVIDIA A10".into(),
            memory: MiB(memory),
            units: Units(units),
            topology: Topology::default(),
            healthy: true,
            closed: None,
            isolation: GpuIsolation::default(),
            outside_mps: Vec::new(),
            pods: [].into(),
        }
    }

    fn beyond(gpu: &Gpu, used: u64, held: u32) -> u32 {
        let measured = MeasuredGpu { uuid: "GPU-0".into(), used: MiB(used), held: Units(held) };
        let at = Timestamp::UNIX_EPOCH;
        let measured = MeasuredMemory { at, gpus: vec![measured] };
        measured.unmanaged(std::slice::from_ref(gpu)).iter().map(|(_, units)| units.0).sum()
    }

    #[test]
    fn what_pods_hold_is_not_counted_twice() {
        let gpu = gpu(24_576, 24);
        assert_eq!(beyond(&gpu, 8 * 1024, 10), 0);
        assert_eq!(beyond(&gpu, 10 * 1024, 10), 0);
        assert_eq!(beyond(&gpu, 16 * 1024, 10), 6);
        assert_eq!(beyond(&gpu, 90 * 1024, 10), 24);
    }

    #[test]
    fn an_idle_gpu_is_free_whatever_its_driver_uses() {
        assert_eq!(beyond(&gpu(24_576, 24), 700, 0), 0);
        assert_eq!(beyond(&gpu(23_028, 22), 500, 0), 0);
        // Units of 1 MiB.
        assert_eq!(beyond(&gpu(16_384, 16_384), 500, 0), 0);
        assert_eq!(beyond(&gpu(16_384, 16_384), 1_500, 0), 988);
        // No units: nothing to count.
        assert_eq!(beyond(&gpu(16_384, 0), 9_000, 0), 0);
    }

    #[test]
    fn what_only_one_measurement_shows_does_not_count() {
        let of = |units: u32| vec![(GpuId::from("GPU-0"), Units(units))];
        assert_eq!(in_both_measurements(&of(6), &of(4)), of(4));
        assert_eq!(in_both_measurements(&of(6), &[]), []);
    }

    #[test]
    fn an_old_measurement_and_one_from_the_future_do_not_count() {
        let measured = MeasuredMemory { at: Timestamp::UNIX_EPOCH, gpus: Vec::new() };
        for (seconds, counts) in [(0, true), (900, true), (901, false), (-901, false)] {
            let now = Timestamp::from_second(seconds).unwrap();
            assert_eq!(measured.is_fresh(now), counts, "{seconds}");
        }
    }
}

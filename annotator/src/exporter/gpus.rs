//! An exporter's measurements of each GPU.
//!
//! Two values of `/v1/statistics` are read: `gpu_<index>_usage_active`, the percentage of the time of the last sample
//! that the GPU was busy, and `gpu_<index>_mem_bytes_active`, the bytes of its memory in use. Their `instance` is the
//! GPU's UUID. Invariant: a missing measurement is `None`, never 0.

use std::collections::BTreeMap;

use api::share::GpuShare;
use placement::units::{GpuId, MiB};

const BYTES_PER_MIB: f64 = 1_048_576.0;

/// The measurements of one GPU.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Measurement {
    used: Option<MiB>,
    /// The part of the time that the GPU was busy, 0 to 1.
    utilisation: Option<f64>,
}

/// The measurements of a node's GPUs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GpuMeasurements(BTreeMap<GpuId, Measurement>);

impl GpuMeasurements {
    /// Whether there is no measurement of any GPU.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// `gpu` with its measurements. A field without a measurement keeps its value.
    #[must_use]
    pub fn apply_to(&self, gpu: GpuShare) -> GpuShare {
        let measured = self.0.get(&gpu.uuid).copied().unwrap_or_default();
        GpuShare {
            used: measured.used.or(gpu.used),
            utilisation: measured.utilisation.or(gpu.utilisation),
            ..gpu
        }
    }

    /// Records the value of `metric` for the GPU of that UUID. Other metrics and values out of range are ignored.
    pub(crate) fn record(&mut self, metric: &str, uuid: &str, value: f64) {
        let Some(measure) = strip_gpu_index(metric) else { return };
        let uuid = GpuId::from(uuid);
        match measure {
            "usage_active" if value <= 100.0 => {
                self.0.entry(uuid).or_default().utilisation = Some(value / 100.0);
            }
            "mem_bytes_active" => {
                self.0.entry(uuid).or_default().used = Some(MiB((value / BYTES_PER_MIB) as u64));
            }
            _ => {}
        }
    }
}

/// Whether `metric` may be one of a single GPU.
pub(crate) fn is_of_gpu(metric: &str) -> bool {
    strip_gpu_index(metric).is_some()
}

/// `usage_active` for `gpu_12_usage_active`, a metric of one GPU; `None` for `gpu_usage_active`, a metric of the node.
fn strip_gpu_index(metric: &str) -> Option<&str> {
    let (index, measure) = metric.strip_prefix("gpu_")?.split_once('_')?;
    (!index.is_empty() && index.bytes().all(|byte| byte.is_ascii_digit())).then_some(measure)
}

#[cfg(test)]
mod tests {
    use super::*;
    use placement::units::Units;

    #[test]
    fn only_values_of_single_gpus_are_recorded() {
        let mut all = GpuMeasurements::default();
        let values = [
            ("gpu_0_usage_active", 60.0),
            ("gpu_0_mem_usage_active", 25.0),
            ("gpu_0_mem_bytes_active", 4_294_967_296.0),
            ("gpu_0_usage_avg_5m", 1.0),
            ("gpu_usage_active", 15.0),
            ("gpu_mem_bytes_active", 7.0),
            ("gpu__usage_active", 7.0),
            ("cpu_usage_active", 7.0),
        ];
        values.iter().for_each(|(metric, value)| all.record(metric, "GPU-a", *value));
        all.record("gpu_11_usage_active", "GPU-b", 0.0);
        all.record("gpu_12_usage_active", "GPU-c", 101.0);
        assert_eq!(measured(&all, "GPU-a"), (Some(MiB(4096)), Some(0.6)));
        assert_eq!(measured(&all, "GPU-b"), (None, Some(0.0)));
        assert_eq!(measured(&all, "GPU-c"), (None, None));
    }

    fn measured(all: &GpuMeasurements, uuid: &str) -> (Option<MiB>, Option<f64>) {
        let gpu = all.apply_to(GpuShare {
            uuid: uuid.into(),
            units: Units(16),
            allocated: Units(3),
            used: None,
            utilisation: None,
        });
        (gpu.used, gpu.utilisation)
    }
}

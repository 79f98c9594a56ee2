//! GPUs, from the newest report of `gpu-probe`: `gpu_*` of each GPU, and for the node `gpu_usage`, the mean
//! of the GPUs, and `gpu_mem_usage`, the used part of the memory of all GPUs.
//!
//! A GPU that does not answer has `gpu_healthy` 0 and no other value.

use super::{CollectError, Collector, Record};
use crate::gpu::{GpuReport, LatestReport};
use crate::series::{Interval, Kind, Moment, Signal};

/// `gpu_usage`, in percent.
pub static GPU_USAGE: Kind =
    Kind::of_device("gpu_card_usage", "card", "time in which a kernel ran on the GPU, percent");
/// `gpu_mem_usage`, in percent.
pub static GPU_MEM_USAGE: Kind =
    Kind::of_device("gpu_card_mem_usage", "card", "memory of the GPU in use, percent");
/// `gpu_mem_bytes`, in bytes.
pub static GPU_MEM_BYTES: Kind =
    Kind::of_device("gpu_card_mem_bytes", "card", "memory of the GPU in use, bytes");
/// `gpu_temperature_celsius`, in degrees Celsius.
pub static GPU_TEMPERATURE: Kind = Kind::of_device(
    "gpu_card_temperature_celsius",
    "card",
    "temperature of the GPU, degrees Celsius",
);
/// `gpu_power_watts`, in watts.
pub static GPU_POWER: Kind =
    Kind::of_device("gpu_card_power_watts", "card", "power that the GPU draws, watts");
/// `gpu_healthy`, 0 or 1.
pub static GPU_HEALTHY: Kind =
    Kind::of_device("gpu_card_healthy", "card", "1 if the GPU answers, else 0");
/// `gpu_usage`, in percent.
pub static USAGE: Kind =
    Kind::of_node("gpu_usage", "time in which a kernel ran, mean of all GPUs, percent");
/// `gpu_mem_usage`, in percent.
pub static MEM_USAGE: Kind = Kind::of_node("gpu_mem_usage", "memory of all GPUs in use, percent");

const MIB: f64 = 1_048_576.0;

/// Records the values of the newest report.
#[derive(Debug)]
pub struct Gpu {
    latest: LatestReport,
    interval: Interval,
}

impl Gpu {
    /// A collector of `latest`, which is stale after three intervals.
    #[must_use]
    pub fn new(latest: LatestReport, interval: Interval) -> Self {
        Self { latest, interval }
    }
}

impl Collector for Gpu {
    fn name(&self) -> &'static str {
        "gpu"
    }

    fn collect(&mut self, now: Moment, record: &mut Record<'_>) -> Result<(), CollectError> {
        let gpus = self.latest.get(self.interval, now).unwrap_or_default();
        gpus.iter().for_each(|gpu| record_gpu(gpu, record));
        record_node(&gpus, record);
        Ok(())
    }
}

fn record_gpu(gpu: &GpuReport, record: &mut Record<'_>) {
    let short = gpu.index.to_string();
    let healthy = f64::from(u8::from(gpu.reading.is_some()));
    let mut values = vec![(&GPU_HEALTHY, Some(healthy))];
    if let Some(reading) = gpu.reading {
        values.extend([
            (&GPU_USAGE, reading.usage.map(|percent| percent as f64)),
            (&GPU_MEM_BYTES, reading.used.map(|used| used as f64 * MIB)),
            (&GPU_MEM_USAGE, share(reading.used, reading.total)),
            (&GPU_TEMPERATURE, reading.temperature.map(|celsius| celsius as f64)),
            (&GPU_POWER, reading.power.map(|milliwatts| milliwatts as f64 / 1_000.0)),
        ]);
    }
    for (kind, value) in values {
        if let Some(value) = value {
            record(&Signal::of_named_device(kind, &gpu.uuid, &short), value);
        }
    }
}

fn record_node(gpus: &[GpuReport], record: &mut Record<'_>) {
    let (mut usages, mut used, mut total) = (Vec::<u64>::new(), 0_u64, 0_u64);
    for reading in gpus.iter().filter_map(|gpu| gpu.reading) {
        usages.extend(reading.usage);
        if let Some((used_here, total_here)) = reading.used.zip(reading.total) {
            used = used.saturating_add(used_here);
            total = total.saturating_add(total_here);
        }
    }
    if !usages.is_empty() {
        let mean = usages.iter().sum::<u64>() as f64 / usages.len() as f64;
        record(&Signal::of_node(&USAGE), mean);
    }
    if let Some(share) = share(Some(used), Some(total)) {
        record(&Signal::of_node(&MEM_USAGE), share);
    }
}

fn share(used: Option<u64>, total: Option<u64>) -> Option<f64> {
    let (used, total) = used.zip(total).filter(|(_, total)| *total > 0)?;
    Some(100.0 * used as f64 / total as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::time::Duration;

    fn collect(lines: &[&str], seconds: u64) -> BTreeMap<String, f64> {
        let latest = LatestReport::default();
        let gpus = lines.iter().map(|line| GpuReport::parse(line).unwrap()).collect();
        latest.set(Moment(Duration::from_secs(100)), gpus);
        let mut seen = BTreeMap::new();
        let mut record = |signal: &Signal, value| {
            seen.insert(signal.name().to_owned(), value);
        };
        let now = Moment(Duration::from_secs(seconds));
        Gpu::new(latest, "10s".parse().unwrap()).collect(now, &mut record).unwrap();
        seen
    }

    #[test]
    fn gpus_and_the_node_have_values() {
        let seen = collect(&["0 GPU-a 30 512 1024 41 60500", "1 GPU-b 50 0 1024 - -"], 110);
        assert_eq!(seen["gpu_usage"], 40.0);
        assert_eq!(seen["gpu_mem_usage"], 25.0);
        assert_eq!(seen["gpu_0_usage"], 30.0);
        assert_eq!(seen["gpu_0_power_watts"], 60.5);
        assert_eq!(seen["gpu_0_mem_bytes"], 536_870_912.0);
        assert_eq!(seen.get("gpu_1_temperature_celsius"), None);
    }

    #[test]
    fn a_lost_gpu_is_unhealthy_and_has_no_other_value() {
        let seen = collect(&["0 GPU-a lost"], 110);
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), [("gpu_0_healthy".to_owned(), 0.0)]);
    }

    #[test]
    fn a_stale_report_gives_no_values() {
        assert!(collect(&["0 GPU-a 30 512 1024 41 60500"], 131).is_empty());
    }
}

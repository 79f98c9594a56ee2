//! The process's own metrics, under the names of Prometheus's client libraries (`process_…`).
//!
//! A figure that cannot be read is left out, never zero.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// Ticks a second in `/proc/PID/stat`: USER_HZ, which is 100 on every architecture that Kubernetes runs on.
const TICKS: f64 = 100.0;

/// Reads one process's figures at each scrape.
#[derive(Debug)]
pub struct ProcessMetrics {
    /// Its folder in procfs, as `/proc/self`.
    process: PathBuf,
    /// Start of the process, in seconds since 1970.
    start: Option<f64>,
}

impl ProcessMetrics {
    /// The name and the help text of each figure. A counter's name ends in `_total`.
    pub(crate) const FIGURES: [(&'static str, &'static str); 6] = [
        ("process_cpu_seconds_total", "User and system CPU time, in seconds"),
        ("process_resident_memory_bytes", "Resident memory, in bytes"),
        ("process_virtual_memory_bytes", "Virtual memory, in bytes"),
        ("process_start_time_seconds", "When the process started, in Unix time"),
        ("process_open_fds", "Open file descriptors"),
        ("process_max_fds", "File descriptors that may be open"),
    ];

    /// Those of this process.
    pub(crate) fn of_this_process() -> Self {
        Self::new(Path::new("/proc"), "self")
    }

    /// Those of process `pid` under `procfs`.
    #[must_use]
    pub fn new(procfs: &Path, pid: &str) -> Self {
        let process = procfs.join(pid);
        let start = start_time(&procfs.join("stat"), &process.join("stat"));
        Self { process, start }
    }

    fn read(&self, file: &str) -> Option<String> {
        fs::read_to_string(self.process.join(file)).ok()
    }

    fn cpu_seconds(&self) -> Option<f64> {
        let stat = self.read("stat")?;
        Some((stat_field(&stat, 14)? + stat_field(&stat, 15)?) / TICKS)
    }

    fn open_fds(&self) -> Option<f64> {
        // `read_dir` itself holds one descriptor while it counts.
        let count = fs::read_dir(self.process.join("fd")).ok()?.count();
        Some(count.saturating_sub(1) as f64)
    }

    fn max_fds(&self) -> Option<f64> {
        let limits = self.read("limits")?;
        let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
        line.split_whitespace().next()?.parse().ok()
    }

    /// The values now, in the order of [`ProcessMetrics::FIGURES`].
    fn values(&self) -> [Option<f64>; 6] {
        let text = self.read("status");
        let status = text.as_deref();
        [
            self.cpu_seconds(),
            status_bytes(status, "VmRSS:"),
            status_bytes(status, "VmSize:"),
            self.start,
            self.open_fds(),
            self.max_fds(),
        ]
    }
}

impl Collector for ProcessMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        for ((name, help), value) in Self::FIGURES.into_iter().zip(self.values()) {
            let Some(value) = value else { continue };
            match name.strip_suffix("_total") {
                Some(name) => encode(&mut encoder, name, help, &ConstCounter::new(value))?,
                None => encode(&mut encoder, name, help, &ConstGauge::new(value))?,
            }
        }
        Ok(())
    }
}

fn encode(
    encoder: &mut DescriptorEncoder,
    name: &str,
    help: &str,
    metric: &impl EncodeMetric,
) -> fmt::Result {
    metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)
}

fn start_time(system_stat: &Path, process_stat: &Path) -> Option<f64> {
    let system = fs::read_to_string(system_stat).ok()?;
    let boot: f64 =
        system.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    let stat = fs::read_to_string(process_stat).ok()?;
    Some(boot + stat_field(&stat, 22)? / TICKS)
}

/// Field `number` of `/proc/PID/stat`, counted from 1 as in proc_pid_stat(5). The second, a name in brackets, may
/// itself hold brackets and spaces, so the third begins after the last bracket.
fn stat_field(stat: &str, number: usize) -> Option<f64> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(number.checked_sub(3)?)?.parse().ok()
}

fn status_bytes(status: Option<&str>, key: &str) -> Option<f64> {
    let line = status?.lines().find_map(|line| line.strip_prefix(key))?;
    let kib: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::registry::Registry;

    fn scrape(metrics: ProcessMetrics) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(metrics));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        text
    }

    fn recorded() -> tempfile::TempDir {
        let proc = tempfile::tempdir().unwrap();
        let process = proc.path().join("7");
        fs::create_dir_all(process.join("fd")).unwrap();
        fs::write(proc.path().join("stat"), "cpu 1 2 3\nbtime 1000\n").unwrap();
        let stat = "7 (a ) b) S 1 7 7 0 -1 4 0 0 0 0 150 50 0 0 20 0 1 0 2500 1 1 1\n";
        fs::write(process.join("stat"), stat).unwrap();
        fs::write(process.join("status"), "VmSize:\t    2048 kB\nVmRSS:\t    1024 kB\n").unwrap();
        fs::write(process.join("limits"), "Max open files   1024   4096   files\n").unwrap();
        proc
    }

    #[test]
    fn a_recorded_process_gives_the_well_known_metrics() {
        let proc = recorded();
        let text = scrape(ProcessMetrics::new(proc.path(), "7"));
        for line in [
            "process_cpu_seconds_total 2.0",
            "process_resident_memory_bytes 1048576.0",
            "process_virtual_memory_bytes 2097152.0",
            "process_start_time_seconds 1025.0",
            "process_max_fds 1024.0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} not in\n{text}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_absent() {
        let text = scrape(ProcessMetrics::new(Path::new("/nonexistent"), "7"));
        assert_eq!(text, "# EOF\n");
    }

    #[test]
    fn this_process_has_all_of_them() {
        let text = scrape(ProcessMetrics::of_this_process());
        assert_eq!(text.matches("# TYPE").count(), 6, "{text}");
    }
}

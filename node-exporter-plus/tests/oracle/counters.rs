//! From the kernel's counters to crane's four aggregates: the exporter's way from the text of /proc, Prometheus's by
//! crane's recording rules.
//!
//! Crane records `cpu_usage_active` every 30 s, of which `irate` sees the last two samples. Here it is recorded at
//! every sample, so that both see all of them.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use node_exporter_plus::collectors::{cpu, memory};
use node_exporter_plus::series::{CRANE, Moment, Series};

use crate::compare::agree;
use crate::prometheus::Prometheus;
use crate::synthetic::{SLOTS, busy, noise, unix};

const CPUS: u32 = 4;
/// Ticks of one CPU between two samples.
const TICKS: u32 = 1_000;
const MEMORY_KIB: u64 = 16 << 20;

/// The kernel's counters, in ticks since the boot.
#[derive(Default)]
struct Node {
    idle: [u64; CPUS as usize],
    waited: u64,
    uptime: u64,
}

impl Node {
    fn live(&mut self, slot: u32) {
        self.uptime += u64::from(TICKS);
        for (cpu, idle) in (0..).zip(&mut self.idle) {
            let share = (busy(slot) + 0.1 * noise(slot * CPUS + cpu)).clamp(0.0, 1.0);
            let busy = (share * f64::from(TICKS)) as u64;
            *idle += u64::from(TICKS) - busy;
            // A part of it is spent waiting for a disk, which counts as busy for crane too.
            self.waited += busy / 8;
        }
    }

    fn stat(&self) -> String {
        let idle: u64 = self.idle.iter().sum();
        let busy = self.uptime * u64::from(CPUS) - idle - self.waited;
        // Half of the user time is a guest's, which the kernel counts twice and the exporter must not.
        format!("cpu  {busy} 0 0 {idle} {} 0 0 0 {} 0\n", self.waited, busy / 2)
    }
}

fn available(slot: u32) -> u64 {
    (MEMORY_KIB as f64 * (0.9 - 0.8 * busy(slot))) as u64
}

fn meminfo(slot: u32) -> String {
    format!("MemTotal: {MEMORY_KIB} kB\nMemAvailable: {} kB\n", available(slot))
}

/// node_exporter's metrics in the form that promtool backfills: each family's samples in the order of time.
fn exposition() -> String {
    let mut node = Node::default();
    let mut cpus = String::new();
    let mut memory = String::new();
    for slot in 0..=SLOTS {
        if slot > 0 {
            node.live(slot);
        }
        for (cpu, idle) in node.idle.iter().enumerate() {
            let seconds = *idle as f64 / 100.0;
            let time = unix(slot);
            let labels = format!("cpu=\"{cpu}\",mode=\"idle\",instance=\"n\"");
            writeln!(cpus, "node_cpu_seconds_total{{{labels}}} {seconds} {time}").unwrap();
        }
        let bytes = available(slot) * 1_024;
        writeln!(memory, "node_memory_MemAvailable_bytes{{instance=\"n\"}} {bytes} {}", unix(slot))
            .unwrap();
    }
    format!(
        "# TYPE node_cpu_seconds counter\n{cpus}# TYPE node_memory_MemAvailable_bytes gauge\n{memory}"
    )
}

/// The exporter's values at each minute, by aggregate: of CPU, then of memory.
fn ours() -> [Vec<BTreeMap<u64, f64>>; 2] {
    let interval = "10s".parse().unwrap();
    let mut series = [Series::new(interval, &CRANE), Series::new(interval, &CRANE)];
    let mut values = [vec![BTreeMap::new(); 4], vec![BTreeMap::new(); 4]];
    let mut node = Node::default();
    let mut before = cpu::parse(node.stat().as_bytes()).unwrap().all;
    for slot in 1..=SLOTS {
        node.live(slot);
        let now = Moment(Duration::from_secs(u64::from(slot) * 10));
        let after = cpu::parse(node.stat().as_bytes()).unwrap().all;
        series[0].record(now, cpu::shares(before, after, None, true).usage.unwrap());
        series[1].record(now, memory::parse(meminfo(slot).as_bytes()).unwrap().usage());
        before = after;
        if slot % 6 == 0 {
            for (series, values) in series.iter().zip(&mut values) {
                for (aggregate, values) in CRANE.iter().zip(values) {
                    let value = series.read(*aggregate, now);
                    values.extend(value.map(|value| (unix(slot), value.value)));
                }
            }
        }
    }
    values
}

#[test]
#[ignore = "needs Prometheus: make oracle"]
fn cranes_aggregates_are_those_of_its_recording_rules() {
    let prometheus = Prometheus::over(&exposition());
    let cpu = "100 - (avg by (instance) (irate(node_cpu_seconds_total{mode=\"idle\"}[30s])) * 100)";
    let total = MEMORY_KIB * 1_024;
    let memory = format!("100 * (1 - node_memory_MemAvailable_bytes / {total})");
    let mut largest = 0.0_f64;
    for ((name, active), ours) in [("cpu_usage", cpu), ("mem_usage", &memory)].iter().zip(ours()) {
        // The sample at the boot is the counters' first, so the exporter has no value there.
        let (minutes, hour, day) =
            (prometheus.range(300), prometheus.range(3_600), prometheus.range(86_400));
        let active = format!("(({active}) and on () (vector(time()) > {}))", unix(0));
        let mean = format!("avg_over_time({active}[{minutes}:10s])");
        let count = format!("count_over_time({active}[{minutes}:10s])");
        let enough = Prometheus::counted(&mean, &count, 300);
        let queries = [
            active.clone(),
            mean.clone(),
            format!("max_over_time({enough}[{hour}:1m])"),
            format!("max_over_time({enough}[{day}:1m])"),
        ];
        for ((aggregate, query), ours) in CRANE.iter().zip(queries).zip(&ours) {
            let theirs = prometheus.minutes(&query);
            largest = largest.max(agree(&format!("{name}_{aggregate}"), ours, &theirs, |_| false));
        }
    }
    println!(
        "oracle, counters through crane's rules: largest difference {largest:.7} percentage points"
    );
}

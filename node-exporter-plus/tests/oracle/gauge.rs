//! Every aggregate over samples with gaps and a restart, which goes through the file of samples.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::io::Cursor;
use std::time::Duration;

use node_exporter_plus::Store;
use node_exporter_plus::collectors::cpu;
use node_exporter_plus::config::Config;
use node_exporter_plus::series::{Moment, Signal};
use node_exporter_plus::storage::{BootId, Content, read, write};

use crate::compare::agree;
use crate::prometheus::Prometheus;
use crate::synthetic::{SLOTS, busy, noise, sampled, unix};

/// The process starts a minute after the boot.
const START: u32 = 7;
/// It ends after this sample and starts again two minutes later.
const RESTART: u32 = 5_003;
const BACK: u32 = RESTART + 12;

const AGGREGATES: [&str; 17] = [
    "avg_5m",
    "avg_1h",
    "avg_1d",
    "stddev_5m",
    "stddev_15m",
    "stddev_1d",
    "max_5m",
    "max_1h",
    "max_1d",
    "min_10m",
    "min_1d",
    "max_avg_1h",
    "max_avg_1d",
    "max_avg_15m_6h",
    "p50_1h",
    "p95_1h",
    "p99_1d",
];

fn value(slot: u32) -> f64 {
    (100.0 * (busy(slot) + 0.02 * noise(slot))).clamp(0.0, 100.0)
}

fn is_down(slot: u32) -> bool {
    (RESTART + 1..BACK).contains(&slot)
}

fn taken(slot: u32) -> bool {
    slot >= START && sampled(slot) && !is_down(slot)
}

fn at(slot: u32) -> Moment {
    Moment(Duration::from_secs(u64::from(slot) * 10))
}

fn empty() -> Store {
    let interval = "10s".parse().unwrap();
    let config = format!("rules: [{{signals: [cpu_usage], values: [{}]}}]", AGGREGATES.join(", "));
    Store::new(interval, Config::parse(&config, interval).unwrap())
}

fn exposition() -> String {
    let mut text = "# TYPE x gauge\n".to_owned();
    for slot in (1..=SLOTS).filter(|slot| taken(*slot)) {
        writeln!(text, "x {} {}", value(slot), unix(slot)).unwrap();
    }
    text
}

/// A new process that finds the old one's file.
fn restarted(old: &Store) -> Store {
    let boot = BootId("the same".to_owned());
    let mut file = Cursor::new(Vec::new());
    write(&mut file, &boot, old).unwrap();
    let mut store = empty();
    let content = read(&mut file, &boot, &mut store, at(BACK)).unwrap();
    assert_eq!(content, Content::Signals(1));
    store
}

fn ours() -> BTreeMap<String, BTreeMap<u64, f64>> {
    let mut values: BTreeMap<String, BTreeMap<u64, f64>> = BTreeMap::new();
    let mut store = empty();
    for slot in 1..=SLOTS {
        if slot == BACK {
            store = restarted(&store);
        }
        if is_down(slot) {
            continue;
        }
        if taken(slot) {
            store.record(&Signal::of_node(&cpu::USAGE), at(slot), value(slot));
        }
        store.finish(at(slot));
        if slot % 6 == 0 {
            for reading in store.readings(at(slot)) {
                values
                    .entry(reading.aggregate.to_string())
                    .or_default()
                    .insert(unix(slot), reading.value);
            }
        }
    }
    values
}

/// An aggregate in PromQL.
fn promql(prometheus: &Prometheus, aggregate: &str) -> String {
    let (name, window) = aggregate.rsplit_once('_').unwrap();
    let window = prometheus.range(seconds(window));
    match name.split_once('_') {
        None if name.starts_with('p') => {
            format!("quantile_over_time(0.{}, x[{window}])", &name[1..])
        }
        None => format!("{name}_over_time(x[{window}])"),
        Some(_) => {
            let inner = name.strip_prefix("max_avg_").map_or(300, seconds);
            let range = prometheus.range(inner);
            let (mean, count) =
                (format!("avg_over_time(x[{range}])"), format!("count_over_time(x[{range}])"));
            format!("max_over_time({}[{window}:1m])", Prometheus::counted(&mean, &count, inner))
        }
    }
}

fn seconds(window: &str) -> u64 {
    let (count, unit) = window.split_at(window.len() - 1);
    let unit = match unit {
        "m" => 60,
        "h" => 3_600,
        _ => 86_400,
    };
    count.parse::<u64>().unwrap() * unit
}

/// Whether the exporter has no value although Prometheus has one: while the newest sample is older than three
/// intervals.
fn silent(time: u64) -> bool {
    let now = u32::try_from((time - unix(0)) / 10).unwrap();
    is_down(now) || (now.saturating_sub(3)..=now).all(|slot| slot == 0 || !taken(slot))
}

#[test]
#[ignore = "needs Prometheus: make oracle"]
fn every_aggregate_equals_prometheuss_over_gaps_and_a_restart() {
    let prometheus = Prometheus::over(&exposition());
    let ours = ours();
    let mut largest = 0.0_f64;
    for aggregate in AGGREGATES {
        let theirs = prometheus.minutes(&promql(&prometheus, aggregate));
        largest = largest.max(agree(aggregate, &ours[aggregate], &theirs, silent));
    }
    println!(
        "oracle, every aggregate with gaps: largest difference {largest:.7} percentage points"
    );
}

/// The one difference in definition: a mean counts in a maximum only once enough of its window was sampled.
#[test]
#[ignore = "needs Prometheus: make oracle"]
fn without_the_condition_prometheus_takes_the_first_seconds() {
    let prometheus = Prometheus::over(&exposition());
    let minutes = prometheus.range(300);
    let day = prometheus.range(86_400);
    let plain =
        prometheus.minutes(&format!("max_over_time(avg_over_time(x[{minutes}])[{day}:1m])"));
    let ours = &ours()["max_avg_1d"];
    let largest = |skipped: u64| {
        ours.iter()
            .filter(|(time, _)| **time >= unix(0) + skipped)
            .map(|(time, ours)| (ours - plain[time]).abs())
            .fold(0.0, f64::max)
    };
    println!(
        "max_avg_1d, plain: {:.3} apart at first, {:.7} after the day",
        largest(0),
        largest(86_400)
    );
    assert!(largest(0) > 1.0);
    assert!(largest(86_400 + 600) <= 0.01);
}

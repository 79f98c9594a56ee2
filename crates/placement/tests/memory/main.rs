//! A full learner fits in 20 MiB. A process of its own, since the memory is the process's.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking and prints its figure"
)]

use std::fs;

use jiff::{SignedDuration, Timestamp};
use placement::learning::Learner;
use placement::resources::{PerResource, PodResources};
use placement::workload::WorkloadId;

/// Bytes of the process's anonymous memory.
fn anonymous() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
}

fn fill(learner: &mut Learner, name_bytes: usize) {
    let requests = PerResource { cpu: Some(1.0), memory: Some(1e9) };
    let resources = PodResources { requests, ..PodResources::default() };
    for n in 0..10_400_u64 {
        let id = WorkloadId {
            namespace: format!("namespace-{}", n % 100).into(),
            kind: "Deployment".into(),
            name: format!("{n:a>name_bytes$}").into(),
            template: n,
        };
        for minute in 0..8 {
            let used =
                PerResource { cpu: Some(0.1 * minute as f64), memory: Some(1e8 * minute as f64) };
            let now = Timestamp::from_second(1_800_000_000 + minute * 60).unwrap();
            learner.observe(&id, &resources, used, SignedDuration::from_mins(1), now);
        }
    }
}

#[test]
fn ten_thousand_workloads_fit_in_20_mib() {
    for (what, name_bytes) in [("names of 30 bytes", 30), ("the longest names", 253)] {
        let before = anonymous();
        let mut learner = Learner::default();
        fill(&mut learner, name_bytes);
        let (bytes, known) = (anonymous() - before, learner.stats().workloads);
        println!(
            "figure: {known} workloads, {what}: {} KiB, {} bytes each",
            bytes >> 10,
            bytes / known
        );
        assert!((9800..=10_000).contains(&known), "{known}");
        assert!(bytes < 20 << 20, "{bytes}");
        std::mem::forget(learner);
    }
}

//! The table of nodes whose readings are the same from the exporter, from Prometheus and from metrics-server
//! (`testing/readings/nodes.json`): the exporter's part. The annotator's tests have the others.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use node_exporter_plus::collectors::{Collector, Roots, cpu, memory};
use node_exporter_plus::series::{Moment, Signal};
use serde_json::Value;

const NODES: &str = include_str!("../../../testing/readings/nodes.json");

/// The signals of CPU and memory at the second of two samples of a row's files, ten seconds apart. A file that changes
/// between them has two contents.
fn collected(row: &Value) -> BTreeMap<String, f64> {
    let node = tempfile::tempdir().unwrap();
    let root = |name: &str| node.path().join(name);
    let write = |sample: usize| {
        for folder in ["proc", "sys", "cgroup"] {
            for (file, content) in row[folder].as_object().into_iter().flatten() {
                let path = root(folder).join(file);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                let text = content.as_str().or(content[sample].as_str()).unwrap();
                fs::write(path, text).unwrap();
            }
        }
    };
    let rootfs = root("root");
    let kubelet = "/var/lib/kubelet".into();
    let roots = Roots {
        procfs: root("proc"),
        sysfs: root("sys"),
        cgroupfs: root("cgroup"),
        rootfs,
        kubelet,
    };
    let mut cpu = cpu::Cpu::new(&roots, "10s".parse().unwrap());
    let mut memory = memory::Memory::new(&roots);
    let mut found = BTreeMap::new();
    for sample in [0, 1] {
        write(sample);
        let now = Moment(Duration::from_secs(10 + 10 * sample as u64));
        let mut record = |signal: &Signal, value| {
            found.insert(signal.name().to_owned(), value);
        };
        cpu.collect(now, &mut record).unwrap();
        memory.collect(now, &mut record).unwrap();
    }
    found
}

#[test]
fn the_exporter_has_the_expected_readings_of_every_node_of_the_table() {
    let nodes: Vec<Value> = serde_json::from_str(NODES).unwrap();
    for node in &nodes {
        let found = collected(node);
        for (signal, expected) in node["expected"].as_object().unwrap() {
            if node["cannot_know"]["exporter"].get(signal).is_some() {
                assert!(!found.contains_key(signal), "{} {signal}: {found:?}", node["name"]);
                continue;
            }
            let difference = found[signal] / 100.0 - expected.as_f64().unwrap();
            assert!(difference.abs() < 1e-4, "{} {signal}: {found:?}", node["name"]);
        }
    }
    assert!(nodes.len() >= 10, "{}", nodes.len());
}

//! The table of nodes whose readings are the same from the exporter, from Prometheus and from metrics-server
//! (`testing/readings/nodes.json`): the exporter's part. The annotator's tests have the others.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use node_exporter_plus::collectors::{Collector, Roots, cpu, memory};
use node_exporter_plus::series::{Moment, Signal};
use serde_json::Value;

const NODES: &str = include_str!("../../../testing/readings/nodes.json");

/// The signals of CPU and memory at the second of two samples of these files, ten seconds apart.
fn collected(proc: &Value) -> BTreeMap<String, f64> {
    let node = tempfile::tempdir().unwrap();
    let root = |name: &str| node.path().join(name);
    let write = |file: &str, text: &Value| {
        let path = root("proc").join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text.as_str().unwrap()).unwrap();
    };
    for (file, text) in proc.as_object().unwrap().iter().filter(|(file, _)| *file != "stat") {
        write(file, text);
    }
    let rootfs = root("root");
    let kubelet = "/var/lib/kubelet".into();
    let roots = Roots { procfs: root("proc"), sysfs: root("sys"), rootfs, kubelet };
    let mut cpu = cpu::Cpu::new(&roots, "10s".parse().unwrap());
    let mut memory = memory::Memory::new(&roots);
    let mut found = BTreeMap::new();
    for (stat, seconds) in proc["stat"].as_array().unwrap().iter().zip([10, 20]) {
        write("stat", stat);
        let now = Moment(Duration::from_secs(seconds));
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
        let found = collected(&node["proc"]);
        for (signal, expected) in node["expected"].as_object().unwrap() {
            let difference = found[signal] / 100.0 - expected.as_f64().unwrap();
            assert!(difference.abs() < 1e-4, "{} {signal}: {found:?}", node["name"]);
        }
    }
    assert!(nodes.len() >= 10, "{}", nodes.len());
}

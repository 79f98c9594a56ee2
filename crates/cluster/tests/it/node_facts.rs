//! What is read from a Node object, and what is refused.

use api::gpus::GpusError;
use cluster::{ExporterError, Node, NodeFacts};
use placement::gpu::{Closed, Gpu, Isolation};
use placement::names::Names;
use placement::reading::ReadingCodec;
use serde_json::{Value, json};

fn facts(annotations: Value) -> NodeFacts {
    let node = json!({
        "metadata": {
            "name": "n1",
            "creationTimestamp": "2026-11-20T09:00:00Z",
            "annotations": annotations,
        },
        "status": {
            "addresses": [
                { "type": "Hostname", "address": "n1" },
                { "type": "InternalIP", "address": "10.0.0.7" },
                { "type": "InternalIP", "address": "fd00::7" },
            ],
            "conditions": [{ "type": "Ready", "status": "True" }],
        },
    });
    let node: Node = serde_json::from_value(node).unwrap();
    node.facts(&Names::default(), &ReadingCodec::default())
}

#[test]
fn the_first_internal_address_counts() {
    assert_eq!(facts(json!({})).internal_ip, Some("10.0.0.7".parse().unwrap()));
    assert_eq!(facts(json!({})).ready, Some(true));
}

#[test]
fn the_creation_time_of_the_object_is_read() {
    assert_eq!(facts(json!({})).created_at, Some("2026-11-20T09:00:00Z".parse().unwrap()));
}

#[test]
fn a_node_that_says_nothing_is_unknown_rather_than_unready() {
    let node: Node = serde_json::from_value(json!({ "metadata": { "name": "n1" } })).unwrap();
    let facts = node.facts(&Names::default(), &ReadingCodec::default());
    assert_eq!((facts.ready, facts.internal_ip, facts.created_at), (None, None, None));
    assert!(facts.gpus.is_none() && facts.exporter.is_none());
}

#[test]
fn labels_and_the_uid_are_read_without_all_facts() {
    let metadata =
        json!({ "name": "n1", "uid": "u", "labels": { "plimsoll.dev/gpu-mode": "claims" } });
    let node: Node = serde_json::from_value(json!({ "metadata": metadata })).unwrap();
    assert_eq!(node.label(&Names::default().gpu_mode()), Some("claims"));
    assert_eq!((node.label("other"), node.uid()), (None, Some("u")));
    let node: Node = serde_json::from_value(json!({ "metadata": { "uid": "" } })).unwrap();
    assert_eq!(node.uid(), None);
}

fn memory_beside(huge: &str) -> Option<f64> {
    let capacity = json!({ "memory": "16Gi", "hugepages-2Mi": huge, "hugepages-1Gi": "8Gi" });
    let node = json!({ "metadata": { "name": "n1" }, "status": { "capacity": capacity } });
    let node: Node = serde_json::from_value(node).unwrap();
    node.facts(&Names::default(), &ReadingCodec::default()).capacity.memory
}

#[test]
fn huge_pages_are_no_part_of_the_capacity_of_memory() {
    assert_eq!(memory_beside("4Gi"), Some(4_294_967_296.0));
    assert_eq!(memory_beside("8Gi"), None);
}

fn with_capacity(cpu: Value, memory: Value) -> NodeFacts {
    let capacity = json!({ "cpu": cpu, "memory": memory, "pods": "110" });
    let metadata = json!({ "name": "n1", "labels": { "pool": "batch" } });
    let node = json!({ "metadata": metadata, "status": { "capacity": capacity } });
    let node: Node = serde_json::from_value(node).unwrap();
    node.facts(&Names::default(), &ReadingCodec::default())
}

#[test]
fn labels_and_capacity_are_read_and_a_capacity_that_cannot_be_is_unknown() {
    let facts = with_capacity(json!("4"), json!("16Gi"));
    assert_eq!(facts.labels["pool"], "batch");
    assert_eq!((facts.capacity.cpu, facts.capacity.memory), (Some(4.0), Some(17_179_869_184.0)));
    let facts = with_capacity(json!("0"), json!("-1"));
    assert_eq!((facts.capacity.cpu, facts.capacity.memory), (None, None));
}

fn isolation(of_gpu: Option<&str>, of_node: &str) -> Option<Isolation> {
    let mut gpu = json!({ "uuid": "GPU-a", "index": 0, "model": "", "memoryMiB": 1024, "units": 1, "healthy": true });
    if let Some(mode) = of_gpu {
        gpu["isolation"] = mode.into();
    }
    let gpus = json!([gpu]).to_string();
    let annotations =
        json!({ "plimsoll.dev/gpu-cards": gpus, "plimsoll.dev/gpu-isolation": of_node });
    let isolation = facts(annotations).gpus.unwrap().unwrap()[0].isolation;
    assert_eq!(isolation.minimum, of_node.parse().unwrap_or_default());
    isolation.strongest
}

#[test]
fn a_gpus_isolation_is_its_report_or_an_older_plugins_or_unknown() {
    assert_eq!(isolation(Some("driver"), "none"), Some(Isolation::Driver));
    assert_eq!(isolation(Some("none"), "driver"), Some(Isolation::None));
    assert_eq!(isolation(Some("of-a-newer-version"), "driver"), None);
    assert_eq!(isolation(None, "mps"), Some(Isolation::Mps));
    assert_eq!(isolation(None, "refused"), None);
}

fn closed(why: Value) -> Option<Closed> {
    let gpu = json!({ "uuid": "GPU-a", "index": 0, "model": "", "memoryMiB": 1024, "units": 1, "healthy": true, "closed": why });
    let annotations = json!({ "plimsoll.dev/gpu-cards": json!([gpu]).to_string() });
    facts(annotations).gpus.unwrap().unwrap()[0].closed
}

#[test]
fn a_gpu_that_a_newer_plugin_closes_for_a_new_reason_is_closed() {
    assert_eq!(closed(json!("cdi")), Some(Closed::Cdi));
    assert_eq!(closed(json!("of-a-newer-version")), Some(Closed::Other));
    assert_eq!(closed(Value::Null), None);
}

#[test]
fn readings_are_typed_and_keep_their_metrics_names() {
    let facts = facts(json!({
        "cpu_usage_avg_5m": "0.63012,2026-11-20T09:00:00Z",
        "mem_usage_avg_5m": "much,2026-11-20T09:00:00Z",
        "node_hot_value": "1.5,2026-11-20T09:00:00Z",
        "example.com/cpu_usage_avg_5m": "0.5,2026-11-20T09:00:00Z",
        "_private": "0.5,2026-11-20T09:00:00Z",
    }));
    let [(cpu, read), (mem, refused)] = &facts.readings[..] else { panic!("{:?}", facts.readings) };
    assert_eq!((cpu.as_str(), mem.as_str()), ("cpu_usage_avg_5m", "mem_usage_avg_5m"));
    assert_eq!(read.as_ref().unwrap().value.get(), 0.63012);
    assert!(refused.is_err());
    assert_eq!(facts.hot_value.unwrap().value, 1.5);
}

fn exporter(text: &str) -> Result<String, ExporterError> {
    facts(json!({ "plimsoll.dev/exporter": text })).exporter.unwrap()
}

#[test]
fn an_exporter_is_a_host_and_a_port_and_nothing_else() {
    for good in ["10.0.0.7:19101", "node-1.lan:80", "[fd00::7]:19101"] {
        assert_eq!(exporter(good).unwrap(), good);
    }
    for bad in [
        "",
        ":80",
        "host",
        "host:0",
        "host:70000",
        "http://host:80",
        "host:80/path",
        "a b:80",
        "user@host:80",
        "fd00::7:19101",
        "[host]:80",
    ] {
        assert!(exporter(bad).is_err(), "{bad}");
    }
    let reason = exporter("http://host:80").unwrap_err().to_string();
    assert!(reason.ends_with("found `http://host:80`"), "{reason}");
}

fn gpus(text: &str) -> Result<Vec<Gpu>, GpusError> {
    facts(json!({ "plimsoll.dev/gpu-cards": text })).gpus.unwrap()
}

#[test]
fn gpus_are_read_or_the_reason_is_told() {
    let one =
        r#"[{"uuid":"GPU-a","index":0,"model":"A10","memoryMiB":16384,"units":16,"healthy":true}]"#;
    assert_eq!(gpus(one).unwrap().len(), 1);
    assert!(gpus("{}").unwrap_err().to_string().starts_with("not a list of GPUs"));
}

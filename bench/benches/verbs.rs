//! Filter and prioritize as kube-scheduler calls them: a request's bytes in, an answer's bytes out.
//!
//! `echo` is the floor: an extender that parses the same request with serde and echoes the names.

#![allow(clippy::expect_used, reason = "a benchmark fails by panicking")]

use std::collections::HashSet;
use std::hint::black_box;
use std::sync::Arc;

use bench::POLICY;
use cluster::Event;
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use jiff::Timestamp;
use placement::names::Names;
use placement::policy::LoadPolicy;
use placement::reading::{Reading, ReadingCodec};
use placement::units::Ratio;
use scheduler_extender::Decider;
use scheduler_extender::http::VERBS;
use scheduler_extender::metrics::Metrics;
use scheduler_extender::over_limits::OverLimits;
use scheduler_extender::shadow::compare;
use scheduler_extender::view::{View, WatchState};
use scheduler_extender::wire;
use serde_json::{Value, json};

const SIZES: [usize; 3] = [100, 1000, 5000];

fn name(i: usize) -> String {
    format!("ip-10-{}-{}-{}.eu-central-1.compute.internal", i / 65536, i / 256 % 256, i % 256)
}

/// A node with fresh readings of everything the policy asks for, and two GPUs.
fn node(i: usize, policy: &LoadPolicy, now: Timestamp) -> cluster::NodeFacts {
    let gpus = json!([gpu(i, 0), gpu(i, 1)]).to_string();
    let load = Ratio::new((i % 100) as f64 / 100.0).map(|value| Reading::new(value, now));
    let text = load.map(|reading| ReadingCodec::default().encode(&reading));
    let readings = policy.metrics().into_iter().map(|metric| (metric.as_str(), json!(text)));
    let own = [("plimsoll.dev/gpu-cards", json!(gpus))];
    let annotations: serde_json::Map<_, _> =
        readings.chain(own).map(|(key, text)| (key.to_owned(), text)).collect();
    let node = json!({ "metadata": { "name": name(i), "annotations": annotations } });
    let node: cluster::Node = serde_json::from_value(node).expect("a node");
    node.facts(&Names::default(), &ReadingCodec::default())
}

fn gpu(node: usize, index: u32) -> Value {
    json!({
        "uuid": format!("GPU-{node}-{index}"), "index": index, "model": "NVIDIA A10",
        "memoryMiB": 24576, "units": 24, "healthy": true,
    })
}

fn decider(nodes: usize) -> Decider {
    let policy = LoadPolicy::from_yaml(POLICY).expect("the shipped policy");
    let now = Timestamp::now();
    let facts = (0..nodes).map(|i| node(i, &policy, now)).collect();
    let view = View::new(policy, false, source("nodes"), source("pods"));
    view.apply_nodes(Event::Listed(facts), now);
    let _ = view.apply_pods(Event::Listed(Vec::new()), &mut HashSet::new(), now);
    Decider {
        view: Arc::new(view),
        names: Arc::default(),
        decisions: Arc::default(),
        waiting: Default::default(),
        nominated: Default::default(),
        gangs: Default::default(),
        ratings: Default::default(),
        over_limits: OverLimits::default(),
        gpu_evictions: None,
        shadow: None,
        metrics: Metrics::default(),
        clock: Arc::new(Timestamp::now),
    }
}

fn source(name: &'static str) -> WatchState {
    WatchState::new(daemon::Health::default().gate(name))
}

/// A request about a pod of ordinary size, as Go writes it.
fn request(nodes: usize, limits: &Value) -> Vec<u8> {
    let env: Vec<Value> = (0..20)
        .map(|i| json!({ "name": format!("SETTING_{i}"), "value": "a value of ordinary length" }))
        .collect();
    let pod = json!({
        "metadata": { "name": "web-7d4b9c", "namespace": "shop", "uid": "6f9619ff-8b86-d011-b42d-00c04fc964ff",
            "creationTimestamp": "2026-11-20T09:00:00Z", "labels": { "app": "web" },
            "managedFields": [{ "manager": "kube-controller-manager", "operation": "Update",
                "fieldsV1": { "f:metadata": { "f:labels": { ".": {}, "f:app": {} } }, "f:spec": { "f:containers": {} } } }],
            "ownerReferences": [{ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "controller": true }] },
        "spec": { "containers": [{ "name": "web", "image": "registry.example/web:1", "env": env,
            "resources": { "limits": limits, "requests": limits } }], "schedulerName": "default-scheduler" },
        "status": { "phase": "Pending", "qosClass": "Burstable" },
    });
    let names: Vec<String> = (0..nodes).map(name).collect();
    json!({ "Pod": pod, "Nodes": null, "NodeNames": names }).to_string().into_bytes()
}

fn echo(body: &[u8]) -> Vec<u8> {
    let (_, names) = wire::read(body).expect("a request");
    serde_json::to_vec(&json!({ "NodeNames": names })).expect("names")
}

fn verbs(c: &mut Criterion) {
    let plain = json!({ "cpu": "500m", "memory": "1Gi" });
    let gpu = json!({ "cpu": "500m", "aliyun.com/gpu-mem": "3" });
    let mut group = c.benchmark_group("verbs");
    for nodes in SIZES {
        let decider = decider(nodes);
        for (path, verb) in VERBS {
            let limits = if path.starts_with("gpu") { &gpu } else { &plain };
            let body = request(nodes, limits);
            let id = BenchmarkId::new(path, nodes);
            group.bench_with_input(id, &body, |b, body| b.iter(|| verb(&decider, black_box(body))));
        }
        let body = request(nodes, &plain);
        // What the decision log adds to Filter, and what a shadow policy costs another thread.
        let decided = decider.decide(decider.read_request(&body).expect("a request"));
        let decision = decided.decision;
        let id = BenchmarkId::new("note", nodes);
        group.bench_function(id, |b| b.iter(|| decider.record(black_box(&decision))));
        let policy = LoadPolicy::from_yaml(POLICY).expect("the shipped policy");
        let shadow = decider.view.change(|index| index.resolve(policy));
        let id = BenchmarkId::new("shadow", nodes);
        group.bench_function(id, |b| b.iter(|| compare(black_box(&decision), &shadow)));
        let id = BenchmarkId::new("echo", nodes);
        group.bench_with_input(id, &body, |b, body| b.iter(|| echo(black_box(body))));
    }
    group.finish();
}

criterion_group!(benches, verbs);
criterion_main!(benches);

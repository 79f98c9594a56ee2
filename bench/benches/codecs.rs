//! What crosses Plimsoll's wires, written and read by its own code, and the same record by `serde_json` alone.
//!
//! The baseline of each record is a derived struct with the same fields, without our checks. Where our own way is
//! `serde_json` too, as for claims and GPUs, the difference is what the checks cost.

#![allow(clippy::expect_used, reason = "a benchmark fails by panicking")]

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::{Duration, SystemTime};

use api::claim::{Claim, Share};
use api::gpus::{Gpu, Gpus};
use api::pods::{NodePods, PodUse};
use bench::now;
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, criterion_group, criterion_main};
use jiff::Timestamp;
use node_exporter_plus::pods::{PodUid, PodUsage, PodUsages};
use node_exporter_plus::render;
use placement::gpu::GpuShare;
use placement::reading::{Reading, ReadingCodec};
use placement::units::{GpuId, MiB, Ratio, Units};
use scheduler_extender::http::Rejections;
use scheduler_extender::node_request;
use scheduler_extender::view::NodeNames;
use scheduler_extender::wire::{self, FilterResult, Reasons};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Pods on a node with 8 GPUs, and pods of a full node (the kubelet's own limit).
const GPU_PODS: usize = 40;
const PODS: usize = 110;

type Group<'a> = BenchmarkGroup<'a, WallTime>;

/// Measures one direction of a record: by our code, and by `serde_json` alone.
fn compare<A, B>(
    group: &mut Group<'_>,
    record: &str,
    direction: &str,
    ours: impl Fn() -> A,
    serde: impl Fn() -> B,
) {
    group.bench_function(BenchmarkId::new(record, format!("ours_{direction}")), |b| b.iter(&ours));
    group
        .bench_function(BenchmarkId::new(record, format!("serde_{direction}")), |b| b.iter(&serde));
}

fn gpu_id(index: usize) -> GpuId {
    GpuId::from(format!("GPU-{index:08x}-0000-0000-0000-000000000000"))
}

/// As the annotation `gpu-claim`, without the check that no name stands twice and without the longer form of a share.
#[derive(Serialize, Deserialize)]
#[serde(transparent)]
struct PlainClaim(BTreeMap<String, BTreeMap<String, u32>>);

fn claims(group: &mut Group<'_>) {
    for gpus in [1, 8] {
        let share = Share::new(GpuShare::of(Units(3)), None);
        let shares = (0..gpus).map(|index| (gpu_id(index), share)).collect();
        let claim = Claim { containers: [("main".to_owned(), shares)].into() };
        let text = claim.to_json();
        let plain: PlainClaim = serde_json::from_str(&text).expect("a claim");
        assert_eq!(serde_json::to_string(&plain).expect("text"), text);
        let record = format!("claim_{gpus}");
        let write = || serde_json::to_string(black_box(&plain));
        compare(group, &record, "encode", || black_box(&claim).to_json(), write);
        let read = || serde_json::from_str::<PlainClaim>(black_box(&text));
        compare(group, &record, "decode", || Claim::from_json(black_box(&text), gpus), read);
    }
}

/// GPU `index` of 8, with its part of the node's pods.
fn reported(index: usize) -> Gpu {
    let pods = (0..GPU_PODS).filter(|pod| pod % 8 == index);
    Gpu {
        uuid: gpu_id(index),
        index: index as u32,
        model: "NVIDIA A10".to_owned(),
        memory: MiB(24 * 1024),
        units: Units(24),
        numa_node: None,
        linked: Vec::new(),
        healthy: true,
        closed: None,
        isolation: None,
        mps_clients: None,
        mps_drain: None,
        outside_mps: Vec::new(),
        pods: pods.map(|pod| (bench::uid(pod), Units(4))).collect(),
    }
}

fn gpus(group: &mut Group<'_>) {
    let gpus = Gpus((0..8).map(reported).collect());
    let text = gpus.to_json();
    let write = || serde_json::to_string(black_box(&gpus));
    compare(group, "cards_8", "encode", || black_box(&gpus).to_json(), write);
    let read = || serde_json::from_str::<Gpus>(black_box(&text));
    compare(group, "cards_8", "decode", || Gpus::from_json(black_box(&text)), read);
}

/// A reading as JSON. Its annotation is crane's text, `0.63012,2026-11-20T09:00:00Z`.
#[derive(Serialize, Deserialize)]
struct PlainReading {
    value: f64,
    time: Timestamp,
}

fn readings(group: &mut Group<'_>) {
    let codec = ReadingCodec::default();
    let reading = Reading::new(Ratio::new(0.63012).expect("a fraction"), now());
    let text = codec.encode(&reading);
    let plain = PlainReading { value: reading.value.get(), time: reading.at };
    let json = serde_json::to_string(&plain).expect("text");
    let write = || serde_json::to_string(black_box(&plain));
    compare(group, "reading", "encode", || codec.encode(black_box(&reading)), write);
    let read = || serde_json::from_str::<PlainReading>(black_box(&json));
    compare(group, "reading", "decode", || codec.decode(black_box(&text)), read);
}

fn node_name(i: usize) -> String {
    format!("ip-10-{}-{}-{}.eu-central-1.compute.internal", i / 65536, i / 256 % 256, i % 256)
}

/// A request of Filter as kube-scheduler writes it, about a pod of ordinary size.
fn request(names: &[String]) -> String {
    let env: Vec<Value> = (0..20)
        .map(|i| json!({ "name": format!("SETTING_{i}"), "value": "a value of ordinary length" }))
        .collect();
    let container = json!({ "name": "web", "image": "registry.example/web:1", "env": env,
        "resources": { "requests": { "cpu": "500m", "memory": "1Gi" } } });
    let pod = json!({
        "metadata": { "name": "web-7d4b9c", "namespace": "shop", "uid": "6f9619ff-8b86-d011-b42d-00c04fc964ff",
            "creationTimestamp": "2026-11-20T09:00:00Z", "labels": { "app": "web" } },
        "spec": { "containers": [container], "schedulerName": "default-scheduler" },
        "status": { "phase": "Pending", "qosClass": "Burstable" },
    });
    format!("{{\"Pod\":{pod},\"Nodes\":null,\"NodeNames\":{}}}\n", json!(names))
}

const REASON: &str =
    "Load[cpu_shared_busy_avg_5m] is too high, over 0.65 (see: kubectl plimsoll explain pod)";

/// A request's names and pod, and Filter's answer that rejects every third node. Reading finds the place of each node
/// too, which `serde_json` alone does not.
fn calls(group: &mut Group<'_>) {
    for nodes in [100, 1_000, 5_000] {
        let names: Vec<String> = (0..nodes).map(node_name).collect();
        let known = NodeNames::new(names.iter().map(|name| Some(name.as_str().into())));
        let body = request(&names);
        let record = format!("call_{nodes}");
        let ours = || node_request::read(black_box(body.as_bytes()), &known).is_ok();
        let serde = || wire::read(black_box(body.as_bytes())).is_ok();
        compare(group, &record, "decode", ours, serde);

        let asked = node_request::read(body.as_bytes(), &known).expect("a request");
        let ours = || rejecting_thirds(nodes).answer(black_box(&asked.names));
        let serde = || serde_json::to_vec(&plain_answer(black_box(&names))).expect("an answer");
        assert_eq!(ours(), serde());
        compare(group, &format!("answer_{nodes}"), "encode", ours, serde);
    }
}

fn rejecting_thirds(nodes: usize) -> Rejections<'static> {
    let mut rejections = Rejections::default();
    (0..nodes).step_by(3).for_each(|position| rejections.add(position, "load", REASON));
    rejections
}

fn plain_answer(names: &[String]) -> FilterResult<'_> {
    let mut result = FilterResult::default();
    let mut passed = Vec::with_capacity(names.len());
    let mut failed = Vec::with_capacity(names.len() / 3 + 1);
    for (position, name) in names.iter().enumerate() {
        if position.is_multiple_of(3) {
            failed.push((name.as_str(), REASON));
        } else {
            passed.push(name.as_str());
        }
    }
    result.node_names = Some(passed);
    result.failed_and_unresolvable_nodes = Reasons(failed);
    result
}

/// An exporter's `/v1/pods`: written by the exporter, read by the annotator.
fn pods(group: &mut Group<'_>) {
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(now().as_second().unsigned_abs());
    let usage = |pod| PodUsage {
        uid: PodUid::of_folder(&format!("pod{}", bench::uid(pod))).expect("a pod's folder"),
        cpu: Some(Duration::from_micros(123_456_789 + pod as u64)),
        memory: Some(123_456_789),
    };
    let usages = PodUsages { pods: (0..PODS).map(usage).collect(), omitted: 0 };
    let text = render::pods(&usages, time);
    let plain = plain_pods();
    assert_eq!(NodePods::from_json(&text).as_ref(), Ok(&plain));
    let write = || serde_json::to_string(black_box(&plain));
    compare(group, "pods_110", "encode", || render::pods(black_box(&usages), time), write);
    let read = || serde_json::from_str::<NodePods>(black_box(&text));
    compare(group, "pods_110", "decode", || NodePods::from_json(black_box(&text)), read);
}

fn plain_pods() -> NodePods {
    let pod = |pod: usize| PodUse {
        uid: bench::uid(pod),
        cpu_seconds_total: Some(Duration::from_micros(123_456_789 + pod as u64).as_secs_f64()),
        memory_used_bytes: Some(123_456_789),
    };
    NodePods { time: now(), omitted: 0, pods: (0..PODS).map(pod).collect() }
}

fn codecs(c: &mut Criterion) {
    let mut group = c.benchmark_group("codecs");
    claims(&mut group);
    gpus(&mut group);
    readings(&mut group);
    calls(&mut group);
    pods(&mut group);
    group.finish();
}

criterion_group!(benches, codecs);
criterion_main!(benches);

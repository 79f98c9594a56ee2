//! The cluster that both are asked about: made-up nodes and pods, the same at every run.

use jiff::Timestamp;
use placement::reading::{Reading, ReadingCodec};
use placement::units::Ratio;
use serde_json::{Value, json};
use sim::Sim;

use crate::client::request;

/// Calls of a verb that are measured at once. Each is about another pod.
pub(super) const CALLS: usize = 64;

/// Workloads that the pods are of.
const WORKLOADS: usize = 8;

/// In which order a request names the nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// As kube-scheduler: in chunks of the square root of all, two of which are worked on at once.
    Workers,
    /// Always the same.
    Same,
    /// Another each time, without any order.
    Random,
}

/// How loaded the nodes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Load {
    /// All below the limits.
    Low,
    /// Every third is over one.
    ThirdOver,
}

/// Puts the nodes and bound pods into the API.
pub(super) fn fill(sim: &Sim, nodes: usize, load: Load, pods: usize) {
    let (codec, now) = (ReadingCodec::default(), Timestamp::now());
    let text = |percent: usize| {
        let value = Ratio::new(percent as f64 / 100.0);
        value.map(|value| codec.encode(&Reading::new(value, now))).unwrap_or_default()
    };
    for number in 0..nodes {
        let hot = load == Load::ThirdOver && number % 3 == 0;
        let percent = if hot { 95 } else { number * 37 % 60 };
        let node = sim::node(&name(number))
            .label("topology.kubernetes.io/zone", "eu-central-1a")
            .annotation("cpu_usage_avg_5m", text(percent))
            .annotation("mem_usage_avg_5m", text(number * 11 % 60));
        let mut node = Value::from(node);
        node["status"]["capacity"] = json!({ "cpu": "16", "memory": "65536Mi" });
        sim.put(node);
    }
    for number in 0..pods {
        let mut bound = pod(number, CALLS + number);
        bound["spec"]["nodeName"] = json!(name(number % nodes));
        bound["status"] = json!({ "phase": "Running", "startTime": "2026-11-20T09:00:00Z", "conditions": [
            { "type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-11-20T09:00:00Z" },
        ] });
        sim.put(bound);
    }
}

fn name(number: usize) -> String {
    let (high, low) = (number / 256, number % 256);
    format!("ip-10-{}-{high}-{low}.eu-central-1.compute.internal", high / 256)
}

/// A pod of ordinary size, as Go writes it.
fn pod(workload: usize, number: usize) -> Value {
    let env: Vec<Value> = (0..30)
        .map(|i| json!({ "name": format!("SETTING_{i}"), "value": "a value of ordinary length" }))
        .collect();
    let workload = workload % WORKLOADS;
    let requests = json!({ "cpu": format!("{}m", 100 + 100 * workload), "memory": "256Mi" });
    let app = format!("web-{workload}");
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": format!("{app}-7d4b9c-{number}"), "namespace": "shop",
            "uid": format!("6f9619ff-8b86-d011-b42d-{number:012x}"),
            "creationTimestamp": "2026-11-20T09:00:00Z", "labels": { "app": app, "pod-template-hash": "7d4b9c" },
            "managedFields": [{ "manager": "kube-controller-manager", "operation": "Update",
                "fieldsV1": { "f:metadata": { "f:labels": { ".": {}, "f:app": {} } }, "f:spec": { "f:containers": {} } } }],
            "ownerReferences": [{ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": format!("{app}-7d4b9c"),
                "controller": true, "uid": "0" }],
        },
        "spec": {
            "containers": [{ "name": "web", "image": "registry.example/web:1", "env": env,
                "resources": { "requests": requests } }],
            "schedulerName": "default-scheduler",
        },
        "status": { "phase": "Pending", "qosClass": "Burstable" },
    })
}

/// One request of `path` for each pod.
pub(super) fn requests(path: &str, nodes: usize, order: Order) -> Vec<Vec<u8>> {
    let mut random = Random(1);
    let of_pod = |number: usize| {
        let names: Vec<String> =
            in_order(nodes, order, &mut random).into_iter().map(name).collect();
        let pod = pod(number, number);
        let (pod, names) = (pod.to_string(), json!(names).to_string());
        request(
            path,
            format!("{{\"Pod\":{pod},\"Nodes\":null,\"NodeNames\":{names}}}\n").as_bytes(),
        )
    };
    (0..CALLS).map(of_pod).collect()
}

fn in_order(nodes: usize, order: Order, random: &mut Random) -> Vec<usize> {
    let mut all: Vec<usize> = (0..nodes).collect();
    match order {
        Order::Same => all,
        Order::Random => {
            (1..nodes).for_each(|last| all.swap(last, random.below(last + 1)));
            all
        }
        Order::Workers => {
            let chunk = (nodes as f64).sqrt() as usize + 1;
            let mut chunks = all.chunks(chunk);
            let mut workers = [chunks.next().unwrap_or(&[]), chunks.next().unwrap_or(&[])];
            let mut merged = Vec::with_capacity(nodes);
            while merged.len() < nodes {
                let worker = &mut workers[random.below(2)];
                if worker.is_empty() {
                    *worker = chunks.next().unwrap_or(&[]);
                }
                if let Some((first, rest)) = worker.split_first() {
                    merged.push(*first);
                    *worker = rest;
                }
            }
            merged
        }
    }
}

/// Numbers that are the same at every run (Knuth's linear congruence).
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}

//! The cluster that both are asked about: made-up nodes and pods, the same at every run.

use jiff::Timestamp;
use placement::reading::{Reading, ReadingCodec};
use placement::units::Ratio;
use serde_json::{Value, json};

use crate::Args;
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

/// What the API has.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cluster {
    pub(super) nodes: usize,
    pub(super) load: Load,
    /// Pods that run on them.
    pub(super) bound: usize,
    /// Whether each node has GPUs, and every tenth pod holds a part of one.
    pub(super) gpu: bool,
    /// ResourceClaims that hold a part of a GPU; where there are any, they have the GPUs.
    pub(super) claims: usize,
    /// Images in each Node's status.
    pub(super) images: usize,
}

impl Cluster {
    pub(super) fn new(args: &Args, nodes: usize, load: Load) -> Self {
        let Args { pods: bound, gpu, claims, .. } = *args;
        Self { nodes, load, bound, gpu, claims, images: 0 }
    }

    /// A node with readings that are another in each `round`.
    pub(super) fn node(&self, number: usize, round: usize, now: Timestamp) -> Value {
        let codec = ReadingCodec::default();
        let hot = self.load == Load::ThirdOver && number.is_multiple_of(3);
        let percent = if hot { 95 } else { (number * 37 + round) % 60 };
        let node = sim::node(&name(number))
            .label("topology.kubernetes.io/zone", "eu-central-1a")
            .annotation("cpu_shared_busy_avg_5m", reading(&codec, percent, now))
            .annotation("mem_usage_avg_5m", reading(&codec, (number * 11 + round) % 60, now));
        let node = match (self.gpu, self.claims) {
            (false, 0) => node,
            (by_units, _) => {
                node.annotation("plimsoll.dev/gpu-cards", gpus(number, !by_units).to_string())
            }
        };
        let mut node = Value::from(node);
        node["metadata"]["resourceVersion"] = json!("1");
        if self.images > 0 {
            node["status"]["images"] = bench::images(self.images);
        }
        node["status"]["capacity"] = json!({ "cpu": "16", "memory": "65536Mi" });
        node
    }

    /// A claim: those that hold a part of a GPU, and then one that waits.
    pub(super) fn claim(&self, number: usize) -> Value {
        let memory = json!({ "memory": "1536Mi" });
        let exactly = json!({ "deviceClassName": "gpu-share.plimsoll.dev", "allocationMode": "ExactCount", "count": 1,
            "capacity": { "requests": memory } });
        let node = number % self.nodes;
        let device = uuid(node, number / self.nodes % GPUS).to_lowercase();
        let result = json!({ "request": "gpu", "driver": "gpu.plimsoll.dev", "pool": name(node), "device": device,
            "shareID": format!("6f9619ff-8b86-4011-b42d-{number:012x}"), "consumedCapacity": memory });
        let uid = format!("6f9619ff-8b86-d011-b42d-{number:012x}");
        let status = json!({
            "allocation": { "devices": { "results": [result] } },
            "reservedFor": [{ "resource": "pods", "name": format!("web-{number}"), "uid": uid }],
        });
        json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": { "name": format!("web-{number}-gpu"), "namespace": "shop", "uid": uid, "resourceVersion": "1" },
            "spec": { "devices": { "requests": [{ "name": "gpu", "exactly": exactly }] } },
            "status": if number < self.claims { status } else { json!({}) },
        })
    }

    /// A pod to be placed.
    fn pod(&self, number: usize) -> Value {
        let mut pod = pod(number, number, self.gpu);
        if self.claims > 0 {
            let claim = format!("web-{}-gpu", self.claims);
            pod["spec"]["resourceClaims"] = json!([{ "name": "gpu", "resourceClaimName": claim }]);
        }
        pod
    }

    /// A pod that has been running for long.
    pub(super) fn bound_pod(&self, number: usize) -> Value {
        const LONG_AGO: &str = "2026-11-20T09:00:00Z";
        let node = number % self.nodes;
        let gpu = self.gpu && number.is_multiple_of(10);
        let mut pod = pod(number, CALLS + number, gpu);
        if gpu {
            let gpu = json!({ "web": { uuid(node, number / self.nodes % GPUS): 2 } });
            pod["metadata"]["annotations"] = json!({ "plimsoll.dev/gpu-claim": gpu.to_string() });
        }
        pod["metadata"]["resourceVersion"] = json!("1");
        pod["spec"]["nodeName"] = json!(name(node));
        pod["status"] = json!({ "phase": "Running", "startTime": LONG_AGO, "conditions": [
            { "type": "PodScheduled", "status": "True", "lastTransitionTime": LONG_AGO },
        ] });
        pod
    }
}

/// GPUs of a node.
const GPUS: usize = 8;

fn reading(codec: &ReadingCodec, percent: usize, now: Timestamp) -> String {
    let value = Ratio::new(percent as f64 / 100.0);
    value.map(|value| codec.encode(&Reading::new(value, now))).unwrap_or_default()
}

fn gpus(node: usize, by_claims: bool) -> Value {
    (0..GPUS).map(|index| reported_gpu(node, index, by_claims)).collect()
}

fn reported_gpu(node: usize, index: usize, by_claims: bool) -> Value {
    let mut gpu = json!({
        "uuid": uuid(node, index), "index": index, "model": "NVIDIA A10", "memoryMiB": 16384,
        "units": 16, "healthy": true, "pods": {},
    });
    if by_claims {
        gpu["closed"] = json!("claims");
    }
    gpu
}

fn uuid(node: usize, index: usize) -> String {
    format!("GPU-{node:08x}-{index:04x}-0000-0000-000000000000")
}

pub(super) fn name(number: usize) -> String {
    let high = number / 256;
    let low = number % 256;
    format!("ip-10-{}-{high}-{low}.eu-central-1.compute.internal", high / 256)
}

/// A pod of ordinary size, as Go writes it; with `gpu` it asks for two units of a GPU.
fn pod(workload: usize, number: usize, gpu: bool) -> Value {
    let env: Vec<Value> = (0..30)
        .map(|i| json!({ "name": format!("SETTING_{i}"), "value": "a value of ordinary length" }))
        .collect();
    let workload = workload % WORKLOADS;
    let requests = json!({ "cpu": format!("{}m", 100 + 100 * workload), "memory": "256Mi" });
    let limits = if gpu { json!({ "aliyun.com/gpu-mem": "2" }) } else { json!({}) };
    let app = format!("web-{workload}");
    // What the API server keeps of who has set which field is as long as the pod.
    let mut fields = serde_json::Map::new();
    for i in 0..30 {
        let key = format!("k:{{\"name\":\"SETTING_{i}\"}}");
        fields.insert(key, json!({ ".": {}, "f:name": {}, "f:value": {} }));
    }
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": format!("{app}-7d4b9c-{number}"), "namespace": "shop",
            "uid": format!("6f9619ff-8b86-d011-b42d-{number:012x}"),
            "creationTimestamp": "2026-11-20T09:00:00Z", "labels": { "app": app, "pod-template-hash": "7d4b9c" },
            "managedFields": [{ "manager": "kube-controller-manager", "operation": "Update",
                "fieldsV1": { "f:metadata": { "f:labels": { ".": {}, "f:app": {} } }, "f:spec": { "f:containers": fields } } }],
            "ownerReferences": [{ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": format!("{app}-7d4b9c"),
                "controller": true, "uid": "0" }],
        },
        "spec": {
            "containers": [{ "name": "web", "image": "registry.example/web:1", "env": env,
                "resources": { "requests": requests, "limits": limits } }],
            "schedulerName": "default-scheduler",
        },
        "status": { "phase": "Pending", "qosClass": "Burstable" },
    })
}

/// One request of `path` for each pod.
pub(super) fn requests(path: &str, cluster: &Cluster, order: Order) -> Vec<Vec<u8>> {
    let mut random = Random(1);
    (0..CALLS)
        .map(|number| {
            let names = in_order(cluster.nodes, order, &mut random);
            request_for(path, &cluster.pod(number), names)
        })
        .collect()
}

/// A request of `path` for a pod that no other request is about, with all names.
pub(super) fn request_of(path: &str, cluster: &Cluster, number: usize) -> Vec<u8> {
    let pod = pod(number, CALLS + cluster.bound + number, false);
    request_for(path, &pod, (0..cluster.nodes).collect())
}

/// What kube-scheduler asks about a GPU pod that GPUs are for, in this order.
pub(super) fn requests_of_try(cluster: &Cluster, number: usize) -> Vec<Vec<u8>> {
    let pod = pod(number, CALLS + cluster.bound + number, true);
    let filters = ["/load-aware/filter", "/gpushare-scheduler/filter"];
    let paths =
        filters.into_iter().chain(["/load-aware/prioritize", "/gpushare-scheduler/prioritize"]);
    paths.map(|path| request_for(path, &pod, (0..cluster.nodes).collect())).collect()
}

fn request_for(path: &str, pod: &Value, nodes: Vec<usize>) -> Vec<u8> {
    let names: Vec<String> = nodes.into_iter().map(name).collect();
    let names = json!(names);
    request(path, format!("{{\"Pod\":{pod},\"Nodes\":null,\"NodeNames\":{names}}}\n").as_bytes())
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

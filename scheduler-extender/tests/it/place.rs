//! Where a pod counts, whatever its annotations say: on two GPUs of 16 units, a pod of 4.

use std::collections::HashSet;

use cluster::{Event, PodFacts};
use jiff::Timestamp;
use placement::names::Names;
use placement::reading::ReadingCodec;
use placement::units::NodeName;
use scheduler_extender::view::{GpuPodId, PodUse, View, WatchedPod};
use serde_json::{Value, json};

use crate::rig::{GPU, empty_view};

struct Cluster {
    view: View,
    now: Timestamp,
}

impl Cluster {
    /// Node `n1` with the GPUs `GPU-0` and `GPU-1`, and no pods.
    fn new() -> Self {
        let view = empty_view();
        let cluster = Self { view, now: Timestamp::now() };
        cluster.report([json!({}), json!({})]);
        cluster
    }

    /// The device plugin reports the pods on each GPU.
    fn report(&self, pods: [Value; 2]) {
        let gpu = |(index, pods): (usize, Value)| {
            json!({
                "uuid": format!("GPU-{index}"), "index": index, "model": "NVIDIA A10",
                "memoryMiB": 16384, "units": 16, "healthy": true, "pods": pods,
            })
        };
        let gpus: Vec<Value> = pods.into_iter().enumerate().map(gpu).collect();
        let annotations = json!({ "plimsoll.dev/gpu-cards": Value::from(gpus).to_string() });
        let node = json!({ "metadata": { "name": "n1", "annotations": annotations } });
        let node: cluster::Node = serde_json::from_value(node).unwrap();
        let facts = node.facts(&Names::default(), &ReadingCodec::default());
        self.view.apply_nodes(Event::Applied(facts), self.now);
    }

    /// Bind chooses `GPU-0` for the pod.
    fn reserve(&self) {
        let id = GpuPodId { uid: "a".into(), namespace: "ml".to_owned(), name: "a".to_owned() };
        let request = pod(&json!({})).gpu.unwrap().unwrap().request;
        self.view
            .change(|index| {
                index.reserve(&id, &request, &NodeName::from("n1"), &self.view.choice_rule())
            })
            .unwrap();
        assert_eq!(self.charged(), [4, 0]);
    }

    /// The watch shows the pod bound, with these annotations.
    fn show(&self, annotations: &Value) {
        let event = Event::Applied(WatchedPod::Gpu(Box::new(pod(annotations)), PodUse::default()));
        let none = self.view.apply_pods(event, &mut HashSet::new(), self.now);
        assert_eq!(none, []);
    }

    /// Units of each GPU that are not free.
    fn charged(&self) -> [u32; 2] {
        let index = self.view.read();
        let gpus = index.gpus("n1").unwrap();
        [0, 1].map(|gpu: usize| {
            let gpu = &gpus.accounts()[gpu].gpu;
            gpu.units.0 - gpu.free.0
        })
    }
}

fn pod(annotations: &Value) -> PodFacts {
    let pod = json!({
        "metadata": { "name": "a", "namespace": "ml", "uid": "a", "annotations": annotations },
        "spec": { "nodeName": "n1", "containers": [
            { "name": "c", "resources": { "limits": { GPU: "4" } } },
        ]},
    });
    let pod: cluster::Pod = serde_json::from_value(pod).unwrap();
    pod.facts(&Names::default())
}

fn claim(gpu: &str) -> Value {
    json!({ "plimsoll.dev/gpu-claim": json!({ "c": { gpu: 4 } }).to_string() })
}

#[test]
fn a_claim_edited_after_bind_does_not_empty_the_chosen_gpu() {
    let cluster = Cluster::new();
    cluster.reserve();
    cluster.show(&claim("GPU-0"));
    // The device plugin would go by it, so it counts too.
    cluster.show(&claim("GPU-1"));
    assert_eq!(cluster.charged(), [4, 4]);
    // Nor does its being put back: the device plugin may have read the other.
    cluster.show(&claim("GPU-0"));
    assert_eq!(cluster.charged(), [4, 4]);
    cluster.report([json!({ "a": 4 }), json!({})]);
    assert_eq!(cluster.charged(), [4, 0]);
}

#[test]
fn a_claim_removed_after_bind_does_not_empty_the_chosen_gpu() {
    let cluster = Cluster::new();
    cluster.reserve();
    cluster.show(&json!({ "ALIYUN_COM_GPU_MEM_IDX": "1" }));
    assert_eq!(cluster.charged(), [4, 0]);
    cluster.show(&json!({ "plimsoll.dev/gpu-claim": "{}", "ALIYUN_COM_GPU_MEM_IDX": "1" }));
    assert_eq!(cluster.charged(), [4, 0]);
}

#[test]
fn aliyuns_index_is_believed_nowhere() {
    let cluster = Cluster::new();
    cluster.show(&json!({ "ALIYUN_COM_GPU_MEM_IDX": "0" }));
    // Without a claim it is on no GPU until it is admitted.
    assert_eq!(cluster.charged(), [0, 0]);
    cluster.report([json!({}), json!({ "a": 4 })]);
    assert_eq!(cluster.charged(), [0, 4]);
}

#[test]
fn a_gpu_that_the_node_lacks_is_an_unknown_place() {
    let cluster = Cluster::new();
    cluster.show(&claim("GPU-9"));
    assert_eq!(cluster.charged(), [4, 4]);
}

#[test]
fn after_a_restart_a_claim_alone_empties_no_gpu() {
    // Bind, in the process before this one, may have chosen another GPU than the claim names by now.
    let cluster = Cluster::new();
    cluster.show(&claim("GPU-1"));
    assert_eq!(cluster.charged(), [4, 4]);
    cluster.report([json!({}), json!({ "a": 4 })]);
    assert_eq!(cluster.charged(), [0, 4]);
}

#[test]
fn what_the_kubelet_recorded_counts_when_the_record_is_gone() {
    let cluster = Cluster::new();
    cluster.show(&claim("GPU-0"));
    cluster.report([json!({ "a": 4 }), json!({})]);
    // The device plugin restarts: the kubelet lists no init container to it.
    cluster.report([json!({}), json!({})]);
    assert_eq!(cluster.charged(), [4, 0]);
    cluster.show(&claim("GPU-1"));
    assert_eq!(cluster.charged(), [4, 0]);
}

#[test]
fn a_pod_on_another_gpu_than_its_claims_counts_there_alone() {
    let cluster = Cluster::new();
    cluster.reserve();
    cluster.show(&claim("GPU-0"));
    cluster.report([json!({}), json!({ "a": 4 })]);
    assert_eq!(cluster.charged(), [0, 4]);
    cluster.show(&claim("GPU-1"));
    assert_eq!(cluster.charged(), [0, 4]);
}

//! The eviction of pods with a process outside of MPS, as their node's device plugin reports them.

use serde_json::{Value, json};
use sim::{NODES, PODS, Sim, Verb, WRITTEN_EVENTS, pod};

use crate::rig::{GPU, Rig, gpu_node};

/// A node's report of one GPU with these pods outside of MPS.
fn report(sim: &Sim, node: &str, outside: &[&Value]) {
    let gpu = json!({
        "uuid": format!("GPU-{node}"), "index": 0, "model": "NVIDIA A10", "memoryMiB": 16384,
        "units": 16, "healthy": true, "pods": {}, "isolation": "mps", "mpsClients": 48,
        "mpsDrain": true, "outsideMps": outside,
    });
    sim.change(NODES, "", node, |node| {
        node["metadata"]["annotations"]["plimsoll.dev/gpu-cards"] = json!([gpu]).to_string().into();
    });
}

/// An extender with these flags, and two pods on each of two nodes, by UID.
async fn cluster(sim: &Sim, flags: &[&str]) -> (Rig, Vec<Value>) {
    for node in ["a", "b"] {
        sim.put(gpu_node(node, 1));
        report(sim, node, &[]);
    }
    let rig = Rig::start_with(sim, flags).await;
    let mut uids = Vec::new();
    for (name, node) in [("a-0", "a"), ("a-1", "a"), ("b-0", "b"), ("b-1", "b")] {
        let asks =
            sim.put(pod(name).annotation("plimsoll.dev/gpu-isolation", "mps").asking(GPU, 2));
        assert_eq!(rig.bind(&asks, node).await, "");
        sim.change(PODS, "default", name, |pod| pod["status"]["phase"] = "Running".into());
        uids.push(asks["metadata"]["uid"].clone());
    }
    rig.until("the pods", async || rig.used().await == 8).await;
    (rig, uids)
}

fn evicted(sim: &Sim) -> Vec<String> {
    sim.log().of(Verb::Evict, PODS).into_iter().map(|eviction| eviction.name).collect()
}

#[tokio::test]
async fn a_pod_is_evicted_by_the_report_of_its_own_node_alone() {
    let sim = Sim::start().await.unwrap();
    let (rig, uids) = cluster(&sim, &["--evict-outside-mps"]).await;
    // Both pods of the other node, and one that no node has.
    report(&sim, "b", &[&uids[0], &uids[1], &json!("no-such-pod"), &uids[2]]);
    rig.until("the eviction", async || !evicted(&sim).is_empty()).await;
    assert_eq!(evicted(&sim), ["b-0"]);
    let event = sim.until("the event", |sim| {
        sim.list(WRITTEN_EVENTS).into_iter().find(|event| event["reason"] == "EvictedOutsideMPS")
    });
    assert_eq!(event.await.unwrap()["regarding"]["name"], "b-0");
    // The next of that node has to wait, and one of another node has not.
    report(&sim, "b", &[&uids[3]]);
    report(&sim, "a", &[&uids[1]]);
    rig.until("the second", async || evicted(&sim).len() > 1).await;
    assert_eq!(evicted(&sim), ["b-0", "a-1"]);
}

#[tokio::test]
async fn a_refused_eviction_keeps_no_other_pod_of_the_node_waiting() {
    let sim = Sim::start().await.unwrap();
    let (rig, uids) = cluster(&sim, &["--evict-outside-mps"]).await;
    sim.change(PODS, "default", "a-0", |pod| pod["metadata"]["labels"]["app"] = "kept".into());
    sim.put(json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": { "name": "kept", "namespace": "default" },
        "spec": { "selector": { "matchLabels": { "app": "kept" } } },
        "status": { "disruptionsAllowed": 0 },
    }));
    report(&sim, "a", &[&uids[0]]);
    rig.until("a refusal", async || evicted(&sim) == ["a-0"]).await;
    assert!(sim.pod("default", "a-0").is_some(), "its budget keeps it");
    report(&sim, "a", &[&uids[0], &uids[1]]);
    rig.until("the eviction", async || sim.pod("default", "a-1").is_none()).await;
}

#[tokio::test]
async fn a_static_pod_and_one_whose_end_may_end_others_stay() {
    let sim = Sim::start().await.unwrap();
    let (rig, uids) = cluster(&sim, &["--evict-outside-mps"]).await;
    sim.change(PODS, "default", "b-0", |pod| {
        pod["metadata"]["ownerReferences"] =
            json!([{"apiVersion": "v1", "kind": "Node", "name": "b", "uid": "b", "controller": true}]);
    });
    sim.change(NODES, "", "a", |node| {
        let gpus = node["metadata"]["annotations"]["plimsoll.dev/gpu-cards"].as_str().unwrap();
        let mut gpus: Value = serde_json::from_str(gpus).unwrap();
        gpus[0]["mpsDrain"] = false.into();
        gpus[0]["outsideMps"] = json!([uids[0], uids[1]]);
        node["metadata"]["annotations"]["plimsoll.dev/gpu-cards"] = gpus.to_string().into();
    });
    report(&sim, "b", &[&uids[2], &uids[3]]);
    rig.until("the other pod of the node", async || !evicted(&sim).is_empty()).await;
    assert_eq!(evicted(&sim), ["b-1"]);
}

#[tokio::test]
async fn nothing_is_evicted_unless_that_is_set() {
    let sim = Sim::start().await.unwrap();
    let (rig, uids) = cluster(&sim, &[]).await;
    let (set_sim, set) = (Sim::start().await.unwrap(), ["--evict-outside-mps"]);
    let (set_rig, set_uids) = cluster(&set_sim, &set).await;
    report(&sim, "a", &[&uids[0]]);
    report(&set_sim, "a", &[&set_uids[0]]);
    set_rig.until("its eviction where it is set", async || !evicted(&set_sim).is_empty()).await;
    assert_eq!(evicted(&sim), [""; 0]);
    drop(rig);
}

//! Nodes where devices of a DRA driver serve the GPU resource: each of their units may be on another GPU, so no pod
//! goes there.

use serde_json::{Value, json};
use sim::{PODS, Sim, node};

use crate::rig::{GPU, Rig, gpu_node, gpu_pod};

/// `gpus` has a GPU of 16 units, `dra` devices of a driver, `elsewhere` another device plugin.
async fn cluster() -> (Sim, Rig) {
    let sim = Sim::start().await.unwrap();
    sim.put(gpu_node("cards", 1).with(GPU, 16));
    sim.put(node("dra"));
    sim.put(node("elsewhere").with(GPU, 16));
    let rig = Rig::start(&sim).await;
    (sim, rig)
}

#[tokio::test]
async fn a_node_that_reports_no_gpus_is_rejected_whatever_serves_the_resource_there() {
    let (sim, rig) = cluster().await;
    let names = ["cards", "dra", "elsewhere", "unknown"];
    let filtered = rig.filter("/gpushare-scheduler", &gpu_pod(&sim, "train", 4), &names).await;
    assert_eq!(filtered["NodeNames"], json!(["cards"]));
    let reasons = &filtered["FailedAndUnresolvableNodes"];
    for node in &names[1..] {
        let reason = reasons[node].as_str().unwrap();
        assert!(reason.starts_with("node reports no GPUs"), "{reason}");
    }
}

#[tokio::test]
async fn no_pod_is_bound_where_a_dra_driver_serves_the_resource() {
    let (sim, rig) = cluster().await;
    let train = gpu_pod(&sim, "train", 4);
    // What kube-scheduler writes before it has such a pod bound.
    sim.change(PODS, "default", "train", |pod| {
        pod["status"]["extendedResourceClaimStatus"] = json!({
            "resourceClaimName": "claim",
            "requestMappings": [{ "containerName": "main", "resourceName": GPU, "requestName": "r" }],
        });
    });
    assert!(rig.bind(&train, "dra").await.contains("no GPUs"));
    assert_eq!(sim.pod("default", "train").unwrap()["spec"]["nodeName"], Value::Null);
    assert!(sim.log().bindings().is_empty());
}

#[tokio::test]
async fn preemption_evicts_no_pod_on_a_node_without_gpus() {
    let (sim, rig) = cluster().await;
    let victims = json!({ "Pods": [{ "UID": "gone" }], "NumPDBViolations": 0 });
    let asked = json!({ "Pod": gpu_pod(&sim, "train", 4), "NodeNameToMetaVictims": {
        "dra": victims, "elsewhere": victims, "unknown": victims,
    } });
    let answer = rig.post("/gpushare-scheduler/preempt", &asked).await;
    assert_eq!(answer["NodeNameToMetaVictims"], json!({}));
}

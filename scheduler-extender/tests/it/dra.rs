//! Nodes where devices of a DRA driver serve the GPU resource: they report no cards, and pods are bound there without a claim.

use serde_json::{Value, json};
use sim::{Fault, PODS, Sim, node, pod};

use crate::rig::{GPU, Rig, annotation, gpu_node, gpu_pod};

/// `cards` has a card of 16 units, `dra` devices of a driver, `elsewhere` another device plugin.
async fn cluster() -> (Sim, Rig) {
    let sim = Sim::start().await.unwrap();
    sim.put(gpu_node("cards", 1).with(GPU, 16));
    sim.put(node("dra"));
    sim.put(node("elsewhere").with(GPU, 16));
    let rig = Rig::start(&sim).await;
    (sim, rig)
}

/// What kube-scheduler writes before it has a pod bound whose resource a DRA driver serves.
fn serve(sim: &Sim, pod: &str, containers: &[&str]) {
    let by_dra = |container: &&str| json!({ "containerName": container, "resourceName": GPU, "requestName": "container-0-request-0" });
    let mappings: Vec<Value> = containers.iter().map(by_dra).collect();
    let claim = json!({ "resourceClaimName": "claim", "requestMappings": mappings });
    sim.change(PODS, "default", pod, |pod| {
        pod["status"]["extendedResourceClaimStatus"] = claim;
    });
}

fn node_of(sim: &Sim, name: &str) -> Value {
    sim.pod("default", name).unwrap()["spec"]["nodeName"].clone()
}

#[tokio::test]
async fn a_node_without_cards_and_without_a_plugins_units_passes_and_another_plugins_does_not() {
    let (sim, rig) = cluster().await;
    let names = ["cards", "dra", "elsewhere", "unknown"];
    let filtered = rig.filter("/gpushare-scheduler", &gpu_pod(&sim, "train", 4), &names).await;
    assert_eq!(filtered["NodeNames"], json!(["cards", "dra"]));
    let full = rig.filter("/gpushare-scheduler", &gpu_pod(&sim, "large", 17), &names).await;
    assert_eq!(full["NodeNames"], json!(["dra"]));
    // Its own reports come and go with the watch.
    sim.change(sim::NODES, "", "elsewhere", |node| node["status"]["allocatable"] = json!({}));
    let pod = gpu_pod(&sim, "other", 4);
    rig.until("the watch", async || {
        let filtered = rig.filter("/gpushare-scheduler", &pod, &["elsewhere"]).await;
        filtered["NodeNames"] == json!(["elsewhere"])
    })
    .await;
}

#[tokio::test]
async fn a_pod_that_a_dra_driver_serves_is_bound_without_a_claim() {
    let (sim, rig) = cluster().await;
    let train = gpu_pod(&sim, "train", 4);
    serve(&sim, "train", &["main"]);
    assert_eq!(rig.bind(&train, "dra").await, "");
    assert_eq!(node_of(&sim, "train"), "dra");
    assert_eq!(annotation(&sim, &train, "plimsoll.dev/gpu-claim"), "");
    assert_eq!(sim.log().bindings().len(), 1);
    // As kube-scheduler asks again whose answer was lost: also once the watch has shown the pod there.
    assert_eq!(rig.bind(&train, "dra").await, "");
    assert_eq!(sim.log().bindings().len(), 1);
    assert_eq!(rig.used().await, 0);
}

#[tokio::test]
async fn a_lost_reply_for_a_pod_that_a_dra_driver_serves_counts_as_success() {
    let (sim, rig) = cluster().await;
    let train = gpu_pod(&sim, "train", 4);
    serve(&sim, "train", &["main"]);
    sim.faults().next_bindings(1, Fault::DropReply);
    assert_eq!(rig.bind(&train, "dra").await, "");
    assert_eq!(sim.log().bindings().len(), 1);
}

#[tokio::test]
async fn a_pod_that_no_dra_driver_serves_in_full_is_not_bound_to_a_node_without_cards() {
    let (sim, rig) = cluster().await;
    let plain = gpu_pod(&sim, "plain", 4);
    assert!(rig.bind(&plain, "dra").await.contains("no GPU cards"));
    let half = sim.put(pod("half").container("a", GPU, 2).container("b", GPU, 2));
    serve(&sim, "half", &["a"]);
    assert!(rig.bind(&half, "dra").await.contains("no GPU cards"));
    // On a node with cards, what a pod's status says takes nothing from the ledger.
    let served = gpu_pod(&sim, "served", 12);
    serve(&sim, "served", &["main"]);
    assert_eq!(rig.bind(&served, "cards").await, "");
    assert_ne!(annotation(&sim, &served, "plimsoll.dev/gpu-claim"), "");
    assert_eq!(rig.used().await, 12);
    assert!(sim.log().bindings().len() == 1);
}

#[tokio::test]
async fn preemption_keeps_the_victims_of_a_node_that_a_dra_driver_serves() {
    let (sim, rig) = cluster().await;
    let victims = json!({ "Pods": [{ "UID": "gone" }], "NumPDBViolations": 0 });
    let asked = json!({ "Pod": gpu_pod(&sim, "train", 4), "NodeNameToMetaVictims": {
        "dra": victims, "elsewhere": victims, "unknown": victims,
    } });
    let answer = rig.post("/gpushare-scheduler/preempt", &asked).await;
    assert_eq!(answer["NodeNameToMetaVictims"], json!({ "dra": victims }));
}

//! ResourceClaims of the device plugin's driver: from the API server to what is shown and decided.

use api::node::{AllGpus, Charge};
use api::state::State;
use placement::gpu::Basis;
use serde_json::{Value, json};
use sim::{RESOURCE_CLAIMS, Sim, node};

use crate::rig::{GPU, Rig, gpu_node, gpu_pod};

/// A claim to which so much of the node's first GPU is allocated.
fn claim(name: &str, node: &str, memory: &str) -> Value {
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": { "name": name, "namespace": "ml", "uid": format!("uid-of-{name}") },
        "spec": { "devices": { "requests": [
            { "name": "gpu", "exactly": { "deviceClassName": "gpu-share.plimsoll.dev" } },
        ] } },
        "status": {
            "reservedFor": [{ "resource": "pods", "name": "p", "uid": "uid-of-p" }],
            "allocation": { "devices": { "results": [
                {
                    "request": "gpu", "driver": "gpu.plimsoll.dev", "pool": node,
                    "device": format!("gpu-{node}-0"),
                    "consumedCapacity": { "memory": memory, "cores": "30" },
                },
                { "request": "nic", "driver": "nic.example.com", "pool": node, "device": "eth1" },
            ] } },
        },
    })
}

async fn cards(rig: &Rig) -> AllGpus {
    serde_json::from_str(&rig.get("/v1/cards").await).unwrap()
}

#[tokio::test]
async fn a_claim_takes_room_from_its_allocation_to_its_end_and_is_shown() {
    let sim = Sim::start().await.unwrap();
    sim.put(gpu_node("a", 1).with(GPU, 16));
    sim.put(claim("before", "a", "6000Mi"));
    let rig = Rig::start_with(&sim, &["--claims"]).await;
    // It was listed before the extender was ready.
    assert_eq!(rig.used().await, 6);
    sim.put(claim("share", "a", "4Gi"));
    rig.until("the allocation", async || rig.used().await == 10).await;

    let shown = &cards(&rig).await.nodes[0].gpus[0];
    assert_eq!((shown.free, shown.free_cores), (6, 40));
    let of_before = Charge {
        namespace: "ml".to_owned(),
        name: "before".to_owned(),
        resource_claim: true,
        units: 6,
        memory: Some(6000),
        cores: 30,
        basis: Basis::ResourceClaim,
    };
    assert_eq!(shown.charges[0], of_before);
    let inspected = &rig.inspect().await["nodes"][0]["devs"][0];
    assert_eq!(inspected["pods"][1]["name"], "share");
    let state: State = serde_json::from_str(&rig.get("/v1/state").await).unwrap();
    assert_eq!(state.gpus.held, [10]);

    let large = gpu_pod(&sim, "large", 7);
    assert!(rig.filter("/gpushare-scheduler", &large, &["a"]).await["NodeNames"] == json!([]));
    sim.change(RESOURCE_CLAIMS, "ml", "share", |claim| {
        claim["status"].as_object_mut().unwrap().remove("allocation");
    });
    rig.until("the deallocation", async || rig.used().await == 6).await;
    assert_eq!(rig.bind(&large, "a").await, "");
    sim.delete(RESOURCE_CLAIMS, "ml", "before");
    rig.until("the end", async || rig.used().await == 7).await;
}

#[tokio::test]
async fn without_the_flag_no_claim_is_read() {
    let sim = Sim::start().await.unwrap();
    sim.put(gpu_node("a", 1));
    sim.put(node("b"));
    sim.put(claim("share", "a", "4Gi"));
    let rig = Rig::start(&sim).await;
    assert_eq!(rig.used().await, 0);
    assert!(!rig.get_status("/v1/cards").await.1.contains("resource-claim"));
}

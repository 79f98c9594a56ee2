//! GPUs that a driver of dynamic resource allocation offers as well, or has given out.

use kubelet_api::podresources::{ClaimResource, DynamicResource};
use serde_json::{Value, json};
use sim::{Failure, Fault, NODES, PODS, RESOURCE_SLICES, Verb, WRITTEN_EVENTS, pod};

use crate::rig::{A, B, C, NODE, RESOURCE, Rig, spec};

const NVIDIA: &str = "gpu.nvidia.com";
const GPUS: &str = "plimsoll.dev/gpu-cards";

/// A slice of a node with these devices, each with its attributes that are texts.
fn slice(node: &str, driver: &str, devices: &[(&str, &[(&str, &str)])]) -> Value {
    let mut listed = Vec::new();
    for (name, attributes) in devices {
        let mut texts = json!({"minor": {"int": 0}});
        for (key, text) in *attributes {
            texts[key] = json!({"string": text});
        }
        listed.push(json!({"name": name, "attributes": texts}));
    }
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
        "metadata": {"name": format!("{node}-{driver}")},
        "spec": {
            "driver": driver, "nodeName": node, "devices": listed,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        },
    })
}

/// NVIDIA's slice with GPU A.
fn with_a() -> Value {
    slice(NODE, NVIDIA, &[("gpu-0", &[("type", "gpu"), ("uuid", A)])])
}

/// A node whose GPUs take pods.
async fn open_rig(gpus: &[(&str, u64)]) -> Rig {
    let rig = Rig::new(gpus).await;
    rig.nvidia_gpus(&gpus.iter().map(|(uuid, _)| *uuid).collect::<Vec<_>>());
    let all_open = |gpus: &Value| gpus.as_array().unwrap().iter().all(is_open);
    rig.open_gpus("open GPUs", all_open).await;
    rig
}

fn is_open(gpu: &Value) -> bool {
    gpu["closed"].is_null()
}

fn forget(rig: &Rig, driver: &str) {
    rig.sim.delete(RESOURCE_SLICES, "", &format!("{NODE}-{driver}"));
}

/// The reasons why GPUs are closed, in every report on the node since the log was cleared.
fn reported(rig: &Rig) -> Vec<Vec<Value>> {
    let mut all = Vec::new();
    for request in rig.sim.log().of(Verb::Patch, NODES) {
        let Some(text) = request.body["metadata"]["annotations"][GPUS].as_str() else { continue };
        let gpus: Vec<Value> = serde_json::from_str(text).unwrap();
        all.push(gpus.into_iter().map(|gpu| gpu["closed"].clone()).collect());
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gpu_that_a_dra_driver_offers_is_closed_with_an_event() {
    let rig = open_rig(&[(A, 4), (B, 4), (C, 4)]).await;
    rig.run(pod("before").uid("uid-before").asking(RESOURCE, 1), A).await.unwrap();
    // A GPU, and a part of another one.
    let part: &[_] = &[("uuid", "MIG-1"), ("parentUUID", B)];
    rig.sim.put(slice(NODE, NVIDIA, &[("gpu-0", &[("uuid", A)]), ("gpu-1-mig-19", part)]));
    let closed = |gpus: &Value| [0, 1, 2].map(|at| gpus[at]["closed"].clone());
    let both = rig.gpus("closed GPUs", |gpus| gpus[0]["closed"] == "dra").await;
    assert_eq!(closed(&both), [json!("dra"), json!("dra"), Value::Null]);
    assert_eq!(both[0]["pods"]["uid-before"], 1, "what a pod holds stays its own");
    let told = rig.event("GPUCardOfferedByDRA").await;
    let note = told["note"].as_str().unwrap();
    for part in [NVIDIA, A, B, "resources.gpus.enabled=false", "gpushare=false"] {
        assert!(note.contains(part), "{note}");
    }
    assert!(!note.contains(C) && told["regarding"]["name"] == NODE, "{told}");
    // Bound before the extender saw that.
    let refused = rig.run(pod("early").asking(RESOURCE, 2), A).await.unwrap_err();
    assert!(refused.0.contains("the DRA driver gpu.nvidia.com offers as well"), "{}", refused.0);
    rig.run(pod("beside").asking(RESOURCE, 2), C).await.unwrap();
    forget(&rig, NVIDIA);
    rig.gpus("open GPUs", |gpus| closed(gpus) == [Value::Null, Value::Null, Value::Null]).await;
    rig.run(pod("later").asking(RESOURCE, 2), A).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn drivers_of_other_devices_and_of_other_nodes_close_no_gpu() {
    let rig = open_rig(&[(A, 4), (B, 4)]).await;
    rig.sim.put(slice(NODE, "net.example.com", &[("eth0", &[("uuid", "NIC-1")])]));
    rig.sim.put(slice("node-2", NVIDIA, &[("gpu-0", &[("uuid", A)])]));
    // Any driver counts whose device has the UUID of a GPU in some attribute.
    rig.sim.put(slice(NODE, "gpu.example.com", &[("g", &[("gpu_uuid", B)])]));
    let gpus = rig.gpus("a closed GPU", |gpus| gpus[1]["closed"] == "dra").await;
    assert!(is_open(&gpus[0]), "{gpus}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_that_starts_opens_no_gpu_that_a_dra_driver_offers() {
    let mut rig = open_rig(&[(A, 4), (B, 4)]).await;
    rig.stop_plugin().await;
    rig.sim.put(with_a());
    rig.sim.log().clear();
    // The first list of slices comes later than all else.
    let late = Fault::Delay(std::time::Duration::from_secs(2));
    rig.sim.faults().next(1, Verb::Watch, RESOURCE_SLICES, late);
    rig.begin_plugin();
    rig.gpus("an open GPU", |gpus| is_open(&gpus[1])).await;
    let reports = reported(&rig);
    assert_eq!(reports.last(), Some(&vec![json!("dra"), Value::Null]));
    assert!(reports.iter().all(|closed| !closed[0].is_null()), "{reports:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_slices_or_the_right_to_list_them_gpus_are_open_as_before() {
    let mut rig = open_rig(&[(A, 4)]).await;
    let forbidden = Fault::Answer(Failure::new(403, "Forbidden", "no right"));
    rig.sim.faults().next(usize::MAX, Verb::List, RESOURCE_SLICES, forbidden);
    rig.restart_with(&[]).await;
    rig.open_gpus("an open GPU", |gpus| is_open(&gpus[0])).await;
    rig.sim.faults().release();
    rig.stop_plugin().await;
    rig.sim.stop_serving(RESOURCE_SLICES);
    rig.begin_plugin();
    rig.kubelet.registered(3).await;
    rig.open_gpus("an open GPU", |gpus| is_open(&gpus[0])).await;
    rig.run(pod("p").asking(RESOURCE, 2), A).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_that_never_sends_the_slices_keeps_no_gpu_closed() {
    let mut rig = open_rig(&[(A, 4)]).await;
    rig.sim.faults().next(usize::MAX, Verb::Watch, RESOURCE_SLICES, Fault::Hang);
    rig.restart_with(&[]).await;
    rig.open_gpus("an open GPU", |gpus| is_open(&gpus[0])).await;
    rig.run(pod("p").asking(RESOURCE, 2), A).await.unwrap();
}

/// Has a pod with a resource claim run with this device.
fn run_with_claim(rig: &Rig, name: &str, device: &str) {
    rig.sim.put(pod(name).uid(&format!("uid-{name}")).container("main", RESOURCE, 0).on(NODE));
    rig.kubelet.let_in(spec(&rig.sim.pod("default", name).unwrap()));
    let claimed = ClaimResource {
        driver_name: NVIDIA.to_owned(),
        pool_name: NODE.to_owned(),
        device_name: device.to_owned(),
        ..ClaimResource::default()
    };
    let claim = DynamicResource { claim_resources: vec![claimed], ..DynamicResource::default() };
    rig.kubelet.give_dynamic(name, "main", vec![claim]);
    rig.sim.change(PODS, "default", name, |pod| {
        pod["spec"]["resourceClaims"] = json!([{"name": "gpu", "resourceClaimName": "one"}]);
        pod["status"]["phase"] = "Running".into();
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gpu_that_a_pod_has_by_a_resource_claim_counts_as_full_also_without_its_slice() {
    let mut rig = open_rig(&[(A, 8), (B, 8)]).await;
    rig.sim.put(with_a());
    run_with_claim(&rig, "claims", "gpu-0");
    const HELD: &str = "uid-claims/gpu.nvidia.com";
    let gpus = rig.gpus("a full GPU", |gpus| gpus[0]["pods"][HELD] == 8).await;
    assert_eq!(gpus[1]["pods"], json!({}));
    // As where the driver is removed, and the pod goes on.
    forget(&rig, NVIDIA);
    rig.gpus("a full GPU that is not closed", |gpus| {
        is_open(&gpus[0]) && gpus[0]["pods"][HELD] == 8
    })
    .await;
    let refused = rig.run(pod("early").asking(RESOURCE, 2), A).await.unwrap_err();
    assert!(refused.0.contains("through gpu.nvidia.com"), "{}", refused.0);
    rig.run(pod("beside").asking(RESOURCE, 2), B).await.unwrap();
    // A plugin that never saw the slice cannot tell which GPU it is.
    rig.stop_plugin().await;
    rig.sim.log().clear();
    rig.begin_plugin();
    let full = |gpus: &Value| [0, 1].map(|at| gpus[at]["pods"][HELD] == 8) == [true, true];
    rig.gpus("full GPUs", |gpus| full(gpus) && is_open(&gpus[0])).await;
    for request in rig.sim.log().of(Verb::Patch, NODES) {
        let Some(text) = request.body["metadata"]["annotations"][GPUS].as_str() else { continue };
        let gpus: Value = serde_json::from_str(text).unwrap();
        assert!(full(&gpus) || !is_open(&gpus[0]), "{gpus}");
    }
    rig.kubelet.stop("claims");
    rig.sim.delete(PODS, "default", "claims");
    rig.gpus("empty GPUs", |gpus| gpus[0]["pods"] == json!({})).await;
    assert!(rig.sim.list(WRITTEN_EVENTS).iter().all(|event| event["reason"] != "GPUCardHeldTwice"));
}

//! Shares of GPUs by ResourceClaims: the driver as the kubelet calls it, the slice and the records behind it.

use std::fs;
use std::time::Duration;

use kubelet_api::dra_v1::dra_plugin_client::DraPluginClient;
use kubelet_api::dra_v1::{
    Claim, Device, NodePrepareResourcesRequest, NodeUnprepareResourcesRequest,
};
use kubelet_api::dra_v1beta1;
use kubelet_api::dra_v1beta1::dra_plugin_client::DraPluginClient as BetaClient;
use kubelet_api::plugin_registration::InfoRequest;
use kubelet_api::plugin_registration::registration_client::RegistrationClient;
use kubelet_api::podresources::{ClaimResource, DynamicResource};
use serde_json::{Value, json};
use sim::{Failure, Fault, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, Verb, pod};
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint};

use crate::rig::{A, B, NODE, PATIENCE, RESOURCE, Rig, spec, until};

const DRIVER: &str = "gpu.plimsoll.dev";
const SLICE: &str = "node-1-gpu.plimsoll.dev";
const FIRST: &str = "8b1f4a9e-0d4c-4a63-9d6e-2f6a1c0b7e55";
const MODE: &str = "plimsoll.dev/gpu-mode";
/// Longer than it takes to see that a call waits.
const A_WHILE: Duration = Duration::from_millis(600);

/// A node whose GPUs, of 4 GiB each, are given out by claims.
async fn claims_rig() -> Rig {
    let mut rig = Rig::without_plugin(&[(A, 4), (B, 4)]).await;
    fs::create_dir_all(rig.dir.path().join("var/lib/kubelet/plugins_registry")).unwrap();
    rig.nvidia_gpus(&[A, B]);
    set_mode(&rig, "claims");
    rig.flags = vec!["--claims".to_owned()];
    rig.begin_plugin();
    slice(&rig, "the slice", |slice| {
        slice["spec"]["devices"].as_array().is_some_and(|all| all.len() == 2)
    })
    .await;
    until("the socket", || socket(&rig).exists()).await;
    rig.kubelet.registered(1).await;
    rig
}

fn set_mode(rig: &Rig, mode: &str) {
    rig.sim.change(NODES, "", NODE, |node| node["metadata"]["labels"][MODE] = json!(mode));
}

fn socket(rig: &Rig) -> std::path::PathBuf {
    rig.dir.path().join("var/lib/kubelet/plugins_registry/gpu.plimsoll.dev@node.sock")
}

async fn channel(rig: &Rig) -> Channel {
    let address = format!("unix://{}", socket(rig).display());
    Endpoint::from_shared(address).unwrap().connect().await.unwrap()
}

/// The node's slice, once it satisfies `holds`.
async fn slice(rig: &Rig, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
    let found =
        rig.sim.until(what, |sim| sim.get(RESOURCE_SLICES, "", SLICE).filter(|slice| holds(slice)));
    found.await.unwrap()
}

fn order(slice: &Value) -> Vec<&str> {
    let devices = slice["spec"]["devices"].as_array().unwrap();
    devices.iter().map(|device| device["attributes"]["uuid"]["string"].as_str().unwrap()).collect()
}

/// A claim `name` with UID `uid-name` and a share of each of these GPUs, for pod `pod-name`.
fn claim(name: &str, shares: &[(&str, &str)]) -> Value {
    let results: Vec<Value> = shares
        .iter()
        .enumerate()
        .map(|(at, (gpu, memory))| {
            json!({
                "driver": DRIVER, "pool": NODE, "device": gpu.to_lowercase(), "request": "gpu",
                "shareID": format!("0000000{at}-1111-2222-3333-444444444444"),
                "consumedCapacity": {"memory": memory, "cores": "0"},
            })
        })
        .collect();
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}")},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu-share.plimsoll.dev"}}]}},
        "status": {
            "allocation": {"devices": {"results": results}},
            "reservedFor": [{"resource": "pods", "name": format!("pod-{name}"), "uid": format!("pod-{name}")}],
        },
    })
}

fn named(name: &str) -> Claim {
    Claim { namespace: "default".to_owned(), uid: format!("uid-{name}"), name: name.to_owned() }
}

/// NodePrepareResources for one claim.
async fn prepare(rig: &Rig, name: &str) -> Result<Vec<Device>, String> {
    let mut client = DraPluginClient::new(channel(rig).await);
    let request = NodePrepareResourcesRequest { claims: vec![named(name)] };
    let mut claims = client.node_prepare_resources(request).await.unwrap().into_inner().claims;
    let answer = claims.remove(&format!("uid-{name}")).expect("an answer for the claim");
    if answer.error.is_empty() { Ok(answer.devices) } else { Err(answer.error) }
}

async fn unprepare(rig: &Rig, name: &str) {
    let mut client = DraPluginClient::new(channel(rig).await);
    let request = NodeUnprepareResourcesRequest { claims: vec![named(name)] };
    let claims = client.node_unprepare_resources(request).await.unwrap().into_inner().claims;
    assert_eq!(claims[&format!("uid-{name}")].error, "");
}

fn file(rig: &Rig, name: &str) -> std::path::PathBuf {
    rig.dir.path().join(format!("var/run/cdi/gpu.plimsoll.dev-claim-uid-{name}.json"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_gets_its_gpu_and_is_answered_alike_until_it_is_unprepared() {
    let rig = claims_rig().await;
    let info = RegistrationClient::new(channel(&rig).await)
        .get_info(InfoRequest {})
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        (info.r#type.as_str(), info.name.as_str(), info.endpoint.as_str()),
        ("DRAPlugin", DRIVER, "")
    );
    rig.sim.put(claim("a", &[(B, "3Gi")]));
    let [device] = &prepare(&rig, "a").await.unwrap()[..] else { panic!("one device") };
    assert_eq!(device.request_names, ["gpu"]);
    assert_eq!((device.pool_name.as_str(), device.device_name.clone()), (NODE, B.to_lowercase()));
    let cdi = [format!("nvidia.com/gpu={B}"), "gpu.plimsoll.dev/claim=uid-a".to_owned()];
    assert_eq!(device.cdi_device_ids, cdi);
    assert!(device.share_id.is_some());
    let spec: Value = serde_json::from_str(&fs::read_to_string(file(&rig, "a")).unwrap()).unwrap();
    let env = spec["devices"][0]["containerEdits"]["env"].to_string();
    assert!(
        env.contains(&format!("PLIMSOLL_GPU_UUID={B}"))
            && env.contains("NVIDIA_VISIBLE_DEVICES=void"),
        "{env}"
    );
    // Best fit: the fuller GPU is tried first.
    slice(&rig, "the fuller GPU first", |slice| order(slice) == [B, A]).await;
    assert_eq!(prepare(&rig, "a").await.unwrap(), std::slice::from_ref(device));
    let mut beta = BetaClient::new(channel(&rig).await);
    let same =
        dra_v1beta1::Claim { namespace: "default".into(), uid: "uid-a".into(), name: "a".into() };
    let request = dra_v1beta1::NodePrepareResourcesRequest { claims: vec![same] };
    let answer = beta.node_prepare_resources(request).await.unwrap().into_inner();
    assert_eq!(answer.claims["uid-a"].devices[0].cdi_device_ids, cdi);
    unprepare(&rig, "a").await;
    until("no file", || !file(&rig, "a").exists()).await;
    unprepare(&rig, "a").await;
    slice(&rig, "the first GPU first", |slice| order(slice) == [A, B]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_would_be_over_waits_in_the_call_for_processes_to_end() {
    let rig = claims_rig().await;
    let mut first = claim("a", &[(A, "3Gi")]);
    first["status"]["reservedFor"][0]["uid"] = json!(FIRST);
    rig.sim.put(first);
    rig.sim.put(claim("b", &[(A, "2Gi")]));
    prepare(&rig, "a").await.unwrap();
    rig.processes(FIRST, true);
    unprepare(&rig, "a").await;
    let waiting = prepare(&rig, "b");
    tokio::pin!(waiting);
    assert!(timeout(A_WHILE, &mut waiting).await.is_err(), "its processes run");
    assert!(file(&rig, "a").exists() && !file(&rig, "b").exists());
    rig.no_group(FIRST);
    let devices = timeout(PATIENCE, waiting).await.unwrap().unwrap();
    assert_eq!(devices[0].device_name, A.to_lowercase());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fault_of_a_claim_is_told_at_once() {
    let rig = claims_rig().await;
    let mut over = claim("over", &[(A, "3Gi"), (A, "3Gi")]);
    over["status"]["allocation"]["devices"]["results"][1]["request"] = json!("second");
    let mut admin = claim("admin", &[(A, "1Gi")]);
    admin["status"]["allocation"]["devices"]["results"][0]["adminAccess"] = json!(true);
    let mut elsewhere = claim("elsewhere", &[(A, "1Gi")]);
    elsewhere["status"]["allocation"]["devices"]["results"][0]["pool"] = json!("node-2");
    let mut odd = claim("odd", &[(A, "1Gi")]);
    odd["status"]["allocation"]["devices"]["results"][0]["consumedCapacity"]["memory"] =
        json!("lots");
    let mut config = claim("config", &[(A, "1Gi")]);
    config["status"]["allocation"]["devices"]["config"] = json!([{
        "source": "FromClaim", "requests": [],
        "opaque": {"driver": DRIVER, "parameters": {
            "apiVersion": "plimsoll.dev/v1", "kind": "ShareConfig", "isolation": "soft",
        }},
    }]);
    let mut waits = claim("unallocated", &[]);
    waits["status"] = json!({});
    for (made, part) in [
        (over, "holds 6144 MiB"),
        (admin, "adminAccess"),
        (elsewhere, "pool node-2"),
        (odd, "results[0].consumedCapacity.memory"),
        (config, "isolation"),
        (waits, "not allocated"),
    ] {
        let name = made["metadata"]["name"].as_str().unwrap().to_owned();
        rig.sim.put(made);
        let error = timeout(PATIENCE, prepare(&rig, &name)).await.unwrap().unwrap_err();
        assert!(error.contains(part), "{name}: {error}");
    }
    let mut other = claim("reborn", &[(A, "1Gi")]);
    other["metadata"]["uid"] = json!("another");
    rig.sim.put(other);
    assert!(prepare(&rig, "reborn").await.unwrap_err().contains("another one has its name"));
    assert!(prepare(&rig, "missing").await.unwrap_err().contains("gone"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gpu_has_units_or_claims_and_never_both() {
    let mut rig = Rig::without_plugin(&[(A, 4), (B, 4)]).await;
    fs::create_dir_all(rig.dir.path().join("var/lib/kubelet/plugins_registry")).unwrap();
    rig.nvidia_gpus(&[A, B]);
    rig.flags = vec!["--claims".to_owned()];
    rig.begin_plugin();
    rig.open_gpus("open GPUs", |gpus| gpus[0]["closed"].is_null()).await;
    // Beside it the kubelet is asked for nothing, and tells of ids that have ended only with the next admission.
    rig.kubelet.register_other("example.com/nic", &["eth0"]);
    rig.run(pod("units").uid("units").asking(RESOURCE, 2), A).await.unwrap();
    assert_eq!(rig.sim.get(RESOURCE_SLICES, "", SLICE), None, "given out by units");
    set_mode(&rig, "claims");
    rig.gpus("closed GPUs", |gpus| gpus[0]["closed"] == "claims" && gpus[1]["closed"] == "claims")
        .await;
    let tainted = |slice: &Value| {
        slice["spec"]["devices"].as_array().into_iter().flatten().any(|device| {
            device["attributes"]["uuid"]["string"] == A && device["taints"][0]["value"] == "units"
        })
    };
    slice(&rig, "a taint on the GPU with units", tainted).await;
    rig.kubelet
        .devices("held ids alone", |devices| {
            devices.values().filter(|healthy| **healthy).count() == 2
        })
        .await;
    let refused = rig.run(pod("late").asking(RESOURCE, 1), B).await.unwrap_err();
    assert!(refused.0.contains("Available: 0"), "{}", refused.0);
    rig.sim.put(claim("b", &[(B, "1Gi")]));
    prepare(&rig, "b").await.unwrap();
    rig.sim.put(claim("a", &[(A, "1Gi")]));
    let waiting = prepare(&rig, "a");
    tokio::pin!(waiting);
    assert!(timeout(A_WHILE, &mut waiting).await.is_err(), "pods hold units");
    rig.end("units");
    timeout(PATIENCE, waiting).await.unwrap().unwrap();
    // Back to units: the GPUs open once their claims have ended.
    set_mode(&rig, "units");
    rig.sim
        .until("no slice", |sim| sim.get(RESOURCE_SLICES, "", SLICE).is_none().then_some(()))
        .await
        .unwrap();
    unprepare(&rig, "b").await;
    let one = |gpus: &Value| gpus[0]["closed"] == "claims" && gpus[1]["closed"].is_null();
    rig.open_gpus("one open GPU", one).await;
    rig.run(pod("later").asking(RESOURCE, 1), B).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn bookings_outlive_the_plugin_and_the_loss_of_its_file() {
    let mut rig = claims_rig().await;
    rig.sim.put(claim("a", &[(A, "3Gi")]));
    rig.sim.put(claim("b", &[(A, "2Gi")]));
    rig.sim.put(pod("p").uid("pod-a").container("main", RESOURCE, 0).on(NODE));
    rig.sim.change(PODS, "default", "p", |pod| {
        pod["spec"]["resourceClaims"] = json!([{"name": "gpu", "resourceClaimName": "a"}]);
    });
    rig.kubelet.let_in(spec(&rig.sim.pod("default", "p").unwrap()));
    prepare(&rig, "a").await.unwrap();
    let claimed = ClaimResource {
        driver_name: DRIVER.to_owned(),
        pool_name: NODE.to_owned(),
        device_name: A.to_lowercase(),
        ..ClaimResource::default()
    };
    let held = DynamicResource { claim_resources: vec![claimed], ..DynamicResource::default() };
    rig.kubelet.give_dynamic("p", "main", vec![held]);
    for loses_its_file in [false, true] {
        rig.stop_plugin().await;
        assert!(!socket(&rig).exists(), "the kubelet sees that it is gone");
        if loses_its_file {
            fs::remove_file(rig.dir.path().join("run/plimsoll-gpu/gpushare-device-plugin.json"))
                .unwrap();
            fs::remove_file(file(&rig, "a")).unwrap();
        }
        rig.begin_plugin();
        until("the socket", || socket(&rig).exists()).await;
        let waiting = prepare(&rig, "b");
        tokio::pin!(waiting);
        assert!(timeout(A_WHILE, &mut waiting).await.is_err(), "claim a holds the memory");
        until("the file of the claim", || file(&rig, "a").exists()).await;
    }
    // The kubelet has lost its record, and never unprepares the claim.
    rig.sim.delete(PODS, "default", "p");
    rig.sim.delete(RESOURCE_CLAIMS, "default", "a");
    timeout(PATIENCE, prepare(&rig, "b")).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slice_that_the_kubelet_deletes_is_back_and_a_lost_gpu_is_tainted() {
    let rig = claims_rig().await;
    rig.sim.delete(RESOURCE_SLICES, "", SLICE);
    slice(&rig, "the slice again", |slice| order(slice) == [A, B]).await;
    rig.sim.change(RESOURCE_SLICES, "", SLICE, |slice| slice["spec"]["devices"] = json!([]));
    slice(&rig, "the devices again", |slice| order(slice) == [A, B]).await;
    rig.sim.change(NODES, "", NODE, |node| {
        node["metadata"]["annotations"]["plimsoll.dev/cordoned-gpus"] = json!(B)
    });
    let cordoned = |slice: &Value| {
        slice["spec"]["devices"].as_array().into_iter().flatten().any(|device| {
            let taint = &device["taints"][0];
            device["attributes"]["uuid"]["string"] == B
                && taint["key"] == "plimsoll.dev/unhealthy"
                && taint["value"] == "cordoned"
                && taint["effect"] == "NoSchedule"
        })
    };
    slice(&rig, "a taint", cordoned).await;
    rig.sim.put(claim("a", &[(A, "1Gi")]));
    let unreachable = Fault::Answer(Failure::new(500, "InternalError", "etcd is gone"));
    rig.sim.faults().next(2, Verb::Get, RESOURCE_CLAIMS, unreachable);
    timeout(PATIENCE, prepare(&rig, "a"))
        .await
        .unwrap()
        .expect("an API server that fails for a moment");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_that_serves_no_claims_any_more_opens_a_gpu_once_their_processes_have_ended() {
    let mut rig = claims_rig().await;
    let mut first = claim("a", &[(A, "3Gi")]);
    first["status"]["reservedFor"][0]["uid"] = json!(FIRST);
    rig.sim.put(first);
    prepare(&rig, "a").await.unwrap();
    rig.processes(FIRST, true);
    rig.restart_with(&[]).await;
    rig.gpus("the other GPU open", |gpus| {
        gpus[0]["closed"] == "claims" && gpus[1]["closed"].is_null()
    })
    .await;
    rig.no_group(FIRST);
    rig.gpus("both GPUs open", |gpus| gpus[0]["closed"].is_null()).await;
    until("no file", || !file(&rig, "a").exists()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_gpu_takes_units_or_claims_before_the_nodes_label_is_known() {
    let mut rig = claims_rig().await;
    rig.stop_plugin().await;
    rig.sim.delete(RESOURCE_SLICES, "", SLICE);
    rig.sim.log().clear();
    rig.sim.faults().next(usize::MAX, Verb::Watch, NODES, Fault::Hang);
    rig.begin_plugin();
    rig.gpus("closed GPUs", |gpus| gpus[0]["closed"] == "claims").await;
    rig.kubelet.registered(2).await;
    assert_eq!(rig.sim.get(RESOURCE_SLICES, "", SLICE), None);
    rig.sim.faults().release();
    slice(&rig, "the slice", |slice| order(slice) == [A, B]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gpu_whose_units_ended_at_once_is_open_to_claims() {
    let mut rig = Rig::without_plugin(&[(A, 4)]).await;
    fs::create_dir_all(rig.dir.path().join("var/lib/kubelet/plugins_registry")).unwrap();
    rig.nvidia_gpus(&[A]);
    // Another pod's, so that control groups are known.
    rig.processes("0c0ffee0-0d4c-4a63-9d6e-2f6a1c0b7e55", true);
    rig.flags = vec!["--claims".to_owned()];
    rig.begin_plugin();
    rig.open_gpus("an open GPU", |gpus| gpus[0]["closed"].is_null()).await;
    rig.run(pod("units").uid(FIRST).asking(RESOURCE, 2), A).await.unwrap();
    rig.gpus("the pod", |gpus| gpus[0]["pods"][FIRST] == 2).await;
    // Its group went before its object, and no look at the groups came between.
    rig.end("units");
    set_mode(&rig, "claims");
    slice(&rig, "a device without a taint", |slice| {
        slice["spec"]["devices"][0]["taints"].is_null()
    })
    .await;
    rig.sim.put(claim("a", &[(A, "4Gi")]));
    timeout(PATIENCE, prepare(&rig, "a")).await.unwrap().unwrap();
}

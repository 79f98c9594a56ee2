//! Containers are held to their share by what the policy, the pod and the node come to, and the Node tells how.

use std::fs;

use kubelet_api::v1beta1::ContainerAllocateResponse;
use serde_json::{Value, json};
use sim::pod;

use crate::processes::{P, id, report};
use crate::rig::{A, B, CUDA_NODES, RESOURCE, Rig};

const ASKED: &str = "plimsoll.dev/gpu-isolation";
const CORES: &str = "plimsoll.dev/gpu-cores";

/// NVIDIA's specification by a toolkit whose devices carry the hook.
fn with_hooks() -> Value {
    let devices = [A, B].map(device_with_hook);
    let of_all = CUDA_NODES.map(|path| json!({"path": path}));
    json!({
        "cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": devices,
        "containerEdits": {"deviceNodes": of_all},
    })
}

fn device_with_hook(uuid: &str) -> Value {
    json!({"name": uuid, "containerEdits": {
        "deviceNodes": [{"path": "/dev/nvidia0"}],
        "hooks": [{"hookName": "createRuntime", "path": "/usr/bin/nvidia-ctk",
            "args": ["nvidia-ctk", "hook", "apply-cuda-memory-limits", "--gpu-id", uuid]}],
    }})
}

/// The edits of the third device of a response, by our specification.
fn limit(rig: &Rig, answer: &ContainerAllocateResponse) -> Option<Value> {
    let name = answer.cdi_devices.get(2)?.name.strip_prefix("plimsoll.dev/gpu-mem=").unwrap();
    let spec = rig.own_spec();
    let mut devices = spec["devices"].as_array().unwrap().iter();
    Some(devices.find(|device| device["name"] == name).unwrap()["containerEdits"].clone())
}

/// A node whose driver can limit memory.
async fn able() -> Rig {
    let rig = Rig::new(&[(A, 4), (B, 4)]).await;
    rig.host_file("sys/fs/cgroup/cgroup.controllers");
    rig.nvidia_spec(&with_hooks());
    rig.script_driver("615.12.03", &[A, B]);
    rig.gpus("the strongest mode", |gpus| gpus[0]["isolation"] == "driver").await;
    rig
}

/// A node whose driver limits memory, since its flags say so.
async fn limiting(flags: &[&str]) -> Rig {
    let mut rig = able().await;
    rig.restart_with(&[&["--isolation=driver"], flags].concat()).await;
    rig.isolation("driver").await;
    rig
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_driver_can_limits_the_memory_of_each_container_to_its_share() {
    let rig = limiting(&[]).await;
    let two = pod("two").container("left", RESOURCE, 1).container("right", RESOURCE, 3);
    let answers = rig.run(two, B).await.unwrap();
    for (container, mib) in [("left", 1024), ("right", 3072)] {
        let env =
            ["NVIDIA_GPU_MEMORY_REQUEST=0".to_owned(), format!("NVIDIA_GPU_MEMORY_LIMIT={mib}")];
        assert_eq!(limit(&rig, &answers[container]).unwrap(), json!({ "env": env }));
    }
    assert_eq!(rig.metric("plimsoll_gpu_isolation{mode=\"driver\"}"), 1.0);
    assert_eq!(rig.metric("plimsoll_gpu_isolation{mode=\"none\"}"), 0.0);
    assert_eq!(rig.metric("plimsoll_gpu_isolated_containers_total{mode=\"driver\"}"), 2.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_setting_nothing_is_limited_and_a_pod_may_ask_for_the_driver() {
    let rig = able().await;
    rig.isolation("none").await;
    let answers = rig.run(pod("none").asking(RESOURCE, 1), A).await.unwrap();
    assert_eq!(limit(&rig, &answers["main"]), None);
    let asks = pod("asks").annotation(ASKED, "driver").asking(RESOURCE, 1);
    let edits = limit(&rig, &rig.run(asks, A).await.unwrap()["main"]).unwrap();
    assert!(edits["env"].to_string().contains("NVIDIA_GPU_MEMORY_LIMIT=1024"), "{edits}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_asks_for_mps_keeps_its_compute_where_the_driver_limits_memory() {
    let mut rig = able().await;
    let _daemon = rig.host_pipe("mps/pipe/control");
    rig.restart_with(&["--isolation=driver"]).await;
    rig.isolation("driver").await;
    let asks = pod("p").annotation(ASKED, "mps").annotation(CORES, "25").asking(RESOURCE, 2);
    let edits = limit(&rig, &rig.run(asks, A).await.unwrap()["main"]).unwrap();
    let env = json!([
        "NVIDIA_GPU_MEMORY_REQUEST=0",
        "NVIDIA_GPU_MEMORY_LIMIT=2048",
        "CUDA_MPS_PIPE_DIRECTORY=/run/nvidia-mps",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=2048M",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25",
    ]);
    assert_eq!(edits["env"], env);
    let pipes = rig.dir.path().join("mps/pipe").display().to_string();
    assert_eq!(edits["mounts"][0]["hostPath"], pipes);
    rig.limits(&["driver-mps-1-2048-25"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_tells_a_pod_whose_compute_nothing_holds() {
    let rig = limiting(&[]).await;
    let asks = pod("asks").annotation(ASKED, "mps").annotation(CORES, "25").asking(RESOURCE, 2);
    let answers = rig.run(asks, A).await.unwrap();
    let edits = limit(&rig, &answers["main"]).unwrap();
    assert!(!edits["env"].to_string().contains("CUDA_MPS"), "{edits}");
    let event = rig.event("GPUComputeNotEnforced").await;
    assert_eq!(event["regarding"]["name"], "asks");
    let note = event["note"].as_str().unwrap();
    assert!(note.contains("container main") && note.contains("no MPS control daemon"), "{note}");
    assert_eq!(rig.metric("plimsoll_gpu_isolation_downgrades_total"), 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_cannot_says_none_and_a_pod_that_requires_the_driver_is_refused() {
    let rig = Rig::new(&[(A, 4)]).await;
    rig.isolation("none").await;
    rig.gpus("the strongest mode", |gpus| gpus[0]["isolation"] == "none").await;
    let asks = pod("asks").annotation(ASKED, "driver").asking(RESOURCE, 1);
    // The kubelet makes an event on the pod of this text.
    let refused = rig.run(asks, A).await.unwrap_err().0;
    assert!(refused.contains("requires `driver`, which this node cannot enforce: "), "{refused}");
    assert_eq!(rig.metric("plimsoll_gpu_refusals_total{reason=\"isolation\"}"), 1.0);
    assert_eq!(rig.metric("plimsoll_gpu_isolation_downgrades_total"), 0.0);
    assert!(rig.run(pod("other").asking(RESOURCE, 1), A).await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_minimum_of_the_nodes_policy_is_downgraded_and_reported() {
    let mut rig = Rig::new(&[(A, 4)]).await;
    rig.restart_with(&["--isolation=driver"]).await;
    let answers = rig.run(pod("p").asking(RESOURCE, 1), A).await.unwrap();
    assert_eq!(limit(&rig, &answers["main"]), None);
    assert_eq!(rig.metric("plimsoll_gpu_isolation{mode=\"none\"}"), 1.0);
    assert_eq!(rig.metric("plimsoll_gpu_isolation_downgrades_total"), 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn where_downgrades_are_refused_the_node_and_the_pod_say_what_is_missing() {
    let mut rig = Rig::new(&[(A, 4)]).await;
    rig.restart_with(&["--isolation=driver", "--isolation-unavailable=refuse"]).await;
    rig.isolation("refused").await;
    // The extender sends no pod there. The kubelet's total stays, so that kube-scheduler asks the extender, which says
    // why.
    rig.gpus("a closed GPU", |gpus| gpus[0]["closed"] == "isolation").await;
    rig.kubelet.devices("healthy ids", |devices| devices.values().all(|healthy| *healthy)).await;
    let event = rig.event("GPUIsolationUnavailable").await;
    assert!(event["note"].as_str().unwrap().starts_with("GPU pods are refused: "), "{event}");
    let refused = rig.run(pod("p").asking(RESOURCE, 1), A).await.unwrap_err().0;
    assert!(refused.contains("isolation `driver` cannot be enforced on this node: "), "{refused}");
    assert!(refused.contains("NVML does not tell the driver's version"), "{refused}");
    assert_eq!(rig.metric("plimsoll_gpu_refusals_total{reason=\"isolation\"}"), 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_asks_for_mps_gets_its_pipes_and_its_limit() {
    let mut rig = Rig::new(&[(A, 4)]).await;
    let _daemon = rig.host_pipe("mps/pipe/control");
    rig.restart_with(&[]).await;
    let asks = pod("p").annotation(ASKED, "mps").asking(RESOURCE, 2);
    let answers = rig.run(asks, A).await.unwrap();
    let edits = limit(&rig, &answers["main"]).unwrap();
    assert!(
        edits["env"].to_string().contains("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=2048M"),
        "{edits}"
    );
    let pipes = rig.dir.path().join("mps/pipe").display().to_string();
    assert_eq!(edits["mounts"][0]["hostPath"], pipes);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_cannot_ask_for_less_than_the_policy_and_nonsense_is_refused() {
    let rig = limiting(&[]).await;
    let less = pod("less").annotation(ASKED, "none").asking(RESOURCE, 1);
    assert!(limit(&rig, &rig.run(less, A).await.unwrap()["main"]).is_some());
    let nonsense = pod("nonsense").annotation(ASKED, "soft").asking(RESOURCE, 1);
    let refused = rig.run(nonsense, A).await.unwrap_err().0;
    assert!(refused.contains("the annotation gpu-isolation is `soft`"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_leaves_our_specification_after_the_last_pod_that_has_it() {
    let mut rig = limiting(&[]).await;
    for (name, units, gpu) in [("p", 3, A), ("q", 3, B), ("r", 1, A)] {
        rig.run(pod(name).asking(RESOURCE, units), gpu).await.unwrap();
    }
    rig.limits(&["driver-1024", "driver-3072"]).await;
    rig.end("p");
    rig.end("r");
    rig.limits(&["driver-3072"]).await;
    rig.restart_plugin().await;
    rig.kubelet.registered(3).await;
    rig.end("q");
    rig.limits(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_specification_lost_without_the_plugin_has_its_limits_again() {
    let mut rig = limiting(&[]).await;
    let answers = rig.run(pod("p").asking(RESOURCE, 3), B).await.unwrap();
    let before = limit(&rig, &answers["main"]);
    rig.stop_plugin().await;
    rig.lose_own_spec();
    rig.begin_plugin();
    rig.kubelet.registered(3).await;
    assert_eq!(limit(&rig, &answers["main"]), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_keeps_its_shared_memory_and_an_event_says_it_has_no_mps() {
    let mut rig = Rig::new(&[(A, 4)]).await;
    let _daemon = rig.host_pipe("mps/pipe/control");
    rig.restart_with(&["--isolation=mps"]).await;
    rig.isolation("mps").await;
    let keeps = pod("keeps").asking(RESOURCE, 1).mounting("/dev/shm");
    let answers = rig.run(keeps, A).await.unwrap();
    assert_eq!(limit(&rig, &answers["main"]), None);
    let event = rig.event("GPUIsolationDowngraded").await;
    assert_eq!(event["regarding"]["name"], "keeps");
    let note = event["note"].as_str().unwrap();
    assert!(note.contains("`none` in place of `mps`") && note.contains("/dev/shm"), "{note}");
    let asks = pod("asks").annotation(ASKED, "mps").asking(RESOURCE, 1).mounting("/dev/shm");
    let refused = rig.run(asks, A).await.unwrap_err().0;
    assert!(refused.contains("isolation `mps` and the pod's spec exclude each other"), "{refused}");
    let elsewhere = pod("elsewhere").annotation(ASKED, "mps").asking(RESOURCE, 1).mounting("/data");
    let answers = rig.run(elsewhere, A).await.unwrap();
    assert!(limit(&rig, &answers["main"]).is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_nvml_shows_without_its_limit_takes_the_mode_back() {
    const FOUND: &str = r#"plimsoll_gpu_audit_findings{kind="limit_not_held"}"#;
    let rig = limiting(&["--audit-interval=100ms"]).await;
    rig.run(pod("p").uid(P).asking(RESOURCE, 1), A).await.unwrap();
    report(&rig, "p", &[("main", id("a"))]);
    let group = rig.dir.path().join(format!("sys/fs/cgroup/kubepods/pod{P}/{}", id("a")));
    fs::create_dir_all(&group).unwrap();
    let told = |limits: Value| {
        let gpus = json!([
            {"uuid": A, "memoryMiB": 4096, "limitsMiB": limits},
            {"uuid": B, "memoryMiB": 4096},
        ]);
        rig.write_script(&json!({"driver": "615.12.03", "cards": gpus}));
    };
    told(json!({group.display().to_string(): 1024}));
    rig.metric_at_least("plimsoll_gpu_audits_total", 5.0).await;
    crate::rig::until("a comparison", || rig.page().contains(FOUND)).await;
    assert_eq!(rig.metric(FOUND), 0.0);
    told(json!({}));
    let event = rig.event("GPULimitNotHeld").await;
    assert_eq!(event["regarding"]["name"], "p");
    let note = event["note"].as_str().unwrap();
    assert!(note.contains("was given 1024 MiB") && note.contains("use all of it"), "{note}");
    rig.isolation("none").await;
    rig.gpus("no mode", |gpus| gpus[0]["isolation"] == "none").await;
    let asks = pod("asks").annotation(ASKED, "driver").asking(RESOURCE, 1);
    let refused = rig.run(asks, B).await.unwrap_err().0;
    assert!(refused.contains("by NVML, pod default/p was not held to its limit"), "{refused}");
}

//! What the audit finds, tells and repairs.

use std::fs;

use serde_json::{Value, json};
use sim::{Failure, Fault, PODS, Verb, WRITTEN_EVENTS, pod};

use crate::processes::{P, busy_rig, id, process};
use crate::rig::{A, B, CLAIM, NODE, RESOURCE, Rig, until};

fn findings(kind: &str) -> String {
    format!(r#"plimsoll_gpu_audit_findings{{kind="{kind}"}}"#)
}

/// The only event of a reason, once it is written.
async fn event(rig: &Rig, reason: &str) -> Value {
    let event = rig.event(reason).await;
    let mut all = rig.sim.list(WRITTEN_EVENTS);
    all.retain(|event| event["reason"] == reason);
    assert_eq!(all.len(), 1, "{all:#?}");
    event
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_that_should_not_be_on_a_gpu_are_events_once_and_counted() {
    // `p` holds five units of GPU A and uses as much; `q` was given no GPU, and something runs outside of all pods.
    let rig = busy_rig(&["--audit-interval=100ms"]).await;
    rig.until_metric(&findings("process_elsewhere"), 2.0).await;
    rig.until_metric(&findings("unmanaged_process"), 1.0).await;
    // Each of its two containers is an event of its own.
    let of_q = rig.sim.until("two events", |sim| {
        let mut events = sim.list(WRITTEN_EVENTS);
        events.retain(|event| event["reason"] == "GPUProcessElsewhere");
        (events.len() == 2).then_some(events)
    });
    let of_q = of_q.await.unwrap();
    for (event, container) in of_q.iter().zip(["sidecar", "whole"]) {
        let about = (&event["regarding"]["kind"], &event["regarding"]["name"]);
        assert_eq!(about, (&json!("Pod"), &json!("q")));
        assert!(event["note"].as_str().unwrap().contains(container), "{event}");
        assert!(event["series"].is_null(), "{event}");
    }
    let of_node = event(&rig, "GPUUnmanagedProcess").await;
    assert_eq!(
        of_node["regarding"],
        json!({"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": NODE})
    );
    assert!(of_node["note"].as_str().unwrap().contains(A), "{of_node}");
    assert_eq!(rig.metric(&findings("memory_over_share")), 0.0);
    assert_eq!(rig.metric(&findings("process_of_gone_pod")), 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_beyond_the_share_and_processes_of_a_gone_pod_are_found() {
    let rig = busy_rig(&["--audit-interval=100ms"]).await;
    process(&rig, "13", &format!("/kubepods/burstable/pod{}/{}", crate::processes::P, id("a")));
    rig.until_metric(&findings("memory_over_share"), 1.0).await;
    let over = event(&rig, "GPUMemoryOverShare").await;
    assert_eq!(over["regarding"]["name"], "p");
    let note = over["note"].as_str().unwrap();
    let expected = format!(
        "container train uses 5632 MiB of GPU {A}, 5120 are its own; it has 3 processes there, and the CUDA context of \
         each, mostly some 500 MiB, counts"
    );
    assert_eq!(note, expected);
    rig.sim.delete(PODS, "default", "p");
    rig.until_metric(&findings("process_of_gone_pod"), 1.0).await;
    rig.until_metric(&findings("memory_over_share"), 0.0).await;
    assert_eq!(event(&rig, "GPUProcessOfGonePod").await["regarding"]["kind"], "Node");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_does_not_agree_with_the_record_is_found_until_it_is_repaired() {
    let mut rig = Rig::new(&[(A, 4), (B, 4)]).await;
    rig.restart_with(&["--audit-interval=100ms"]).await;
    rig.run(pod("p").asking(RESOURCE, 2), A).await.unwrap();
    rig.marked("p").await;
    let denied = Failure::new(422, "Invalid", "denied by a policy");
    rig.sim.faults().next(usize::MAX, Verb::Patch, PODS, Fault::Answer(denied));
    rig.sim.change(PODS, "default", "p", |pod| {
        pod["metadata"]["annotations"][CLAIM] = json!(json!({"main": {B: 2}}).to_string());
    });
    rig.until_metric(&findings("claim_elsewhere"), 1.0).await;
    assert_eq!(event(&rig, "GPUClaimElsewhere").await["regarding"]["name"], "p");
    rig.sim.faults().release();
    rig.until_metric(&findings("claim_elsewhere"), 0.0).await;
    rig.until_metric(r#"plimsoll_gpu_audit_repairs_total{kind="claim_elsewhere"}"#, 1.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_compared_has_no_count() {
    let mut rig = Rig::new(&[(A, 4)]).await;
    rig.restart_with(&["--audit-interval=100ms"]).await;
    rig.metric_at_least("plimsoll_gpu_audits_total", 3.0).await;
    assert!(rig.page().contains(&findings("claim_elsewhere")));
    // The rig's folder for /proc is empty: nothing is known of processes.
    assert!(!rig.page().contains(&findings("unmanaged_process")), "{}", rig.page());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_the_plugin_does_not_know_is_taken_in() {
    let mut rig = Rig::new(&[(A, 4), (B, 4)]).await;
    rig.run(pod("p").uid("uid-1").asking(RESOURCE, 2), A).await.unwrap();
    rig.stop_plugin().await;
    // It is not there when the plugin starts, and the kubelet writes it with the plugin's next device list.
    fs::remove_file(rig.kubelet.plugin_dir().join("kubelet_internal_checkpoint")).unwrap();
    rig.flags = vec!["--audit-interval=100ms".to_owned()];
    rig.begin_plugin();
    rig.kubelet.registered(2).await;
    rig.until_metric(r#"plimsoll_gpu_audit_repairs_total{kind="record_unknown"}"#, 1.0).await;
    rig.gpus("the pod on GPU A", |gpus| gpus[0]["pods"]["uid-1"] == 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_left_mps_is_told_on_its_pod() {
    let mut rig = Rig::new(&[(A, 4)]).await;
    let _daemon = rig.host_pipe("mps/pipe/control");
    let on_gpu = |mps: bool| {
        let process = json!({"pid": 10, "usedBytes": 1 << 20, "mps": mps});
        json!({"uuid": A, "memoryMiB": 4096, "processes": [process]})
    };
    process(&rig, "1", "/init.scope");
    process(&rig, "self", "/system.slice/plugin.service");
    process(&rig, "10", &format!("/kubepods/burstable/pod{P}/{}", id("a")));
    rig.script(&[on_gpu(true)]);
    rig.restart_with(&["--audit-interval=100ms"]).await;
    let asks = pod("p").uid(P).annotation("plimsoll.dev/gpu-isolation", "mps").asking(RESOURCE, 2);
    rig.run(asks, A).await.unwrap();
    rig.sim.change(PODS, "default", "p", |pod| {
        let of_main = json!({"name": "main", "containerID": format!("containerd://{}", id("a"))});
        pod["status"]["containerStatuses"] = json!([of_main]);
    });
    until("a comparison", || rig.page().contains(&findings("process_outside_mps"))).await;
    assert_eq!(rig.metric(&findings("process_outside_mps")), 0.0);
    rig.script(&[on_gpu(false)]);
    rig.until_metric(&findings("process_outside_mps"), 1.0).await;
    let told = event(&rig, "GPUProcessOutsideMPS").await;
    assert_eq!(told["regarding"]["name"], "p");
    assert!(told["note"].as_str().unwrap().contains("is no client of MPS"), "{told}");
    rig.gpus("the pod outside of MPS", |gpus| gpus[0]["outsideMps"] == json!([P])).await;
    rig.script(&[on_gpu(true)]);
    rig.until_metric(&findings("process_outside_mps"), 0.0).await;
    rig.gpus("no such pod", |gpus| gpus[0]["outsideMps"].is_null()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_device_plugin_for_the_same_gpus_is_found_and_told_on_the_node() {
    let mut rig = Rig::new(&[(A, 4), (B, 4)]).await;
    rig.restart_with(&["--audit-interval=100ms"]).await;
    rig.run(pod("p").asking(RESOURCE, 2), A).await.unwrap();
    rig.metric_at_least("plimsoll_gpu_audits_total", 3.0).await;
    assert_eq!(rig.metric(&findings("card_offered_twice")), 0.0);
    rig.kubelet.register_other("nvidia.com/gpu", &[B]);
    rig.until_metric(&findings("card_offered_twice"), 1.0).await;
    let offered = event(&rig, "GPUCardOfferedTwice").await;
    assert_eq!(offered["regarding"]["kind"], "Node");
    assert!(offered["note"].as_str().unwrap().contains("nvidia.com/gpu"), "{offered}");
    rig.sim.put(pod("whole").uid("uid-whole").on(NODE));
    rig.kubelet.hold_other("uid-whole", "nvidia.com/gpu", A);
    rig.until_metric(&findings("card_held_twice"), 1.0).await;
    let held = event(&rig, "GPUCardHeldTwice").await;
    assert_eq!(held["regarding"]["kind"], "Node");
    rig.sim.delete(PODS, "default", "whole");
    rig.until_metric(&findings("card_held_twice"), 0.0).await;
}

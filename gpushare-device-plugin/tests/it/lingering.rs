//! Pods whose objects are gone while their processes run.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::Value;
use sim::pod;

use crate::rig::{A, B, RESOURCE, Rig, gpu, spec};

const OLD: &str = "8b1f4a9e-0d4c-4a63-9d6e-2f6a1c0b7e55";
const OTHER: &str = "5c0de9f1-2b7a-4f0e-8d53-1a2b3c4d5e6f";

/// As [`granted`], and `old` is deleted by force: the kubelet knows it no more, while its processes run.
async fn deleted_by_force() -> Rig {
    let rig = granted().await;
    rig.end("old");
    rig
}

/// A node with two GPUs of four units. `old` has all of the first.
async fn granted() -> Rig {
    let mut rig = Rig::new(&[(A, 4), (B, 4)]).await;
    rig.processes(OLD, true);
    rig.restart_with(&[]).await;
    rig.run(pod("old").uid(OLD).asking(RESOURCE, 4), A).await.unwrap();
    rig.gpus("the pod", on_first(4)).await;
    rig
}

/// Whether the pod counts so many units on the first GPU; 0 where it is not listed.
fn on_first(units: u64) -> impl Fn(&Value) -> bool {
    move |gpus| gpus[0]["pods"][OLD].as_u64().unwrap_or_default() == units
}

/// Has another pod reported, and checks that the report has this pod still.
async fn is_reported_beside_another(rig: &Rig) {
    rig.processes(OTHER, true);
    rig.run(pod("other").uid(OTHER).asking(RESOURCE, 1), B).await.unwrap();
    let later = rig.gpus("the other pod", |gpus| gpus[1]["pods"][OTHER] == 1).await;
    assert!(on_first(4)(&later), "{later}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_was_deleted_by_force_has_its_units_until_its_processes_have_ended() {
    let rig = deleted_by_force().await;
    is_reported_beside_another(&rig).await;
    let refused = rig.run(pod("early").asking(RESOURCE, 1), A).await.unwrap_err();
    assert!(refused.0.contains("where 0 are free"), "{}", refused.0);
    assert_eq!(rig.metric("plimsoll_gpu_lingering_pods"), 1.0);
    rig.no_group(OLD);
    rig.gpus("no pod on the first GPU", on_first(0)).await;
    rig.until_metric("plimsoll_gpu_lingering_pods", 0.0).await;
    let answers = rig.run(pod("next").asking(RESOURCE, 4), A).await.unwrap();
    assert_eq!(gpu(&answers["main"]), A);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_that_restarts_meanwhile_knows_it_when_the_kubelet_has_forgotten_it() {
    let mut rig = deleted_by_force().await;
    // The kubelet frees the ids of the pod at this admission, and writes that to its checkpoint.
    is_reported_beside_another(&rig).await;
    rig.stop_plugin().await;
    rig.forget_gpus();
    rig.begin_plugin();
    rig.gpus("the pod, though the kubelet knows it no more", on_first(4)).await;
    rig.kubelet.registered(3).await;
    rig.kubelet.devices("devices again", |devices| devices.len() == 8).await;
    let refused = rig.run(pod("early").asking(RESOURCE, 1), A).await.unwrap_err();
    assert!(refused.0.contains("where 0 are free"), "{}", refused.0);
    rig.no_group(OLD);
    rig.gpus("no pod on the first GPU", on_first(0)).await;
    rig.run(pod("next").asking(RESOURCE, 4), A).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_ended_before_its_object_went_frees_its_units_at_once() {
    let mut rig = Rig::new(&[(A, 4)]).await;
    rig.processes(OLD, true);
    rig.restart_with(&[]).await;
    for name in ["first", "second"] {
        rig.processes(OLD, true);
        rig.run(pod(name).uid(OLD).asking(RESOURCE, 4), A).await.unwrap();
        rig.no_group(OLD);
        rig.end(name);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_deleted_before_its_first_process_keeps_units_for_a_while() {
    let mut rig = Rig::new(&[(A, 4)]).await;
    rig.processes(OLD, false);
    rig.restart_with(&[]).await;
    rig.run(pod("old").uid(OLD).asking(RESOURCE, 4), A).await.unwrap();
    rig.gpus("the pod", on_first(4)).await;
    rig.end("old");
    rig.until_metric("plimsoll_gpu_lingering_pods", 1.0).await;
    rig.run(pod("early").asking(RESOURCE, 1), A).await.unwrap_err();
    rig.no_group(OLD);
    rig.gpus("no pod", on_first(0)).await;
    rig.run(pod("next").asking(RESOURCE, 4), A).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_keeps_its_units_while_the_control_groups_cannot_be_read() {
    let mut rig = Rig::new(&[(A, 4), (B, 4)]).await;
    rig.processes(OLD, true);
    rig.restart_with(&[]).await;
    rig.run(pod("old").uid(OLD).asking(RESOURCE, 4), A).await.unwrap();
    rig.gpus("the pod", on_first(4)).await;
    let mounted = rig.dir.path().join("sys/fs/cgroup");
    let away = rig.dir.path().join("away");
    fs::rename(&mounted, &away).unwrap();
    rig.end("old");
    rig.until_metric("plimsoll_gpu_lingering_pods", 1.0).await;
    fs::rename(&away, &mounted).unwrap();
    for unreadable in [Unreadable::Absent, Unreadable::Empty, Unreadable::Loop] {
        fs::rename(&mounted, &away).unwrap();
        unreadable.make(&mounted);
        let failures = rig.metric("plimsoll_gpu_cgroup_failures_total");
        rig.metric_at_least("plimsoll_gpu_cgroup_failures_total", failures + 2.0).await;
        let refused = rig.run(pod("early").asking(RESOURCE, 1), A).await.unwrap_err();
        assert!(refused.0.contains("where 0 are free"), "{unreadable:?}: {}", refused.0);
        rig.end("early");
        unreadable.remove(&mounted);
        fs::rename(&away, &mounted).unwrap();
    }
    is_reported_beside_another(&rig).await;
    rig.no_group(OLD);
    rig.gpus("no pod on the first GPU", on_first(0)).await;
    rig.run(pod("next").asking(RESOURCE, 4), A).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn gone_pods_keep_units_where_control_groups_cannot_be_read() {
    let mut rig = deleted_by_force().await;
    is_reported_beside_another(&rig).await;
    rig.stop_plugin().await;
    rig.forget_gpus();
    let mounted = rig.dir.path().join("sys/fs/cgroup");
    let away = rig.dir.path().join("away");
    fs::rename(&mounted, &away).unwrap();
    Unreadable::Loop.make(&mounted);
    rig.begin_plugin();
    rig.gpus("the pod, though nothing is known of its processes", on_first(4)).await;
    Unreadable::Loop.remove(&mounted);
    fs::rename(&away, &mounted).unwrap();
    rig.no_group(OLD);
    rig.gpus("no pod on the first GPU", on_first(0)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_whose_file_cannot_be_read_waits_for_it_before_it_offers_units() {
    let mut rig = deleted_by_force().await;
    is_reported_beside_another(&rig).await;
    rig.stop_plugin().await;
    rig.forget_gpus();
    let file = rig.dir.path().join("run/plimsoll-gpu/gpushare-device-plugin.json");
    let away = rig.dir.path().join("away");
    fs::rename(&file, &away).unwrap();
    symlink(&file, &file).unwrap();
    rig.begin_plugin();
    rig.not_ready("what an earlier process granted cannot be read").await;
    assert_eq!(rig.metric("plimsoll_gpu_state_behind"), 1.0);
    fs::rename(&away, &file).unwrap();
    rig.gpus("the pod, though the kubelet knows it no more", on_first(4)).await;
    rig.kubelet.registered(3).await;
    rig.kubelet.devices("devices again", |devices| devices.len() == 8).await;
    rig.until_metric("plimsoll_gpu_state_behind", 0.0).await;
    let refused = rig.run(pod("early").asking(RESOURCE, 1), A).await.unwrap_err();
    assert!(refused.0.contains("where 0 are free"), "{}", refused.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_could_not_be_written_down_is_written_as_soon_as_it_can_be() {
    let rig = Rig::new(&[(A, 4)]).await;
    rig.processes(OLD, true);
    let fresh = rig.dir.path().join("run/plimsoll-gpu/fresh");
    fs::create_dir_all(&fresh).unwrap();
    rig.run(pod("p").uid(OLD).asking(RESOURCE, 4), A).await.unwrap();
    rig.until_metric("plimsoll_gpu_state_behind", 1.0).await;
    fs::remove_dir(&fresh).unwrap();
    rig.until_metric("plimsoll_gpu_state_behind", 0.0).await;
    let text =
        fs::read_to_string(rig.dir.path().join("run/plimsoll-gpu/gpushare-device-plugin.json"))
            .unwrap();
    assert!(text.contains(OLD), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_known_from_the_kubelet_alone_keeps_units_when_forced_out() {
    let mut rig = Rig::new(&[(A, 4)]).await;
    rig.processes(OLD, true);
    rig.run(pod("old").uid(OLD).asking(RESOURCE, 4), A).await.unwrap();
    rig.gpus("the pod", on_first(4)).await;
    rig.stop_plugin().await;
    fs::remove_dir_all(rig.dir.path().join("run/plimsoll-gpu")).unwrap();
    rig.cut_off_checkpoint();
    rig.begin_plugin();
    rig.kubelet.registered(2).await;
    rig.end("old");
    rig.kubelet.devices("devices again", |devices| devices.len() == 4).await;
    rig.run(pod("early").asking(RESOURCE, 1), A).await.unwrap_err();
    rig.until_metric("plimsoll_gpu_lingering_pods", 1.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_whose_runtime_puts_it_elsewhere_keeps_its_units_until_its_processes_have_ended() {
    let rig = granted().await;
    let slice = format!("kubepods-burstable-pod{}.slice", OLD.replace('-', "_"));
    let container = format!(
        "cgroup/system.slice/containerd.service/{slice}:cri-containerd:{}",
        "0a".repeat(32)
    );
    rig.host_file(&format!("{container}/cgroup.events"));
    let events = rig.dir.path().join(&container).join("cgroup.events");
    fs::write(&events, "populated 1\n").unwrap();
    is_reported_beside_another(&rig).await;
    rig.processes(OLD, false);
    rig.end("old");
    rig.until_metric("plimsoll_gpu_lingering_pods", 1.0).await;
    let refused = rig.run(pod("early").asking(RESOURCE, 1), A).await.unwrap_err();
    assert!(refused.0.contains("where 0 are free"), "{}", refused.0);
    fs::remove_dir_all(rig.dir.path().join(&container)).unwrap();
    rig.no_group(OLD);
    rig.gpus("no pod on the first GPU", on_first(0)).await;
    rig.run(pod("next").asking(RESOURCE, 4), A).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_the_kubelet_has_lost_keeps_its_gpu_and_starts_no_container_again() {
    let mut rig = Rig::new(&[(A, 4), (B, 4)]).await;
    rig.processes(OLD, true);
    rig.restart_with(&["--audit-interval=100ms"]).await;
    rig.run(pod("old").uid(OLD).asking(RESOURCE, 3), A).await.unwrap();
    rig.gpus("the pod", on_first(3)).await;
    rig.kubelet.kill().await;
    rig.kubelet.lose_checkpoint().unwrap();
    rig.kubelet.begin();
    rig.kubelet.registered(3).await;
    rig.kubelet.devices("devices again", |devices| devices.len() == 8).await;
    let running = ["main".to_owned()].into();
    let spec = spec(&rig.sim.pod("default", "old").unwrap());
    rig.kubelet.admit_again(&spec, &running).await.unwrap();
    rig.kubelet.started();

    let lost = rig.event("GPUClaimWithoutRecord").await;
    let note = lost["note"].as_str().unwrap();
    assert!(note.contains("none of its containers starts again"), "{note}");
    assert!(note.contains("delete it and create it again"), "{note}");
    rig.processes(OTHER, true);
    rig.run(pod("fits").uid(OTHER).asking(RESOURCE, 1), A).await.unwrap();
    let later = rig.gpus("the other pod", |gpus| gpus[0]["pods"][OTHER] == 1).await;
    assert!(on_first(3)(&later), "{later}");
    let refused = rig.run(pod("early").asking(RESOURCE, 1), A).await.unwrap_err();
    assert!(refused.0.contains("where 0 are free"), "{}", refused.0);
    let held_back = rig.kubelet.start_container("old", "main").await.unwrap_err();
    assert!(held_back.0.contains("no devices found allocated"), "{}", held_back.0);

    rig.end("old");
    let refused = rig.run(pod("early-again").asking(RESOURCE, 1), A).await.unwrap_err();
    assert!(refused.0.contains("where 0 are free"), "{}", refused.0);
    rig.no_group(OLD);
    rig.gpus("no old pod on the first GPU", on_first(0)).await;
    let answers = rig.run(pod("next").asking(RESOURCE, 3), A).await.unwrap();
    assert_eq!(gpu(&answers["main"]), A);
}

/// What is found in place of the host's control groups.
#[derive(Debug, Clone, Copy)]
enum Unreadable {
    Absent,
    /// A folder without a file, as where nothing is mounted.
    Empty,
    /// A link to itself: every read fails.
    Loop,
}

impl Unreadable {
    fn make(self, path: &Path) {
        match self {
            Self::Absent => {}
            Self::Empty => fs::create_dir(path).unwrap(),
            Self::Loop => symlink(path, path).unwrap(),
        }
    }

    fn remove(self, path: &Path) {
        match self {
            Self::Absent => {}
            Self::Empty => fs::remove_dir(path).unwrap(),
            Self::Loop => fs::remove_file(path).unwrap(),
        }
    }
}

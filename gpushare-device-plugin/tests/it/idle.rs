//! A plugin that runs on every node, on those that may have no GPU.

use std::fs;

use serde_json::json;

use crate::rig::{A, Rig, until};

const FLAG: &str = "--idle-without-cards";

/// Begins a plugin, waits until it is idle, and fails if it asked the API server or the kubelet for something.
async fn is_idle_and_ready(rig: &mut Rig) {
    let before = rig.sim.log().all().len();
    rig.flags = vec![FLAG.to_owned()];
    rig.begin_plugin();
    rig.until_metric("plimsoll_gpu_idle", 1.0).await;
    assert!(rig.is_ready());
    assert_eq!(rig.metric("plimsoll_gpu_registrations_total"), 0.0);
    assert_eq!(rig.sim.log().all().len(), before, "requests to the API server");
}

async fn serves_gpu_a(rig: &Rig) {
    rig.kubelet.registered(1).await;
    rig.kubelet.devices("GPU A", |devices| devices.len() == 2).await;
    assert_eq!(rig.metric("plimsoll_gpu_idle"), 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_gpu_it_is_ready_and_asks_nothing_until_there_is_one() {
    let mut rig = Rig::without_plugin(&[]).await;
    is_idle_and_ready(&mut rig).await;
    rig.script(&[json!({"uuid": A, "memoryMiB": 2048})]);
    serves_gpu_a(&rig).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_nvidias_library_it_is_ready_and_asks_nothing_until_there_is_one() {
    let mut rig = Rig::without_plugin(&[]).await;
    let library = rig.dir.path().join("libnvidia-ml.so.1");
    let away = rig.dir.path().join("away");
    fs::rename(&library, &away).unwrap();
    is_idle_and_ready(&mut rig).await;
    rig.script(&[json!({"uuid": A, "memoryMiB": 2048})]);
    fs::rename(&away, &library).unwrap();
    serves_gpu_a(&rig).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gpu_on_the_bus_that_the_library_does_not_tell_of_is_told_by_readiness() {
    let mut rig = Rig::unregistered(&[]).await;
    let device = rig.dir.path().join("sys/bus/pci/devices/0000:00:05.0");
    fs::create_dir_all(&device).unwrap();
    fs::write(device.join("vendor"), "0x10de\n").unwrap();
    fs::write(device.join("class"), "0x030200\n").unwrap();
    rig.stop_plugin().await;
    rig.flags = vec![FLAG.to_owned()];
    rig.begin_plugin();
    rig.not_ready("[-] cards-found: NVML enumerates no GPU").await;
    assert!(!rig.is_ready());
    assert_eq!(rig.metric("plimsoll_gpu_idle"), 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_had_a_gpu_since_its_boot_is_not_idle_without_one() {
    let mut rig = Rig::new(&[(A, 2)]).await;
    rig.gpus("a healthy GPU", |gpus| gpus[0]["healthy"] == true).await;
    let saved = rig.dir.path().join("run/plimsoll-gpu/cards.json");
    until("the saved GPUs", || saved.exists()).await;
    rig.stop_plugin().await;
    rig.script(&[]);
    rig.flags = vec![FLAG.to_owned()];
    rig.begin_plugin();
    rig.not_ready("NVML enumerates no GPU").await;
    assert_eq!(rig.metric("plimsoll_gpu_idle"), 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn where_there_are_gpus_the_flag_changes_nothing() {
    let mut rig = Rig::new(&[(A, 2)]).await;
    rig.restart_with(&[FLAG]).await;
    rig.gpus("a healthy GPU", |gpus| gpus[0]["healthy"] == true).await;
}

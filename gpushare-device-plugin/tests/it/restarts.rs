//! Restarts of the kubelet and of the plugin, and registration.

use std::collections::{BTreeMap, BTreeSet};

use std::time::Duration;

use gpushare_device_plugin::records::pod_resources::PodResourcesClient;
use sim::pod;

use crate::rig::{A, B, C, Kubelet, PATIENCE, RESOURCE, Rig, claims, gpu, shuffled};

#[tokio::test(flavor = "multi_thread")]
async fn a_kubelet_that_restarts_admits_its_backlog_without_one_mismatch() {
    let mut rig = Rig::new(&[(A, 48), (B, 48), (C, 48)]).await;
    let (before, meanwhile): (Vec<_>, Vec<_>) =
        claims(40).into_iter().partition(|(name, _)| name.len() == 2);
    for (name, claimed) in &before {
        rig.run(pod(name).asking(RESOURCE, 3), claimed).await.unwrap();
    }
    rig.kubelet.kill().await;
    for (name, claimed) in shuffled(meanwhile.clone(), 3) {
        rig.bind(pod(&name).asking(RESOURCE, 3), claimed);
    }
    rig.kubelet.begin();
    rig.kubelet.registered(2).await;
    rig.kubelet.devices("devices again", |devices| devices.len() == 144).await;
    for (name, claimed) in meanwhile {
        let answers = rig.admit(&name).await.unwrap();
        assert_eq!(gpu(&answers["main"]), claimed, "{name}");
    }
    for (name, _) in claims(40) {
        rig.kubelet.start_container(&name, "main").await.unwrap();
    }
    assert!(rig.kubelet.shared_ids().is_empty());
}

#[tokio::test]
async fn a_kubelet_that_does_not_listen_yet_is_asked_again() {
    let root = tempfile::tempdir().unwrap();
    let mut kubelet = Kubelet::start(root.path(), RESOURCE);
    kubelet.kill().await;
    let socket = kubelet.records_socket().to_owned();
    let client = PodResourcesClient::new(&socket, RESOURCE).unwrap();
    let begin = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        kubelet.begin();
    };
    let (listed, ()) = tokio::join!(client.list(), begin);
    assert_eq!(listed.unwrap(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn units_of_pods_deleted_before_a_kubelet_restart_are_free_after_it() {
    let mut rig = Rig::new(&[(A, 6), (B, 6)]).await;
    let init = pod("init").init_container("init", RESOURCE, 3).container("main", RESOURCE, 3);
    rig.run(init, A).await.unwrap();
    rig.run(pod("plain").asking(RESOURCE, 3), A).await.unwrap();
    rig.end("init");
    rig.end("plain");
    rig.kubelet.written("a checkpoint without ids", BTreeSet::is_empty).await;
    rig.kubelet.kill().await;
    rig.kubelet.begin();
    rig.kubelet.registered(2).await;
    rig.kubelet.devices("devices again", |devices| devices.len() == 12).await;
    for name in ["first", "second"] {
        rig.run(pod(name).asking(RESOURCE, 3), A).await.unwrap();
    }
    rig.kubelet.started();
    assert!(rig.kubelet.shared_ids().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replaced_kubelet_socket_is_registered_with() {
    let mut rig = Rig::new(&[(A, 8)]).await;
    rig.kubelet.replace_registration();
    rig.kubelet.registered(2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_stream_is_registered_again() {
    let rig = Rig::new(&[(A, 8)]).await;
    rig.kubelet.drop_stream();
    rig.kubelet.registered(2).await;
    rig.kubelet.devices("devices again", |devices| devices.len() == 8).await;
    rig.run(pod("after").asking(RESOURCE, 2), A).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_plugin_knows_from_the_records_which_container_holds_which_ids() {
    let mut rig = Rig::new(&[(A, 8), (B, 8)]).await;
    rig.run(pod("old").asking(RESOURCE, 3), A).await.unwrap();
    let init = pod("with-init").init_container("init", RESOURCE, 4).container("main", RESOURCE, 2);
    rig.run(init, B).await.unwrap();
    rig.restart_plugin().await;
    rig.kubelet.registered(2).await;
    rig.kubelet.devices("devices again", |devices| devices.len() == 16).await;
    for (name, container) in [("old", "main"), ("with-init", "main"), ("with-init", "init")] {
        rig.kubelet.start_container(name, container).await.unwrap();
    }
    let answers = rig.run(pod("new").asking(RESOURCE, 3), A).await.unwrap();
    assert_eq!(gpu(&answers["main"]), A);
    assert!(rig.kubelet.shared_ids().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_and_units_outlast_a_kubelets_restart_without_the_plugin() {
    let mut rig = Rig::new(&[(A, 8)]).await;
    rig.run(pod("old").uid("uid-old").asking(RESOURCE, 6), A).await.unwrap();
    rig.stop_plugin().await;
    rig.forget_gpus();
    rig.kubelet.kill().await;
    rig.kubelet.begin();
    rig.begin_plugin();
    rig.kubelet.registered(2).await;
    rig.kubelet.devices("devices again", |devices| devices.len() == 8).await;
    rig.gpus("the pod again", |gpus| gpus[0]["pods"]["uid-old"] == 6).await;
    rig.kubelet.start_container("old", "main").await.unwrap();
    rig.run(pod("larger").asking(RESOURCE, 3), A).await.unwrap_err();
    rig.run(pod("new").asking(RESOURCE, 2), A).await.unwrap();
    assert!(rig.kubelet.shared_ids().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_bound_before_gpus_close_are_admitted_before_the_end() {
    let mut rig = Rig::new(&[(A, 8)]).await;
    for round in 0..3 {
        rig.gpus("an open GPU", |gpus| gpus[0]["closed"] != "plugin").await;
        rig.kubelet.devices("devices", |devices| healthy_ids(devices) == 8).await;
        rig.end_plugin();
        rig.gpus("a closed GPU", |gpus| gpus[0]["closed"] == "plugin").await;
        let late = format!("late-{round}");
        rig.bind(pod(&late).asking(RESOURCE, 2), A);
        rig.admit(&late).await.unwrap();
        rig.plugin_ended().await;
        rig.gpus("a GPU that stays closed", |gpus| gpus[0]["closed"] == "plugin").await;
        rig.end(&late);
        rig.begin_plugin();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn gpus_are_closed_until_the_kubelet_has_the_plugin() {
    let mut rig = Rig::new(&[(A, 8)]).await;
    rig.gpus("an open GPU", |gpus| gpus[0]["closed"] != "plugin").await;
    rig.stop_plugin().await;
    rig.forget_gpus();
    rig.kubelet.kill().await;
    rig.begin_plugin();
    rig.gpus("a closed GPU", |gpus| gpus[0]["closed"] == "plugin").await;
    rig.kubelet.begin();
    rig.gpus("an open GPU", |gpus| gpus[0]["closed"] != "plugin").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_plugin_leaves_no_socket_behind() {
    let mut rig = Rig::new(&[(A, 2)]).await;
    rig.stop_plugin().await;
    assert!(!rig.kubelet.plugin_dir().join("plimsoll-gpu-mem.sock").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_listed_outside_of_admissions_beside_another_plugin() {
    let rig = Rig::new(&[(A, 8)]).await;
    rig.kubelet.register_other("example.com/nic", &["eth0"]);
    rig.run(pod("p").uid("uid-p").asking(RESOURCE, 2), A).await.unwrap();
    rig.gpus("the pod", |gpus| gpus[0]["pods"]["uid-p"] == 2).await;
    let lists = rig.kubelet.lists();
    rig.end("p");
    rig.gpus("no pod", |gpus| gpus[0]["pods"]["uid-p"].is_null()).await;
    assert_eq!(rig.kubelet.lists(), lists);
}

fn healthy_ids(devices: &BTreeMap<String, bool>) -> usize {
    devices.values().filter(|healthy| **healthy).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_restarts_whose_gpu_has_fewer_units_by_now() {
    let mut rig = Rig::new(&[(A, 8)]).await;
    rig.run(pod("p").asking(RESOURCE, 8), A).await.unwrap();
    rig.restart_with(&["--reserve-percent=50"]).await;
    rig.gpus("half of the units", |gpus| gpus[0]["units"] == 4).await;
    // kube-scheduler still counts all that the pod requests.
    rig.kubelet.devices("the ids that are held", |devices| healthy_ids(devices) == 8).await;
    rig.kubelet.start_container("p", "main").await.unwrap();
    rig.end("p");
    rig.kubelet.devices("half of the ids", |devices| healthy_ids(devices) == 4).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_plugin_lists_nothing_before_the_next_admission() {
    let mut rig = Rig::new(&[(A, 8)]).await;
    rig.run(pod("p").asking(RESOURCE, 2), A).await.unwrap();
    let lists = rig.kubelet.lists();
    rig.restart_plugin().await;
    rig.kubelet.registered(2).await;
    rig.kubelet.start_container("p", "main").await.unwrap();
    assert_eq!(rig.kubelet.lists(), lists);
}

/// Whether the node's annotation has the pod on GPU B, with four units.
fn is_on_b(gpus: &serde_json::Value) -> bool {
    gpus[1]["pods"]["uid-1"] == 4
}

#[tokio::test(flavor = "multi_thread")]
async fn units_of_init_containers_stay_reported_after_a_restart_of_the_plugin() {
    let mut rig = Rig::new(&[(A, 8), (B, 8)]).await;
    let init_only = pod("init-only").uid("uid-1");
    let init_only = init_only.init_container("init", RESOURCE, 4).container("main", RESOURCE, 0);
    rig.run(init_only, B).await.unwrap();
    rig.gpus("the pod on GPU B", is_on_b).await;
    rig.stop_plugin().await;
    rig.forget_gpus();
    rig.begin_plugin();
    rig.gpus("the pod on GPU B again", is_on_b).await;
    rig.kubelet.registered(2).await;
    rig.kubelet.devices("devices again", |devices| devices.len() == 16).await;
    rig.kubelet.start_container("init-only", "init").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_unit_is_refused_while_containers_hold_ids_of_the_old_one() {
    let mut rig = Rig::new(&[(A, 8)]).await;
    rig.run(pod("old").asking(RESOURCE, 2), A).await.unwrap();
    rig.stop_plugin().await;
    rig.unit_mib = 512;
    rig.begin_plugin();
    rig.not_ready("--unit-mib is 512").await;
    assert!(rig.remedy("unit").unwrap().starts_with("drain the GPU nodes"));
    rig.end("old");
    rig.kubelet.registered(2).await;
    rig.kubelet.devices("smaller units", |devices| devices.len() == 16).await;
    let answers = rig.run(pod("new").asking(RESOURCE, 2), A).await.unwrap();
    assert_eq!(answers["main"].envs["PLIMSOLL_GPU_UNIT_MIB"], "512");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_unit_is_refused_although_the_checkpoint_cannot_be_read_at_first() {
    let mut rig = Rig::new(&[(A, 8)]).await;
    rig.run(pod("old").asking(RESOURCE, 2), A).await.unwrap();
    rig.stop_plugin().await;
    let whole = rig.cut_off_checkpoint();
    rig.unit_mib = 512;
    rig.begin_plugin();
    rig.not_ready("kubelet_internal_checkpoint cannot be read").await;
    rig.write_checkpoint(&whole);
    rig.not_ready("--unit-mib is 512").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_that_cannot_be_read_at_the_start_is_read_later() {
    let mut rig = Rig::new(&[(A, 8), (B, 8)]).await;
    let init_only = pod("init-only").uid("uid-1");
    let init_only = init_only.init_container("init", RESOURCE, 4).container("main", RESOURCE, 0);
    rig.run(init_only, B).await.unwrap();
    rig.gpus("the pod on GPU B", is_on_b).await;
    rig.stop_plugin().await;
    rig.cut_off_checkpoint();
    rig.forget_gpus();
    rig.begin_plugin();
    rig.kubelet.registered(2).await;
    // The audit, which is later, would find it too.
    let soon = rig.gpus("the pod on GPU B again", is_on_b);
    tokio::time::timeout(PATIENCE, soon).await.unwrap();
}

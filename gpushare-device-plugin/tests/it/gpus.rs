//! What is listed to the kubelet and reported to the API server.

use std::collections::{BTreeMap, BTreeSet};

use rustix::fs::{CWD, RenameFlags};
use serde_json::{Value, json};
use sim::{CONFIG_MAPS, Failure, Fault, NODES, PODS, Sim, Verb, pod};

use crate::rig::{self, A, B, C, CLAIM, RESOURCE, Rig};

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_gpu_turns_unhealthy_keeps_its_ids_and_recovers() {
    let rig = Rig::new(&[(A, 2), (B, 2)]).await;
    for (healthy, healthy_ids) in [(false, 2), (true, 4)] {
        rig.script(&[
            json!({"uuid": A, "memoryMiB": 2048, "healthy": healthy}),
            json!({"uuid": B, "memoryMiB": 2048}),
        ]);
        let what = format!("{healthy_ids} healthy ids");
        rig.kubelet
            .devices(&what, |devices| {
                let healthy = devices.values().filter(|healthy| **healthy);
                devices.len() == 4 && healthy.count() == healthy_ids
            })
            .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gpu_in_mig_mode_is_unhealthy_for_that_reason_until_the_mode_is_off() {
    let rig = Rig::new(&[(A, 2), (B, 2)]).await;
    rig.bind(pod("p").asking(RESOURCE, 2), A);
    let gpu_b = json!({"uuid": B, "memoryMiB": 2048, "mig": false});
    rig.script(&[json!({"uuid": A, "memoryMiB": 2048, "mig": true}), gpu_b.clone()]);
    rig.kubelet.devices("GPU A unhealthy", |devices| !devices["aaaaaaaa-0"]).await;
    let refused = rig.admit("p").await.unwrap_err();
    assert!(refused.0.contains("which has become unhealthy: MIG mode is on"), "{}", refused.0);
    let note = rig.event("GPUCardUnhealthy").await["note"].to_string();
    assert!(note.contains("takes no new pods: MIG mode is on") && note.contains(A), "{note}");
    rig.script(&[json!({"uuid": A, "memoryMiB": 2048, "mig": false}), gpu_b]);
    rig.kubelet.devices("GPU A healthy", |devices| devices["aaaaaaaa-0"]).await;
    assert_eq!(rig.event("GPUCardHealthy").await["type"], "Normal");
    rig.run(pod("q").asking(RESOURCE, 2), A).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_number_of_gpus_is_in_the_nodes_status_where_the_flag_asks_for_it() {
    let mut rig = Rig::new(&[(A, 8), (B, 8)]).await;
    rig.restart_with(&["--report-gpu-count"]).await;
    let counted = rig.sim.until("the number of GPUs", |sim| {
        let status = sim.node(rig::NODE)?["status"].clone();
        let all =
            ["capacity", "allocatable"].map(|part| status[part]["aliyun.com/gpu-count"] == "2");
        all.iter().all(|is| *is).then_some(())
    });
    counted.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_number_of_gpus_that_cannot_be_written_keeps_no_report_back() {
    for fault in [Fault::Answer(Failure::new(403, "Forbidden", "denied")), Fault::Hang] {
        let mut rig = Rig::new(&[(A, 8)]).await;
        rig.sim.faults().next_status_patches(usize::MAX, NODES, fault);
        rig.restart_with(&["--report-gpu-count"]).await;
        rig.run(pod("p").uid("uid-p").asking(RESOURCE, 2), A).await.unwrap();
        rig.gpus("the pod", |gpus| gpus[0]["pods"]["uid-p"] == 2).await;
        rig.marked("p").await;
        rig.metric_at_least("plimsoll_gpu_count_failures_total", 1.0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gpu_that_a_pod_holds_through_another_resource_counts_as_full_and_takes_no_pod() {
    let rig = Rig::new(&[(A, 8), (B, 8)]).await;
    rig.sim.put(pod("whole").uid("uid-whole").on(rig::NODE));
    rig.kubelet.hold_other("uid-whole", "nvidia.com/gpu", A);
    // As a kubelet reports once it has written its checkpoint: the plugin reads that when a pod changes.
    rig.sim.change(PODS, "default", "whole", |pod| pod["status"]["phase"] = "Running".into());
    rig.gpus("a full GPU", |gpus| gpus[0]["pods"]["uid-whole/nvidia.com/gpu"] == 8).await;
    let refused = rig.run(pod("early").asking(RESOURCE, 2), A).await.unwrap_err();
    assert!(refused.0.contains("through nvidia.com/gpu"), "{}", refused.0);
    rig.run(pod("beside").asking(RESOURCE, 2), B).await.unwrap();
    rig.sim.delete(PODS, "default", "whole");
    rig.gpus("an empty GPU", |gpus| gpus[0]["pods"]["uid-whole/nvidia.com/gpu"].is_null()).await;
    rig.run(pod("later").asking(RESOURCE, 2), A).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_node_carries_gpus_and_holders_and_pods_are_marked_as_assigned() {
    let rig = Rig::new(&[(A, 8), (B, 8)]).await;
    let init = pod("with-init")
        .uid("uid-1")
        .init_container("init", RESOURCE, 4)
        .container("main", RESOURCE, 2);
    rig.run(init, B).await.unwrap();
    let gpus = rig.gpus("the pod on GPU B", |gpus| gpus[1]["pods"]["uid-1"].is_number()).await;
    assert_eq!(gpus[1]["pods"]["uid-1"], 4, "what it holds at most");
    assert_eq!(
        (&gpus[0]["uuid"], &gpus[0]["units"], &gpus[0]["healthy"]),
        (&A.into(), &8.into(), &true.into())
    );
    rig.marked("with-init").await;
    let status = rig.sim.node(rig::NODE).unwrap()["status"].clone();
    assert!(status["allocatable"]["aliyun.com/gpu-count"].is_null(), "not without the flag");
    rig.end("with-init");
    rig.gpus("GPU B empty again", |gpus| {
        gpus[1]["pods"].as_object().is_some_and(serde_json::Map::is_empty)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_cannot_be_marked_keeps_no_other_from_its_mark() {
    let rig = Rig::new(&[(A, 8)]).await;
    let denied = Failure::new(422, "Invalid", "denied by a policy");
    rig.sim.faults().next(usize::MAX, Verb::Patch, PODS, Fault::Answer(denied));
    let names: BTreeSet<String> = (0..8).map(|number| format!("p{number}")).collect();
    for name in &names {
        rig.run(pod(name).asking(RESOURCE, 1), A).await.unwrap();
    }
    let tried = rig.sim.until("an attempt to mark each pod", |sim| {
        let patches = sim.log().all().into_iter().filter(|request| request.is(Verb::Patch, PODS));
        let tried: BTreeSet<String> = patches.map(|request| request.name).collect();
        (tried == names).then_some(())
    });
    tried.await.unwrap();
}

/// The number of writes for a pod.
fn attempts(sim: &Sim, pod: &str) -> usize {
    let log = sim.log().all().into_iter();
    log.filter(|request| request.is(Verb::Patch, PODS) && request.name == pod).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mark_that_the_api_server_refuses_is_not_tried_again_with_each_report() {
    let rig = Rig::new(&[(A, 8)]).await;
    let denied = Failure::new(422, "Invalid", "denied by a policy");
    rig.sim.faults().next(usize::MAX, Verb::Patch, PODS, Fault::Answer(denied));
    // One report after the other: each marks what is due.
    for name in ["p0", "p1", "p2", "p3"] {
        rig.run(pod(name).asking(RESOURCE, 1), A).await.unwrap();
        let what = format!("an attempt to mark {name}");
        rig.sim.until(&what, |sim| (attempts(sim, name) > 0).then_some(())).await.unwrap();
    }
    for name in ["p0", "p1", "p2"] {
        assert_eq!(attempts(&rig.sim, name), 1, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_whose_claim_cannot_be_repaired_keeps_no_other_from_its_mark() {
    let rig = Rig::new(&[(A, 4), (B, 4)]).await;
    rig.run(pod("elsewhere").asking(RESOURCE, 2), A).await.unwrap();
    rig.marked("elsewhere").await;
    let denied = Failure::new(422, "Invalid", "denied by a policy");
    rig.sim.faults().next(usize::MAX, Verb::Patch, PODS, Fault::Answer(denied));
    rig.sim.change(PODS, "default", "elsewhere", |pod| {
        pod["metadata"]["annotations"][CLAIM] = json!(json!({"main": {B: 2}}).to_string());
    });
    rig.run(pod("other").asking(RESOURCE, 1), A).await.unwrap();
    let tried = rig
        .sim
        .until("an attempt to mark the other", |sim| (attempts(sim, "other") > 0).then_some(()));
    tried.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_specification_of_nvidia_is_an_event_on_the_node_until_it_is_written() {
    let rig = Rig::new(&[(A, 2), (B, 2)]).await;
    let event = rig.event("CDISpecificationAbsent").await;
    assert_eq!(event["regarding"]["kind"], "Node");
    assert_eq!(event["regarding"]["name"], rig::NODE);
    assert!(event["note"].as_str().unwrap().contains("nvidia-ctk cdi generate"), "{event}");
    assert_eq!(rig.metric("plimsoll_gpu_cdi_problems{problem=\"absent\"}"), 1.0);
    rig.nvidia_gpus(&[A, B]);
    // A change of the GPUs has the files looked at at once.
    rig.script(&[
        json!({"uuid": A, "memoryMiB": 2048}),
        json!({"uuid": B, "memoryMiB": 2048, "mig": true}),
    ]);
    rig.until_metric("plimsoll_gpu_cdi_problems{problem=\"absent\"}", 0.0).await;
    assert_eq!(rig.metric("plimsoll_gpu_cdi_problems{problem=\"card_missing\"}"), 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listed_gpu_takes_no_pods_and_a_lost_one_is_listed() {
    let mut rig = Rig::new(&[(A, 2), (B, 2)]).await;
    rig.restart_with(&["--unhealthy-gpus-namespace=kube-system"]).await;
    let name = format!("unhealthy-gpu-{}", rig::NODE);
    rig.sim.put(json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "kube-system"}, "data": {"gpus": "0"}}));
    rig.kubelet.devices("GPU A unhealthy", |devices| !devices["aaaaaaaa-0"]).await;
    // The first try is lost.
    rig.sim.faults().next(1, Verb::Patch, CONFIG_MAPS, Fault::DropRequest);
    for (is_b_healthy, gpus) in [(false, "0,1"), (true, "0")] {
        rig.script(&[
            json!({"uuid": A, "memoryMiB": 2048}),
            json!({"uuid": B, "memoryMiB": 2048, "healthy": is_b_healthy}),
        ]);
        let what = format!("the list {gpus}");
        let listed = rig.sim.until(&what, |sim| {
            let map = sim.get(CONFIG_MAPS, "kube-system", &name)?;
            (map["data"]["gpus"] == gpus).then_some(())
        });
        listed.await.unwrap();
    }
    rig.sim.delete(CONFIG_MAPS, "kube-system", &name);
    rig.kubelet.devices("both healthy", |devices| devices.values().all(|healthy| *healthy)).await;
}

/// Waits until the node's ConfigMap has this list.
async fn listed(rig: &Rig, gpus: &Value) {
    let name = format!("unhealthy-gpu-{}", rig::NODE);
    let what = format!("the list {gpus}");
    let listed = rig.sim.until(&what, |sim| {
        let map = sim.get(CONFIG_MAPS, "kube-system", &name)?;
        (map["data"]["gpus"] == *gpus).then_some(())
    });
    listed.await.unwrap();
}

/// After a boot without the first GPU the second one has its index.
#[tokio::test(flavor = "multi_thread")]
async fn a_cordoned_gpu_takes_no_pods_under_any_index_and_the_config_map_follows() {
    const KEY: &str = "plimsoll.dev/cordoned-gpus";
    let mut rig = Rig::new(&[(A, 2), (B, 2)]).await;
    rig.sim.change(NODES, "", rig::NODE, |node| node["metadata"]["annotations"][KEY] = json!(B));
    let closed = |gpus: &Value, uuid: &str, index: u64| {
        let gpus = gpus.as_array().unwrap();
        let unhealthy = gpus.iter().filter(|gpu| gpu["healthy"] == false);
        unhealthy
            .map(|gpu| (gpu["uuid"].as_str(), gpu["index"].as_u64()))
            .eq([(Some(uuid), Some(index))])
    };
    rig.gpus("GPU B closed", |gpus| closed(gpus, B, 1)).await;
    rig.restart_with(&["--unhealthy-gpus-namespace=kube-system"]).await;
    listed(&rig, &json!("1")).await;
    rig.script(&[json!({"uuid": B, "memoryMiB": 2048}), json!({"uuid": C, "memoryMiB": 2048})]);
    rig.stop_plugin().await;
    rig.boot();
    rig.begin_plugin();
    rig.gpus("GPU B closed at its new index", |gpus| closed(gpus, B, 0)).await;
    listed(&rig, &json!("0")).await;
    rig.sim.change(NODES, "", rig::NODE, |node| {
        node["metadata"]["annotations"].as_object_mut().unwrap().remove(KEY);
    });
    rig.kubelet.devices("both healthy", |devices| devices.values().all(|healthy| *healthy)).await;
    listed(&rig, &Value::Null).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn our_specification_is_written_again_where_someone_deletes_it() {
    let rig = Rig::new(&[(A, 4)]).await;
    let written = rig.own_spec();
    rig.delete_own_spec().await;
    assert_eq!(rig.own_spec(), written);
}

fn healthy_of(devices: &BTreeMap<String, bool>, prefix: &str) -> usize {
    devices.iter().filter(|(id, healthy)| id.starts_with(prefix) && **healthy).count()
}

/// Waits until the kubelet has these numbers of healthy ids of GPUs A and B.
async fn healthy_ids_of_a_and_b(rig: &Rig, a: usize, b: usize) {
    let what = format!("{a} healthy ids of GPU A and {b} of GPU B");
    rig.kubelet
        .devices(&what, |devices| {
            healthy_of(devices, "aaaaaaaa") == a && healthy_of(devices, "bbbbbbbb") == b
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_gpu_that_a_pod_holds_does_not_use_up_the_room_of_another() {
    let rig = Rig::new(&[(A, 16), (B, 16)]).await;
    rig.run(pod("holds").asking(RESOURCE, 12), A).await.unwrap();
    rig.bind(pod("late").asking(RESOURCE, 4), A);
    rig.script(&[
        json!({"uuid": A, "memoryMiB": 16384, "xid": 79}),
        json!({"uuid": B, "memoryMiB": 16384}),
    ]);
    rig.gpus("GPU A unhealthy", |gpus| gpus[0]["healthy"] == false).await;
    // Of 28 Healthy ids kube-scheduler takes off the 12 that the pod requests: the 16 of GPU B.
    healthy_ids_of_a_and_b(&rig, 12, 16).await;
    let refused = rig.admit("late").await.unwrap_err().0;
    assert!(refused.contains("which has become unhealthy: it raised XID 79"), "{refused}");
    rig.run(pod("beside").asking(RESOURCE, 4), B).await.unwrap();
    rig.end("holds");
    healthy_ids_of_a_and_b(&rig, 0, 16).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_ids_of_a_finished_pod_are_not_held() {
    let rig = Rig::new(&[(A, 4), (B, 4)]).await;
    rig.run(pod("job").asking(RESOURCE, 4), A).await.unwrap();
    rig.script(&[
        json!({"uuid": A, "memoryMiB": 4096, "healthy": false}),
        json!({"uuid": B, "memoryMiB": 4096}),
    ]);
    rig.gpus("GPU A unhealthy", |gpus| gpus[0]["healthy"] == false).await;
    rig.kubelet.devices("held", |devices| healthy_of(devices, "aaaaaaaa") == 4).await;
    rig.sim.change(PODS, "default", "job", |pod| pod["status"]["phase"] = json!("Succeeded"));
    rig.kubelet.devices("free", |devices| healthy_of(devices, "aaaaaaaa") == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gpu_that_is_gone_when_the_plugin_starts_is_reported_unhealthy_with_its_pods() {
    let mut rig = Rig::new(&[(A, 4), (B, 4)]).await;
    rig.run(pod("on-a").uid("uid-a").asking(RESOURCE, 3), A).await.unwrap();
    rig.script(&[json!({"uuid": B, "memoryMiB": 4096})]);
    rig.restart_plugin().await;
    rig.gpus("both GPUs, one of them lost", |gpus| {
        let gpus = gpus.as_array().unwrap();
        let a = gpus.iter().find(|gpu| gpu["uuid"] == A);
        let b = gpus.iter().find(|gpu| gpu["uuid"] == B);
        let (Some(a), Some(b)) = (a, b) else { return false };
        a["healthy"] == false && a["units"] == 4 && a["pods"]["uid-a"] == 3 && b["healthy"] == true
    })
    .await;
    healthy_ids_of_a_and_b(&rig, 3, 4).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gpu_that_failed_before_the_plugin_restarted_has_not_recovered() {
    let mut rig = Rig::new(&[(A, 2), (B, 2)]).await;
    let gpu_b = json!({"uuid": B, "memoryMiB": 2048});
    rig.script(&[json!({"uuid": A, "memoryMiB": 2048, "xid": 79}), gpu_b.clone()]);
    rig.gpus("GPU A unhealthy", |gpus| gpus[0]["healthy"] == false).await;
    // The driver says no more about it.
    rig.script(&[json!({"uuid": A, "memoryMiB": 2048}), gpu_b]);
    rig.forget_gpus();
    rig.restart_plugin().await;
    let reported = rig.gpus("a report of the new process", |_| true).await;
    assert_eq!((&reported[0]["healthy"], &reported[1]["healthy"]), (&json!(false), &json!(true)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gpu_without_a_cdi_device_takes_no_new_pods_until_it_has_one() {
    let rig = Rig::new(&[(A, 2), (B, 2)]).await;
    rig.gpus("both closed", |gpus| gpus[0]["closed"] == "cdi" && gpus[1]["closed"] == "cdi").await;
    rig.nvidia_gpus(&[A]);
    rig.gpus("GPU B closed", |gpus| gpus[0]["closed"].is_null() && gpus[1]["closed"] == "cdi")
        .await;
    rig.kubelet.devices("healthy ids", |devices| devices.values().all(|healthy| *healthy)).await;
    rig.nvidia_gpus(&[A, B]);
    rig.gpus("both open", |gpus| gpus[0]["closed"].is_null() && gpus[1]["closed"].is_null()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_specification_without_nvidia_uvm_closes_the_gpus_until_it_is_written_anew() {
    let rig = Rig::new(&[(A, 2), (B, 2)]).await;
    rig.nvidia_gpus_with(&[A, B], &["/dev/nvidiactl"]);
    let event = rig.event("CDIDeviceNodeMissing").await;
    let note = event["note"].as_str().unwrap();
    assert!(note.contains("no /dev/nvidia-uvm,") && note.contains("nvidia-modprobe"), "{note}");
    rig.gpus("both closed", |gpus| gpus[0]["closed"] == "cdi" && gpus[1]["closed"] == "cdi").await;
    rig.until_metric("plimsoll_gpu_cdi_problems{problem=\"missing_node\"}", 2.0).await;
    rig.nvidia_gpus(&[A, B]);
    rig.gpus("both open", |gpus| gpus[0]["closed"].is_null() && gpus[1]["closed"].is_null()).await;
}

/// The compute modes by NVML's numbers: any number of processes, none, one.
#[tokio::test(flavor = "multi_thread")]
async fn a_gpu_whose_compute_mode_bars_programs_takes_no_pods() {
    let rig = Rig::new(&[(A, 2), (B, 2)]).await;
    rig.nvidia_gpus(&[A, B]);
    let set = |mode: u32| {
        rig.script(&[
            json!({"uuid": A, "memoryMiB": 2048, "computeMode": 0}),
            json!({"uuid": B, "memoryMiB": 2048, "computeMode": mode}),
        ]);
    };
    for (mode, closed) in
        [(3, json!("compute-mode")), (0, Value::Null), (2, json!("compute-mode")), (0, Value::Null)]
    {
        set(mode);
        let what = format!("GPU B {closed} in mode {mode}");
        rig.gpus(&what, |gpus| gpus[0]["closed"].is_null() && gpus[1]["closed"] == closed).await;
    }
    let event = rig.event("GPUComputeMode").await;
    assert_eq!(event["regarding"]["kind"], "Node");
    let note = event["note"].as_str().unwrap();
    assert!(note.contains(&format!("nvidia-smi -i {B} -c DEFAULT")), "{note}");
    rig.kubelet.devices("healthy ids", |devices| devices.values().all(|healthy| *healthy)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_runtime_that_may_have_cdi_off_is_an_event_on_the_node() {
    let rig = Rig::new(&[(A, 2), (B, 2)]).await;
    rig.sim.change(NODES, "", rig::NODE, |node| {
        node["status"]["nodeInfo"] = json!({"containerRuntimeVersion": "containerd://1.7.27"});
    });
    rig.script(&[
        json!({"uuid": A, "memoryMiB": 2048, "healthy": false}),
        json!({"uuid": B, "memoryMiB": 2048}),
    ]);
    let event = rig.event("CDIMayBeOff").await;
    assert_eq!(event["regarding"]["kind"], "Node");
    assert!(event["note"].as_str().unwrap().contains("enable_cdi = true"), "{event}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cdi_folder_that_cannot_be_written_closes_the_gpus_and_is_an_event_on_the_node() {
    let rig = Rig::new(&[(A, 2)]).await;
    rig.nvidia_gpus(&[A]);
    rig.gpus("an open GPU", |gpus| gpus[0]["closed"].is_null()).await;
    let no_folder = rig.dir.path().join("no-folder");
    std::fs::write(&no_folder, "").unwrap();
    // At once: where the folder were removed first, the plugin could write into it or make it anew.
    let folder = rig.dir.path().join("var/run/cdi");
    rustix::fs::renameat_with(CWD, &no_folder, CWD, &folder, RenameFlags::EXCHANGE).unwrap();
    rig.gpus("a closed GPU", |gpus| gpus[0]["closed"] == "cdi-folder").await;
    rig.event("CDIFolderNotWritable").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gpu_without_memory_of_its_own_is_an_event_or_has_the_size_that_is_set() {
    let mut rig = Rig::new(&[(B, 2)]).await;
    rig.script(&[
        json!({"uuid": A, "model": "NVIDIA GB10"}),
        json!({"uuid": B, "memoryMiB": 2048}),
    ]);
    let event = rig.event("GPUCardWithoutSize").await;
    let note = event["note"].as_str().unwrap();
    assert!(note.contains(A) && note.contains("--unified-memory-mib"), "{note}");
    rig.restart_with(&["--unified-memory-mib=65536"]).await;
    rig.gpus("both GPUs", |gpus| gpus[0]["uuid"] == A && gpus[0]["units"] == 64).await;
}

//! What is listed to the kubelet and reported to the API server.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;
use sim::{CONFIG_MAPS, Failure, Fault, NODES, PODS, Verb, pod};

use crate::rig::{self, A, B, CLAIM, RESOURCE, Rig};

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_card_turns_unhealthy_keeps_its_ids_and_recovers() {
    let rig = Rig::new(&[(A, 2), (B, 2)]).await;
    let cards = |healthy: bool| {
        vec![
            serde_json::json!({"uuid": A, "memoryMiB": 2048, "healthy": healthy}),
            serde_json::json!({"uuid": B, "memoryMiB": 2048}),
        ]
    };
    let count = |wanted: usize| {
        move |devices: &std::collections::BTreeMap<String, bool>| {
            devices.len() == 4 && devices.values().filter(|healthy| **healthy).count() == wanted
        }
    };
    rig.script(&cards(false));
    rig.kubelet.devices("card A unhealthy", count(2)).await;
    rig.script(&cards(true));
    rig.kubelet.devices("card A healthy again", count(4)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_card_in_mig_mode_is_unhealthy_for_that_reason_until_the_mode_is_off() {
    let rig = Rig::new(&[(A, 2), (B, 2)]).await;
    let cards = |mig: bool| {
        [A, B].map(|uuid| {
            let mig = mig && uuid == A;
            serde_json::json!({"uuid": uuid, "memoryMiB": 2048, "mig": mig})
        })
    };
    rig.bind(pod("p").asking(RESOURCE, 2), A);
    rig.script(&cards(true));
    rig.kubelet.devices("card A unhealthy", |devices| !devices["aaaaaaaa-0"]).await;
    let refused = rig.admit("p").await.unwrap_err();
    assert!(refused.0.contains("which has become unhealthy: MIG mode is on"), "{}", refused.0);
    rig.script(&cards(false));
    rig.kubelet.devices("card A healthy", |devices| devices["aaaaaaaa-0"]).await;
    rig.run(pod("q").asking(RESOURCE, 2), A).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_number_of_cards_is_in_the_nodes_status_where_the_flag_asks_for_it() {
    let mut rig = Rig::new(&[(A, 8), (B, 8)]).await;
    rig.restart_with(&["--report-gpu-count"]).await;
    let counted = |sim: &sim::Sim| {
        let status = sim.node(rig::NODE)?["status"].clone();
        let all =
            ["capacity", "allocatable"].map(|part| status[part]["aliyun.com/gpu-count"] == "2");
        all.iter().all(|is| *is).then_some(())
    };
    rig.sim.until("the number of cards", counted).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_number_of_cards_that_cannot_be_written_keeps_no_report_back() {
    for fault in [Fault::Answer(Failure::new(403, "Forbidden", "denied")), Fault::Hang] {
        let mut rig = Rig::new(&[(A, 8)]).await;
        rig.sim.faults().next_status_patches(usize::MAX, NODES, fault);
        rig.restart_with(&["--report-gpu-count"]).await;
        rig.run(pod("p").uid("uid-p").asking(RESOURCE, 2), A).await.unwrap();
        rig.cards("the pod", |cards| cards[0]["pods"]["uid-p"] == 2).await;
        rig.marked("p").await;
        rig.metric_at_least("plimsoll_gpu_count_failures_total", 1.0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_card_that_a_pod_holds_through_another_resource_counts_as_full_and_takes_no_pod() {
    let rig = Rig::new(&[(A, 8), (B, 8)]).await;
    rig.sim.put(pod("whole").uid("uid-whole").on(rig::NODE));
    rig.kubelet.hold_other("uid-whole", "nvidia.com/gpu", A);
    rig.cards("a full card", |cards| cards[0]["pods"]["uid-whole/nvidia.com/gpu"] == 8).await;
    let refused = rig.run(pod("early").asking(RESOURCE, 2), A).await.unwrap_err();
    assert!(refused.0.contains("through nvidia.com/gpu"), "{}", refused.0);
    rig.run(pod("beside").asking(RESOURCE, 2), B).await.unwrap();
    rig.sim.delete(PODS, "default", "whole");
    rig.cards("an empty card", |cards| cards[0]["pods"]["uid-whole/nvidia.com/gpu"].is_null())
        .await;
    rig.run(pod("later").asking(RESOURCE, 2), A).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_node_carries_cards_and_holders_and_pods_are_marked_as_assigned() {
    let rig = Rig::new(&[(A, 8), (B, 8)]).await;
    let init = pod("with-init")
        .uid("uid-1")
        .init_container("init", RESOURCE, 4)
        .container("main", RESOURCE, 2);
    rig.run(init, B).await.unwrap();
    let cards = rig.cards("the pod on card B", |cards| cards[1]["pods"]["uid-1"].is_number()).await;
    assert_eq!(cards[1]["pods"]["uid-1"], 4, "what it holds at most");
    assert_eq!(
        (&cards[0]["uuid"], &cards[0]["units"], &cards[0]["healthy"]),
        (&A.into(), &8.into(), &true.into())
    );
    rig.marked("with-init").await;
    let status = rig.sim.node(rig::NODE).unwrap()["status"].clone();
    assert!(status["allocatable"]["aliyun.com/gpu-count"].is_null(), "not without the flag");
    rig.end("with-init");
    rig.cards("card B empty again", |cards| {
        cards[1]["pods"].as_object().is_some_and(serde_json::Map::is_empty)
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
    let tried = |sim: &sim::Sim| {
        let patches = sim.log().all().into_iter().filter(|request| request.is(Verb::Patch, PODS));
        let tried: BTreeSet<String> = patches.map(|request| request.name).collect();
        (tried == names).then_some(())
    };
    rig.sim.until("an attempt to mark each pod", tried).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mark_that_the_api_server_refuses_is_not_tried_again_with_each_report() {
    let rig = Rig::new(&[(A, 8)]).await;
    let denied = Failure::new(422, "Invalid", "denied by a policy");
    rig.sim.faults().next(usize::MAX, Verb::Patch, PODS, Fault::Answer(denied));
    let attempts = |sim: &sim::Sim, name: &str| {
        let log = sim.log().all().into_iter();
        log.filter(|request| request.is(Verb::Patch, PODS) && request.name == name).count()
    };
    // One report after the other: each marks what is due.
    for name in ["p0", "p1", "p2", "p3"] {
        rig.run(pod(name).asking(RESOURCE, 1), A).await.unwrap();
        let tried = |sim: &sim::Sim| (attempts(sim, name) > 0).then_some(());
        rig.sim.until(&format!("an attempt to mark {name}"), tried).await.unwrap();
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
    let tried = |name: &'static str| {
        move |sim: &sim::Sim| {
            let log = sim.log().all();
            let tried =
                |request: &sim::Request| request.is(Verb::Patch, PODS) && request.name == name;
            log.iter().any(tried).then_some(())
        }
    };
    rig.run(pod("other").asking(RESOURCE, 1), A).await.unwrap();
    rig.sim.until("an attempt to mark the other", tried("other")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_specification_of_nvidia_is_an_event_on_the_node_until_it_is_written() {
    let rig = Rig::new(&[(A, 2), (B, 2)]).await;
    let event = rig.event("CDISpecificationAbsent").await;
    assert_eq!(event["regarding"]["kind"], "Node");
    assert_eq!(event["regarding"]["name"], rig::NODE);
    assert!(event["note"].as_str().unwrap().contains("nvidia-ctk cdi generate"), "{event}");
    assert_eq!(rig.metric("plimsoll_gpu_cdi_problems{problem=\"absent\"}"), 1.0);
    let nodes = json!({"deviceNodes": [{"path": "/dev/nvidia0"}]});
    let devices = [A, B].map(|uuid| json!({"name": uuid, "containerEdits": nodes}));
    rig.nvidia_spec(&json!({"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": devices}));
    // A change of the cards has the files looked at at once.
    rig.script(&[
        json!({"uuid": A, "memoryMiB": 2048}),
        json!({"uuid": B, "memoryMiB": 2048, "mig": true}),
    ]);
    rig.until_metric("plimsoll_gpu_cdi_problems{problem=\"absent\"}", 0.0).await;
    assert_eq!(rig.metric("plimsoll_gpu_cdi_problems{problem=\"card_missing\"}"), 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_card_that_the_config_map_lists_takes_no_pods_and_a_lost_one_is_listed_while_it_is() {
    let mut rig = Rig::new(&[(A, 2), (B, 2)]).await;
    rig.restart_with(&["--unhealthy-gpus-namespace=kube-system"]).await;
    let name = format!("unhealthy-gpu-{}", rig::NODE);
    rig.sim.put(json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "kube-system"}, "data": {"gpus": "0"}}));
    rig.kubelet.devices("card A unhealthy", |devices| !devices["aaaaaaaa-0"]).await;
    let listed = |gpus: &'static str| {
        let name = name.clone();
        move |sim: &sim::Sim| {
            let map = sim.get(CONFIG_MAPS, "kube-system", &name)?;
            (map["data"]["gpus"] == gpus).then_some(())
        }
    };
    let cards = |healthy: bool| {
        vec![
            json!({"uuid": A, "memoryMiB": 2048}),
            json!({"uuid": B, "memoryMiB": 2048, "healthy": healthy}),
        ]
    };
    // The first try is lost.
    rig.sim.faults().next(1, Verb::Patch, CONFIG_MAPS, Fault::DropRequest);
    rig.script(&cards(false));
    rig.sim.until("card B listed", listed("0,1")).await.unwrap();
    rig.script(&cards(true));
    rig.sim.until("card B off the list", listed("0")).await.unwrap();
    rig.sim.delete(CONFIG_MAPS, "kube-system", &name);
    rig.kubelet.devices("both healthy", |devices| devices.values().all(|healthy| *healthy)).await;
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

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_card_that_a_pod_holds_does_not_use_up_the_room_of_another() {
    let rig = Rig::new(&[(A, 16), (B, 16)]).await;
    rig.run(pod("holds").asking(RESOURCE, 12), A).await.unwrap();
    rig.bind(pod("late").asking(RESOURCE, 4), A);
    rig.script(&[
        json!({"uuid": A, "memoryMiB": 16384, "xid": 79}),
        json!({"uuid": B, "memoryMiB": 16384}),
    ]);
    rig.cards("card A unhealthy", |cards| cards[0]["healthy"] == false).await;
    // Of 28 Healthy ids kube-scheduler takes off the 12 that the pod requests: the 16 of card B.
    let held = |devices: &BTreeMap<String, bool>| {
        (healthy_of(devices, "aaaaaaaa"), healthy_of(devices, "bbbbbbbb")) == (12, 16)
    };
    rig.kubelet.devices("the ids that are held and those of card B", held).await;
    let refused = rig.admit("late").await.unwrap_err().0;
    assert!(refused.contains("which has become unhealthy: it raised XID 79"), "{refused}");
    rig.run(pod("beside").asking(RESOURCE, 4), B).await.unwrap();
    rig.end("holds");
    let free = |devices: &BTreeMap<String, bool>| {
        (healthy_of(devices, "aaaaaaaa"), healthy_of(devices, "bbbbbbbb")) == (0, 16)
    };
    rig.kubelet.devices("no id of card A once its pod has ended", free).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_ids_of_a_finished_pod_are_not_held() {
    let rig = Rig::new(&[(A, 4), (B, 4)]).await;
    rig.run(pod("job").asking(RESOURCE, 4), A).await.unwrap();
    rig.script(&[
        json!({"uuid": A, "memoryMiB": 4096, "healthy": false}),
        json!({"uuid": B, "memoryMiB": 4096}),
    ]);
    rig.cards("card A unhealthy", |cards| cards[0]["healthy"] == false).await;
    rig.kubelet.devices("held", |devices| healthy_of(devices, "aaaaaaaa") == 4).await;
    rig.sim.change(PODS, "default", "job", |pod| pod["status"]["phase"] = json!("Succeeded"));
    rig.kubelet.devices("free", |devices| healthy_of(devices, "aaaaaaaa") == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_card_that_is_gone_when_the_plugin_starts_is_reported_unhealthy_with_its_pods() {
    let mut rig = Rig::new(&[(A, 4), (B, 4)]).await;
    rig.run(pod("on-a").uid("uid-a").asking(RESOURCE, 3), A).await.unwrap();
    rig.script(&[json!({"uuid": B, "memoryMiB": 4096})]);
    rig.restart_plugin().await;
    let lost = |cards: &serde_json::Value| {
        let cards = cards.as_array().unwrap();
        let of = |uuid: &str| cards.iter().find(|card| card["uuid"] == uuid).cloned();
        let (Some(a), Some(b)) = (of(A), of(B)) else { return false };
        a["healthy"] == false && a["units"] == 4 && a["pods"]["uid-a"] == 3 && b["healthy"] == true
    };
    rig.cards("both cards, one of them lost", lost).await;
    let held = |devices: &BTreeMap<String, bool>| {
        (healthy_of(devices, "aaaaaaaa"), healthy_of(devices, "bbbbbbbb")) == (3, 4)
    };
    rig.kubelet.devices("the ids that are held and those of card B", held).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_card_that_failed_before_the_plugin_restarted_has_not_recovered() {
    let mut rig = Rig::new(&[(A, 2), (B, 2)]).await;
    let cards = |xid: Option<u64>| {
        [json!({"uuid": A, "memoryMiB": 2048, "xid": xid}), json!({"uuid": B, "memoryMiB": 2048})]
    };
    rig.script(&cards(Some(79)));
    rig.cards("card A unhealthy", |cards| cards[0]["healthy"] == false).await;
    // The driver says no more about it.
    rig.script(&cards(None));
    rig.forget_cards();
    rig.restart_plugin().await;
    let reported = rig.cards("a report of the new process", |_| true).await;
    assert_eq!((&reported[0]["healthy"], &reported[1]["healthy"]), (&json!(false), &json!(true)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_card_without_a_cdi_device_takes_no_new_pods_until_it_has_one() {
    let rig = Rig::new(&[(A, 2), (B, 2)]).await;
    let closed = |wanted: [serde_json::Value; 2]| {
        move |cards: &serde_json::Value| {
            [&cards[0]["closed"], &cards[1]["closed"]] == [&wanted[0], &wanted[1]]
        }
    };
    rig.cards("both closed", closed([json!("cdi"), json!("cdi")])).await;
    rig.nvidia_cards(&[A]);
    rig.cards("card B closed", closed([serde_json::Value::Null, json!("cdi")])).await;
    rig.kubelet.devices("healthy ids", |devices| devices.values().all(|healthy| *healthy)).await;
    rig.nvidia_cards(&[A, B]);
    rig.cards("both open", closed([serde_json::Value::Null, serde_json::Value::Null])).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_runtime_that_may_have_cdi_off_is_an_event_on_the_node() {
    let rig = Rig::new(&[(A, 2), (B, 2)]).await;
    rig.sim.change(NODES, "", rig::NODE, |node| {
        node["status"]["nodeInfo"] = json!({"containerRuntimeVersion": "containerd://1.7.27"});
    });
    let of_card_a = |healthy: bool| json!({"uuid": A, "memoryMiB": 2048, "healthy": healthy});
    rig.script(&[of_card_a(false), json!({"uuid": B, "memoryMiB": 2048})]);
    let event = rig.event("CDIMayBeOff").await;
    assert_eq!(event["regarding"]["kind"], "Node");
    assert!(event["note"].as_str().unwrap().contains("enable_cdi = true"), "{event}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cdi_folder_that_cannot_be_written_closes_the_cards_and_is_an_event_on_the_node() {
    let rig = Rig::new(&[(A, 2)]).await;
    rig.nvidia_cards(&[A]);
    rig.cards("an open card", |cards| cards[0]["closed"].is_null()).await;
    let folder = rig.dir.path().join("cdi");
    std::fs::remove_dir_all(&folder).unwrap();
    std::fs::write(&folder, "no folder").unwrap();
    rig.cards("a closed card", |cards| cards[0]["closed"] == "cdi-folder").await;
    rig.event("CDIFolderNotWritable").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_card_without_memory_of_its_own_is_an_event_or_has_the_size_that_is_set() {
    let mut rig = Rig::new(&[(B, 2)]).await;
    rig.script(&[
        json!({"uuid": A, "model": "NVIDIA GB10"}),
        json!({"uuid": B, "memoryMiB": 2048}),
    ]);
    let event = rig.event("GPUCardWithoutSize").await;
    let note = event["note"].as_str().unwrap();
    assert!(note.contains(A) && note.contains("--unified-memory-mib"), "{note}");
    rig.restart_with(&["--unified-memory-mib=65536"]).await;
    rig.cards("both cards", |cards| cards[0]["uuid"] == A && cards[0]["units"] == 64).await;
}

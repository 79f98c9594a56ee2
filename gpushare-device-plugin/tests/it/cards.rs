//! What is listed to the kubelet and reported to the API server.

use std::collections::BTreeSet;

use sim::{Failure, Fault, PODS, Verb, pod};

use crate::rig::{self, A, B, RESOURCE, Rig};

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
    assert_eq!(
        rig.sim.node(rig::NODE).unwrap()["status"]["allocatable"]["aliyun.com/gpu-count"],
        "2"
    );
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

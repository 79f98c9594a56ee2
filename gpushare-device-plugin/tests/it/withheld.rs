//! Units are withheld while pods come that a scheduler bound without the extender. `breaker.rs` in `src/admission` has
//! the cases of time.

use serde_json::Value;
use sim::{NODES, pod};

use crate::rig::{A, B, NODE, RESOURCE, Rig};

/// The refusals that it takes.
const REFUSALS: usize = 3;

/// Has the kubelet admit this many pods that a scheduler bound without the extender, named `PREFIX-0` and so on: each
/// is refused.
async fn bypass(rig: &Rig, prefix: &str, count: usize) {
    for number in 0..count {
        let name = format!("{prefix}-{number}");
        rig.sim.put(pod(&name).asking(RESOURCE, 1).on(NODE).scheduled());
        let refused = rig.admit(&name).await.unwrap_err().0;
        assert!(refused.contains("has no GPU claim"), "{refused}");
    }
}

async fn all_withheld(rig: &Rig) {
    rig.kubelet.devices("no unit", |devices| devices.values().all(|healthy| !healthy)).await;
}

async fn all_offered(rig: &Rig) {
    rig.kubelet.devices("all units", |devices| devices.values().all(|healthy| *healthy)).await;
}

/// The Node's condition once it has this status.
async fn condition(rig: &Rig, status: &str) -> Value {
    let wanted = format!("the condition {status}");
    let found = rig.sim.until(&wanted, |sim| {
        let node = sim.get(NODES, "", NODE)?;
        let mut conditions = node["status"]["conditions"].as_array()?.iter();
        let own = conditions.find(|condition| condition["type"] == "GPUUnitsWithheld")?;
        (own["status"] == status).then(|| own.clone())
    });
    found.await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn three_pods_that_bypassed_the_extender_end_the_offer_and_the_node_says_why() {
    let rig = Rig::new(&[(A, 4), (B, 4)]).await;
    condition(&rig, "False").await;
    rig.run(pod("held").asking(RESOURCE, 2), A).await.unwrap();
    bypass(&rig, "first", REFUSALS - 1).await;
    assert_eq!(rig.metric("plimsoll_gpu_withheld_total"), 0.0);
    bypass(&rig, "last", 1).await;
    all_withheld(&rig).await;
    let condition = condition(&rig, "True").await;
    assert_eq!(condition["reason"], "PodsWithoutClaim");
    let node = rig.sim.node(NODE).unwrap();
    assert_eq!(node["status"]["allocatable"][RESOURCE], "0");
    let conditions = node["status"]["conditions"].as_array().unwrap();
    assert!(conditions.iter().any(|condition| condition["type"] == "Ready"), "{conditions:?}");
    let event = rig.event("GPUUnitsWithheld").await;
    for text in [&condition["message"], &event["note"]] {
        assert!(text.as_str().unwrap().contains("plimsoll scheduler enable"), "{text}");
    }
    assert_eq!(rig.metric("plimsoll_gpu_units_withheld"), 1.0);
    assert_eq!(rig.metric("plimsoll_gpu_withheld_total"), 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_with_a_claim_ends_the_withholding_as_soon_as_it_is_bound() {
    let rig = Rig::new(&[(A, 4), (B, 4)]).await;
    bypass(&rig, "bypass", REFUSALS).await;
    all_withheld(&rig).await;
    rig.bind(pod("claimed").asking(RESOURCE, 4), B);
    all_offered(&rig).await;
    rig.admit("claimed").await.unwrap();
    condition(&rig, "False").await;
    assert_eq!(rig.metric("plimsoll_gpu_units_withheld"), 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_withheld_from_a_pod_with_a_claim_that_waits() {
    let rig = Rig::new(&[(A, 4), (B, 4)]).await;
    rig.bind(pod("waits").asking(RESOURCE, 1), A);
    rig.run(pod("later").asking(RESOURCE, 1), A).await.unwrap();
    // The plugin's watch shows this pod, and so the one before.
    rig.marked("later").await;
    bypass(&rig, "bypass", REFUSALS).await;
    rig.admit("waits").await.unwrap();
    assert_eq!(rig.metric("plimsoll_gpu_withheld_total"), 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_with_a_claim_between_them_begins_the_count_anew() {
    let rig = Rig::new(&[(A, 4), (B, 4)]).await;
    bypass(&rig, "first", REFUSALS - 1).await;
    rig.run(pod("claimed").asking(RESOURCE, 1), A).await.unwrap();
    bypass(&rig, "later", 1).await;
    assert_eq!(rig.metric("plimsoll_gpu_withheld_total"), 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_that_name_their_node_themselves_withhold_nothing() {
    let rig = Rig::new(&[(A, 4), (B, 4)]).await;
    for number in 0..2 * REFUSALS {
        let name = format!("own-{number}");
        rig.sim.put(pod(&name).asking(RESOURCE, 1).on(NODE));
        let refused = rig.admit(&name).await.unwrap_err().0;
        assert!(refused.contains("has no GPU claim"), "{refused}");
    }
    rig.run(pod("claimed").asking(RESOURCE, 1), A).await.unwrap();
    assert_eq!(rig.metric("plimsoll_gpu_withheld_total"), 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kubelet_that_restarts_gets_all_units_for_the_pods_that_it_admits_again() {
    let mut rig = Rig::new(&[(A, 4), (B, 4)]).await;
    rig.run(pod("held").asking(RESOURCE, 2), A).await.unwrap();
    bypass(&rig, "bypass", REFUSALS).await;
    all_withheld(&rig).await;
    rig.kubelet.kill().await;
    rig.kubelet.begin();
    rig.kubelet.registered(2).await;
    all_offered(&rig).await;
}

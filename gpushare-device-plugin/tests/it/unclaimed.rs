//! Claims follow the kubelet's record: of pods that something else than the extender bound, and of pods whose claim was edited.

use serde_json::{Value, json};
use sim::{PODS, Sim, pod};

use crate::rig::{A, B, CLAIM, NODE, RESOURCE, Rig, card};

/// Waits until a pod is claimed on this card, and marked.
async fn claimed(rig: &Rig, pod: &str, on: &str) {
    let claim = |sim: &Sim| {
        let pod = sim.pod("default", pod)?;
        let annotations = &pod["metadata"]["annotations"];
        let claim: Value = serde_json::from_str(annotations[CLAIM].as_str()?).ok()?;
        let cards = claim["main"].as_object()?;
        let assigned = annotations["ALIYUN_COM_GPU_MEM_ASSIGNED"] == "true";
        (cards.len() == 1 && cards.contains_key(on) && assigned).then_some(())
    };
    rig.sim.until(&format!("{pod} claimed on {on}"), claim).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_bypassed_the_extender_is_placed_where_that_is_set_and_its_claim_is_written() {
    let mut rig = Rig::new(&[(A, 4), (B, 4)]).await;
    rig.restart_with(&["--unclaimed-pods=place"]).await;
    rig.run(pod("holder").asking(RESOURCE, 3), A).await.unwrap();
    rig.sim.put(pod("bypass").asking(RESOURCE, 2).on(NODE));
    let answers = rig.admit("bypass").await.unwrap();
    assert_eq!(card(&answers["main"]), B);
    claimed(&rig, "bypass", B).await;
    let bypass = rig.sim.pod("default", "bypass").unwrap();
    assert_eq!(bypass["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_IDX"], "1");
    assert_eq!(rig.metric("plimsoll_gpu_unclaimed_placed_total"), 1.0);
    rig.sim.put(pod("late").asking(RESOURCE, 3).on(NODE));
    let refused = rig.admit("late").await.unwrap_err().0;
    assert!(refused.contains("this node has no card for it"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edited_claim_is_written_anew_from_the_kubelets_record() {
    let rig = Rig::new(&[(A, 4), (B, 4)]).await;
    rig.run(pod("p").asking(RESOURCE, 2), A).await.unwrap();
    rig.marked("p").await;
    let elsewhere = json!({"main": {B: 2}}).to_string();
    for edit in [Some(elsewhere), Some("nonsense".to_owned()), None] {
        rig.sim.change(PODS, "default", "p", |pod| {
            let annotations = pod["metadata"]["annotations"].as_object_mut().unwrap();
            annotations.remove(CLAIM);
            annotations.extend(edit.map(|text| (CLAIM.to_owned(), json!(text))));
        });
        claimed(&rig, "p", A).await;
        // The kubelet repeats a refused start; the plugin's watch may be behind the API server.
        while rig.kubelet.start_container("p", "main").await.is_err() {
            tokio::task::yield_now().await;
        }
    }
    rig.until_metric("plimsoll_gpu_claims_written_total", 3.0).await;
    assert_eq!(rig.metric("plimsoll_gpu_corrections_total"), 1.0);
}

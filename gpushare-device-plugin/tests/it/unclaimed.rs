//! Claims follow the kubelet's record: of pods that something else than the extender bound, and of pods whose claim was
//! edited. They do not follow the record of an earlier pod of the name.

use serde_json::{Value, json};
use sim::{PODS, Sim, pod};

use crate::rig::{self, A, B, CLAIM, NODE, RESOURCE, Rig, gpu};

/// A UID of the form that pods have, as control groups name it.
const OLD: &str = "8b1f4a9e-0d4c-4a63-9d6e-2f6a1c0b7e55";

/// Waits until a pod is claimed on this GPU, and marked.
async fn claimed(rig: &Rig, pod: &str, on: &str) {
    let what = format!("{pod} claimed on {on}");
    rig.sim.until(&what, |sim| is_claimed(sim, pod, on)).await.unwrap();
}

fn is_claimed(sim: &Sim, pod: &str, on: &str) -> Option<()> {
    let pod = sim.pod("default", pod)?;
    let annotations = &pod["metadata"]["annotations"];
    let claim: Value = serde_json::from_str(annotations[CLAIM].as_str()?).ok()?;
    let gpus = claim["main"].as_object()?;
    let assigned = annotations["ALIYUN_COM_GPU_MEM_ASSIGNED"] == "true";
    (gpus.len() == 1 && gpus.contains_key(on) && assigned).then_some(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_bypassed_the_extender_is_placed_and_gets_a_claim() {
    let mut rig = Rig::new(&[(A, 4), (B, 4)]).await;
    rig.nvidia_gpus(&[A, B]);
    rig.restart_with(&["--unclaimed-pods=place"]).await;
    rig.run(pod("holder").asking(RESOURCE, 3), A).await.unwrap();
    rig.sim.put(pod("bypass").asking(RESOURCE, 2).on(NODE));
    let answers = rig.admit("bypass").await.unwrap();
    assert_eq!(gpu(&answers["main"]), B);
    claimed(&rig, "bypass", B).await;
    let bypass = rig.sim.pod("default", "bypass").unwrap();
    assert_eq!(bypass["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_IDX"], "1");
    assert_eq!(rig.metric("plimsoll_gpu_unclaimed_placed_total"), 1.0);
    rig.sim.put(pod("late").asking(RESOURCE, 3).on(NODE));
    let refused = rig.admit("late").await.unwrap_err().0;
    assert!(refused.contains("this node has no GPU for it"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_bypassed_the_extender_is_placed_on_no_gpu_that_could_not_start_it() {
    let mut rig = Rig::new(&[(A, 4), (B, 4)]).await;
    rig.nvidia_gpus(&[B]);
    rig.restart_with(&["--unclaimed-pods=place"]).await;
    rig.gpus("GPU A closed", |gpus| gpus[0]["closed"] == "cdi" && gpus[1].get("closed").is_none())
        .await;
    rig.sim.put(pod("bypass").asking(RESOURCE, 2).on(NODE));
    assert_eq!(gpu(&rig.admit("bypass").await.unwrap()["main"]), B);
    rig.sim.put(pod("late").asking(RESOURCE, 3).on(NODE));
    let refused = rig.admit("late").await.unwrap_err().0;
    assert!(refused.contains("this node has no GPU for it"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_without_room_for_a_claim_keeps_its_annotations_and_counts_by_the_nodes_report() {
    let mut rig = Rig::new(&[(A, 4), (B, 4)]).await;
    rig.nvidia_gpus(&[A, B]);
    rig.restart_with(&["--unclaimed-pods=place"]).await;
    let own = "x".repeat((256 << 10) - 100);
    let mut full = Value::from(pod("full").uid(OLD).asking(RESOURCE, 3).on(NODE));
    full["metadata"]["annotations"] = json!({"own": own});
    rig.sim.put(full);
    rig.admit("full").await.unwrap();
    rig.gpus("the pod on a GPU", |gpus| gpus[0]["pods"][OLD] == 3).await;
    // Claims are written in the order of the pods, and the mark after all claims.
    rig.run(pod("other").uid("uid-other").asking(RESOURCE, 1), A).await.unwrap();
    rig.marked("other").await;
    let full = rig.sim.pod("default", "full").unwrap();
    assert_eq!(full["metadata"]["annotations"], json!({"own": own}));
    let refused = rig.run(pod("late").asking(RESOURCE, 1), A).await.unwrap_err();
    assert!(refused.0.contains("where 0 are free"), "{}", refused.0);
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

#[tokio::test(flavor = "multi_thread")]
async fn a_remade_pod_keeps_its_claim_beside_its_predecessor() {
    let rig = Rig::new(&[(A, 4), (B, 4)]).await;
    rig.processes(OLD, true);
    rig.run(pod("set-0").uid(OLD).asking(RESOURCE, 2), B).await.unwrap();
    rig.marked("set-0").await;
    // Deleted by force and made again; the kubelet has not come to that.
    rig.sim.delete(PODS, "default", "set-0");
    rig.bind(pod("set-0").uid("uid-new").asking(RESOURCE, 2), A);
    rig.run(pod("other").uid("uid-other").asking(RESOURCE, 1), A).await.unwrap();
    // The claims are written before the mark.
    rig.marked("other").await;
    let claim = rig.sim.pod("default", "set-0").unwrap()["metadata"]["annotations"][CLAIM].clone();
    assert!(claim.as_str().unwrap().contains(A), "{claim}");
    assert_eq!(rig.metric("plimsoll_gpu_claims_written_total"), 0.0);
    assert_eq!(rig.metric("plimsoll_gpu_corrections_total"), 0.0);
    let gpus = rig.gpus("the predecessor on B", |gpus| gpus[1]["pods"][OLD] == 2).await;
    assert!(gpus[1]["pods"]["uid-new"] != 2, "{gpus}");
    rig.kubelet.remove("set-0");
    let answers = rig.admit("set-0").await.unwrap();
    assert_eq!(gpu(&answers["main"]), A);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_with_ids_of_a_later_pod_of_its_name_is_held_back() {
    let rig = Rig::new(&[(A, 4), (B, 4)]).await;
    rig.bind(pod("set-0").uid("uid-old").asking(RESOURCE, 2), B);
    let old = rig::spec(&rig.sim.pod("default", "set-0").unwrap());
    rig.sim.delete(PODS, "default", "set-0");
    rig.bind(pod("set-0").uid("uid-new").asking(RESOURCE, 2), A);
    // The list has names only, and the API server has the later pod alone.
    let answers = rig.kubelet.admit(old).await.unwrap();
    assert_eq!(gpu(&answers["main"]), A);
    let held = rig.kubelet.start_container("set-0", "main").await.unwrap_err();
    assert!(held.0.contains("in the pod with UID uid-old; delete that pod"), "{}", held.0);
    assert_eq!(rig.metric("plimsoll_gpu_starts_total{result=\"mismatch\"}"), 1.0);
    assert_eq!(rig.metric("plimsoll_gpu_claims_written_total"), 0.0);
}

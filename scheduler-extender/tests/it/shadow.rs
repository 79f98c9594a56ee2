//! A second policy that decides without effect.

use api::shadow::{Choice, Difference, Shadow, ShadowedPod};
use jiff::SignedDuration;
use serde_json::{Value, json};
use sim::{Sim, pod};

use crate::rig::{POLICY, Rig, loaded_node};

const NOW: SignedDuration = SignedDuration::ZERO;

/// The policy of the rig, with another limit.
fn with_limit(limit: &str) -> String {
    POLICY.replace("maxLimitPecent: 0.65", &format!("maxLimitPecent: {limit}"))
}

/// A cluster of three nodes, and the file of the shadow policy.
async fn cluster(shadow: Option<&str>) -> (Sim, Rig, tempfile::TempDir) {
    let sim = Sim::start().await.unwrap();
    for (name, cpu) in [("cool", 0.10), ("warm", 0.50), ("busy", 0.80)] {
        sim.put(loaded_node(name, cpu, NOW).with("cpu", 10));
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("shadow.yaml");
    if let Some(policy) = shadow {
        std::fs::write(&file, policy).unwrap();
    }
    let rig = Rig::start_with(&sim, &["--shadow-policy-file", file.to_str().unwrap()]).await;
    (sim, rig, folder)
}

/// Has a pod decided, and waits until the shadow has decided about `pods` in all.
async fn decide(rig: &Rig, pod: &Value, pods: usize) -> Vec<ShadowedPod> {
    rig.filter("/load-aware", pod, &["cool", "warm", "busy"]).await;
    rig.until("the comparison", async || shadow(rig).await.len() == pods).await;
    shadow(rig).await
}

async fn shadow(rig: &Rig) -> Vec<ShadowedPod> {
    serde_json::from_str::<Shadow>(&rig.get("/shadow").await).unwrap().pods
}

fn metric(rig: &Rig, name: &str) -> u64 {
    sample(rig, &format!("plimsoll_extender_shadow_{name} "))
}

/// How often the shadow policy's file had this outcome.
fn changes(rig: &Rig, outcome: &str) -> u64 {
    let labels = format!(r#"{{file="shadow-policy",outcome="{outcome}"}}"#);
    sample(rig, &format!("plimsoll_file_changes_total{labels} "))
}

fn sample(rig: &Rig, name: &str) -> u64 {
    let text = rig.context.metrics().unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.map_or(0, |value| value.parse().unwrap())
}

#[tokio::test]
async fn a_node_that_the_shadow_alone_rejects_is_counted_and_still_taken() {
    let (sim, rig, _files) = cluster(Some(&with_limit("0.05"))).await;
    let web = sim.put(pod("web"));
    let answer = rig.filter("/load-aware", &web, &["cool", "warm", "busy"]).await;
    assert_eq!(answer["NodeNames"], json!(["cool", "warm"]));
    rig.until("the comparison", async || shadow(&rig).await.len() == 1).await;
    let compared = shadow(&rig).await.remove(0);
    let best = |node: &str| vec![node.to_owned()];
    let policy = Choice {
        rejected: 1,
        rejected_alone: 0,
        best_nodes: 1,
        best: best("cool"),
        best_score: Some(90),
    };
    let shadowed = Choice {
        rejected: 3,
        rejected_alone: 2,
        best_nodes: 0,
        best: Vec::new(),
        best_score: None,
    };
    assert_eq!((compared.nodes, compared.policy, compared.shadow), (3, policy, shadowed));
    assert_eq!(compared.differs, [Difference::Filter, Difference::Score]);
    assert_eq!(metric(&rig, r#"decisions_total{outcome="compared"}"#), 1);
    assert_eq!(metric(&rig, r#"disagreements_total{kind="filter"}"#), 1);
    assert_eq!(metric(&rig, r#"disagreements_total{kind="score"}"#), 1);
    assert_eq!(metric(&rig, r#"decisions_total{outcome="skipped"}"#), 0);
}

#[tokio::test]
async fn policies_that_mean_the_same_agree_and_the_pods_node_is_told() {
    let (sim, rig, _files) = cluster(Some(POLICY)).await;
    let web = sim.put(pod("web"));
    let compared = decide(&rig, &web, 1).await.remove(0);
    assert_eq!((compared.differs.as_slice(), compared.node), (&[][..], None));
    assert_eq!(compared.policy, compared.shadow);
    sim.put(pod("web").uid(web["metadata"]["uid"].as_str().unwrap()).on("warm"));
    rig.until("the pod's node", async || shadow(&rig).await[0].node.as_deref() == Some("warm"))
        .await;
    assert_eq!(metric(&rig, r#"disagreements_total{kind="filter"}"#), 0);
}

#[tokio::test]
async fn a_pod_that_is_decided_again_has_one_sample_and_the_newest_comes_first() {
    let (sim, rig, _files) = cluster(Some(POLICY)).await;
    let pods = ["a", "b"].map(|name| sim.put(pod(name)));
    decide(&rig, &pods[0], 1).await;
    decide(&rig, &pods[1], 2).await;
    rig.filter("/load-aware", &pods[0], &["cool"]).await;
    rig.until("the third", async || metric(&rig, r#"decisions_total{outcome="compared"}"#) == 3)
        .await;
    let names: Vec<_> = shadow(&rig).await.into_iter().map(|of| (of.pod.name, of.nodes)).collect();
    assert_eq!(names, [("a".to_owned(), 1), ("b".to_owned(), 3)]);
}

#[tokio::test]
async fn a_missing_file_is_no_error_and_its_policy_counts_once_it_is_there() {
    let (sim, rig, files) = cluster(None).await;
    let (status, text) = rig.get_status("/shadow").await;
    assert_eq!((status, text.contains("missing or faulty")), (503, true), "{text}");
    assert_eq!(changes(&rig, "refused"), 1);
    let refused = |state: u8| format!("plimsoll_files_refused{{file=\"shadow-policy\"}} {state}\n");
    assert!(rig.context.metrics().unwrap().contains(&refused(1)));
    let file = files.path().join("shadow.yaml");
    std::fs::write(&file, POLICY).unwrap();
    rig.until("the policy", async || rig.get_status("/shadow").await.0 == 200).await;
    let page = rig.context.metrics().unwrap();
    assert!(page.contains(&refused(0)), "{page}");
    assert!(page.contains("plimsoll_files_refused{file=\"policy\"} 0\n"), "{page}");
    decide(&rig, &sim.put(pod("web")), 1).await;
    // Another: what was decided under the one before is gone with the first decision under it.
    std::fs::write(&file, with_limit("0.7")).unwrap();
    rig.until("the change", async || changes(&rig, "changed") == 2).await;
    rig.filter("/load-aware", &sim.put(pod("other")), &["cool"]).await;
    rig.until("the new policy's sample", async || shadow(&rig).await[0].pod.name == "other").await;
    assert_eq!(shadow(&rig).await.len(), 1);
}

#[tokio::test]
async fn without_the_flag_there_is_no_shadow_and_the_answer_says_how_to_get_one() {
    let sim = Sim::start().await.unwrap();
    let rig = Rig::start(&sim).await;
    let (status, text) = rig.get_status("/shadow").await;
    assert_eq!((status, text.contains("--shadow-policy-file")), (404, true), "{text}");
    let page = rig.context.metrics().unwrap();
    for outcome in ["compared", "skipped"] {
        let unused = format!("shadow_decisions_total{{outcome=\"{outcome}\"}} 0");
        assert!(page.contains(&format!("\nplimsoll_extender_{unused}\n")), "{page}");
    }
    assert_eq!(page.matches("\nplimsoll_extender_shadow_").count(), 2, "{page}");
}

#[tokio::test]
async fn a_shadow_counts_what_pods_use_where_the_policy_in_force_does_not() {
    let estimating = "
apiVersion: plimsoll.dev/v1alpha1
kind: SchedulingPolicy
spec:
  metrics: [{name: cpu_usage_avg_5m, period: 3m, limit: 0.65, weight: 1}]
  scoring: {model: craneLinear, scale: 100}
";
    let (sim, rig, _files) = cluster(Some(estimating)).await;
    // 85% of two cores of ten: `warm` is over the limit with it.
    let web = sim.put(pod("web").asking("cpu", 2));
    let compared = decide(&rig, &web, 1).await.remove(0);
    assert_eq!((compared.policy.rejected, compared.policy.best_score), (1, Some(90)));
    assert_eq!((compared.shadow.rejected, compared.shadow.best_score), (2, Some(73)));
    // Nothing of it bears on the policy in force, by which a binding costs ten points.
    let now = jiff::Timestamp::now().to_string();
    sim.put(pod("recent").on("cool").asking("cpu", 4).scheduled_at(&now));
    rig.until("the recent pod", async || {
        let compared = decide(&rig, &web, 1).await.remove(0);
        let scores = (compared.policy.best_score, compared.shadow.best_score);
        scores == (Some(80), Some(39))
    })
    .await;
    let answer = rig.post("/explain", &json!({ "Pod": web, "NodeNames": ["cool"] })).await;
    assert_eq!((&answer["estimate"], &answer["nodes"][0]["score"]), (&Value::Null, &json!(80)));
}

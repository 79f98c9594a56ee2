//! Filter, prioritize, inspect and version as kube-scheduler and Aliyun's tools call them.

use api::explain::{Basis, ExplainedCharge, Explanation, GpuOutcome, LimitOutcome, ReadingStatus};

use crate::rig::{GPU, Rig, gpu_node, gpu_pod, loaded_node};
use jiff::SignedDuration;
use placement::reading::{Reading, ReadingCodec};
use placement::units::Ratio;
use serde_json::{Value, json};
use sim::{Fault, PODS, Sim, Verb, node, pod};

/// Why a node over the limit is rejected; what users read in events.
const TOO_HIGH: &str =
    "Load[cpu_usage_avg_5m] is too high, over 0.65 (see: kubectl plimsoll explain pod)";

const NOW: SignedDuration = SignedDuration::ZERO;

fn plain() -> Value {
    json!({
        "metadata": { "name": "web", "namespace": "default", "uid": "u-web", "creationTimestamp": null },
        "spec": { "containers": [{ "name": "c", "image": "nginx", "resources": {} }] },
        "status": { "phase": "Pending" },
    })
}

async fn loaded_cluster() -> (Sim, Rig) {
    let sim = Sim::start().await.unwrap();
    sim.put(loaded_node("cool", 0.10, NOW));
    sim.put(loaded_node("warm", 0.50, NOW));
    sim.put(loaded_node("busy", 0.80, NOW));
    sim.put(loaded_node("stale", 0.99, SignedDuration::from_hours(1)));
    let rig = Rig::start(&sim).await;
    (sim, rig)
}

#[tokio::test]
async fn an_overloaded_node_is_turned_down_with_its_metric_and_limit_and_for_preemption_too() {
    let (_sim, rig) = loaded_cluster().await;
    let names = ["cool", "busy", "stale", "unheard-of"];
    let answer = rig.filter("/load-aware", &plain(), &names).await;
    let wanted = json!({
        "NodeNames": ["cool", "stale", "unheard-of"],
        "FailedNodes": {},
        "FailedAndUnresolvableNodes": { "busy": TOO_HIGH },
        "Error": "",
    });
    assert_eq!(answer, wanted);
}

#[tokio::test]
async fn a_daemonset_pod_passes_everywhere() {
    let (_sim, rig) = loaded_cluster().await;
    let mut pod = plain();
    pod["metadata"]["ownerReferences"] =
        json!([{ "kind": "DaemonSet", "name": "d", "controller": true }]);
    let answer = rig.filter("/load-aware", &pod, &["busy"]).await;
    assert_eq!(answer["NodeNames"], json!(["busy"]));
}

#[tokio::test]
async fn every_node_is_scored_and_the_cooler_one_wins() {
    let (_sim, rig) = loaded_cluster().await;
    let scores = rig.scores(&plain(), &["warm", "cool", "stale", "unheard-of"]).await;
    assert_eq!(scores, [5, 9, 0, 0]);
}

#[tokio::test]
async fn a_binding_that_the_watch_shows_makes_its_node_hotter() {
    let (sim, rig) = loaded_cluster().await;
    let now = jiff::Timestamp::now().to_string();
    sim.put(pod("a").on("cool").scheduled_at(&now));
    sim.put(pod("b").on("cool").scheduled_at(&now));
    rig.until("heat", async || rig.scores(&plain(), &["cool"]).await == [7]).await;
    // Another event of the same pod is no other binding.
    sim.put(pod("a").on("cool").scheduled_at(&now).phase("Running"));
    sim.put(loaded_node("later", 0.0, NOW));
    sim.put(pod("c").on("later").scheduled_at(&now));
    rig.until("the later pod", async || rig.scores(&plain(), &["later"]).await == [9]).await;
    assert_eq!(rig.scores(&plain(), &["cool"]).await, [7]);
}

#[tokio::test]
async fn pods_asked_about_before_any_is_bound_do_not_all_go_to_the_coldest_node() {
    let (_sim, rig) = loaded_cluster().await;
    let mut scores = Vec::new();
    for n in 0..5 {
        let mut pod = plain();
        pod["metadata"]["uid"] = json!(format!("u-{n}"));
        scores.push(rig.scores(&pod, &["cool"]).await[0]);
        // Asked about again, a pod does not stand in its own way.
        assert_eq!(rig.scores(&pod, &["cool"]).await[0], scores[n]);
    }
    assert_eq!(scores, [9, 8, 7, 6, 5]);
}

#[tokio::test]
async fn a_name_that_is_no_nodes_is_scored_and_never_kept() {
    let (_sim, rig) = loaded_cluster().await;
    let unknown = "n".repeat(1 << 20);
    assert_eq!(rig.scores(&plain(), &[&unknown]).await, [0]);
    // Had the pod been counted there, it would not count on the next node.
    assert_eq!(rig.scores(&plain(), &["cool"]).await, [9]);
    let mut other = plain();
    other["metadata"]["uid"] = json!("u-other");
    assert_eq!(rig.scores(&other, &["cool"]).await, [8]);
}

#[tokio::test]
async fn an_overloaded_node_is_no_candidate_for_preemption() {
    let (_sim, rig) = loaded_cluster().await;
    let victims = |uid: &str| json!({ "Pods": [{ "UID": uid }], "NumPDBViolations": 1 });
    let candidates =
        json!({ "busy": victims("u1"), "cool": victims("u2"), "stale": victims("u3") });
    let body =
        json!({ "Pod": plain(), "NodeNameToVictims": null, "NodeNameToMetaVictims": candidates });
    let answer = rig.post("/load-aware/preempt", &body).await;
    let remain = json!({ "cool": victims("u2"), "stale": victims("u3") });
    assert_eq!(answer, json!({ "NodeNameToMetaVictims": remain }));
}

#[tokio::test]
async fn a_gpu_node_is_a_candidate_only_where_the_victims_free_enough_on_one_gpu() {
    let sim = Sim::start().await.unwrap();
    for node in ["apart", "together", "small"] {
        sim.put(gpu_node(node, 2));
    }
    let rig = Rig::start(&sim).await;
    let held = async |name: &str, units: u32, node: &str| {
        let mut pod: Value = pod(name).asking(GPU, units).into();
        let stays = ["a1", "a3", "t2"].contains(&name);
        pod["spec"]["priority"] = if stays { 2000.into() } else { 0.into() };
        let pod = sim.put(pod);
        assert_eq!(rig.bind(&pod, node).await, "");
        json!({ "UID": pod["metadata"]["uid"] })
    };
    // GPUs of 16 units. On `apart`, 8 of each GPU stay where they are.
    let a0 = held("a0", 8, "apart").await;
    held("a1", 8, "apart").await;
    let a2 = held("a2", 8, "apart").await;
    held("a3", 8, "apart").await;
    let t0 = held("t0", 8, "together").await;
    let t1 = held("t1", 8, "together").await;
    held("t2", 16, "together").await;
    let s0 = held("s0", 16, "small").await;
    let stranger = json!({ "UID": "no-gpu-pod" });
    let victims = |pods: &[&Value]| json!({ "Pods": pods, "NumPDBViolations": 0 });
    let candidates = json!({
        "apart": victims(&[&a0, &a2]),
        "together": victims(&[&t0, &t1, &stranger]),
        "small": victims(&[&s0]),
        "unheard-of": victims(&[&stranger]),
    });
    let preempt = async |asked: u32| {
        let mut pod = gpu_pod(&sim, &format!("train-{asked}"), asked);
        pod["spec"]["priority"] = 1000.into();
        let body =
            json!({ "Pod": pod, "NodeNameToVictims": null, "NodeNameToMetaVictims": candidates });
        rig.post("/gpushare-scheduler/preempt", &body).await["NodeNameToMetaVictims"].clone()
    };
    // The pod that frees nothing stays.
    let together = victims(&[&t0, &t1]);
    assert_eq!(preempt(12).await, json!({ "small": candidates["small"], "together": together }));
    assert_eq!(preempt(17).await, json!({}));
    // A pod that asks for no GPU memory is none of this entry's business.
    let body = json!({ "Pod": plain(), "NodeNameToMetaVictims": candidates });
    let answer = rig.post("/gpushare-scheduler/preempt", &body).await;
    assert_eq!(answer["NodeNameToMetaVictims"], candidates);
}

#[tokio::test]
async fn victims_that_come_as_whole_pods_go_back_as_uids() {
    let (_sim, rig) = loaded_cluster().await;
    let candidates =
        json!({ "cool": { "Pods": [plain()], "NumPDBViolations": 0 }, "busy": { "Pods": null } });
    let body =
        json!({ "Pod": plain(), "NodeNameToVictims": candidates, "NodeNameToMetaVictims": null });
    let answer = rig.post("/load-aware/preempt", &body).await;
    let cool = json!({ "Pods": [{ "UID": "u-web" }], "NumPDBViolations": 0 });
    assert_eq!(answer, json!({ "NodeNameToMetaVictims": { "cool": cool } }));
    let (status, text) = rig.post_text("/load-aware/preempt", "{}".to_owned()).await;
    assert_eq!(status, 400);
    assert!(text.contains("cannot read the request"), "{text}");
}

#[tokio::test]
async fn our_own_hot_value_annotation_is_not_believed_and_cranes_is_by_a_setting() {
    let sim = Sim::start().await.unwrap();
    let now = ReadingCodec::default().encode_count(3, jiff::Timestamp::now());
    sim.put(loaded_node("noted", 0.0, NOW).annotation("node_hot_value", now));
    let rig = Rig::start(&sim).await;
    assert_eq!(rig.scores(&plain(), &["noted"]).await, [10]);
    let believing = Rig::start_with(&sim, &["--crane-hot-value"]).await;
    assert_eq!(believing.scores(&plain(), &["noted"]).await, [7]);
}

#[tokio::test]
async fn a_changed_reading_counts_at_once() {
    let (sim, rig) = loaded_cluster().await;
    sim.put(loaded_node("busy", 0.20, NOW));
    rig.until("the new reading", async || rig.scores(&plain(), &["busy"]).await == [8]).await;
    sim.delete(sim::NODES, "", "busy");
    rig.until("the end of the node", async || rig.scores(&plain(), &["busy"]).await == [0]).await;
}

#[tokio::test]
async fn a_gpu_pod_gets_only_nodes_with_a_gpu_for_it() {
    let sim = Sim::start().await.unwrap();
    sim.put(gpu_node("two", 2));
    sim.put(gpu_node("full", 1));
    sim.put(sim::node("none").with(GPU, 16));
    let claim = r#"{"main":{"GPU-full-0":12}}"#;
    sim.put(pod("holder").asking(GPU, 12).on("full").annotation("plimsoll.dev/gpu-claim", claim));
    let rig = Rig::start(&sim).await;
    let pending = gpu_pod(&sim, "train", 5);
    let answer = rig.filter("/gpushare-scheduler", &pending, &["two", "full", "none"]).await;
    assert_eq!(answer["NodeNames"], json!(["two"]));
    let reasons = &answer["FailedAndUnresolvableNodes"];
    let full = "Insufficient GPU Memory in one device (see: kubectl plimsoll explain pod)";
    assert_eq!(reasons["full"], full);
    assert!(reasons["none"].as_str().unwrap().starts_with("node reports no GPUs"));
    assert_eq!(answer["Error"], "");
}

#[tokio::test]
async fn an_annotation_that_cannot_be_read_turns_every_node_down_by_its_name() {
    let sim = Sim::start().await.unwrap();
    sim.put(gpu_node("n1", 2));
    sim.put(gpu_node("n2", 2));
    let rig = Rig::start(&sim).await;
    let faulty = pod("train").asking(GPU, 5).annotation("plimsoll.dev/gpu-card-count", "5%d");
    let faulty = sim.put(faulty);
    let answer = rig.filter("/gpushare-scheduler", &faulty, &["n1", "n2"]).await;
    assert_eq!(answer["NodeNames"], json!([]));
    let reasons = &answer["FailedAndUnresolvableNodes"];
    for node in ["n1", "n2"] {
        let named = "the pod's annotation gpu-card-count cannot be read";
        assert!(reasons[node].as_str().unwrap().starts_with(named), "{reasons}");
        assert!(!reasons[node].as_str().unwrap().contains('%'), "{reasons}");
        let command = " (see: kubectl plimsoll explain pod)";
        assert!(reasons[node].as_str().unwrap().ends_with(command), "{reasons}");
    }
    assert_eq!(answer["Error"], "");
    let error = rig.bind(&faulty, "n1").await;
    assert!(
        error.contains("annotation plimsoll.dev/gpu-card-count: expected 1 to 64 GPUs"),
        "{error}"
    );
    assert_eq!(rig.used().await, 0);
}

#[tokio::test]
async fn a_pod_without_gpu_passes_the_gpu_filter_everywhere() {
    let (_sim, rig) = loaded_cluster().await;
    let answer = rig.filter("/gpushare-scheduler", &plain(), &["cool", "unheard-of"]).await;
    assert_eq!(answer["NodeNames"], json!(["cool", "unheard-of"]));
}

#[tokio::test]
async fn a_gpu_pods_score_is_the_mean_of_load_and_fit() {
    let sim = Sim::start().await.unwrap();
    sim.put(gpu_node("fits", 1));
    sim.put(gpu_node("loose", 1));
    let rig = Rig::start(&sim).await;
    let held = gpu_pod(&sim, "held", 12);
    assert_eq!(rig.bind(&held, "fits").await, "");
    let pending = gpu_pod(&sim, "train", 4);
    // No reading: 0 for the load. The GPU is filled on one (100), 12 of 16 stay free on the other (25).
    assert_eq!(rig.scores(&pending, &["fits", "loose"]).await, [5, 1]);
}

#[tokio::test]
async fn whole_nodes_instead_of_names_are_refused_with_the_setting_to_change() {
    let (_sim, rig) = loaded_cluster().await;
    let body = json!({ "Pod": plain(), "Nodes": { "items": [] }, "NodeNames": null });
    let answer = rig.post("/load-aware/filter", &body).await;
    assert!(answer["Error"].as_str().unwrap().contains("nodeCacheCapable: true"), "{answer}");
    assert_eq!(answer["NodeNames"], Value::Null);
    let (status, text) = rig.post_text("/load-aware/prioritize", body.to_string()).await;
    assert_eq!(status, 400);
    assert!(text.contains("nodeCacheCapable: true"), "{text}");
}

#[tokio::test]
async fn keys_in_lower_case_and_names_with_escapes_are_read() {
    let (_sim, rig) = loaded_cluster().await;
    let pod = plain().to_string();
    let body = format!(r#"{{"pod":{pod},"nodes":null,"nodenames":["\u0062usy","cool"]}}"#);
    let (_, text) = rig.post_text("/load-aware/filter", body).await;
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(answer["NodeNames"], json!(["cool"]));
}

#[tokio::test]
async fn nonsense_is_answered_with_its_reason() {
    let (_sim, rig) = loaded_cluster().await;
    for (path, body) in [
        ("/load-aware/filter", ""),
        ("/gpushare-scheduler/filter", "[]"),
        ("/gpushare-scheduler/bind", r#"{"PodName":"p"}"#),
    ] {
        let (status, text) = rig.post_text(path, body.to_owned()).await;
        let answer: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(status, 200);
        assert!(answer["Error"].as_str().unwrap().starts_with("cannot read the request"), "{text}");
    }
}

#[tokio::test]
async fn gpu_pods_wait_until_the_cluster_is_read_and_others_pass() {
    let sim = Sim::start().await.unwrap();
    sim.put(gpu_node("two", 2));
    sim.faults().next(1, Verb::List, PODS, Fault::Hang);
    let rig = Rig::start_unready(&sim).await;
    sim.until("the hanging list", |sim| (sim.faults().hanging() > 0).then_some(())).await.unwrap();
    let pending = gpu_pod(&sim, "train", 5);
    let answer = rig.filter("/gpushare-scheduler", &pending, &["two"]).await;
    assert!(answer["Error"].as_str().unwrap().starts_with("still reading the cluster"), "{answer}");
    assert!(rig.bind(&pending, "two").await.starts_with("still reading the cluster"));
    let answer = rig.filter("/load-aware", &pending, &["two"]).await;
    assert_eq!(answer["NodeNames"], json!(["two"]));
    sim.faults().release();
    rig.ready().await;
    let answer = rig.filter("/gpushare-scheduler", &pending, &["two"]).await;
    assert_eq!(answer["NodeNames"], json!(["two"]));
}

#[tokio::test]
async fn after_a_deletion_by_force_the_namespaces_pods_wait_and_others_are_answered_as_before() {
    let sim = Sim::start().await.unwrap();
    sim.put(gpu_node("one", 2));
    let rig = Rig::start(&sim).await;
    let (held, waits) = (gpu_pod(&sim, "held", 13), gpu_pod(&sim, "waits", 3));
    let mut low: Value = pod("low").in_namespace("other").asking(GPU, 16).into();
    low["spec"]["priority"] = json!(-1);
    let low = sim.put(low);
    for bound in [&low, &held] {
        assert_eq!(rig.bind(bound, "one").await, "");
    }
    let filter = async |pod: &Value| rig.filter("/gpushare-scheduler", pod, &["one"]).await;
    assert_eq!(filter(&waits).await["NodeNames"], json!(["one"]));
    // By force, before any report has shown it.
    sim.delete(PODS, "default", "held");
    let text = "GPU memory of deleted pods of this namespace is still in use";
    let is_told = |answer: &Value| answer["Error"].as_str().unwrap().starts_with(text);
    rig.until("the deletion", async || is_told(&filter(&waits).await)).await;
    assert!(rig.bind(&waits, "one").await.starts_with(text));
    let others = |mut pod: Value| {
        pod["metadata"]["namespace"] = json!("other");
        pod
    };
    let (small, large) = (others(waits.clone()), others(gpu_pod(&sim, "large", 5)));
    assert_eq!(filter(&small).await["NodeNames"], json!(["one"]));
    // No error: it would end kube-scheduler's search for pods to evict.
    let large = filter(&large).await;
    assert_eq!((&large["Error"], &large["NodeNames"]), (&json!(""), &json!([])));
    let passes = async || filter(&waits).await["NodeNames"] == json!(["one"]);
    rig.until("the end of its time", passes).await;
}

#[tokio::test]
async fn explain_tells_every_limit_term_and_gpu_that_filter_and_prioritize_decide_by() {
    let sim = Sim::start().await.unwrap();
    let busy = loaded_node("busy", 0.80, NOW).annotation("plimsoll.dev/gpu-cards", "[]");
    sim.put(busy);
    sim.put(gpu_node("two", 2));
    let rig = Rig::start(&sim).await;
    let held = gpu_pod(&sim, "held", 13);
    assert_eq!(rig.bind(&held, "two").await, "");
    let train = gpu_pod(&sim, "train", 4);
    let body = json!({ "Pod": train, "NodeNames": ["busy", "two", "unheard-of"] });
    let (status, text) = rig.post_text("/explain", body.to_string()).await;
    assert_eq!(status, 200);
    let explained: Explanation = serde_json::from_str(&text).unwrap();
    assert_eq!(explained.pod.name, "train");
    let [busy, two, unheard] = &explained.nodes[..] else { panic!("{text}") };

    assert!(busy.known && !busy.accepted);
    assert_eq!(busy.reasons[0], TOO_HIGH);
    let load = busy.load.as_ref().unwrap();
    assert_eq!(load.limits[0].outcome, LimitOutcome::Exceeded);
    assert_eq!(load.limits[0].reading.status, ReadingStatus::Fresh);
    assert_eq!((load.limits[0].reading.value, load.score), (Some(0.8), 20));
    assert_eq!(load.terms[0].points.map(f64::round), Some(20.0));
    assert!(busy.gpus.as_ref().unwrap().gpus.is_empty());

    assert!(two.known && two.accepted && two.reasons.is_empty(), "{two:?}");
    let gpus = two.gpus.as_ref().unwrap();
    assert_eq!((gpus.asked, &gpus.chosen[..]), (4, &[1][..]));
    let outcomes: Vec<_> = gpus.gpus.iter().map(|gpu| (gpu.free, gpu.outcome)).collect();
    assert_eq!(outcomes, [(3, GpuOutcome::TooLittleFree), (16, GpuOutcome::Fits)]);
    let (pod, units) = (held["metadata"]["uid"].as_str().unwrap().to_owned(), 13);
    let charge =
        ExplainedCharge { pod, resource_claim: None, units, cores: 0, basis: Basis::Chosen };
    assert_eq!((&gpus.gpus[0].charges, &gpus.gpus[1].charges), (&vec![charge], &Vec::new()));
    assert_eq!(two.load.as_ref().unwrap().limits[0].outcome, LimitOutcome::Unknown);
    assert!(!unheard.known && !unheard.accepted);

    // What is explained is what is answered.
    let names = ["busy", "two", "unheard-of"];
    let scores = rig.scores(&train, &names).await;
    let explained_scores: Vec<i64> = explained.nodes.iter().map(|n| n.extender_score).collect();
    assert_eq!(scores, explained_scores);
    let everything = json!({ "Pod": train });
    let (_, text) = rig.post_text("/explain", everything.to_string()).await;
    let all: Explanation = serde_json::from_str(&text).unwrap();
    let known: Vec<_> = all.nodes.iter().map(|node| node.name.as_str()).collect();
    assert_eq!(known, ["busy", "two"]);
    // The pod that was asked about counts on a node now; it does not stand in its own way.
    assert_eq!(all.nodes[1].score, two.score);
}

#[tokio::test]
async fn inspect_answers_in_the_words_of_aliyuns_extender() {
    let sim = Sim::start().await.unwrap();
    sim.put(gpu_node("two", 2));
    sim.put(sim::node("plain"));
    let rig = Rig::start(&sim).await;
    let train = gpu_pod(&sim, "train", 5);
    assert_eq!(rig.bind(&train, "two").await, "");
    let pods = json!([{ "name": "train", "namespace": "default", "usedGPU": 5 }]);
    let two = json!({ "name": "two", "totalGPU": 32, "usedGPU": 5, "devs": [
        { "id": 0, "totalGPU": 16, "usedGPU": 5, "pods": pods },
        { "id": 1, "totalGPU": 16, "usedGPU": 0, "pods": [] },
    ]});
    assert_eq!(rig.inspect().await, json!({ "nodes": [two] }));
    let one: Value =
        serde_json::from_str(&rig.get("/gpushare-scheduler/inspect/two").await).unwrap();
    assert_eq!(one, json!({ "nodes": [two] }));
    let none: Value =
        serde_json::from_str(&rig.get("/gpushare-scheduler/inspect/plain").await).unwrap();
    assert_eq!(none, json!({ "nodes": [], "error": "node plain reports no GPUs" }));
}

#[tokio::test]
async fn the_version_is_bare_text() {
    let (_sim, rig) = loaded_cluster().await;
    assert_eq!(rig.get("/version").await, "0.1.0");
}

#[tokio::test]
async fn readings_that_are_not_believed_reject_nothing_and_are_counted() {
    let sim = Sim::start().await.unwrap();
    sim.put(loaded_node("ahead", 0.99, SignedDuration::from_hours(-8)));
    sim.put(loaded_node("percent", 0.99, NOW).annotation("cpu_usage_avg_5m", percent(68.0)));
    sim.put(node("malformed").annotation("cpu_usage_avg_5m", "0.99"));
    let rig = Rig::start(&sim).await;
    let names = ["ahead", "percent", "malformed"];
    let answer = rig.filter("/load-aware", &plain(), &names).await;
    assert_eq!(answer["NodeNames"], json!(names));
    assert_eq!(rig.scores(&plain(), &names).await, [0, 0, 0]);
    let text = rig.context.metrics().unwrap();
    for cause in ["ahead", "not-a-fraction", "malformed"] {
        let line = format!("plimsoll_extender_refused_readings_total{{cause=\"{cause}\"}} 1");
        assert!(text.contains(&line), "{line} is not in\n{text}");
    }
}

/// A reading as a writer of percentages writes it, now.
fn percent(value: f64) -> String {
    let value = Ratio::new(value).unwrap();
    ReadingCodec::default().encode(&Reading::new(value, jiff::Timestamp::now()))
}

#[tokio::test]
async fn metrics_tell_calls_rejections_and_units() {
    let (sim, rig) = loaded_cluster().await;
    sim.put(gpu_node("two", 2));
    rig.filter("/load-aware", &plain(), &["busy", "cool"]).await;
    rig.until("the GPUs", async || rig.inspect().await["nodes"] != json!([])).await;
    let text = rig.context.metrics().unwrap();
    for line in [
        r#"plimsoll_extender_requests_total{verb="load-aware/filter",outcome="ok"} 1"#,
        r#"plimsoll_extender_rejected_nodes_total{verb="load-aware/filter",reason="cpu_usage_avg_5m"} 1"#,
        "plimsoll_extender_gpu_units 32",
        "plimsoll_extender_gpu_units_overbooked 0",
        "plimsoll_extender_nodes 5",
        "plimsoll_extender_decisions_kept 1",
        r#"plimsoll_watch_errors_total{resource="pods"} 0"#,
        "plimsoll_policy_warnings 0",
        // `stale` and `two`.
        r#"plimsoll_extender_nodes_without_fresh_reading{metric="cpu_usage_avg_5m"} 2"#,
        r#"plimsoll_extender_refused_readings_total{cause="ahead"} 0"#,
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
}

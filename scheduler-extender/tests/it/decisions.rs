//! What explain answers about a pod's name: what was known at its decision, or what is known now.

use api::explain::{DecisionBasis, Explanation, Node, Request};
use jiff::SignedDuration;
use serde_json::{Value, json};
use sim::{Fault, PODS, Sim, Verb, pod};

use crate::rig::{GPU, Rig, gpu_node, gpu_pod, loaded_node};

const NOW: SignedDuration = SignedDuration::ZERO;
const NODES: [&str; 2] = ["cool", "busy"];

/// A cluster of two nodes and one pod that waits.
async fn cluster() -> (Sim, Rig, Value) {
    let sim = Sim::start().await.unwrap();
    sim.put(loaded_node("cool", 0.10, NOW));
    sim.put(loaded_node("busy", 0.80, NOW));
    let web = sim.put(pod("web"));
    let rig = Rig::start(&sim).await;
    (sim, rig, web)
}

fn question(name: &str) -> Request {
    Request {
        namespace: "default".to_owned(),
        name: name.to_owned(),
        fresh: false,
        node_names: None,
    }
}

async fn ask(rig: &Rig, question: &Request) -> (u16, String) {
    rig.post_text("/explain", serde_json::to_string(question).unwrap()).await
}

async fn explained(rig: &Rig, question: &Request) -> Explanation {
    let (status, text) = ask(rig, question).await;
    assert_eq!(status, 200, "{text}");
    serde_json::from_str(&text).unwrap()
}

fn reading(node: &Node) -> (Option<f64>, bool) {
    let reading = &node.load.as_ref().unwrap().limits[0].reading;
    assert_eq!(reading.window_seconds, Some(300));
    (reading.value, reading.cached)
}

/// Changes the load of `cool`, and waits until it counts.
async fn heat_cool(sim: &Sim, rig: &Rig) {
    sim.put(loaded_node("cool", 0.90, NOW));
    let probe =
        json!({ "metadata": { "name": "probe", "namespace": "default", "uid": "u-probe" } });
    rig.until("the new reading", async || {
        rig.filter("/load-aware", &probe, &["cool"]).await["NodeNames"] == json!([])
    })
    .await;
}

#[tokio::test]
async fn a_request_of_explain_that_makes_up_thousands_of_nodes_is_refused() {
    let sim = Sim::start().await.unwrap();
    sim.put(sim::pod("web"));
    let rig = Rig::start(&sim).await;
    let names = |count: usize| (0..count).map(|number| format!("no-node-{number}")).collect();
    let asked = |count| Request { node_names: Some(names(count)), ..question("web") };
    let (status, text) = ask(&rig, &asked(1_001)).await;
    assert!(status == 400 && text.contains("more than 1000"), "{status} {text}");
    assert_eq!(explained(&rig, &asked(1_000)).await.nodes.len(), 1_000);
}

#[tokio::test]
async fn a_placed_pod_is_explained_by_what_was_known_at_its_decision() {
    let (sim, rig, web) = cluster().await;
    rig.filter("/load-aware", &web, &NODES).await;
    heat_cool(&sim, &rig).await;
    sim.put(pod("web").uid(web["metadata"]["uid"].as_str().unwrap()).on("cool"));
    rig.until("the pod's node", async || {
        explained(&rig, &question("web")).await.node.as_deref() == Some("cool")
    })
    .await;

    let then = explained(&rig, &question("web")).await;
    assert_eq!(then.basis, DecisionBasis::Decision);
    let names: Vec<_> = then.nodes.iter().map(|node| node.name.as_str()).collect();
    assert_eq!(names, ["busy", "cool"], "by name, whatever the order of the request");
    assert_eq!(reading(&then.nodes[1]), (Some(0.10), true));
    assert!(!then.nodes[0].accepted && then.nodes[1].accepted);

    let now = explained(&rig, &Request { fresh: true, ..question("web") }).await;
    assert_eq!((now.basis, now.node.as_deref()), (DecisionBasis::Now, Some("cool")));
    let cool = now.nodes.iter().find(|node| node.name == "cool").unwrap();
    assert_eq!((reading(cool), cool.accepted), ((Some(0.90), false), false));

    let only = Request { node_names: Some(vec!["busy".to_owned()]), ..question("web") };
    let names: Vec<_> =
        explained(&rig, &only).await.nodes.into_iter().map(|node| node.name).collect();
    assert_eq!(names, ["busy"]);
}

#[tokio::test]
async fn a_pod_is_not_explained_by_the_decision_about_another_one_of_its_name() {
    let (sim, rig, web) = cluster().await;
    rig.filter("/load-aware", &web, &NODES).await;
    sim.put(pod("web").uid(web["metadata"]["uid"].as_str().unwrap()).on("cool"));
    rig.until("the pod's node", async || {
        explained(&rig, &question("web")).await.node.as_deref() == Some("cool")
    })
    .await;
    sim.delete(PODS, "default", "web");
    let gone = explained(&rig, &question("web")).await;
    assert_eq!((gone.basis, gone.node.as_deref()), (DecisionBasis::Decision, Some("cool")));

    // kube-scheduler has not asked about the new one.
    sim.put(pod("web").uid("u-second"));
    let second = explained(&rig, &question("web")).await;
    assert_eq!((second.basis, second.node), (DecisionBasis::Now, None));
    assert_eq!(second.pod.uid, "u-second");
    sim.put(pod("web").uid("u-second").on("busy"));
    let second = explained(&rig, &question("web")).await;
    assert_eq!((second.basis, second.node.as_deref()), (DecisionBasis::Now, Some("busy")));
}

#[tokio::test]
async fn a_pod_that_waits_is_explained_by_what_is_known_now() {
    let (sim, rig, web) = cluster().await;
    rig.filter("/load-aware", &web, &NODES).await;
    heat_cool(&sim, &rig).await;
    let waiting = explained(&rig, &question("web")).await;
    assert_eq!((waiting.basis, waiting.node), (DecisionBasis::Now, None));
    let cool = waiting.nodes.iter().find(|node| node.name == "cool").unwrap();
    assert_eq!(reading(cool), (Some(0.90), false));
}

#[tokio::test]
async fn a_pod_that_only_prioritize_was_asked_about_has_a_decision_too() {
    let (sim, rig, web) = cluster().await;
    rig.scores(&web, &NODES).await;
    sim.delete(PODS, "default", "web");
    let gone = explained(&rig, &question("web")).await;
    assert_eq!((gone.basis, gone.nodes.len()), (DecisionBasis::Decision, 2));
}

#[tokio::test]
async fn prioritize_leaves_what_filter_noted() {
    let (sim, rig, web) = cluster().await;
    rig.filter("/load-aware", &web, &NODES).await;
    rig.scores(&web, &["cool"]).await;
    sim.delete(PODS, "default", "web");
    assert_eq!(explained(&rig, &question("web")).await.nodes.len(), 2);
}

#[tokio::test]
async fn a_decision_is_told_also_where_the_api_server_does_not_answer() {
    let (sim, rig, web) = cluster().await;
    rig.filter("/load-aware", &web, &NODES).await;
    sim.faults().next(usize::MAX, Verb::Get, PODS, Fault::DropRequest);
    assert_eq!(explained(&rig, &question("web")).await.basis, DecisionBasis::Decision);
    let (status, text) = ask(&rig, &question("other")).await;
    assert_eq!(status, 503);
    assert!(text.contains("pod default/other cannot be read from the API server"), "{text}");
}

#[tokio::test]
async fn a_gpu_pods_decision_has_its_gpus_as_they_were() {
    let sim = Sim::start().await.unwrap();
    sim.put(gpu_node("two", 2));
    let rig = Rig::start(&sim).await;
    let train = gpu_pod(&sim, "train", 4);
    for entry in ["/gpushare-scheduler", "/load-aware"] {
        rig.filter(entry, &train, &["two"]).await;
    }
    assert_eq!(rig.bind(&train, "two").await, "");
    rig.until("the pod's node", async || {
        explained(&rig, &question("train")).await.basis == DecisionBasis::Decision
    })
    .await;
    let gpus = explained(&rig, &question("train")).await.nodes.remove(0).gpus.unwrap();
    let free: Vec<u32> = gpus.gpus.iter().map(|gpu| gpu.free).collect();
    assert_eq!((gpus.asked, free), (4, vec![16, 16]));
    assert_eq!(
        sim.pod("default", "train").unwrap()["spec"]["containers"][0]["resources"]["limits"][GPU],
        "4"
    );
}

#[tokio::test]
async fn a_pod_that_nothing_knows_is_an_error_that_says_what_to_check() {
    let (_sim, rig, _) = cluster().await;
    let (status, text) = ask(&rig, &question("wbe")).await;
    assert_eq!(status, 404);
    assert!(text.contains("there is no pod default/wbe") && text.contains("check"), "{text}");
}

#[tokio::test]
async fn what_is_no_question_about_one_pod_is_refused_with_an_example() {
    let (_sim, rig, _) = cluster().await;
    for body in [
        "",
        "{}",
        r#"{"name":"web"}"#,
        r#"{"Pod":{},"namespace":"default","name":"web"}"#,
        r#"{"namespace":7,"name":"web"}"#,
    ] {
        let (status, text) = rig.post_text("/explain", body.to_owned()).await;
        assert_eq!(status, 400, "{body}: {text}");
        assert!(text.contains(r#"{\"namespace\":\"default\",\"name\":\"web-0\"}"#), "{text}");
    }
    for name in ["../nodes", "", &"n".repeat(254)] {
        let (status, text) = ask(&rig, &question(name)).await;
        assert_eq!((status, text.contains("name must be a DNS subdomain")), (400, true), "{text}");
    }
}

#[tokio::test]
async fn a_pod_whose_annotation_cannot_be_read_is_explained_with_the_value_on_every_path() {
    let sim = Sim::start().await.unwrap();
    sim.put(gpu_node("gpu", 2));
    let rig = Rig::start(&sim).await;
    let faulty = pod("train").asking(GPU, 5).annotation("plimsoll.dev/gpu-card-count", "many");
    let faulty = sim.put(faulty);
    let check = |explained: &Explanation| {
        let fault = explained.fault.as_deref().unwrap();
        let value = "annotation plimsoll.dev/gpu-card-count: expected 1 to 64 GPUs";
        assert!(fault.starts_with(value) && fault.ends_with("found `many`"), "{fault}");
        let node = &explained.nodes[0];
        assert!(!node.accepted, "{node:?}");
        assert!(node.reasons[0].starts_with("the pod's annotation gpu-card-count cannot be read"));
    };
    // By its name, as the pod itself, and from its decision.
    check(&explained(&rig, &question("train")).await);
    let (status, text) = rig.post_text("/explain", json!({ "Pod": faulty }).to_string()).await;
    assert_eq!(status, 200, "{text}");
    check(&serde_json::from_str(&text).unwrap());
    rig.filter("/load-aware", &faulty, &["gpu"]).await;
    sim.delete(PODS, "default", "train");
    let kept = explained(&rig, &question("train")).await;
    assert_eq!(kept.basis, DecisionBasis::Decision);
    check(&kept);
}

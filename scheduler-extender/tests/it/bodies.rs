//! Requests that are larger, or of another shape, than kube-scheduler's.

use jiff::SignedDuration;
use serde_json::{Value, json};
use sim::Sim;

use crate::rig::{Rig, loaded_node};

const VERBS: [&str; 5] = [
    "/load-aware/filter",
    "/load-aware/prioritize",
    "/gpushare-scheduler/filter",
    "/gpushare-scheduler/prioritize",
    "/explain",
];

async fn one_node() -> (Sim, Rig) {
    let sim = Sim::start().await.unwrap();
    sim.put(loaded_node("busy", 0.80, SignedDuration::ZERO));
    let rig = Rig::start(&sim).await;
    (sim, rig)
}

/// An answer is up to 250 times as long as the names that were asked about.
#[tokio::test]
async fn more_names_than_a_cluster_has_nodes_are_refused() {
    let (_sim, rig) = one_node().await;
    let body = |names: usize| {
        format!(r#"{{"Pod":{{}},"NodeNames":[{}"n"]}}"#, r#""n","#.repeat(names - 1))
    };
    for verb in VERBS {
        let (_, text) = rig.post_text(verb, body(100_001)).await;
        assert!(text.contains("more than 100000 nodes"), "{verb}: {}", text.len());
    }
    let (status, text) = rig.post_text(VERBS[0], body(100_000)).await;
    assert!(status == 200 && text.len() > 400_000, "{}", text.len());
    let victims: Vec<_> = (0..100_001).map(|n| format!(r#""n{n}":{{}}"#)).collect();
    let victims = victims.join(",");
    let body = format!(r#"{{"Pod":{{}},"NodeNameToMetaVictims":{{{victims}}}}}"#);
    let (status, text) = rig.post_text("/load-aware/preempt", body).await;
    assert_eq!((status, text.contains("more than 100000 nodes")), (400, true), "{}", text.len());
}

#[tokio::test]
async fn explain_answers_once_for_a_node_however_often_it_is_named() {
    let (_sim, rig) = one_node().await;
    let names = ["busy", "other", "busy", "busy", "other"];
    let answer = rig.post("/explain", &json!({ "Pod": {}, "NodeNames": names })).await;
    let nodes = answer["nodes"].as_array().unwrap();
    let names: Vec<&Value> = nodes.iter().map(|node| &node["name"]).collect();
    assert_eq!(names, ["busy", "other"]);
}

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

/// The API server's own fields are not sent, so that they count neither here nor there.
#[tokio::test]
async fn explain_names_the_refusal_of_a_large_gpu_pod_as_filter_does() {
    let sim = Sim::start().await.unwrap();
    sim.put(loaded_node("busy", 0.30, SignedDuration::ZERO));
    let rig = Rig::start(&sim).await;
    for (sent, fields, is_large) in [(600, 0, true), (400, 200, false), (400, 0, false)] {
        let mut pod = Value::from(sim::pod("large").asking(crate::rig::GPU, 1));
        pod["spec"]["containers"][0]["args"] = json!(["x".repeat(sent << 10)]);
        let request = format!(r#"{{"Pod":{pod},"Nodes":null,"NodeNames":["busy"]}}"#);
        let (_, filter) = rig.post_text("/gpushare-scheduler/filter", request).await;
        assert_eq!(filter.contains("512 KiB"), is_large, "{filter}");
        pod["metadata"]["managedFields"] = json!([{"manager": "m".repeat(fields << 10)}]);
        pod["kind"] = json!("Pod");
        pod["apiVersion"] = json!("v1");
        sim.put(pod.clone());
        let name = json!({"namespace": "default", "name": "large", "fresh": true});
        for question in [json!({"Pod": pod}), name] {
            let answer = rig.post("/explain", &question).await;
            let node = &answer["nodes"][0];
            let reasons = node["reasons"].to_string();
            assert_eq!(reasons.contains("has more than 512 KiB"), is_large, "{reasons}");
            assert_eq!(answer["fault"].to_string().contains("at most 524288"), is_large);
            assert!(!is_large || node["accepted"] == false, "{node}");
        }
        sim.delete(sim::PODS, "default", "large");
    }
}

/// kube-scheduler tries one pod at a time: what a large one costs, the others wait for.
#[tokio::test]
async fn a_gpu_pod_of_more_than_512_kib_is_refused_unread_by_a_reason_for_each_node() {
    let sim = Sim::start().await.unwrap();
    sim.put(loaded_node("busy", 0.30, SignedDuration::ZERO));
    let rig = Rig::start(&sim).await;
    // `argument` is JSON without its closing bracket: a pod that was read would be an error.
    let body = |bytes: usize, resource: &str, argument: &str| {
        let pod = format!(
            r#"{{"metadata":{{"name":"p","namespace":"a","uid":"u"}},"spec":{{"containers":[{{"name":"c","resources":{{"limits":{{"{resource}":"1"}}}},"args":["#
        );
        let fill = "x".repeat(bytes - pod.len() - argument.len() - r#"""]}]}}"#.len());
        format!(
            r#"{{"Pod":{pod}{argument}"{fill}"]}}]}}}},"Nodes":null,"NodeNames":["busy","none"]}}"#
        )
    };
    let most = cluster::MAX_GPU_POD;
    let rejected = |answer: &str, node: &str| -> Option<String> {
        let answer: Value = serde_json::from_str(answer).unwrap();
        let why = &answer["FailedAndUnresolvableNodes"][node];
        why.as_str().filter(|why| why.contains("512 KiB")).map(str::to_owned)
    };
    for verb in ["/load-aware/filter", "/gpushare-scheduler/filter"] {
        let (status, answer) = rig.post_text(verb, body(most + 1, crate::rig::GPU, "{,")).await;
        assert_eq!(status, 200);
        for node in ["busy", "none"] {
            assert!(rejected(&answer, node).is_some(), "{verb}: {answer}");
        }
        for (bytes, resource) in [(most, crate::rig::GPU), (most + 1, "example.com/other")] {
            let (_, answer) = rig.post_text(verb, body(bytes, resource, "")).await;
            let read: Value = serde_json::from_str(&answer).unwrap();
            assert_eq!(read["Error"], "", "{verb}");
            assert_eq!(rejected(&answer, "busy"), None, "{verb}: {answer}");
        }
    }
}

//! What is answered about pods on a node that does not exist yet: `/v1/simulate`.

use api::decisions::Decisions;
use api::explain::GpuOutcome;
use api::simulate::{PodOutcome, SimulateRequest, SimulatedPod, Simulation};
use reqwest::StatusCode;
use serde_json::{Value, json};
use sim::{Sim, pod};

use crate::rig::{GPU, Rig, annotation, gpu_node};

const PATH: &str = "/v1/simulate";

async fn ask(rig: &Rig, pods: Vec<Value>, node: Value) -> Vec<SimulatedPod> {
    let question = serde_json::to_value(SimulateRequest { pods, node }).unwrap();
    serde_json::from_value::<Simulation>(rig.post(PATH, &question).await).unwrap().pods
}

#[tokio::test]
async fn pods_fit_and_get_the_gpus_as_filter_and_bind_then_place_them() {
    let sim = Sim::start().await.unwrap();
    sim.put(gpu_node("gpu", 2));
    let rig = Rig::start(&sim).await;
    let wishes = |name: &str, units: u32, count: &str| {
        sim.put(pod(name).asking(GPU, units).annotation("plimsoll.dev/gpu-card-count", count))
    };
    let pods = vec![
        wishes("a", 10, "1"),
        wishes("b", 12, "2"),
        wishes("c", 6, "1"),
        wishes("d", 16, "exclusive"),
        wishes("e", 4, "1"),
        wishes("f", 1, "many"),
        wishes("g", 7, "1"),
        wishes("h", 5, "2"),
    ];
    let simulated = ask(&rig, pods.clone(), gpu_node("gpu", 2).into()).await;
    let decided: Decisions = serde_json::from_str(&rig.get("/v1/decisions").await).unwrap();
    assert_eq!((decided.decisions.len(), rig.used().await), (0, 0), "nothing is kept");
    let mut fitted = 0;
    for (pod, simulated) in pods.iter().zip(&simulated) {
        let meta = &pod["metadata"];
        assert_eq!(
            (json!(simulated.pod.name), json!(simulated.pod.uid)),
            (meta["name"].clone(), meta["uid"].clone())
        );
        let answer = rig.filter("/gpushare-scheduler", pod, &["gpu"]).await;
        if let Some(reason) = answer["FailedAndUnresolvableNodes"]["gpu"].as_str() {
            assert_eq!(simulated.outcome, PodOutcome::Rejected, "{simulated:?}");
            assert_eq!(simulated.reasons, [reason]);
            continue;
        }
        assert_eq!(rig.bind(pod, "gpu").await, "");
        let claim: Value =
            serde_json::from_str(&annotation(&sim, pod, "plimsoll.dev/gpu-claim")).unwrap();
        let index = |uuid: &String| uuid["GPU-gpu-".len()..].parse().unwrap();
        let gpus: Vec<u32> = claim["main"].as_object().unwrap().keys().map(index).collect();
        let mut chosen = simulated.chosen.clone();
        chosen.sort_unstable();
        assert_eq!((simulated.outcome, chosen), (PodOutcome::Fits, gpus), "{simulated:?}");
        fitted += 1;
    }
    assert_eq!(fitted, 4, "{simulated:?}");
    let exclusive = &simulated[3];
    let why: Vec<_> = exclusive.gpus.iter().map(|gpu| gpu.outcome).collect();
    assert_eq!(why, [GpuOutcome::TooLittleFree; 2]);
}

#[tokio::test]
async fn it_is_asked_at_the_read_only_port_too_and_needs_no_more_than_a_node_and_pods() {
    let sim = Sim::start().await.unwrap();
    let address = sim::KeptAddress::new().unwrap();
    let at = address.address();
    let rig = Rig::start_with(&sim, &[&format!("--inspect-address={at}")]).await;
    let client = sim::http_client().unwrap();
    let request = client.post(format!("http://{at}{PATH}")).body(r#"{"pods": [{}], "node": {}}"#);
    let answer = request.send().await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    let found: Simulation = serde_json::from_str(&answer.text().await.unwrap()).unwrap();
    assert_eq!(found.pods[0].outcome, PodOutcome::Fits);
    assert!(ask(&rig, Vec::new(), json!({})).await.is_empty());
}

#[tokio::test]
async fn what_is_wrong_in_a_request_is_named_with_its_line() {
    let sim = Sim::start().await.unwrap();
    let rig = Rig::start(&sim).await;
    let pods = |count: usize| json!({ "pods": vec![json!({}); count], "node": {} }).to_string();
    let spread = "{\n \"node\": {},\n \"pods\": [{}, {\"metadata\": {\"name\": \"a\"},\n  \"spec\": {\n   \"containers\": 7}}]}";
    for (body, error) in [
        (String::new(), "EOF while parsing"),
        ("{}".to_owned(), "missing field `pods`"),
        (r#"{"pods": []}"#.to_owned(), "missing field `node`"),
        (r#"{"pods": [], "node": {}, "nodes": 1}"#.to_owned(), "unknown field `nodes`"),
        (r#"{"pods": {}, "node": {}}"#.to_owned(), "expected a sequence at line 1"),
        (
            spread.to_owned(),
            "pods[1].spec.containers: invalid type: integer `7`, expected a sequence at line 5",
        ),
        (r#"{"pods": [7], "node": {}}"#.to_owned(), "pods[0]: invalid type: integer `7`"),
        (
            "{\"pods\": [],\n\"node\": {\"status\": 1}}".to_owned(),
            "node.status: invalid type: integer `1`",
        ),
        (pods(1_001), "pods: 1001 of them, and at most 1000 are tried"),
    ] {
        let (status, text) = rig.post_text(PATH, body.clone()).await;
        let text: String = serde_json::from_str(&text).unwrap();
        assert_eq!(status, 400, "{body}: {text}");
        assert!(text.contains(error) && text.contains("send Pods and a Node as in"), "{text}");
    }
    let (status, text) = rig.post_text(PATH, pods(1_000)).await;
    let found: Simulation = serde_json::from_str(&text).unwrap();
    assert_eq!((status, found.pods.len()), (200, 1_000));
    let (status, _) = rig.post_text(PATH, " ".repeat((4 << 20) + 1)).await;
    assert_eq!(status, 413);
}

#[tokio::test]
async fn a_pod_too_large_for_filter_is_rejected_with_its_words() {
    let sim = Sim::start().await.unwrap();
    let rig = Rig::start(&sim).await;
    let mut large = Value::from(pod("large").asking(GPU, 1));
    large["spec"]["containers"][0]["args"] = json!(["x".repeat(600 << 10)]);
    let found = ask(&rig, vec![large], gpu_node("gpu", 1).into()).await.remove(0);
    assert_eq!(found.outcome, PodOutcome::Rejected);
    assert!(
        found.reasons[0].contains("512 KiB") && found.fault.unwrap().contains("at most 524288")
    );
}

//! `pods/binding`: one atomic write, its refusals, and what can go wrong on the way.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::time::Duration;

use serde_json::{Value, json};
use sim::{Failure, Fault, Sim, pod};

fn binding(uid: &str, node: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Binding",
        "metadata": {"name": "train", "uid": uid, "annotations": {"claim": "new"}},
        "target": {"kind": "Node", "name": node},
    })
}

async fn post(sim: &Sim, body: &Value) -> reqwest::Result<reqwest::Response> {
    let path = "/api/v1/namespaces/default/pods/train/binding";
    let request = sim::http_client().unwrap().post(format!("{}{path}", sim.url()));
    request.json(body).send().await
}

/// Status code and message.
async fn bind(sim: &Sim, body: &Value) -> (u16, String) {
    let response = post(sim, body).await.unwrap();
    let code = response.status().as_u16();
    let body: Value = response.json().await.unwrap();
    (code, body["message"].as_str().unwrap_or_default().to_owned())
}

async fn hanging(sim: &Sim, count: usize) {
    let hang = |sim: &Sim| (sim.faults().hanging() == count).then_some(());
    sim.until("the hanging requests", hang).await.unwrap();
}

async fn with_pod() -> Sim {
    let sim = Sim::start().await.unwrap();
    sim.put(pod("train").uid("uid-1").annotation("claim", "old").annotation("kept", "yes"));
    sim
}

#[tokio::test]
async fn node_and_annotations_come_in_one_version() {
    let sim = with_pod().await;
    let before = sim.pod("default", "train").unwrap();
    assert_eq!(bind(&sim, &binding("uid-1", "worker-1")).await.0, 201);
    let pod = sim.pod("default", "train").unwrap();
    assert_eq!(pod["spec"]["nodeName"], "worker-1");
    assert_eq!(pod["metadata"]["annotations"], json!({"claim": "new", "kept": "yes"}));
    assert_eq!(pod["status"]["conditions"][0]["type"], "PodScheduled");
    let version = |pod: &Value| -> u64 {
        pod["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
    };
    assert_eq!(version(&pod), version(&before) + 1);
    assert_eq!(sim.log().bindings()[0].body, binding("uid-1", "worker-1"));
}

#[tokio::test]
async fn a_bound_pod_is_not_bound_again() {
    let sim = with_pod().await;
    bind(&sim, &binding("uid-1", "worker-1")).await;
    let message = "Operation cannot be fulfilled on pods/binding \"train\": \
                   pod train is already assigned to node \"worker-1\"";
    let answer = bind(&sim, &binding("uid-1", "worker-2")).await;
    assert_eq!(answer, (409, message.to_owned()));
}

#[tokio::test]
async fn a_pod_of_the_same_name_is_another_pod() {
    let sim = with_pod().await;
    let (code, message) = bind(&sim, &binding("uid-0", "worker-1")).await;
    assert_eq!(code, 409);
    assert_eq!(
        message,
        "Operation cannot be fulfilled on pods \"train\": StorageError: invalid object, Code: 4, \
         Key: /registry/pods/default/train, ResourceVersion: 0, AdditionalErrorMsg: \
         Precondition failed: UID in precondition: uid-0, UID in object meta: uid-1"
    );
}

#[tokio::test]
async fn a_missing_deleted_or_gated_pod_is_refused() {
    let sim = Sim::start().await.unwrap();
    let body = binding("uid-1", "worker-1");
    assert_eq!(bind(&sim, &body).await, (404, "pods \"train\" not found".to_owned()));
    sim.put(pod("train").uid("uid-1").deleting_since("2026-11-20T09:00:00Z"));
    let (code, message) = bind(&sim, &body).await;
    assert_eq!(code, 409);
    assert!(message.ends_with("pod train is being deleted, cannot be assigned to a host"));
    let mut gated: Value = pod("train").uid("uid-1").into();
    gated["spec"]["schedulingGates"] = json!([{"name": "wait"}]);
    sim.put(gated);
    let (code, message) = bind(&sim, &body).await;
    assert_eq!(code, 409);
    assert!(message.ends_with("pod train has non-empty .spec.schedulingGates"));
}

#[tokio::test]
async fn a_lost_reply_leaves_the_pod_bound_and_a_lost_request_does_not() {
    let sim = with_pod().await;
    sim.faults().next_bindings(1, Fault::DropRequest);
    sim.faults().next_bindings(1, Fault::DropReply);
    let body = binding("uid-1", "worker-1");
    let node = |sim: &Sim| sim.pod("default", "train").unwrap()["spec"]["nodeName"].clone();
    assert!(post(&sim, &body).await.is_err());
    assert_eq!(node(&sim), Value::Null);
    assert!(post(&sim, &body).await.is_err());
    assert_eq!(node(&sim), "worker-1");
    assert_eq!(sim.log().bindings().len(), 2);
}

#[tokio::test]
async fn an_answer_can_be_any_failure() {
    let sim = with_pod().await;
    sim.faults().next_bindings(1, Fault::Answer(Failure::too_many_requests()));
    sim.faults().next_bindings(1, Fault::Answer(Failure::internal("etcdserver: no leader")));
    let body = binding("uid-1", "worker-1");
    let busy = post(&sim, &body).await.unwrap();
    assert_eq!(
        (busy.status().as_u16(), &busy.headers()["retry-after"]),
        (429, &"1".parse().unwrap())
    );
    assert_eq!(bind(&sim, &body).await.0, 500);
    assert_eq!(bind(&sim, &body).await.0, 201);
}

#[tokio::test]
async fn a_hanging_request_proceeds_when_released() {
    let sim = with_pod().await;
    sim.faults().next_bindings(1, Fault::Hang);
    let body = binding("uid-1", "worker-1");
    let waiting = bind(&sim, &body);
    let release = async {
        hanging(&sim, 1).await;
        assert_eq!(sim.pod("default", "train").unwrap()["spec"]["nodeName"], Value::Null);
        sim.faults().release();
    };
    let ((code, _), ()) = tokio::join!(waiting, release);
    assert_eq!(code, 201);
}

#[tokio::test]
async fn a_hanging_request_that_its_client_gave_up_is_never_done() {
    let sim = with_pod().await;
    sim.faults().next_bindings(1, Fault::Hang);
    let body = binding("uid-1", "worker-1");
    tokio::select! {
        _ = bind(&sim, &body) => unreachable!("the request hangs"),
        () = hanging(&sim, 1) => {}
    }
    hanging(&sim, 0).await;
    sim.faults().release();
    assert_eq!(bind(&sim, &binding("uid-1", "worker-2")).await.0, 201);
}

#[tokio::test]
async fn a_delayed_answer_comes() {
    let sim = with_pod().await;
    sim.faults().next_bindings(1, Fault::Delay(Duration::from_millis(1)));
    assert_eq!(bind(&sim, &binding("uid-1", "worker-1")).await.0, 201);
}

//! `pods/binding`: what `conformance` has no fact about, and the faults that can be planned.

use std::time::Duration;

use serde_json::{Value, json};
use sim::{Failure, Fault, Sim, pod};

fn binding(uid: &str, node: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Binding",
        "metadata": {"name": "train", "uid": uid},
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
    sim.until("the hanging requests", |sim| (sim.faults().hanging() == count).then_some(()))
        .await
        .unwrap();
}

async fn with_pod() -> Sim {
    let sim = Sim::start().await.unwrap();
    sim.put(pod("train").uid("uid-1"));
    sim
}

#[tokio::test]
async fn a_pod_that_is_being_deleted_is_not_bound() {
    let sim = Sim::start().await.unwrap();
    sim.put(pod("train").uid("uid-1").deleting_since("2026-11-20T09:00:00Z"));
    let (code, message) = bind(&sim, &binding("uid-1", "worker-1")).await;
    assert_eq!(code, 409);
    assert!(message.ends_with("pod train is being deleted, cannot be assigned to a host"));
}

#[tokio::test]
async fn a_lost_reply_leaves_the_pod_bound_and_a_lost_request_does_not() {
    let sim = with_pod().await;
    sim.faults().next_bindings(1, Fault::DropRequest);
    sim.faults().next_bindings(1, Fault::DropReply);
    let body = binding("uid-1", "worker-1");
    assert!(post(&sim, &body).await.is_err());
    assert_eq!(node_of_pod(&sim), Value::Null);
    assert!(post(&sim, &body).await.is_err());
    assert_eq!(node_of_pod(&sim), "worker-1");
    assert_eq!(sim.log().bindings().len(), 2);
}

fn node_of_pod(sim: &Sim) -> Value {
    sim.pod("default", "train").unwrap()["spec"]["nodeName"].clone()
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
async fn a_hanging_request_whose_client_has_closed_the_connection_is_never_carried_out() {
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

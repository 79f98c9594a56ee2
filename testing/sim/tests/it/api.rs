//! Reads and writes over HTTP, where `conformance` has no fact about them.

use reqwest::{Method, Response};
use serde_json::{Value, json};
use sim::{NODES, Sim, Verb, node, pod};

struct Answer {
    code: u16,
    body: Value,
}

async fn send(sim: &Sim, method: Method, path: &str, kind: &str, body: &Value) -> Response {
    let request = sim::http_client().unwrap().request(method, format!("{}{path}", sim.url()));
    let request = request.header("content-type", kind).body(body.to_string());
    request.send().await.unwrap()
}

async fn call(sim: &Sim, method: Method, path: &str, body: Value) -> Answer {
    let kind = match method {
        Method::PATCH => "application/merge-patch+json",
        _ => "application/json; charset=utf-8",
    };
    let response = send(sim, method, path, kind, &body).await;
    let code = response.status().as_u16();
    let body = response.json().await.unwrap();
    Answer { code, body }
}

const NODE: &str = "/api/v1/nodes/worker-1";

#[tokio::test]
async fn every_request_is_logged() {
    let sim = Sim::start().await.unwrap();
    sim.put(node("worker-1"));
    let patch = json!({"metadata": {"annotations": {"a": "3"}}});
    call(&sim, Method::PATCH, NODE, patch.clone()).await;
    let logged = sim.log().node_patches("worker-1");
    assert_eq!(logged.len(), 1);
    assert_eq!((&logged[0].body, logged[0].path.as_str()), (&patch, NODE));
    assert_eq!(logged[0].content_type, "application/merge-patch+json");
    assert_eq!(call(&sim, Method::DELETE, NODE, json!({})).await.code, 200);
    assert_eq!(sim.log().of(Verb::Delete, NODES).len(), 1);
    sim.log().clear();
    assert!(sim.log().all().is_empty());
}

#[tokio::test]
async fn a_json_patch_is_refused() {
    let sim = Sim::start().await.unwrap();
    sim.put(node("worker-1"));
    let kind = "application/json-patch+json";
    let answer = send(&sim, Method::PATCH, NODE, kind, &json!([])).await;
    assert_eq!(answer.status(), 415);
}

#[tokio::test]
async fn a_body_that_is_not_json_is_refused_with_its_type() {
    let sim = Sim::start().await.unwrap();
    let kind = "application/vnd.kubernetes.protobuf";
    for (method, path) in [(Method::POST, "/api/v1/nodes"), (Method::DELETE, NODE)] {
        let answer = send(&sim, method, path, kind, &json!("k8s")).await;
        assert_eq!(answer.status(), 415);
        let status: Value = answer.json().await.unwrap();
        let message = status["message"].as_str().unwrap();
        assert!(message.ends_with("application/json (not application/vnd.kubernetes.protobuf)"));
    }
}

#[tokio::test]
async fn a_strategic_patch_that_is_not_understood_changes_nothing() {
    let sim = Sim::start().await.unwrap();
    let before = sim.put(node("worker-1"));
    let kind = "application/strategic-merge-patch+json";
    let patch = json!({"spec": {"unschedulable": true, "$nonsense": 1}});
    let answer = send(&sim, Method::PATCH, NODE, kind, &patch).await;
    assert_eq!(answer.status(), 400);
    assert_eq!(sim.node("worker-1").unwrap(), before);
}

#[tokio::test]
async fn a_dry_run_is_refused_but_of_an_eviction() {
    let sim = Sim::start().await.unwrap();
    let made = call(&sim, Method::POST, "/api/v1/nodes?dryRun=All", node("a").into()).await;
    assert_eq!((made.code, sim.list(NODES).len()), (400, 0));
    sim.put(node("worker-1"));
    let deleted = call(&sim, Method::DELETE, NODE, json!({"dryRun": ["All"]})).await;
    assert_eq!((deleted.code, sim.list(NODES).len()), (400, 1));
    sim.put(pod("a"));
    let eviction = json!({
        "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a"},
        "deleteOptions": {"dryRun": ["All"]},
    });
    let path = "/api/v1/namespaces/default/pods/a/eviction";
    let tried = call(&sim, Method::POST, path, eviction).await;
    assert!(tried.code == 201 && sim.pod("default", "a").is_some());
}

#[tokio::test]
async fn a_new_pod_tolerates_the_taints_of_the_extended_resources_it_asks_for() {
    let sim = Sim::start().await.unwrap();
    let own = json!({"key": "own", "operator": "Exists"});
    let path = "/api/v1/namespaces/default/pods";
    let mut asking: Value = pod("asks")
        .asking("example.com/gpu", 1)
        .container("more", "cpu", 2)
        .init_container("init", "aliyun.com/gpu-mem", 4)
        .container("native", "hugepages.kubernetes.io/x", 1)
        .into();
    // Where no request is given, the limit is one.
    asking["spec"]["containers"][0]["resources"]["requests"] = Value::Null;
    asking["spec"]["tolerations"] = json!([own, toleration("example.com/gpu")]);
    let made = call(&sim, Method::POST, path, asking).await.body;
    let expected = json!([own, toleration("example.com/gpu"), toleration("aliyun.com/gpu-mem")]);
    assert_eq!(made["spec"]["tolerations"], expected);
    let plain = call(&sim, Method::POST, path, pod("plain").asking("cpu", 1).into()).await.body;
    assert!(plain["spec"]["tolerations"].is_null());
}

fn toleration(key: &str) -> Value {
    json!({"key": key, "operator": "Exists", "effect": "NoSchedule"})
}

#[tokio::test]
async fn bodies_that_are_no_objects_are_refused() {
    let sim = Sim::start().await.unwrap();
    sim.put(node("worker-1"));
    for body in [json!("text"), json!([1]), json!({"metadata": "x"}), json!(null)] {
        let created = call(&sim, Method::POST, "/api/v1/nodes", body.clone()).await;
        assert_eq!(created.code, 400, "{body}");
        let replaced = call(&sim, Method::PUT, NODE, body).await;
        assert_eq!(replaced.code, 400);
    }
    assert_eq!(sim.list(NODES).len(), 1);
}

#[tokio::test]
async fn a_kubeconfig_names_the_address() {
    let sim = Sim::start().await.unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    sim.write_kubeconfig(file.path()).unwrap();
    let text = std::fs::read_to_string(file.path()).unwrap();
    assert!(text.contains(&format!("server: \"{}\"", sim.url())), "{text}");
}

//! Reads and writes, through real HTTP.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use reqwest::{Method, Response};
use serde_json::{Value, json};
use sim::{NODES, PODS, Sim, Verb, node, pod};

struct Answer {
    code: u16,
    body: Value,
}

impl Answer {
    fn message(&self) -> &str {
        self.body["message"].as_str().unwrap()
    }
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

async fn get(sim: &Sim, path: &str) -> Answer {
    call(sim, Method::GET, path, Value::Null).await
}

fn names(list: &Value) -> Vec<&str> {
    let items = list["items"].as_array().unwrap();
    items.iter().map(|item| item["metadata"]["name"].as_str().unwrap()).collect()
}

const NODE: &str = "/api/v1/nodes/worker-1";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/plimsoll/leases";

#[tokio::test]
async fn clients_find_out_what_is_served() {
    let sim = Sim::start().await.unwrap();
    assert_eq!(get(&sim, "/version").await.body["minor"], "36");
    assert_eq!(get(&sim, "/api").await.body["versions"], json!(["v1"]));
    let groups = get(&sim, "/apis").await.body["groups"].clone();
    assert_eq!(groups[1]["preferredVersion"]["groupVersion"], "coordination.k8s.io/v1");
    let core = get(&sim, "/api/v1").await.body;
    assert_eq!(core["resources"][0]["name"], "nodes");
    assert_eq!(get(&sim, "/apis/apps/v1").await.code, 404);
}

#[tokio::test]
async fn an_object_is_created_once_and_gets_uid_version_and_time() {
    let sim = Sim::start().await.unwrap();
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "annotator"}, "spec": {"holderIdentity": "a"},
    });
    let created = call(&sim, Method::POST, LEASES, lease.clone()).await;
    assert_eq!(created.code, 201);
    for field in ["uid", "resourceVersion", "creationTimestamp"] {
        assert!(created.body["metadata"][field].is_string(), "{field}");
    }
    assert_eq!(created.body["metadata"]["namespace"], "plimsoll");
    let again = call(&sim, Method::POST, LEASES, lease).await;
    assert_eq!(again.code, 409);
    assert_eq!(again.message(), "leases.coordination.k8s.io \"annotator\" already exists");
}

#[tokio::test]
async fn a_put_from_an_older_version_conflicts() {
    let sim = Sim::start().await.unwrap();
    let old = sim.put(node("worker-1"));
    sim.put(node("worker-1").label("zone", "a"));
    let answer = call(&sim, Method::PUT, NODE, old).await;
    assert_eq!(answer.code, 409);
    assert_eq!(
        answer.message(),
        "Operation cannot be fulfilled on nodes \"worker-1\": the object has been modified; \
         please apply your changes to the latest version and try again"
    );
}

#[tokio::test]
async fn a_merge_patch_changes_what_it_names_and_a_vain_one_nothing() {
    let sim = Sim::start().await.unwrap();
    let before = sim.put(node("worker-1").annotation("a", "1").annotation("b", "2"));
    let patch = json!({"metadata": {"annotations": {"a": "3", "b": null}}});
    let patched = call(&sim, Method::PATCH, NODE, patch.clone()).await.body;
    assert_eq!(patched["metadata"]["annotations"], json!({"a": "3"}));
    assert_ne!(patched["metadata"]["resourceVersion"], before["metadata"]["resourceVersion"]);
    let again = call(&sim, Method::PATCH, NODE, patch).await.body;
    assert_eq!(again, patched);
    let logged = sim.log().node_patches("worker-1");
    assert_eq!(logged.len(), 2);
    assert_eq!(logged[0].content_type, "application/merge-patch+json");
}

#[tokio::test]
async fn other_kinds_of_patch_are_refused() {
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
async fn status_and_the_rest_are_written_apart() {
    let sim = Sim::start().await.unwrap();
    sim.put(node("worker-1").with("aliyun.com/gpu-mem", 16));
    let patch = json!({
        "status": {"capacity": {"aliyun.com/gpu-count": "1"}},
        "spec": {"unschedulable": true},
    });
    let status = call(&sim, Method::PATCH, &format!("{NODE}/status"), patch.clone()).await.body;
    assert_eq!(status["status"]["capacity"]["aliyun.com/gpu-count"], "1");
    assert_eq!(status["status"]["capacity"]["aliyun.com/gpu-mem"], "16");
    assert_eq!(status["spec"], json!({}));
    let mut other = patch;
    other["status"]["capacity"]["aliyun.com/gpu-count"] = "2".into();
    let main = call(&sim, Method::PATCH, NODE, other).await.body;
    assert_eq!(main["status"]["capacity"]["aliyun.com/gpu-count"], "1");
    assert_eq!(main["spec"]["unschedulable"], true);
}

#[tokio::test]
async fn lists_select_by_field_label_and_namespace() {
    let sim = Sim::start().await.unwrap();
    sim.put(pod("a").on("worker-1").label("app", "web"));
    sim.put(pod("b").on("worker-2").label("app", "web"));
    sim.put(pod("c").in_namespace("other").on("worker-1"));
    let all = get(&sim, "/api/v1/pods?limit=1").await.body;
    assert_eq!(names(&all), ["a", "b", "c"]);
    assert_eq!(all["kind"], "PodList");
    let field = get(&sim, "/api/v1/pods?fieldSelector=spec.nodeName%3Dworker-1").await.body;
    assert_eq!(names(&field), ["a", "c"]);
    let path = "/api/v1/namespaces/default/pods?labelSelector=app%3Dweb&fieldSelector=spec.nodeName!%3Dworker-1";
    assert_eq!(names(&get(&sim, path).await.body), ["b"]);
}

#[tokio::test]
async fn a_tables_rows_carry_as_much_of_their_objects_as_is_asked_for() {
    let sim = Sim::start().await.unwrap();
    let stored = sim.put(node("worker-1"));
    let ask = async |path: &str| {
        let request = sim::http_client().unwrap().get(format!("{}{path}", sim.url()));
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
        let answer = request.header("accept", table).send().await.unwrap();
        let code = answer.status().as_u16();
        // Of a watch, the one event that there is.
        let body: Value = serde_json::from_str(&answer.text().await.unwrap()).unwrap();
        let table = if body["type"] == "ADDED" { body["object"].clone() } else { body };
        Answer { code, body: table }
    };
    let partial = json!({
        "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
        "metadata": stored["metadata"],
    });
    for path in [NODE, "/api/v1/nodes", "/api/v1/nodes?watch=1&timeoutSeconds=0"] {
        let joint = if path.contains('?') { '&' } else { '?' };
        for (asked, expected) in [
            ("", &partial),
            ("includeObject=Metadata", &partial),
            ("includeObject=Object", &stored),
            ("includeObject=None", &Value::Null),
        ] {
            let table = ask(&format!("{path}{joint}{asked}")).await.body;
            assert_eq!(table["rows"][0]["object"], *expected, "{path} {asked}");
        }
        let refused = ask(&format!("{path}{joint}includeObject=Some")).await;
        let words = "Unable to convert to Table as requested: includeObject: Invalid value: \"Some\": \
                     must be 'Metadata', 'Object', 'None', or empty";
        assert_eq!((refused.code, refused.message()), (400, words), "{path}");
    }
}

#[tokio::test]
async fn what_is_deleted_is_gone() {
    let sim = Sim::start().await.unwrap();
    sim.put(pod("a").uid("uid-a"));
    let path = "/api/v1/namespaces/default/pods/a";
    let wrong = json!({"preconditions": {"uid": "uid-b"}});
    assert_eq!(call(&sim, Method::DELETE, path, wrong).await.code, 409);
    assert_eq!(call(&sim, Method::DELETE, path, json!({})).await.code, 200);
    let answer = get(&sim, path).await;
    assert_eq!((answer.code, answer.message()), (404, "pods \"a\" not found"));
    assert_eq!(sim.log().of(Verb::Delete, PODS).len(), 2);
}

#[tokio::test]
async fn a_new_pod_tolerates_the_taints_of_the_extended_resources_it_asks_for() {
    let sim = Sim::start().await.unwrap();
    let toleration = |key: &str| json!({"key": key, "operator": "Exists", "effect": "NoSchedule"});
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

//! `plimsoll pending`: what waits, by the extender's decisions and the pods themselves.

use serde_json::{Value, json};

use crate::command::{assert_golden, json as parsed};
use crate::world::{Extender, World};

const DECISIONS: &str = include_str!("../../../crates/api/tests/golden/decisions.json");

/// The decisions about pods without a node, as the extender answers.
fn waiting() -> Value {
    let mut decisions = parsed(DECISIONS);
    decisions["decisions"].as_array_mut().unwrap().retain(|it| it["node"].is_null());
    decisions
}

fn pod(namespace: &str, name: &str, uid: &str, created: &str) -> Value {
    json!({
        "metadata": {"namespace": namespace, "name": name, "uid": uid, "creationTimestamp": created},
        "spec": {"schedulerName": "default-scheduler"}, "status": {"phase": "Pending"},
    })
}

fn pods() -> Value {
    let mut gated = pod("shop", "gated", "2f01", "2026-11-26T13:57:00Z");
    gated["spec"]["schedulingGates"] = json!([{"name": "kueue.x-k8s.io/admission"}]);
    let mut other = pod("shop", "other", "2f02", "2026-11-26T13:50:00Z");
    other["spec"]["schedulerName"] = json!("volcano");
    let mut cpu = pod("shop", "cpu", "2f03", "2026-11-26T13:58:00Z");
    cpu["status"]["conditions"] = json!([{"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available: 3 Insufficient cpu."}]);
    // A second pod of the same workload.
    let twin = pod("ml", "train-8", "1f0b", "2026-11-26T13:50:00Z");
    json!({"items": [
        pod("ml", "train-9", "1f0a", "2026-11-26T13:46:00Z"), twin, pod("shop", "web-0", "1f08", "2026-11-26T13:59:08Z"),
        pod("ml", "big", "1f07", "2026-11-26T13:59:00Z"), gated, other, cpu,
    ]})
}

fn decisions() -> String {
    let mut decisions = waiting();
    let list = decisions["decisions"].as_array_mut().unwrap();
    let mut twin = list[0].clone();
    twin["pod"] = json!({"namespace": "ml", "name": "train-8", "uid": "1f0b"});
    list.push(twin);
    decisions.to_string()
}

fn world() -> World {
    let extender = Extender::new(&[("/v1/pending", &decisions())]);
    World::new().with_extender(&extender.url)
}

#[test]
fn pods_are_grouped_by_workload_and_reason_with_those_that_plimsoll_was_not_asked_about() {
    let world = world().json("get pods --all-namespaces", &pods());
    assert_golden("pending.txt", &world.run(&["pending", "-A"]).success());
    let names = world.run(&["pending", "-A", "-o", "name"]).success();
    assert!(names.contains("pod/train-8\npod/train-9\n"), "{names}");
    let groups = parsed(&world.run(&["pending", "-A", "-o", "json"]).success());
    assert_eq!(groups["groups"][0]["pods"], json!(["train-8", "train-9"]));
}

#[test]
fn the_contexts_namespace_is_the_default() {
    let world = world().answer("get pods --namespace=shop", r#"{"items": []}"#);
    let said = world.run(&["pending"]).success();
    assert_eq!(said, "No pod waits for a node in namespace shop (-A: all).\n");
    let labels = world.run(&["pending", "-l", "app=web"]);
    labels.success();
    assert!(world.calls().contains("--selector=app=web --output=json"), "{}", world.calls());
}

#[test]
fn an_accepted_pod_that_waits_has_kube_schedulers_own_words() {
    let mut decisions = waiting();
    decisions["decisions"][0]["accepted"] = json!(2);
    let mut pod = pod("ml", "train-9", "1f0a", "2026-11-26T13:46:00Z");
    pod["status"]["conditions"] =
        json!([{"type": "PodScheduled", "message": "0/37 nodes: Insufficient memory"}]);
    let extender = Extender::new(&[("/v1/pending", &decisions.to_string())]);
    let world = World::new()
        .with_extender(&extender.url)
        .json("get pods --all-namespaces", &json!({"items": [pod]}));
    let said = world.run(&["pending", "-A"]).success();
    assert!(
        said.contains("2 nodes accept it; kube-scheduler: 0/37 nodes: Insufficient memory"),
        "{said}"
    );
}

#[test]
fn without_the_extender_the_pods_are_shown_with_kube_schedulers_words() {
    // Below the ports that the kernel gives out.
    let world =
        World::new().with_extender("http://127.0.0.1:1").json("get pods --all-namespaces", &pods());
    let run = world.run(&["pending", "-A"]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert!(run.stderr.starts_with("Warning: without what the extender decided"), "{}", run.stderr);
    assert!(run.stdout.contains("kube-scheduler: 0/3 nodes are available"), "{}", run.stdout);
    assert!(!run.stdout.contains("not asked: "), "{}", run.stdout);
    let answer = parsed(&world.run(&["pending", "-A", "-o", "json"]).stdout);
    assert_eq!(answer["withoutDecisions"], true);
    let both = World::new().with_extender("http://127.0.0.1:1").run(&["pending", "-A"]).failure();
    assert!(both.contains("/v1/pending"), "{both}");
}

#[test]
fn without_rights_to_list_pods_the_extenders_part_is_shown_where_its_address_is_given() {
    let extender = Extender::new(&[("/v1/pending", &decisions())]);
    let world = World::new().fails("get pods", "Error from server (Forbidden): no");
    let run = world.run(&["pending", "-A", "--extender", &extender.url]);
    assert_eq!(run.code, Some(0));
    assert!(
        run.stderr.starts_with("Warning: only pods that the extender was asked about"),
        "{}",
        run.stderr
    );
    assert!(run.stdout.contains("job/train"), "{}", run.stdout);
}

//! The `kube` client, which every program uses, against the stand-in.

use std::time::Duration;

use cluster::{BindOutcome, Binding, Client, Event, Events, NodeCondition, Scope, WatchHealth};
use futures::StreamExt;
use serde_json::json;
use sim::{NODES, Sim, node, pod};

const LIMIT: Duration = Duration::from_secs(120);

async fn client(sim: &Sim) -> Client {
    let file = tempfile::NamedTempFile::new().unwrap();
    sim.write_kubeconfig(file.path()).unwrap();
    cluster::client(Some(file.path())).await.unwrap()
}

/// Nodes by name.
async fn watch(sim: &Sim) -> Events<String> {
    let health = WatchHealth::default();
    cluster::watch_nodes(client(sim).await, Scope::All, health, |node: cluster::Node| {
        Some(node.name().to_string())
    })
}

/// The next event that tells of an object.
async fn next(events: &mut Events<String>) -> Event<String> {
    loop {
        match events.next().await.unwrap() {
            Event::Listing => {}
            event => return event,
        }
    }
}

#[tokio::test]
async fn a_watch_lists_then_follows() {
    let sim = Sim::start().await.unwrap();
    sim.put(node("a"));
    let mut events = watch(&sim).await;
    assert_eq!(next(&mut events).await, Event::Listed(vec!["a".to_owned()]));
    sim.put(node("b"));
    assert_eq!(next(&mut events).await, Event::Applied("b".to_owned()));
    sim.delete(NODES, "", "a");
    assert_eq!(next(&mut events).await, Event::Gone("a".to_owned()));
}

#[tokio::test]
async fn a_watch_that_was_cut_goes_on_where_it_was() {
    let sim = Sim::start().await.unwrap();
    let mut events = watch(&sim).await;
    assert_eq!(next(&mut events).await, Event::Listed(Vec::new()));
    sim.put(node("a"));
    assert_eq!(next(&mut events).await, Event::Applied("a".to_owned()));
    sim.faults().disconnect_watches();
    sim.put(node("b"));
    assert_eq!(next(&mut events).await, Event::Applied("b".to_owned()));
}

#[tokio::test]
async fn a_watch_whose_history_is_gone_lists_anew() {
    let sim = Sim::start().await.unwrap();
    sim.put(node("a"));
    let mut events = watch(&sim).await;
    assert_eq!(next(&mut events).await, Event::Listed(vec!["a".to_owned()]));
    sim.delete(NODES, "", "a");
    assert_eq!(next(&mut events).await, Event::Gone("a".to_owned()));
    sim.faults().expire_watches();
    sim.put(node("b"));
    assert_eq!(next(&mut events).await, Event::Listed(vec!["b".to_owned()]));
}

#[tokio::test]
async fn a_binding_is_made_once_and_a_conflict_is_another_outcome() {
    let sim = Sim::start().await.unwrap();
    sim.put(pod("train").uid("uid-1"));
    let client = client(&sim).await;
    let binding = Binding {
        namespace: "default".to_owned(),
        name: "train".to_owned(),
        uid: "uid-1".into(),
        node: "worker-1".into(),
        version: None,
        annotations: [("claim".to_owned(), "card".to_owned())].into(),
    };
    assert_eq!(cluster::bind(&client, &binding, LIMIT).await, BindOutcome::Bound);
    assert_eq!(sim.pod("default", "train").unwrap()["metadata"]["annotations"]["claim"], "card");
    let again = cluster::bind(&client, &binding, LIMIT).await;
    assert!(matches!(&again, BindOutcome::Conflict(why) if why.contains("already assigned")));
    let missing = Binding { name: "other".to_owned(), ..binding };
    assert_eq!(cluster::bind(&client, &missing, LIMIT).await, BindOutcome::NotFound);
}

#[tokio::test]
async fn annotations_capacity_and_a_condition_are_patched() {
    let sim = Sim::start().await.unwrap();
    sim.put(node("a").annotation("old", "1"));
    let client = client(&sim).await;
    let name = "a".into();
    let changes = [("new".to_owned(), Some("2".to_owned())), ("old".to_owned(), None)];
    cluster::patch_node_annotations(&client, &name, None, changes, LIMIT).await.unwrap();
    cluster::patch_node_capacity(&client, &name, "aliyun.com/gpu-count", 2, LIMIT).await.unwrap();
    let node = sim.node("a").unwrap();
    assert_eq!(node["metadata"]["annotations"], json!({"new": "2"}));
    assert_eq!(node["status"]["capacity"], json!({"aliyun.com/gpu-count": "2"}));
    let condition = NodeCondition {
        kind: "Own",
        holds: true,
        reason: "Because",
        message: "it does".to_owned(),
        since: "2026-11-20T09:00:00.5Z".parse().unwrap(),
    };
    let resource = Some("aliyun.com/gpu-count");
    cluster::patch_node_condition(&client, &name, &condition, resource, LIMIT).await.unwrap();
    let node = sim.node("a").unwrap();
    let conditions = &node["status"]["conditions"];
    assert_eq!(conditions[1]["type"], "Ready");
    let since = "2026-11-20T09:00:00Z";
    let expected = json!({
        "type": "Own", "status": "True", "reason": "Because", "message": "it does",
        "lastTransitionTime": since, "lastHeartbeatTime": since,
    });
    assert_eq!(conditions[0], expected);
    assert_eq!(node["status"]["allocatable"], json!({"aliyun.com/gpu-count": "0"}));
}

//! The calls and the watches over real HTTP, against the API stand-in.

use std::time::Duration;

use cluster::{
    BindOutcome, Binding, CallError, Client, Event, Scope, WatchHealth, bind, get_pod,
    mark_assigned, patch_node_annotations, patch_node_capacity, patch_own_node, watch_nodes,
    watch_pods,
};
use futures::StreamExt;
use serde_json::{Value, json};
use sim::{Failure, Fault, NODES, PODS, Sim, Verb, node, pod};

pub(crate) const LIMIT: Duration = Duration::from_secs(120);

pub(crate) async fn connected() -> (Sim, Client) {
    let sim = Sim::start().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kubeconfig");
    sim.write_kubeconfig(&path).unwrap();
    let client = cluster::client(Some(&path)).await.unwrap();
    (sim, client)
}

fn binding(pod: &Value) -> Binding {
    Binding {
        namespace: "default".to_owned(),
        name: "train".to_owned(),
        uid: pod["metadata"]["uid"].as_str().unwrap().into(),
        version: None,
        node: "n1".into(),
        annotations: [("plimsoll.dev/gpu-claim".to_owned(), "{}".to_owned())].into(),
    }
}

#[tokio::test]
async fn a_kubeconfig_that_is_not_there_is_named() {
    let error = cluster::client(Some("/nowhere/config".as_ref())).await.err().unwrap();
    assert_eq!(error.to_string(), "--kubeconfig /nowhere/config");
}

#[tokio::test]
async fn outside_a_cluster_the_flag_is_named() {
    let error = cluster::client(None).await.err().unwrap();
    assert!(error.to_string().contains("give --kubeconfig"), "{error}");
}

#[tokio::test]
async fn a_binding_names_the_pod_by_uid_and_the_node_by_kind() {
    let (sim, client) = connected().await;
    let pod = sim.put(pod("train"));
    assert_eq!(bind(&client, &binding(&pod), LIMIT).await, BindOutcome::Bound);
    let sent = &sim.log().bindings()[0];
    assert_eq!(sent.path, "/api/v1/namespaces/default/pods/train/binding");
    let target = json!({ "apiVersion": "v1", "kind": "Node", "name": "n1" });
    assert_eq!(sent.body["target"], target);
    assert_eq!(sent.body["metadata"]["uid"], pod["metadata"]["uid"]);
    assert_eq!(sent.body["metadata"]["annotations"], json!({ "plimsoll.dev/gpu-claim": "{}" }));
}

#[tokio::test]
async fn every_end_of_a_binding_is_told_apart() {
    let (sim, client) = connected().await;
    let stored = sim.put(pod("train"));
    let mut other = binding(&stored);
    other.uid = "another".into();
    assert!(matches!(bind(&client, &other, LIMIT).await, BindOutcome::Conflict(_)));
    other.name = "nobody".to_owned();
    assert_eq!(bind(&client, &other, LIMIT).await, BindOutcome::NotFound);
    sim.faults().next_bindings(1, Fault::Answer(sim::Failure::too_many_requests()));
    let refused = bind(&client, &binding(&stored), LIMIT).await;
    assert!(matches!(refused, BindOutcome::Refused(_)), "{refused:?}");
    let internal = sim::Failure::internal("etcdserver: request timed out");
    sim.faults().next_bindings(1, Fault::Answer(internal));
    let unknown = bind(&client, &binding(&stored), LIMIT).await;
    assert!(matches!(unknown, BindOutcome::Unknown(_)), "{unknown:?}");
    sim.faults().next_bindings(1, Fault::Hang);
    // Time enough for the call to come to the API server.
    let late = bind(&client, &binding(&stored), Duration::from_secs(2)).await;
    assert_eq!(late, BindOutcome::Unknown("none within 2s".to_owned()));
    sim.faults().next_bindings(1, Fault::DropReply);
    let lost = bind(&client, &binding(&stored), LIMIT).await;
    assert!(matches!(lost, BindOutcome::Unknown(_)), "{lost:?}");
    let bound = bind(&client, &binding(&stored), LIMIT).await;
    assert!(
        matches!(&bound, BindOutcome::Conflict(why) if why.contains("already assigned")),
        "{bound:?}"
    );
}

#[tokio::test]
async fn a_pod_is_read_or_is_not_there() {
    let (sim, client) = connected().await;
    sim.put(pod("train").uid("u-1"));
    let found = get_pod(&client, "default", "train", LIMIT).await.unwrap().unwrap();
    assert_eq!(found.uid().as_str(), "u-1");
    assert!(get_pod(&client, "default", "nobody", LIMIT).await.unwrap().is_none());
}

#[tokio::test]
async fn one_patch_sets_and_removes_annotations_and_touches_no_other() {
    let (sim, client) = connected().await;
    sim.put(node("n1").annotation("old", "x").annotation("else", "y"));
    let changes = [("new".to_owned(), Some("z".to_owned())), ("old".to_owned(), None)];
    patch_node_annotations(&client, &"n1".into(), None, changes, LIMIT).await.unwrap();
    let node = sim.node("n1").unwrap();
    assert_eq!(node["metadata"]["annotations"], json!({ "else": "y", "new": "z" }));
    assert_eq!(sim.log().node_patches("n1").len(), 1);
    assert_eq!(sim.log().node_patches("n1")[0].content_type, "application/merge-patch+json");
}

#[tokio::test]
async fn a_patch_of_the_own_node_tells_its_container_runtime() {
    let (sim, client) = connected().await;
    sim.put(node("n1"));
    let own = "n1".into();
    let patch = || {
        let change = [("new".to_owned(), Some("z".to_owned()))];
        patch_own_node(&client, &own, change, LIMIT)
    };
    assert_eq!(patch().await.unwrap(), "");
    sim.change(NODES, "", "n1", |node| {
        node["status"]["nodeInfo"] = json!({ "containerRuntimeVersion": "containerd://1.7.27" });
    });
    assert_eq!(patch().await.unwrap(), "containerd://1.7.27");
    assert_eq!(sim.node("n1").unwrap()["metadata"]["annotations"], json!({ "new": "z" }));
}

#[tokio::test]
async fn annotations_of_a_node_are_not_written_to_another_node_of_its_name() {
    let (sim, client) = connected().await;
    let old = sim.put(node("n1"))["metadata"]["uid"].as_str().unwrap().to_owned();
    sim.delete(NODES, "", "n1");
    sim.put(node("n1").annotation("else", "y"));
    let change = [("new".to_owned(), Some("z".to_owned()))];
    let patched =
        patch_node_annotations(&client, &"n1".into(), Some(&old), change.clone(), LIMIT).await;
    assert!(matches!(patched, Err(CallError::Conflict(_))), "{patched:?}");
    let annotations = || sim.node("n1").unwrap()["metadata"]["annotations"].clone();
    assert_eq!(annotations(), json!({ "else": "y" }));
    let new = sim.node("n1").unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
    patch_node_annotations(&client, &"n1".into(), Some(&new), change, LIMIT).await.unwrap();
    assert_eq!(annotations(), json!({ "else": "y", "new": "z" }));
}

#[tokio::test]
async fn the_count_of_gpus_goes_to_capacity_and_allocatable() {
    let (sim, client) = connected().await;
    sim.put(node("n1").with("cpu", 8));
    patch_node_capacity(&client, &"n1".into(), "aliyun.com/gpu-count", 2, LIMIT).await.unwrap();
    let node = sim.node("n1").unwrap();
    for field in ["capacity", "allocatable"] {
        assert_eq!(node["status"][field], json!({ "cpu": "8", "aliyun.com/gpu-count": "2" }));
    }
}

#[tokio::test]
async fn a_pod_is_marked_only_if_it_is_still_the_same() {
    let (sim, client) = connected().await;
    sim.put(pod("train").uid("u-1"));
    let mark =
        async |uid: &str| mark_assigned(&client, "default", "train", &uid.into(), LIMIT).await;
    assert!(matches!(mark("u-0").await, Err(CallError::Conflict(_))));
    mark("u-1").await.unwrap();
    let pod = sim.pod("default", "train").unwrap();
    assert_eq!(pod["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_ASSIGNED"], "true");
}

#[tokio::test]
async fn a_watch_that_breaks_goes_on_where_it_was() {
    let (sim, client) = connected().await;
    sim.put(node("n1"));
    let health = WatchHealth::default();
    let mut events = watch_nodes(client, Scope::All, health.clone(), |node| Some(node.name()));
    assert_eq!(events.next().await, Some(Event::Listing));
    assert_eq!(events.next().await, Some(Event::Listed(vec!["n1".into()])));
    sim.put(node("n2"));
    assert_eq!(events.next().await, Some(Event::Applied("n2".into())));
    sim.faults().disconnect_watches();
    sim.put(node("n3"));
    assert_eq!(events.next().await, Some(Event::Applied("n3".into())));
    sim.delete(NODES, "", "n1");
    assert_eq!(events.next().await, Some(Event::Gone("n1".into())));
    assert_eq!(health.lists(), 1);
}

#[tokio::test]
async fn a_watch_that_lost_its_place_lists_anew() {
    let (sim, client) = connected().await;
    sim.put(pod("a").on("n1"));
    sim.put(pod("b").on("n2"));
    let scope = Scope::Node("n1".into());
    let health = WatchHealth::default();
    let mut events = watch_pods(client, scope, health.clone(), |pod: cluster::Pod, _| {
        Some(pod.facts(&placement::names::Names::default()).name)
    });
    events.next().await;
    assert_eq!(events.next().await, Some(Event::Listed(vec!["a".to_owned()])));
    sim.faults().next(1, Verb::Watch, PODS, Fault::DropRequest);
    sim.delete(PODS, "default", "a");
    sim.put(pod("c").on("n1"));
    sim.faults().expire_watches();
    let listed = Event::Listed(vec!["c".to_owned()]);
    let relisted = async { while events.next().await.unwrap() != listed {} };
    tokio::time::timeout(LIMIT, relisted).await.unwrap();
    assert!(health.lists() > 1);
}

/// The events of a watch of pods by name.
fn names_of_pods(client: Client, health: WatchHealth) -> cluster::Events<String> {
    watch_pods(client, Scope::All, health, |pod, _| Some(pod.name().to_owned()))
}

fn named(names: impl IntoIterator<Item = usize>) -> Vec<String> {
    names.into_iter().map(|number| format!("p{number:04}")).collect()
}

#[tokio::test]
async fn a_list_comes_as_the_beginning_of_the_watch_and_is_not_older_than_the_request() {
    let (sim, client) = connected().await;
    (0..3).for_each(|number| drop(sim.put(pod(&format!("p{number:04}")))));
    let mut events = names_of_pods(client, WatchHealth::default());
    assert_eq!(events.next().await, Some(Event::Listing));
    assert_eq!(events.next().await, Some(Event::Listed(named(0..3))));
    sim.put(pod("p0003"));
    assert_eq!(events.next().await, Some(Event::Applied("p0003".to_owned())));
    let requests = sim.log().of(Verb::Watch, PODS);
    assert_eq!(requests.len(), 1, "{requests:?}");
    let asked = |name: &str| requests[0].query.get(name).map(String::as_str);
    assert_eq!(asked("sendInitialEvents"), Some("true"));
    assert_eq!(asked("resourceVersionMatch"), Some("NotOlderThan"));
    // Version 0 would be any state that the API server still has.
    assert_eq!(asked("resourceVersion"), Some(""));
}

/// A binding that is made meanwhile may be missing in the list.
#[tokio::test]
async fn a_list_is_told_of_before_it_is_requested() {
    let (sim, client) = connected().await;
    let mut events = names_of_pods(client, WatchHealth::default());
    assert_eq!(events.next().await, Some(Event::Listing));
    assert!(sim.log().of(Verb::Watch, PODS).is_empty());
    sim.put(pod("p0000"));
    assert_eq!(events.next().await, Some(Event::Listed(named(0..1))));
}

#[tokio::test]
async fn a_server_that_streams_no_lists_is_read_in_pages() {
    let (sim, client) = connected().await;
    sim.refuse_streamed_lists();
    (0..1_203).for_each(|number| drop(sim.put(pod(&format!("p{number:04}")))));
    let health = WatchHealth::default();
    let mut events = names_of_pods(client, health.clone());
    assert_eq!(events.next().await, Some(Event::Listing));
    assert_eq!(events.next().await, Some(Event::Listed(named(0..1_203))));
    sim.put(pod("p1203"));
    assert_eq!(events.next().await, Some(Event::Applied("p1203".to_owned())));
    let pages = sim.log().all().into_iter().filter(|r| r.verb == Some(Verb::List)).count();
    assert_eq!((pages, health.errors()), (3, 0));
    // The next list is not asked for as a watch again.
    sim.faults().expire_watches();
    assert_eq!(events.next().await, Some(Event::Listing));
    assert_eq!(events.next().await, Some(Event::Listed(named(0..1_204))));
    let streamed = sim.log().of(Verb::Watch, PODS);
    let streamed = streamed.iter().filter(|r| r.query.contains_key("sendInitialEvents")).count();
    assert_eq!(streamed, 1);
}

#[tokio::test]
async fn a_streamed_list_that_fails_is_followed_by_pages_and_these_by_a_stream() {
    let (sim, client) = connected().await;
    sim.put(pod("p0000"));
    // The stream, the page after it and the next stream.
    sim.faults().next(
        3,
        Verb::List,
        PODS,
        Fault::Answer(Failure::internal("etcdserver: request timed out")),
    );
    let health = WatchHealth::default();
    let mut events = names_of_pods(client, health.clone());
    let listed = async { while events.next().await != Some(Event::Listed(named(0..1))) {} };
    tokio::time::timeout(LIMIT, listed).await.unwrap();
    let verbs: Vec<_> = sim.log().all().iter().filter_map(|request| request.verb).collect();
    assert_eq!(verbs[..4], [Verb::Watch, Verb::List, Verb::Watch, Verb::List]);
    assert_eq!(health.errors(), 3);
}

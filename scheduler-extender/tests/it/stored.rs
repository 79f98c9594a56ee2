//! Nodes and pods as others can have them stored: the view takes each of them, and goes on to answer for the others.

use std::collections::HashSet;
use std::sync::Arc;

use api::stored::partly;
use cluster::{Event, Node, NodeFacts, Pod, WatchCause};
use jiff::Timestamp;
use placement::names::Names;
use placement::reading::ReadingCodec;
use scheduler_extender::Decider;
use scheduler_extender::http::VERBS;
use scheduler_extender::metrics::Metrics;
use scheduler_extender::view::{View, WatchedPod, select_pod};
use serde_json::{Value, json};
use sim::stored;

use crate::rig::empty_view;

fn now() -> Timestamp {
    "2026-11-20T09:01:00Z".parse().unwrap()
}

fn node(object: &Value) -> NodeFacts {
    let node = partly::<Node>(object.to_string().as_bytes()).unwrap().object;
    node.facts(&Names::default(), &ReadingCodec::default())
}

/// As the watch does.
fn watched(view: &View, object: &Value, seen: WatchCause) -> Option<WatchedPod> {
    let pod = partly::<Pod>(object.to_string().as_bytes()).unwrap().object;
    view.count_requests(&pod, &Names::default(), seen, now());
    select_pod(view, &Names::default(), &pod, now())
}

/// What is computed from all nodes, and the answers to kube-scheduler about a pod with a GPU and one without.
fn answer(decider: &Decider, nodes: &[NodeFacts]) {
    decider.view.renew_measure();
    let _ = decider.view.read().nodes_without_reading(now());
    let names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
    for (path, verb) in VERBS {
        let limits =
            if path.starts_with("gpu") { json!({ "aliyun.com/gpu-mem": "3" }) } else { json!({}) };
        let pod = json!({
            "metadata": { "name": "new", "namespace": "default", "uid": "new" },
            "spec": { "containers": [{ "name": "main", "resources": { "limits": limits } }] },
        });
        let body = json!({ "Pod": pod, "Nodes": null, "NodeNames": names }).to_string();
        verb(decider, body.as_bytes());
    }
}

fn decider() -> Decider {
    Decider {
        view: Arc::new(empty_view()),
        names: Arc::default(),
        decisions: Arc::default(),
        waiting: Default::default(),
        nominated: Default::default(),
        gangs: Default::default(),
        ratings: Default::default(),
        over_limits: Default::default(),
        gpu_evictions: None,
        shadow: None,
        metrics: Metrics::default(),
        clock: Arc::new(now),
    }
}

#[test]
fn no_node_that_can_be_stored_stops_the_view() {
    let mut nodes: Vec<NodeFacts> = stored::variants(&stored::node()).iter().map(node).collect();
    // More than a cluster of such nodes can add up.
    let mut large = stored::node();
    for number in 0..3 {
        large["metadata"]["name"] = json!(format!("large-{number}"));
        for field in ["capacity", "allocatable"] {
            large["status"][field]["cpu"] = json!("9E");
            large["status"][field]["memory"] = json!("9E");
        }
        nodes.push(node(&large));
    }
    for nodes in nodes.chunks(64) {
        let decider = decider();
        decider.view.apply_nodes(Event::Listed(nodes.to_vec()), now());
        answer(&decider, nodes);
        for node in nodes {
            decider.view.apply_nodes(Event::Applied(node.clone()), now());
        }
        answer(&decider, nodes);
    }
}

#[test]
fn no_pod_that_can_be_stored_stops_the_view() {
    let mut own = stored::node();
    own["metadata"]["name"] = json!("a");
    let nodes = [node(&own)];
    // A part of them, with some values of each field: all of them take a minute. The watch's own test reads all.
    let some: Vec<Value> = stored::variants(&stored::pod()).into_iter().step_by(7).collect();
    for pods in some.chunks(16) {
        let decider = decider();
        let view = &decider.view;
        view.apply_nodes(Event::Listed(nodes.to_vec()), now());
        let mut settled = HashSet::new();
        let mut apply = |event| drop(view.apply_pods(event, &mut settled, now()));
        apply(Event::Listing);
        let listed = pods.iter().filter_map(|pod| watched(view, pod, WatchCause::Listed));
        apply(Event::Listed(listed.collect()));
        answer(&decider, &nodes);
        for pod in pods.iter().filter_map(|pod| watched(view, pod, WatchCause::Changed)) {
            apply(Event::Applied(pod));
        }
        answer(&decider, &nodes);
        for pod in pods.iter().filter_map(|pod| watched(view, pod, WatchCause::Gone)) {
            apply(Event::Gone(pod));
        }
        answer(&decider, &nodes);
    }
}

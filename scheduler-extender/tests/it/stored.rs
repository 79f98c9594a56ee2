//! Nodes and pods as others can have them stored: the view takes each of them, and goes on to answer for the others.

use std::collections::HashSet;
use std::sync::Arc;

use cluster::{Event, Node, NodeFacts, Pod, WatchCause};
use jiff::Timestamp;
use placement::names::Names;
use placement::reading::ReadingCodec;
use scheduler_extender::Decider;
use scheduler_extender::http::VERBS;
use scheduler_extender::metrics::Metrics;
use scheduler_extender::over_limits::OverLimits;
use scheduler_extender::view::{View, WatchedPod, select_pod};
use serde_json::{Value, json};
use sim::stored;

use crate::rig::empty_view;

fn now() -> Timestamp {
    "2026-11-20T09:01:00Z".parse().unwrap()
}

fn node(object: &Value) -> NodeFacts {
    let node: Node = serde_json::from_value(object.clone()).unwrap();
    node.facts(&Names::default(), &ReadingCodec::default())
}

/// As the watch does.
fn watched(view: &View, object: &Value, seen: WatchCause) -> Option<WatchedPod> {
    let pod: Pod = serde_json::from_value(object.clone()).unwrap();
    view.count_requests(&pod, &Names::default(), seen, now());
    select_pod(view, &Names::default(), &pod, now())
}

/// What is computed from all nodes, and the answers to kube-scheduler about a pod with a card and one without.
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

#[test]
fn no_node_and_no_pod_that_can_be_stored_stops_the_view() {
    let view = Arc::new(empty_view());
    let decider = Decider {
        view: view.clone(),
        names: Arc::default(),
        decisions: Arc::default(),
        waiting: Default::default(),
        nominated: Default::default(),
        over_limits: OverLimits::new().0,
        card_evictions: None,
        shadow: None,
        metrics: Metrics::default(),
        clock: Arc::new(now),
    };
    let mut nodes: Vec<NodeFacts> = stored::variants(&stored::node()).iter().map(node).collect();
    let mut own = stored::node();
    own["metadata"]["name"] = json!("a");
    nodes.push(node(&own));
    // More than a cluster of such nodes can add up.
    for number in 0..3 {
        own["metadata"]["name"] = json!(format!("large-{number}"));
        for field in ["capacity", "allocatable"] {
            own["status"][field]["cpu"] = json!("9E");
            own["status"][field]["memory"] = json!("9E");
        }
        nodes.push(node(&own));
    }
    view.apply_nodes(Event::Listed(nodes.clone()), now());
    let mut settled = HashSet::new();
    let mut apply = |event| drop(view.apply_pods(event, &mut settled, now()));
    let pods = stored::variants(&stored::pod());
    apply(Event::Listing);
    apply(Event::Listed(
        pods.iter().filter_map(|pod| watched(&view, pod, WatchCause::Listed)).collect(),
    ));
    answer(&decider, &nodes);
    for node in &nodes {
        view.apply_nodes(Event::Applied(node.clone()), now());
    }
    for pod in pods.iter().filter_map(|pod| watched(&view, pod, WatchCause::Changed)) {
        apply(Event::Applied(pod));
    }
    answer(&decider, &nodes);
    for pod in pods.iter().filter_map(|pod| watched(&view, pod, WatchCause::Gone)) {
        apply(Event::Gone(pod));
    }
    answer(&decider, &nodes);
}

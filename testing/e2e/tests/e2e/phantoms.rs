//! Owns Node objects that no kubelet stands behind: enough for questions about choosing among many nodes.
//!
//! Pods are bound to them and never start. They live for less than the 50 seconds after which the controller manager
//! misses their heartbeats, and pods for them tolerate every taint, so that nobody has to wait for it to lift those that
//! it puts on new nodes.

use std::time::Duration;

use anyhow::{Context, Result};
use e2e::command::wait_for;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::world::{World, parse};

/// Marks these nodes; pods choose them by it.
const LABEL: &str = "plimsoll-e2e/phantom";

/// One node: its annotations, and what it offers beside processors and memory.
pub(crate) struct Phantom {
    pub(crate) name: String,
    pub(crate) annotations: Value,
    pub(crate) offers: Value,
}

/// Creates the nodes, lets `work` run, and removes pods and nodes again whatever came of it.
pub(crate) fn with<T>(
    world: &World,
    phantoms: &[Phantom],
    work: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let done =
        create(world, phantoms).and_then(|()| extender_knows_all(world)).and_then(|()| work());
    let removed = remove(world);
    let done = done?;
    removed.map(|()| done)
}

/// Makes a pod one that goes to these nodes and to no other.
pub(crate) fn only_here(mut pod: Value) -> Value {
    pod["spec"]["nodeSelector"] = json!({LABEL: "true"});
    pod["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
    pod
}

/// A reading as the annotator writes it.
pub(crate) fn reading(fraction: f64) -> String {
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    format!("{fraction:.5},{now}")
}

fn object(phantom: &Phantom) -> Result<Node> {
    let mut offers = json!({"cpu": "64", "memory": "256Gi", "pods": "110"});
    if let (Some(all), Some(own)) = (offers.as_object_mut(), phantom.offers.as_object()) {
        all.extend(own.clone());
    }
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    parse(json!({
        "metadata": {
            "name": phantom.name, "annotations": phantom.annotations,
            "labels": {LABEL: "true", "kubernetes.io/hostname": phantom.name},
        },
        "status": {
            "capacity": offers, "allocatable": offers,
            "conditions": [{
                "type": "Ready", "status": "True", "reason": "Phantom", "message": "no kubelet",
                "lastHeartbeatTime": now, "lastTransitionTime": now,
            }],
        },
    }))
}

fn create(world: &World, phantoms: &[Phantom]) -> Result<()> {
    let nodes = phantoms.iter().map(object).collect::<Result<Vec<_>>>()?;
    let api: Api<Node> = Api::all(world.client());
    world.wait(async {
        let mut calls = JoinSet::new();
        for node in nodes {
            let api = api.clone();
            calls.spawn(async move { api.create(&PostParams::default(), &node).await });
        }
        for created in calls.join_all().await {
            created.context("cannot create a node")?;
        }
        anyhow::Ok(())
    })
}

/// A node that the extender has not heard of yet passes its filter, as one without readings does.
fn extender_knows_all(world: &World) -> Result<()> {
    let nodes: Api<Node> = Api::all(world.client());
    let all = world.wait(nodes.list_metadata(&ListParams::default()))?.items.len();
    wait_for("the extender to know every node", Duration::from_secs(20), || {
        let metrics = world.metrics("scheduler-extender", 19102)?;
        let known = metrics.lines().find_map(|line| line.strip_prefix("plimsoll_extender_nodes "));
        Ok((known.and_then(|known| known.parse().ok()) == Some(all)).then_some(()))
    })
}

/// No kubelet will ever confirm that these pods ended.
fn remove(world: &World) -> Result<()> {
    let pods: Api<Pod> = world.pods();
    let at_once = DeleteParams::default().grace_period(0);
    world.wait(pods.delete_collection(&at_once, &ListParams::default()))?;
    let nodes: Api<Node> = Api::all(world.client());
    let ours = ListParams::default().labels(LABEL);
    world.wait(nodes.delete_collection(&DeleteParams::default(), &ours)).map(drop)
}

//! Inspect: GPUs and the pods on them, in the JSON of Aliyun's extender, which existing tools read.

use std::sync::Arc;

use api::inspect::{Device, Inspected, InspectedNode, InspectedPod};
use axum::Json;
use axum::extract::{Path, State};
use placement::gpu::{Account, NodeGpus};

use crate::Extender;
use crate::view::View;

/// The paths for all nodes and for one.
pub(super) const PATH: &str = "/gpushare-scheduler/inspect";
pub(super) const PATH_OF_NODE: &str = "/gpushare-scheduler/inspect/{node}";

pub(super) async fn all(State(extender): State<Arc<Extender>>) -> Json<Inspected> {
    let view = &extender.decider.view;
    let snapshot = view.read();
    let mut nodes: Vec<InspectedNode> = snapshot
        .nodes_with_gpus()
        .filter_map(|(name, gpus)| node(view, name.as_str(), gpus))
        .collect();
    nodes.sort_by(|one, other| one.name.cmp(&other.name));
    Json(Inspected { nodes, error: String::new() })
}

pub(super) async fn one(
    State(extender): State<Arc<Extender>>,
    Path(name): Path<String>,
) -> Json<Inspected> {
    let view = &extender.decider.view;
    let snapshot = view.read();
    let found = snapshot.gpus(&name).and_then(|gpus| node(view, &name, gpus));
    let error =
        if found.is_none() { format!("node {name} reports no GPUs") } else { String::new() };
    Json(Inspected { nodes: found.into_iter().collect(), error })
}

fn node(view: &View, name: &str, gpus: &NodeGpus) -> Option<InspectedNode> {
    let accounts = gpus.accounts();
    if accounts.is_empty() {
        return None;
    }
    let total = accounts.iter().map(|account| u64::from(account.gpu.units.0)).sum();
    let placed: u64 = accounts.iter().map(|account| u64::from(account.held().0)).sum();
    let unplaced: u64 = gpus.unplaced().iter().map(|(_, units)| u64::from(units.0)).sum();
    Some(InspectedNode {
        name: name.to_owned(),
        total,
        used: placed + unplaced,
        devs: accounts.iter().map(|account| device(view, account)).collect(),
    })
}

fn device(view: &View, account: &Account) -> Device {
    let mut pods = Vec::new();
    for pod in view.ask(|index| index.pods_on(account)) {
        pods.push(InspectedPod { name: pod.name, namespace: pod.namespace, used: pod.units.0 });
    }
    let gpu = &account.gpu;
    Device {
        id: gpu.index,
        total: gpu.units.0,
        used: account.held().0,
        pods,
        unhealthy: !gpu.healthy,
    }
}

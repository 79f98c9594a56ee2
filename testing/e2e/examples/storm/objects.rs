//! Nodes and pods.

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Client;
use kube::api::{Api, PostParams};
use serde_json::json;

use crate::exporters::address;

const AT_ONCE: usize = 16;

pub(crate) async fn create_nodes(client: &Client, nodes: usize) -> Result<()> {
    let api: Api<Node> = Api::all(client.clone());
    let creations = (0..nodes).map(|n| create_node(&api, n));
    let created = futures::stream::iter(creations).buffer_unordered(AT_ONCE);
    created.try_for_each(|()| async { Ok(()) }).await
}

async fn create_node(api: &Api<Node>, n: usize) -> Result<()> {
    let resources = json!({"cpu": "64", "memory": "256Gi", "pods": "110"});
    let name = format!("node-{n:05}");
    let node = serde_json::from_value(json!({
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {
            "capacity": resources, "allocatable": resources,
            "addresses": [{"type": "InternalIP", "address": address(n).to_string()}],
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }))?;
    api.create(&PostParams::default(), &node).await.context("cannot create a node").map(drop)
}

pub(crate) async fn create_pods(client: &Client, pods: usize) -> Result<()> {
    let api: Api<Pod> = Api::namespaced(client.clone(), "default");
    for n in 0..pods {
        let pod = serde_json::from_value(json!({
            "metadata": {"name": format!("rejected-{n:03}")},
            "spec": {"containers": [{
                "name": "main", "image": "none", "resources": {"requests": {"cpu": "10m"}},
            }]},
        }))?;
        api.create(&PostParams::default(), &pod).await.context("cannot create a pod")?;
    }
    Ok(())
}

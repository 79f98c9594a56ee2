//! Owns fake nodes: Node objects without a kubelet, for tests of the choice among many nodes and of preemption.
//!
//! Pods are bound to them and never start. Pods for them tolerate every taint, so that no test waits for the removal of
//! those that the controller manager puts on new nodes, and none fails that takes longer than the 50 seconds after
//! which it misses the nodes' heartbeats.

use std::time::Duration;

use anyhow::{Context, Result};
use e2e::command::wait_for;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::env::{TestEnv, parse};
use crate::support::extender_client::known_nodes;
use crate::support::pods::GPU;

/// The limit for what the extender and the controller manager make of a node.
const LIMIT: Duration = Duration::from_secs(120);

/// The label of the fake nodes, by which pods select them.
const LABEL: &str = "plimsoll-e2e/fake-node";

/// The metrics of crane's policy, which are also names of annotations.
pub(crate) const READINGS: [&str; 6] = [
    "cpu_usage_avg_5m",
    "cpu_usage_max_avg_1h",
    "cpu_usage_max_avg_1d",
    "mem_usage_avg_5m",
    "mem_usage_max_avg_1h",
    "mem_usage_max_avg_1d",
];

/// One fake node.
#[derive(Debug, Clone)]
pub(crate) struct FakeNode {
    name: String,
    /// An object of annotations.
    annotations: Value,
    /// An object of resources, in addition to the default processors, memory and pods or in their place.
    resources: Value,
    /// A list of taints.
    taints: Value,
}

impl FakeNode {
    /// A node with the same reading for each metric of crane's policy.
    pub(crate) fn loaded(name: &str, load: f64) -> Self {
        Self {
            name: name.to_owned(),
            annotations: readings(load),
            resources: json!({}),
            taints: json!([]),
        }
    }

    /// A node with healthy GPUs of these many units, and without readings.
    pub(crate) fn with_gpus(name: &str, gpus: &[u64]) -> Self {
        let all: Vec<Value> = gpus.iter().enumerate().map(|(index, units): (usize, &u64)| {
            json!({
                "uuid": gpu_uuid(name, index), "index": index, "model": "NVIDIA A10",
                "memoryMiB": units * 1024, "units": units, "numaNode": 0, "healthy": true, "pods": {},
            })
        }).collect();
        let units: u64 = gpus.iter().sum();
        Self {
            name: name.to_owned(),
            annotations: json!({"plimsoll.dev/gpu-cards": json!(all).to_string()}),
            resources: json!({GPU: units.to_string(), "aliyun.com/gpu-count": gpus.len().to_string()}),
            taints: json!([]),
        }
    }

    /// The same node with this taint, beside those that controllers set.
    pub(crate) fn tainted(mut self, taint: &Value) -> Self {
        self.taints = json!([taint]);
        self
    }

    /// The same node with so many processors.
    pub(crate) fn with_processors(mut self, processors: u32) -> Self {
        self.resources["cpu"] = json!(processors.to_string());
        self
    }
}

/// The UUID of a GPU of [`FakeNode::with_gpus`].
pub(crate) fn gpu_uuid(node: &str, index: usize) -> String {
    let number: u32 =
        node.chars().filter(char::is_ascii_digit).collect::<String>().parse().unwrap_or(0);
    format!("GPU-{number:06x}{index:02x}-5afe-4000-8000-000000000000")
}

/// The annotations of a node whose reading is `load` for each metric of crane's policy.
fn readings(load: f64) -> Value {
    READINGS
        .map(|name| (name.to_owned(), json!(reading(load))))
        .into_iter()
        .collect::<serde_json::Map<_, _>>()
        .into()
}

/// Changes the readings of fake nodes.
pub(crate) fn set_readings(env: &TestEnv, loads: &[(&str, f64)]) -> Result<()> {
    let api: Api<Node> = Api::all(env.client());
    for (name, load) in loads {
        let patch = Patch::Merge(json!({"metadata": {"annotations": readings(*load)}}));
        env.block_on(api.patch(name, &PatchParams::default(), &patch))?;
    }
    Ok(())
}

/// Creates the nodes, runs `work`, and removes pods and nodes again also after an error.
pub(crate) fn with<T>(
    env: &TestEnv,
    nodes: &[FakeNode],
    work: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let done = create(env, nodes).and_then(|()| wait_for_extender(env)).and_then(|()| work());
    let removed = remove(env);
    let done = done?;
    removed.map(|()| done)
}

/// Restricts a pod to the fake nodes.
pub(crate) fn on_fake_nodes(mut pod: Value) -> Value {
    pod["spec"]["nodeSelector"] = json!({LABEL: "true"});
    pod["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
    pod
}

/// Places a pod on a node without kube-scheduler.
pub(crate) fn bound_to(node: &str, pod: Value) -> Value {
    let mut pod = on_fake_nodes(pod);
    pod["spec"]["nodeName"] = json!(node);
    pod
}

/// A reading of now, in the form in which the annotator writes it.
fn reading(fraction: f64) -> String {
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    format!("{fraction:.5},{now}")
}

fn object(node: &FakeNode) -> Result<Node> {
    let mut resources = json!({"cpu": "64", "memory": "256Gi", "pods": "110"});
    if let (Some(all), Some(own)) = (resources.as_object_mut(), node.resources.as_object()) {
        all.extend(own.clone());
    }
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    parse(json!({
        "metadata": {
            "name": node.name, "annotations": node.annotations,
            "labels": {LABEL: "true", "kubernetes.io/hostname": node.name},
        },
        "spec": {"taints": node.taints},
        "status": {
            "capacity": resources, "allocatable": resources,
            "conditions": [{
                "type": "Ready", "status": "True", "reason": "FakeNode", "message": "no kubelet",
                "lastHeartbeatTime": now, "lastTransitionTime": now,
            }],
        },
    }))
}

fn create(env: &TestEnv, nodes: &[FakeNode]) -> Result<()> {
    let nodes = nodes.iter().map(object).collect::<Result<Vec<_>>>()?;
    let api: Api<Node> = Api::all(env.client());
    env.block_on(async {
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

/// Waits until the extender knows every node, and no other: it accepts an unknown one, as it does one without readings.
fn wait_for_extender(env: &TestEnv) -> Result<()> {
    let nodes: Api<Node> = Api::all(env.client());
    wait_for("the extender to know every node", LIMIT, || {
        let all = env.block_on(nodes.list_metadata(&ListParams::default()))?.items.len();
        Ok((known_nodes(env)? == Some(all)).then_some(()))
    })
}

/// Waits until no fake node has a taint. The API server taints each new node, and the controller manager removes the
/// taint again: an event for every waiting pod.
pub(crate) fn wait_for_taints_to_go(env: &TestEnv) -> Result<()> {
    let nodes: Api<Node> = Api::all(env.client());
    let ours = ListParams::default().labels(LABEL);
    wait_for("the controller manager to remove the taints", LIMIT, || {
        let nodes = env.block_on(nodes.list(&ours))?.items;
        Ok((!nodes.iter().any(|node| {
            let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
            taints.is_some_and(|taints| !taints.is_empty())
        }))
        .then_some(()))
    })
}

/// Reports in place of a kubelet that it has admitted a bound pod: the pod is then on some GPU, if it has GPU memory.
pub(crate) fn report_admitted(env: &TestEnv, name: &str) -> Result<()> {
    let patch = Patch::Merge(json!({"status": {"startTime": "2026-01-01T00:00:00Z"}}));
    env.block_on(env.pods().patch_status(name, &PatchParams::default(), &patch)).map(drop)
}

/// Reports in place of a kubelet that the only container of a bound pod has ended: the extender then keeps nothing for
/// it once its object is gone.
pub(crate) fn report_ended(env: &TestEnv, name: &str) -> Result<()> {
    let ended = json!({
        "name": "main", "image": "", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"terminated": {"exitCode": 0}},
    });
    let patch = Patch::Merge(json!({"status": {"containerStatuses": [ended]}}));
    env.block_on(env.pods().patch_status(name, &PatchParams::default(), &patch)).map(drop)
}

/// Removes pods and nodes. There is no kubelet to confirm the end of a pod, so the grace period is 0. The extender has
/// forgotten the nodes afterwards: the next test's may have the same names.
fn remove(env: &TestEnv) -> Result<()> {
    let pods: Api<Pod> = env.pods();
    let at_once = DeleteParams::default().grace_period(0);
    env.block_on(pods.delete_collection(&at_once, &ListParams::default()))?;
    let nodes: Api<Node> = Api::all(env.client());
    let ours = ListParams::default().labels(LABEL);
    env.block_on(nodes.delete_collection(&DeleteParams::default(), &ours))?;
    wait_for_extender(env)
}

//! The patches that Plimsoll writes, each one call that touches nothing but its own keys.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use kube::api::{Patch, PatchParams, Request};
use kube::{Client, Resource};
use placement::names::aliyun;
use placement::units::{NodeName, PodUid};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::answer::{Built, acknowledged, object};
use crate::call::{CallError, within};
use crate::meta::{Meta, core_resource, null_is_default};
use crate::{Annotations, Node, NodeTaints, Pod, Taint};

/// Sets (`Some`) or removes (`None`) annotations of a node, all in one write. With a UID, another Node that has the
/// name by now is left alone: that is [`CallError::Conflict`].
///
/// # Errors
///
/// [`CallError`]; with [`CallError::Unknown`] the patch may have been applied.
pub async fn patch_node_annotations(
    client: &Client,
    node: &NodeName,
    uid: Option<&str>,
    annotations: impl IntoIterator<Item = (String, Option<String>)> + Send,
    limit: Duration,
) -> Result<(), CallError> {
    let mut patch = annotations_patch(annotations);
    if let Some(uid) = uid.filter(|uid| !uid.is_empty()) {
        patch["metadata"]["uid"] = uid.into();
    }
    merge::<Node>(client, None, node.as_str(), patch, limit).await
}

/// As [`patch_node_annotations`], for labels.
///
/// # Errors
///
/// As [`patch_node_annotations`].
pub async fn patch_node_labels(
    client: &Client,
    node: &NodeName,
    uid: &str,
    labels: &BTreeMap<String, Option<String>>,
    limit: Duration,
) -> Result<(), CallError> {
    let patch = json!({ "metadata": { "uid": uid, "labels": labels } });
    merge::<Node>(client, None, node.as_str(), patch, limit).await
}

/// As [`patch_node_annotations`]. Returns the node's container runtime, such as `containerd://2.0.5`, or an empty text
/// where the kubelet has not told it yet: the answer has the whole Node, so that no right to read Nodes is needed.
///
/// # Errors
///
/// As [`patch_node_annotations`].
pub async fn patch_own_node(
    client: &Client,
    node: &NodeName,
    annotations: impl IntoIterator<Item = (String, Option<String>)> + Send,
    limit: Duration,
) -> Result<String, CallError> {
    let request = merge_request::<Node>(None, node.as_str(), annotations_patch(annotations));
    let patched: Patched = within(limit, object(client, request)).await?;
    Ok(patched.status.node_info.container_runtime_version)
}

/// What is read of a Node that the own patch has changed.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Patched {
    metadata: Meta,
    status: PatchedStatus,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PatchedStatus {
    #[serde(deserialize_with = "null_is_default")]
    node_info: Info,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Info {
    #[serde(deserialize_with = "null_is_default")]
    container_runtime_version: String,
}

core_resource!(Patched, ClusterResourceScope, "Node", "nodes");

fn annotations_patch(annotations: impl IntoIterator<Item = (String, Option<String>)>) -> Value {
    let mut values = serde_json::Map::new();
    for (key, text) in annotations {
        values.insert(key, text.map_or(Value::Null, Value::String));
    }
    json!({ "metadata": { "annotations": values } })
}

/// Sets how many of `resource` a node has, capacity and allocatable alike.
///
/// # Errors
///
/// As [`patch_node_annotations`].
pub async fn patch_node_capacity(
    client: &Client,
    node: &NodeName,
    resource: &str,
    count: u32,
    limit: Duration,
) -> Result<(), CallError> {
    let amount = json!({ resource: count.to_string() });
    let patch = Patch::Merge(json!({ "status": { "capacity": amount, "allocatable": amount } }));
    patch_status(client, node, &patch, limit).await
}

/// A condition in a Node's status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeCondition {
    /// Its type, one word in PascalCase.
    pub kind: &'static str,
    /// Whether it holds.
    pub holds: bool,
    /// Why, one word in PascalCase.
    pub reason: &'static str,
    /// What people read.
    pub message: String,
    /// Since when, to the second.
    pub since: Timestamp,
}

/// Sets one condition of a node and leaves the others alone. Nothing of the resource `unallocatable` can be requested
/// any more, if one is named; the kubelet sets the amount again when its devices change.
///
/// # Errors
///
/// As [`patch_node_annotations`].
pub async fn patch_node_condition(
    client: &Client,
    node: &NodeName,
    condition: &NodeCondition,
    unallocatable: Option<&str>,
    limit: Duration,
) -> Result<(), CallError> {
    let since = condition.since.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    // A strategic merge patch finds a condition by its type. The time of the heartbeat is that of the change, so that
    // the same condition, written again, changes nothing.
    let mut status = json!({ "conditions": [{
        "type": condition.kind,
        "status": if condition.holds { "True" } else { "False" },
        "reason": condition.reason,
        "message": condition.message,
        "lastTransitionTime": since,
        "lastHeartbeatTime": since,
    }]});
    if let Some(resource) = unallocatable {
        status["allocatable"] = json!({ resource: "0" });
    }
    patch_status(client, node, &Patch::Strategic(json!({ "status": status })), limit).await
}

async fn patch_status(
    client: &Client,
    node: &NodeName,
    patch: &Patch<Value>,
    limit: Duration,
) -> Result<(), CallError> {
    let nodes = Request::new(Node::url_path(&(), None));
    let request = nodes.patch_subresource("status", node.as_str(), &PatchParams::default(), patch);
    within(limit, acknowledged(client, request)).await
}

/// Replaces Plimsoll's taints on a node by `wanted`.
///
/// # Errors
///
/// [`CallError::Conflict`] if the Node has changed since `taints` was read; then nothing was written.
pub async fn patch_node_taint(
    client: &Client,
    node: &NodeName,
    taints: &NodeTaints,
    wanted: Option<&Taint>,
    limit: Duration,
) -> Result<(), CallError> {
    let patch = json!({
        "metadata": { "resourceVersion": taints.version },
        "spec": { "taints": taints.with(wanted) },
    });
    merge::<Node>(client, None, node.as_str(), patch, limit).await
}

/// Sets Aliyun's `ALIYUN_COM_GPU_MEM_ASSIGNED` on a pod: the device plugin gave it its GPU. Another pod that has its
/// name by now is left alone: that is [`CallError::Conflict`].
///
/// # Errors
///
/// As [`patch_node_annotations`].
pub async fn mark_assigned(
    client: &Client,
    namespace: &str,
    name: &str,
    uid: &PodUid,
    limit: Duration,
) -> Result<(), CallError> {
    let annotations = json!({ aliyun::ASSIGNED: "true" });
    let patch = json!({ "metadata": { "uid": uid, "annotations": annotations } });
    merge::<Pod>(client, Some(namespace), name, patch, limit).await
}

/// Writes these annotations of a claim on a pod, by the kubelet's record of it: it has its GPUs. Another pod that has
/// its name by now is left alone: that is [`CallError::Conflict`].
///
/// # Errors
///
/// As [`patch_node_annotations`].
pub async fn record_claim(
    client: &Client,
    namespace: &str,
    name: &str,
    uid: &PodUid,
    mut annotations: Annotations,
    limit: Duration,
) -> Result<(), CallError> {
    annotations.insert(aliyun::ASSIGNED.to_owned(), "true".to_owned());
    let patch = json!({ "metadata": { "uid": uid, "annotations": annotations } });
    merge::<Pod>(client, Some(namespace), name, patch, limit).await
}

/// Sends a merge patch. The answer is the whole object, and is not read.
pub(crate) async fn merge<K: Resource<DynamicType = ()>>(
    client: &Client,
    namespace: Option<&str>,
    name: &str,
    patch: Value,
    limit: Duration,
) -> Result<(), CallError> {
    within(limit, acknowledged(client, merge_request::<K>(namespace, name, patch))).await
}

fn merge_request<K: Resource<DynamicType = ()>>(
    namespace: Option<&str>,
    name: &str,
    patch: Value,
) -> Built {
    let objects = Request::new(K::url_path(&(), namespace));
    objects.patch(name, &PatchParams::default(), &Patch::Merge(patch))
}

//! The patches that Plimsoll writes, each one call that touches nothing but its own keys.

use std::fmt::Debug;
use std::time::Duration;

use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use placement::names::aliyun;
use placement::units::{NodeName, PodUid};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::call::{CallError, within};
use crate::{Annotations, Node, Pod};

/// Sets (`Some`) or removes (`None`) annotations of a node, all in one write.
///
/// # Errors
///
/// [`CallError`]; with [`CallError::Unknown`] the patch may have been applied.
pub async fn patch_node_annotations(
    client: &Client,
    node: &NodeName,
    annotations: impl IntoIterator<Item = (String, Option<String>)> + Send,
    limit: Duration,
) -> Result<(), CallError> {
    let annotations: serde_json::Map<String, Value> = annotations
        .into_iter()
        .map(|(key, text)| (key, text.map_or(Value::Null, Value::String)))
        .collect();
    let patch = json!({ "metadata": { "annotations": annotations } });
    let nodes: Api<Node> = Api::all(client.clone());
    merge(&nodes, node.as_str(), patch, limit).await
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
    let nodes: Api<Node> = Api::all(client.clone());
    let params = PatchParams::default();
    let call = nodes.patch_status(node.as_str(), &params, &patch);
    within(limit, call).await.map(drop)
}

/// Sets Aliyun's `ALIYUN_COM_GPU_MEM_ASSIGNED` on a pod: the device plugin gave it its card. Another pod that has its name by now is left
/// alone: that is [`CallError::Conflict`].
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
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    merge(&pods, name, patch, limit).await
}

/// Writes these annotations of a claim on a pod, by the kubelet's record of it: it has its cards. Another pod that has its name by now
/// is left alone: that is [`CallError::Conflict`].
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
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    merge(&pods, name, patch, limit).await
}

async fn merge<K>(api: &Api<K>, name: &str, patch: Value, limit: Duration) -> Result<(), CallError>
where
    K: Clone + Debug + DeserializeOwned,
{
    let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
    within(limit, api.patch(name, &params, &patch)).await.map(drop)
}

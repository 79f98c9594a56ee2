//! Binding a pod: one call that sets its node and its claim, or neither.
//!
//! The API server merges a Binding's annotations into the pod in the same write that sets the node
//! (`assignPod` in pkg/registry/core/pod/storage/storage.go), so that no kubelet ever sees a pod on
//! its node without the claim.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Binding as Body, ObjectReference};
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use placement::units::{NodeName, PodUid};
use serde::de::IgnoredAny;

use crate::call::{CallError, within};
use crate::meta::Annotations;
use crate::{Pod, meta};

/// A pod, the node it is bound to, and the annotations that are written on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binding {
    /// Namespace of the pod.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// The pod's UID: another pod of the same name is left alone.
    pub uid: PodUid,
    /// The node.
    pub node: NodeName,
    /// Annotations to set on the pod.
    pub annotations: Annotations,
}

/// How a binding ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BindOutcome {
    /// The pod is on the node, its annotations are written.
    Bound,
    /// The pod is bound already, gated, being deleted, or another pod has its name now. The API
    /// server's message.
    Conflict(String),
    /// There is no such pod.
    NotFound,
    /// Refused for another reason; nothing was written.
    Refused(String),
    /// No clear answer: the binding may have been carried out, or may yet be.
    Unknown(String),
}

/// Binds, waiting for the answer for at most `limit`.
pub async fn bind(client: &Client, binding: &Binding, limit: Duration) -> BindOutcome {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &binding.namespace);
    let body = body(binding);
    let params = PostParams::default();
    let call = pods.create_subresource("binding", &binding.name, &params, &body);
    match within(limit, call).await {
        Ok(IgnoredAny) => BindOutcome::Bound,
        Err(CallError::Conflict(message)) => BindOutcome::Conflict(message),
        Err(CallError::NotFound(_)) => BindOutcome::NotFound,
        Err(error @ CallError::Refused { .. }) => BindOutcome::Refused(error.to_string()),
        Err(CallError::Unknown(message)) => BindOutcome::Unknown(message),
    }
}

fn body(binding: &Binding) -> Body {
    let annotations: meta::Annotations = binding.annotations.clone();
    Body {
        metadata: ObjectMeta {
            namespace: Some(binding.namespace.clone()),
            name: Some(binding.name.clone()),
            uid: Some(binding.uid.as_str().to_owned()),
            annotations: (!annotations.is_empty()).then_some(annotations),
            ..ObjectMeta::default()
        },
        // Without the kind the API server does not copy the node's topology labels.
        target: ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(binding.node.as_str().to_owned()),
            ..ObjectReference::default()
        },
    }
}

/// Reads one pod; `None` where there is none of that name.
///
/// # Errors
///
/// Where the API server refuses or does not answer within `limit`.
pub async fn get_pod(
    client: &Client,
    namespace: &str,
    name: &str,
    limit: Duration,
) -> Result<Option<Pod>, CallError> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    within(limit, pods.get_opt(name)).await
}

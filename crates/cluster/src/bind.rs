//! Binding a pod: one call that sets its node and its claim, or neither.
//!
//! The API server merges a Binding's annotations into the pod in the same write that sets the node
//! (`assignPod` in pkg/registry/core/pod/storage/storage.go), so that no kubelet ever sees a pod on
//! its node without the claim.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Binding as Body, ObjectReference};
use kube::api::{GetParams, ObjectMeta, PostParams, Request};
use kube::{Client, Resource as _};
use placement::units::{NodeName, PodUid};

use crate::answer::{acknowledged, object_and_text};
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
    /// The version of the pod that was looked at: at another, nothing is written, which is [`BindOutcome::Conflict`].
    /// `None`: at any.
    pub version: Option<String>,
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
    /// The pod is already bound, has scheduling gates, is being deleted, or has changed, or another pod now has its
    /// name. With the API server's message.
    Conflict(String),
    /// There is no such pod.
    NotFound,
    /// Refused for another reason; nothing was written. With the API server's message.
    Refused(String),
    /// The answer was lost: the binding may have been carried out, or may still be.
    Unknown(String),
}

/// Binds a pod, and waits for the answer for at most `limit`. The API server also gives up after that time from when it
/// receives the request. So a request whose client is gone is not carried out up to 60 s later, which is the API
/// server's own limit.
pub async fn bind(client: &Client, binding: &Binding, limit: Duration) -> BindOutcome {
    match within(limit, acknowledged(client, request(binding, limit))).await {
        Ok(()) => BindOutcome::Bound,
        Err(CallError::Conflict(message)) => BindOutcome::Conflict(message),
        Err(CallError::NotFound(_)) => BindOutcome::NotFound,
        Err(error @ CallError::Refused { .. }) => BindOutcome::Refused(error.to_string()),
        Err(CallError::Unknown(message)) => BindOutcome::Unknown(message),
    }
}

fn request(
    binding: &Binding,
    limit: Duration,
) -> Result<http::Request<Vec<u8>>, kube::core::request::Error> {
    use kube::core::request::Error;
    let body = serde_json::to_vec(&body(binding)).map_err(Error::SerializeBody)?;
    let pods = Request::new(Pod::url_path(&(), Some(&binding.namespace)));
    let params = PostParams::default();
    let mut request = pods.create_subresource("binding", &binding.name, &params, body)?;
    // A Go duration. If it is longer than the API server's own limit, that counts.
    let milliseconds = limit.as_millis().clamp(1, 60_000);
    let path = request.uri().path();
    let uri = format!("{path}?timeout={milliseconds}ms").parse();
    *request.uri_mut() = uri.map_err(|error| Error::BuildRequest(http::Error::from(error)))?;
    request.extensions_mut().insert("create_subresource");
    Ok(request)
}

fn body(binding: &Binding) -> Body {
    let annotations: meta::Annotations = binding.annotations.clone();
    Body {
        metadata: ObjectMeta {
            namespace: Some(binding.namespace.clone()),
            name: Some(binding.name.clone()),
            uid: Some(binding.uid.as_str().to_owned()),
            resource_version: binding.version.clone(),
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

/// Reads one pod; `None` if there is none with that name.
///
/// # Errors
///
/// If the API server refuses, or does not answer within `limit`.
pub async fn get_pod(
    client: &Client,
    namespace: &str,
    name: &str,
    limit: Duration,
) -> Result<Option<Pod>, CallError> {
    Ok(get_pod_and_text(client, namespace, name, limit).await?.map(|(pod, _)| pod))
}

/// As [`get_pod`], with its JSON as the API server writes it.
///
/// # Errors
///
/// As [`get_pod`].
pub async fn get_pod_and_text(
    client: &Client,
    namespace: &str,
    name: &str,
    limit: Duration,
) -> Result<Option<(Pod, Vec<u8>)>, CallError> {
    let pods = Request::new(Pod::url_path(&(), Some(namespace)));
    match within(limit, object_and_text(client, pods.get(name, &GetParams::default()))).await {
        Ok(found) => Ok(Some(found)),
        Err(CallError::NotFound(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

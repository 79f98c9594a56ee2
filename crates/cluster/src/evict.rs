//! Evicting a pod: its deletion, unless a PodDisruptionBudget forbids it.

use std::time::Duration;

use k8s_openapi::api::policy::v1::Eviction;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, Preconditions};
use kube::api::{ObjectMeta, PostParams, Request};
use kube::{Client, Resource as _};

use crate::Pod;
use crate::answer::acknowledged;
use crate::call::{CallError, within};
use crate::event::PodReference;

/// How an eviction ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EvictOutcome {
    /// The pod is being deleted, or was gone already.
    Evicted,
    /// A budget allows none now, the API server is busy, or another pod has the name: nothing was done.
    NotNow(String),
    /// Refused for another reason; nothing was done.
    Refused(String),
    /// No clear answer: the pod may be being deleted.
    Unknown(String),
}

/// Evicts the pod of that UID, waiting for the answer for at most `limit`. Another pod of its name is left alone. Needs
/// the right to create `pods/eviction`.
pub async fn evict(client: &Client, pod: &PodReference, limit: Duration) -> EvictOutcome {
    send(client, pod, false, limit).await
}

/// Whether [`evict`] would be carried out now, without doing so: admission webhooks and budgets are asked. The next
/// eviction may use up what this one counts on.
pub async fn try_evict(client: &Client, pod: &PodReference, limit: Duration) -> EvictOutcome {
    send(client, pod, true, limit).await
}

async fn send(client: &Client, pod: &PodReference, dry_run: bool, limit: Duration) -> EvictOutcome {
    match within(limit, acknowledged(client, request(pod, dry_run))).await {
        Ok(()) | Err(CallError::NotFound(_)) => EvictOutcome::Evicted,
        Err(CallError::Refused { code: 429, message } | CallError::Conflict(message)) => {
            EvictOutcome::NotNow(message)
        }
        Err(error @ CallError::Refused { .. }) => EvictOutcome::Refused(error.to_string()),
        Err(CallError::Unknown(message)) => EvictOutcome::Unknown(message),
    }
}

fn request(
    pod: &PodReference,
    dry_run: bool,
) -> Result<http::Request<Vec<u8>>, kube::core::request::Error> {
    use kube::core::request::Error;
    let body = serde_json::to_vec(&eviction(pod, dry_run)).map_err(Error::SerializeBody)?;
    let pods = Request::new(Pod::url_path(&(), Some(&pod.namespace)));
    // Webhooks learn of a dry run by the URL.
    let params = PostParams { dry_run, ..PostParams::default() };
    let mut request = pods.create_subresource("eviction", &pod.name, &params, body)?;
    request.extensions_mut().insert("create_subresource");
    Ok(request)
}

fn eviction(pod: &PodReference, dry_run: bool) -> Eviction {
    let preconditions = Preconditions { uid: Some(pod.uid.clone()), resource_version: None };
    let options = DeleteOptions {
        preconditions: Some(preconditions),
        dry_run: dry_run.then(|| vec!["All".to_owned()]),
        ..DeleteOptions::default()
    };
    Eviction {
        metadata: ObjectMeta {
            namespace: Some(pod.namespace.clone()),
            name: Some(pod.name.clone()),
            ..ObjectMeta::default()
        },
        delete_options: Some(options),
    }
}

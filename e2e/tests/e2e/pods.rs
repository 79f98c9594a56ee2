//! Owns the pods of the tests: how they are written down, started and found again in the processes of this host.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use e2e::command::wait_for;
use e2e::processes::{self, Pid};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, PostParams};
use serde_json::{Value, json};

use crate::world::{World, parse};

/// Waits for SIGTERM in a few hundred KiB.
pub(crate) const PAUSE: &str = "registry.k8s.io/pause:3.10.2";

/// A container that only lives.
pub(crate) fn idle_container(name: &str) -> Value {
    json!({"name": name, "image": PAUSE, "imagePullPolicy": "IfNotPresent"})
}

/// A pod of these containers that ends at once when it is deleted.
pub(crate) fn pod(name: &str, containers: &[Value]) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": containers, "automountServiceAccountToken": false},
    })
}

/// Creates a pod.
pub(crate) fn create(world: &World, pod: Value) -> Result<()> {
    world.wait(world.pods().create(&PostParams::default(), &parse::<Pod>(pod)?)).map(drop)
}

/// Waits until every pod of the tests runs, and returns them; a failed one ends the wait.
pub(crate) fn all_running(world: &World, limit: Duration) -> Result<Vec<Pod>> {
    let pods = wait_for("every pod to run", limit, || {
        let pods = world.wait(world.pods().list(&ListParams::default()))?.items;
        let settled = pods.iter().any(|pod| phase(pod) == "Failed")
            || pods.iter().all(|pod| phase(pod) == "Running");
        Ok(settled.then_some(pods))
    })?;
    match pods.iter().find(|pod| phase(pod) == "Failed") {
        Some(failed) => bail!("{} failed: {:?}", name(failed), failed.status),
        None => Ok(pods),
    }
}

/// The pod's name.
pub(crate) fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

/// `Pending`, `Running`, `Succeeded` or `Failed`.
pub(crate) fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// The processes of one container of a pod, as the kernel tells them.
pub(crate) fn processes_of(pod: &Pod, container: &str) -> Result<Vec<Pid>> {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
    let status = statuses.into_iter().flatten().find(|status| status.name == container);
    let id = status
        .and_then(|status| status.container_id.as_deref())
        .and_then(|id| id.strip_prefix("containerd://"));
    processes::of_container(
        id.with_context(|| format!("{} has no running container {container}", name(pod)))?,
    )
}

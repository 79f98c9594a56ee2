//! Owns the pods of the tests: how they are written down, started and found again in the processes of this host.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use e2e::command::wait_for;
use e2e::processes::{self, Pid};
use e2e::progress::line;
use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod};
use kube::api::{DeleteParams, ListParams, PostParams};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::world::{World, parse};

/// Waits for SIGTERM in a few hundred KiB.
pub(crate) const PAUSE: &str = "registry.k8s.io/pause:3.10.2";
/// What GPU pods ask for.
pub(crate) const GPU: &str = "aliyun.com/gpu-mem";

/// Long enough for dozens of containers on two processors.
pub(crate) const START: Duration = Duration::from_secs(120);

/// A container that only lives.
pub(crate) fn idle_container(name: &str) -> Value {
    json!({"name": name, "image": PAUSE, "imagePullPolicy": "IfNotPresent"})
}

/// A container that only lives, asks for GPU memory, and claims in its own spec to see every card.
pub(crate) fn gpu_container(name: &str, units: u64) -> Value {
    let mut container = idle_container(name);
    container["env"] = json!([{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]);
    container["resources"] = json!({"limits": {GPU: units}});
    container
}

/// A pod of these containers that ends at once when it is deleted.
pub(crate) fn pod(name: &str, containers: &[Value]) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": containers, "automountServiceAccountToken": false},
    })
}

/// Pods of one GPU container each, named `prefix-0` and so on.
pub(crate) fn gpu_pods(prefix: &str, count: usize, units: u64) -> Vec<Value> {
    (0..count).map(|n| pod(&format!("{prefix}-{n}"), &[gpu_container("main", units)])).collect()
}

/// Creates a pod.
pub(crate) fn create(world: &World, wanted: Value) -> Result<()> {
    world.wait(world.pods().create(&PostParams::default(), &parse::<Pod>(wanted)?)).map(drop)
}

/// Creates pods all at once, as a controller does.
pub(crate) fn create_all(world: &World, wanted: Vec<Value>) -> Result<()> {
    let wanted = wanted.into_iter().map(parse::<Pod>).collect::<Result<Vec<_>>>()?;
    world.wait(async {
        let mut calls = JoinSet::new();
        for pod in wanted {
            let pods = world.pods();
            calls.spawn(async move { pods.create(&PostParams::default(), &pod).await });
        }
        for created in calls.join_all().await {
            created.context("cannot create a pod")?;
        }
        anyhow::Ok(())
    })
}

/// Deletes pods all at once, without waiting for their ends.
pub(crate) fn delete_all<'name>(
    world: &World,
    names: impl IntoIterator<Item = &'name str>,
) -> Result<()> {
    let names: Vec<String> = names.into_iter().map(str::to_owned).collect();
    world.wait(async {
        let mut calls = JoinSet::new();
        for name in names {
            let pods = world.pods();
            calls.spawn(async move { pods.delete(&name, &DeleteParams::default()).await });
        }
        for deleted in calls.join_all().await {
            deleted.context("cannot delete a pod")?;
        }
        anyhow::Ok(())
    })
}

/// Every pod of the tests as the API shows it now.
pub(crate) fn list(world: &World) -> Result<Vec<Pod>> {
    Ok(world.wait(world.pods().list(&ListParams::default()))?.items)
}

/// One pod as the API shows it now.
pub(crate) fn get(world: &World, name: &str) -> Result<Pod> {
    world.wait(world.pods().get(name))
}

/// Waits until every pod of the tests runs and none is on its way out, and returns them; a failed one ends the wait.
pub(crate) fn all_running(world: &World, limit: Duration) -> Result<Vec<Pod>> {
    let mut last = Vec::new();
    let settled = wait_for("every pod to run", limit, || {
        last = list(world)?;
        let over = last.iter().any(|pod| phase(pod) == "Failed") || last.iter().all(lives);
        Ok(over.then_some(()))
    });
    if let Some(failed) = last.iter().find(|pod| phase(pod) == "Failed") {
        bail!("{} failed: {}", name(failed), message(failed));
    }
    settled.with_context(|| waiting(&last)).map(|()| last)
}

/// As [`all_running`] after kubelets were restarted, with the part of a controller: GPU pods that a kubelet refused are
/// created again, and counted. A kubelet admits pods without waiting for its plugins, and on a starved machine even a
/// plugin that registers within milliseconds may be too late for some.
pub(crate) fn all_running_in_the_end(world: &World, limit: Duration) -> Result<Vec<Pod>> {
    let end = Instant::now() + limit;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let Err(error) = all_running(world, left) else { return list(world) };
        let refused: Vec<Pod> = list(world)?.into_iter().filter(came_too_early).collect();
        if refused.is_empty() {
            return Err(error);
        }
        line(&format!("{} GPU pods came before their plugin had registered", refused.len()));
        world.count(|tally| tally.refused_too_early += refused.len());
        delete_all(world, refused.iter().map(name))?;
        wait_for("the refused pods to be gone", left, || {
            let pods = list(world)?;
            let there = |old: &Pod| pods.iter().any(|pod| uid(pod) == uid(old));
            Ok((!refused.iter().any(there)).then_some(()))
        })?;
        create_all(world, refused.iter().map(again).collect())?;
    }
}

fn came_too_early(pod: &Pod) -> bool {
    phase(pod) == "Failed" && message(pod).contains("cannot allocate unhealthy devices")
}

/// The same pod, not placed yet.
fn again(pod: &Pod) -> Value {
    let containers: Vec<Value> =
        gpu_containers(pod).into_iter().map(|(name, units)| gpu_container(name, units)).collect();
    self::pod(name(pod), &containers)
}

/// Waits until this pod runs.
pub(crate) fn running(world: &World, wanted: &str, limit: Duration) -> Result<Pod> {
    wait_for(&format!("{wanted} to run"), limit, || {
        let pod = get(world, wanted)?;
        Ok(lives(&pod).then_some(pod))
    })
}

/// Waits until a node was chosen for each of these pods.
pub(crate) fn all_bound(world: &World, limit: Duration) -> Result<Vec<Pod>> {
    let mut last = Vec::new();
    wait_for("every pod to be bound", limit, || {
        last = list(world)?;
        Ok(last.iter().all(|pod| node(pod).is_some()).then_some(()))
    })
    .with_context(|| waiting(&last))
    .map(|()| last)
}

/// Waits until kube-scheduler says that it found no place, and returns its words.
pub(crate) fn unschedulable(world: &World, wanted: &str, limit: Duration) -> Result<String> {
    wait_for(&format!("kube-scheduler to turn {wanted} away"), limit, || {
        let pod = get(world, wanted)?;
        if let Some(node) = node(&pod) {
            bail!("{wanted} was bound to {node}");
        }
        let conditions = pod.status.and_then(|status| status.conditions).unwrap_or_default();
        let refused = conditions
            .into_iter()
            .find(|condition| condition.type_ == "PodScheduled" && condition.status == "False");
        Ok(refused.map(|condition| condition.message.unwrap_or_default()))
    })
}

fn lives(pod: &Pod) -> bool {
    phase(pod) == "Running" && pod.metadata.deletion_timestamp.is_none()
}

fn waiting(pods: &[Pod]) -> String {
    let waiting = pods.iter().filter(|pod| !lives(pod));
    let shown: Vec<String> = waiting
        .take(5)
        .map(|pod| format!("{} on {:?} is {}", name(pod), node(pod), phase(pod)))
        .collect();
    shown.join(", ")
}

/// The pod's name.
pub(crate) fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

/// The pod's UID.
pub(crate) fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

/// The node that the pod is bound to.
pub(crate) fn node(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

/// `Pending`, `Running`, `Succeeded` or `Failed`.
pub(crate) fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

fn message(pod: &Pod) -> String {
    let status = pod.status.as_ref();
    let part = |text: Option<&String>| text.cloned().unwrap_or_default();
    let reason = part(status.and_then(|status| status.reason.as_ref()));
    format!("{reason}: {}", part(status.and_then(|status| status.message.as_ref())))
}

/// A pod's annotation.
pub(crate) fn annotation<'pod>(pod: &'pod Pod, key: &str) -> Option<&'pod str> {
    pod.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

/// The units that a container asks for.
pub(crate) fn units(container: &Container) -> u64 {
    let limits = container.resources.as_ref().and_then(|resources| resources.limits.as_ref());
    limits.and_then(|limits| limits.get(GPU)?.0.parse().ok()).unwrap_or(0)
}

/// The app containers that ask for GPU memory, and how much.
pub(crate) fn gpu_containers(pod: &Pod) -> BTreeMap<&str, u64> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let asking = containers.map(|container| (container.name.as_str(), units(container)));
    asking.filter(|(_, units)| *units > 0).collect()
}

/// The statuses of a pod's app containers.
pub(crate) fn statuses(pod: &Pod) -> &[ContainerStatus] {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_deref());
    statuses.unwrap_or_default()
}

/// The processes of one container of a pod, as the kernel tells them.
pub(crate) fn processes_of(pod: &Pod, container: &str) -> Result<Vec<Pid>> {
    let status = statuses(pod).iter().find(|status| status.name == container);
    let id = status
        .and_then(|status| status.container_id.as_deref())
        .and_then(|id| id.strip_prefix("containerd://"));
    processes::of_container(
        id.with_context(|| format!("{} has no running container {container}", name(pod)))?,
    )
}

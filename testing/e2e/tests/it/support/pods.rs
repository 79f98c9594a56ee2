//! Owns the pods of the tests: their specs, their creation and removal, and the processes of their containers.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use e2e::Node;
use e2e::build::images::{BUSYBOX, PAUSE};
use e2e::command::wait_for;
use e2e::kernel::processes::{self, Pid};
use e2e::progress::line;
use e2e::quantity;
use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, PodCondition};
use kube::api::{DeleteParams, ListParams, PostParams};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::env::{TestEnv, parse};

/// The resource that GPU pods request.
pub(crate) const GPU: &str = "aliyun.com/gpu-mem";

/// The limit for the start of dozens of containers on two busy processors, their binding included.
pub(crate) const START: Duration = Duration::from_secs(420);

/// The limit for binding pods. kube-scheduler tries a rejected pod again after a change in the cluster. Where it does
/// so before the extender has seen the change, the pod waits for the next one, at most the 5.5 minutes after which
/// kube-scheduler tries every waiting pod.
pub(crate) const BINDING: Duration = Duration::from_secs(400);

/// The limit for a started container's process to load its program, on two busy processors.
const BEGUN: Duration = Duration::from_secs(30);

/// A container that waits for its end.
pub(crate) fn idle_container(name: &str) -> Value {
    json!({"name": name, "image": PAUSE, "imagePullPolicy": "IfNotPresent"})
}

/// The ConfigMap whose variables ask for every GPU. Variables that a pod names itself are refused by the shipped
/// policies, which do not see those of a ConfigMap.
pub(crate) const EVERY_GPU: &str = "every-card";

/// A container that waits for its end and requests GPU memory. Its environment asks for every GPU, which must not have
/// an effect.
pub(crate) fn gpu_container(name: &str, units: u64) -> Value {
    let mut container = idle_container(name);
    container["envFrom"] = json!([{"configMapRef": {"name": EVERY_GPU}}]);
    container["resources"] = json!({"limits": {GPU: units}});
    container
}

/// A container that requests GPU memory and ends by SIGKILL alone.
pub(crate) fn stubborn_container(name: &str, units: u64) -> Value {
    let mut container = gpu_container(name, units);
    container["image"] = json!(BUSYBOX);
    container["command"] = json!(["sh", "-c", "trap '' TERM; exec sleep 1000000"]);
    container
}

/// A pod of these containers, with a grace period of one second.
pub(crate) fn pod(name: &str, containers: &[Value]) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": containers, "automountServiceAccountToken": false},
    })
}

/// The same pod without a grace period. On a fake node, no kubelet would confirm its end.
pub(crate) fn evictable(mut pod: Value) -> Value {
    pod["spec"]["terminationGracePeriodSeconds"] = json!(0);
    pod
}

/// The same pod, for this node only.
pub(crate) fn on_node(node: &Node, mut pod: Value) -> Value {
    pod["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": node.name()});
    pod
}

/// The same pod with its type, as the API server's own clients send it.
pub(crate) fn typed(mut pod: Value) -> Value {
    pod["apiVersion"] = json!("v1");
    pod["kind"] = json!("Pod");
    pod
}

/// The same pod with its type, behind a scheduling gate: it gets no node.
pub(crate) fn gated(mut pod: Value) -> Value {
    pod["spec"]["schedulingGates"] = json!([{"name": "plimsoll-e2e/never"}]);
    typed(pod)
}

/// Pods of one GPU container each, named `PREFIX-0` and so on.
pub(crate) fn gpu_pods(prefix: &str, count: usize, units: u64) -> Vec<Value> {
    (0..count).map(|n| pod(&format!("{prefix}-{n}"), &[gpu_container("main", units)])).collect()
}

/// Creates a pod.
pub(crate) fn create(env: &TestEnv, wanted: Value) -> Result<()> {
    env.block_on(env.pods().create(&PostParams::default(), &parse::<Pod>(wanted)?)).map(drop)
}

/// Creates pods concurrently, as a controller does.
pub(crate) fn create_all(env: &TestEnv, wanted: Vec<Value>) -> Result<()> {
    let wanted = wanted.into_iter().map(parse::<Pod>).collect::<Result<Vec<_>>>()?;
    env.block_on(async {
        let mut calls = JoinSet::new();
        for pod in wanted {
            let pods = env.pods();
            calls.spawn(async move { pods.create(&PostParams::default(), &pod).await });
        }
        for created in calls.join_all().await {
            created.context("cannot create a pod")?;
        }
        anyhow::Ok(())
    })
}

/// Deletes pods concurrently, without waiting for their end.
pub(crate) fn delete_all<'name>(
    env: &TestEnv,
    names: impl IntoIterator<Item = &'name str>,
) -> Result<()> {
    let names: Vec<String> = names.into_iter().map(str::to_owned).collect();
    env.block_on(async {
        let mut calls = JoinSet::new();
        for name in names {
            let pods = env.pods();
            calls.spawn(async move { pods.delete(&name, &DeleteParams::default()).await });
        }
        for deleted in calls.join_all().await {
            deleted.context("cannot delete a pod")?;
        }
        anyhow::Ok(())
    })
}

/// Every pod of the tests.
pub(crate) fn list(env: &TestEnv) -> Result<Vec<Pod>> {
    Ok(env.block_on(env.pods().list(&ListParams::default()))?.items)
}

/// One pod of the tests.
pub(crate) fn get(env: &TestEnv, name: &str) -> Result<Pod> {
    env.block_on(env.pods().get(name))
}

/// Waits until every pod of the tests runs and none is being deleted, and returns them. A failed pod ends the wait with
/// an error.
pub(crate) fn all_running(env: &TestEnv, limit: Duration) -> Result<Vec<Pod>> {
    let mut last = Vec::new();
    let settled = wait_for("every pod to run", limit, || {
        last = list(env)?;
        Ok((last.iter().any(failed) || last.iter().all(runs)).then_some(()))
    });
    if let Some(failed) = last.iter().find(|pod| failed(pod)) {
        bail!("{} failed: {}", name(failed), message(failed));
    }
    settled.with_context(|| waiting(&last)).map(|()| last)
}

/// Whether the pod has failed by itself. One that is being deleted may be Failed too: its process was killed before it
/// could handle SIGTERM.
fn failed(pod: &Pod) -> bool {
    phase(pod) == "Failed" && pod.metadata.deletion_timestamp.is_none()
}

/// As [`all_running`], for the time after a kubelet restart: GPU pods that the kubelet refused are created again, as a
/// controller would, and counted. A kubelet does not wait for its plugins before it admits pods. On a busy host even a
/// plugin that registers within milliseconds can be too late for some.
pub(crate) fn all_running_after_refusals(env: &TestEnv, limit: Duration) -> Result<Vec<Pod>> {
    let end = Instant::now() + limit;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let Err(error) = all_running(env, left) else { return list(env) };
        let refused: Vec<Pod> = list(env)?.into_iter().filter(was_refused_too_early).collect();
        if refused.is_empty() {
            return Err(error);
        }
        line(&format!(
            "{} GPU pods were refused before their plugin had registered",
            refused.len()
        ));
        env.count(|counts| counts.refused_too_early += refused.len());
        delete_all(env, refused.iter().map(name))?;
        wait_for("the refused pods to be gone", left, || {
            let pods = list(env)?;
            Ok((!refused.iter().any(|old| pods.iter().any(|pod| uid(pod) == uid(old))))
                .then_some(()))
        })?;
        create_all(env, refused.iter().map(again).collect())?;
    }
}

fn was_refused_too_early(pod: &Pod) -> bool {
    phase(pod) == "Failed" && message(pod).contains("cannot allocate unhealthy devices")
}

/// A new pod with the same name and GPU containers.
fn again(pod: &Pod) -> Value {
    let containers: Vec<Value> =
        gpu_containers(pod).into_iter().map(|(name, units)| gpu_container(name, units)).collect();
    self::pod(name(pod), &containers)
}

/// Waits until this pod runs.
pub(crate) fn running(env: &TestEnv, wanted: &str, limit: Duration) -> Result<Pod> {
    wait_for(&format!("{wanted} to run"), limit, || {
        let pod = get(env, wanted)?;
        Ok(runs(&pod).then_some(pod))
    })
}

/// Waits until this pod is bound to a node.
pub(crate) fn bound(env: &TestEnv, wanted: &str, limit: Duration) -> Result<Pod> {
    wait_for(&format!("{wanted} to be bound"), limit, || {
        let pod = get(env, wanted)?;
        Ok(node(&pod).is_some().then_some(pod))
    })
}

/// Waits until every pod of the tests is bound to a node.
pub(crate) fn all_bound(env: &TestEnv, limit: Duration) -> Result<Vec<Pod>> {
    let mut last = Vec::new();
    wait_for("every pod to be bound", limit, || {
        last = list(env)?;
        Ok(last.iter().all(|pod| node(pod).is_some()).then_some(()))
    })
    .with_context(|| waiting(&last))
    .map(|()| last)
}

/// Waits until kube-scheduler reports the pod as unschedulable, and returns the message. An error if it is bound.
pub(crate) fn unschedulable(env: &TestEnv, wanted: &str, limit: Duration) -> Result<String> {
    wait_for(&format!("kube-scheduler to report {wanted} as unschedulable"), limit, || {
        let pod = get(env, wanted)?;
        if let Some(node) = node(&pod) {
            bail!("{wanted} was bound to {node}");
        }
        Ok(refused(&pod).map(|condition| condition.message.clone().unwrap_or_default()))
    })
}

/// Whether kube-scheduler has reported the pod as unschedulable.
pub(crate) fn is_unschedulable(pod: &Pod) -> bool {
    refused(pod).is_some()
}

fn refused(pod: &Pod) -> Option<&PodCondition> {
    let mut conditions = pod.status.as_ref()?.conditions.iter().flatten();
    conditions.find(|condition| condition.type_ == "PodScheduled" && condition.status == "False")
}

/// Whether the pod runs and is not being deleted.
pub(crate) fn runs(pod: &Pod) -> bool {
    phase(pod) == "Running" && pod.metadata.deletion_timestamp.is_none()
}

fn waiting(pods: &[Pod]) -> String {
    let waiting = pods.iter().filter(|pod| !runs(pod));
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

/// Why the pod is as it is.
pub(crate) fn message(pod: &Pod) -> String {
    let status = pod.status.as_ref();
    let reason = text_or_empty(status.and_then(|status| status.reason.as_ref()));
    format!("{reason}: {}", text_or_empty(status.and_then(|status| status.message.as_ref())))
}

fn text_or_empty(text: Option<&String>) -> String {
    text.cloned().unwrap_or_default()
}

/// A pod's annotation.
pub(crate) fn annotation<'pod>(pod: &'pod Pod, key: &str) -> Option<&'pod str> {
    pod.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

/// The units that a container requests.
pub(crate) fn units(container: &Container) -> u64 {
    let limits = container.resources.as_ref().and_then(|resources| resources.limits.as_ref());
    limits.and_then(|limits| quantity::whole(&limits.get(GPU)?.0)).unwrap_or(0)
}

/// The app containers that request GPU memory, with their units.
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

/// How often a pod's containers were started again, together.
pub(crate) fn restarts(pod: &Pod) -> i32 {
    statuses(pod).iter().map(|status| status.restart_count).sum()
}

/// The first process of a container of a pod.
pub(crate) fn process_of(pod: &Pod, container: &str) -> Result<Pid> {
    processes_of(pod, container)?.first().copied().context("no process")
}

/// The processes of one container of a pod, found in the kernel's control groups, once each runs the container's
/// program.
pub(crate) fn processes_of(pod: &Pod, container: &str) -> Result<Vec<Pid>> {
    let status = statuses(pod).iter().find(|status| status.name == container);
    let id = status
        .and_then(|status| status.container_id.as_deref())
        .and_then(|id| id.strip_prefix("containerd://"));
    let id = id.with_context(|| format!("{} has no running container {container}", name(pod)))?;
    wait_for(&format!("the program of {}/{container}", name(pod)), BEGUN, || {
        let found = processes::of_container(id)?;
        let mut alive = found
            .iter()
            .filter(|pid| processes::started(**pid).is_some_and(|at| processes::runs(**pid, at)));
        Ok(alive.all(|pid| processes::has_begun(*pid)).then_some(found))
    })
}

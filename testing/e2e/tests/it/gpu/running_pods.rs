//! Tests of pods that run while their kubelets restart: before their device plugin is back, and without a checkpoint.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::Node;
use e2e::command::wait_for;
use e2e::kernel::processes::{self, Pid, Signal};
use e2e::node::gpus::{GPU_MIB, GPUS};
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::Api;
use kube::api::ListParams;

use crate::env::{NAMESPACE, TestEnv};
use crate::support::gpu_audit::{audit_exactly, claim};
use crate::support::kubelet_checkpoint;
use crate::support::offers::offered;
use crate::support::pods::{
    BINDING, GPU, START, all_running, create, create_all, delete_all, get, gpu_pods, list, name,
    on_node, phase, process_of, restarts, running, statuses, uid, unschedulable,
};
use crate::{Fact, on_our_nodes};

pub(crate) const FACTS: &[Fact] = &[
    on_our_nodes(
        "pods_that_run_keep_processes_and_gpus_over_a_kubelet_that_is_back_before_its_plugin",
        late_plugins,
    )
    .takes(60),
    on_our_nodes(
        "a_pod_that_the_kubelet_has_lost_runs_on_alone_on_its_units_and_starts_no_container_again",
        lost_checkpoint,
    )
    .takes(240),
];

/// Pods of the first test: more than a node's GPUs, so that GPUs are shared.
const PODS: usize = 12;
/// All units of a GPU.
const WHOLE: u64 = GPU_MIB / 1024;
/// The audit reports what two rounds in a row have found. A round is a minute.
const AUDITS: Duration = Duration::from_secs(300);

/// A process, told from a later one of the same number.
type Started = (Pid, Option<u64>);

fn late_plugins(env: &TestEnv) -> Result<()> {
    create_all(env, gpu_pods("kept", PODS, 3))?;
    let before = processes_by_uid(&all_running(env, START)?)?;
    let nodes = env.cluster()?.nodes();
    let plugins = env.programs("gpushare-device-plugin")?;
    ensure!(plugins.len() == nodes.len(), "{} plugins run", plugins.len());
    processes::signal_all(&plugins, Signal::STOP)?;
    let restarted = nodes.iter().try_for_each(|node| restart(node, || Ok(())));
    let without = restarted.and_then(|()| units_are_offered(env, 0));
    for plugin in plugins {
        // It may be gone: the kubelet restarts a container whose liveness probe fails.
        let _ = processes::signal(plugin, Signal::CONT);
    }
    without?;
    units_are_offered(env, nodes.len() as u64 * u64::from(GPUS) * WHOLE)?;
    let pods = all_running(env, START)?;
    ensure!(processes_by_uid(&pods)? == before, "a pod or a process is another one");
    ensure!(pods.iter().all(|pod| restarts(pod) == 0), "a container was started again");
    audit_exactly(env, PODS)?;
    starts_again_on_its_gpu(env, &pods[0])
}

/// Ends the pod's process: the kubelet starts the container again, with the same devices.
fn starts_again_on_its_gpu(env: &TestEnv, pod: &Pod) -> Result<()> {
    processes::signal(process_of(pod, "main")?, Signal::KILL)?;
    wait_for("the container to run again", START, || {
        let pod = get(env, name(pod))?;
        let ready = statuses(&pod).iter().all(|status| status.ready);
        Ok((restarts(&pod) > 0 && ready).then_some(()))
    })?;
    audit_exactly(env, PODS)
}

fn lost_checkpoint(env: &TestEnv) -> Result<()> {
    let host = &env.cluster()?.nodes()[1];
    let wanted = gpu_pods("lost", host.gpus().len(), WHOLE - 1);
    let count = wanted.len();
    create_all(env, wanted.into_iter().map(|pod| on_node(host, pod)).collect())?;
    let before = processes_by_uid(&all_running(env, START)?)?;
    let file = host.path(kubelet_checkpoint::CHECKPOINT);
    restart(host, || fs::remove_file(&file).with_context(|| format!("remove {}", file.display())))?;
    lost_pods_are_told(env, count)?;
    let pods = all_running(env, START)?;
    ensure!(processes_by_uid(&pods)? == before, "a pod or a process is another one");
    ensure!(pods.iter().all(|pod| restarts(pod) == 0), "a container was started again");

    // One unit of each GPU is free, and no GPU has room for two.
    create(env, on_node(host, gpu_pods("beside", 1, 1).remove(0)))?;
    let beside = running(env, "beside-0", BINDING)?;
    let gpu = claim(&beside)?["main"].keys().next().context("an empty claim")?.clone();
    create(env, on_node(host, gpu_pods("two-units", 1, 2).remove(0)))?;
    unschedulable(env, "two-units-0", BINDING)?;
    delete_all(env, ["two-units-0"])?;

    let pod =
        pods.iter().find(|pod| claim(pod).is_ok_and(|claim| claim["main"].contains_key(&gpu)));
    let pod = pod.context("no pod shares the GPU")?;
    processes::signal(process_of(pod, "main")?, Signal::KILL)?;
    let held_back = wait_for("the kubelet to hold the container back", START, || {
        let pod = get(env, name(pod))?;
        let waiting =
            statuses(&pod).iter().find_map(|status| status.state.as_ref()?.waiting.clone());
        let message = waiting.and_then(|waiting| waiting.message).unwrap_or_default();
        Ok(message.contains("no devices found allocated in local cache").then_some(message))
    })?;
    env.figure("what the kubelet says of a container whose devices it has lost", held_back);

    let names: Vec<String> = list(env)?.iter().map(|pod| name(pod).to_owned()).collect();
    delete_all(env, names.iter().map(String::as_str))?;
    wait_for("the pods to be gone", START, || Ok(list(env)?.is_empty().then_some(())))?;
    create_all(
        env,
        gpu_pods("next", count, WHOLE).into_iter().map(|p| on_node(host, p)).collect(),
    )?;
    all_running(env, START)?;
    audit_exactly(env, count)
}

/// Ends the node's kubelet, does something while it is down, and waits until it is back.
fn restart(node: &Node, meanwhile: impl FnOnce() -> Result<()>) -> Result<()> {
    node.hold("kubelet")?;
    let done = meanwhile();
    node.release("kubelet")?;
    done?;
    wait_for("the kubelet to return", START, || node.service("kubelet")).map(drop)
}

/// Waits for an event on each of so many pods whose checkpoint is lost.
fn lost_pods_are_told(env: &TestEnv, count: usize) -> Result<()> {
    let events: Api<Event> = Api::namespaced(env.client(), NAMESPACE);
    let lost = ListParams::default().fields("reason=GPUClaimWithoutRecord");
    wait_for("an event on each pod that the kubelet has lost", AUDITS, || {
        let told = env.block_on(events.list(&lost))?.items;
        let pods = list(env)?;
        ensure!(pods.iter().all(|pod| phase(pod) == "Running"), "a pod has ended");
        let is_told = |pod: &Pod| {
            told.iter().any(|event| event.involved_object.uid.as_deref() == Some(uid(pod)))
        };
        Ok((pods.iter().filter(|pod| is_told(pod)).count() == count).then_some(()))
    })
}

/// Waits until all nodes together offer so many units.
fn units_are_offered(env: &TestEnv, units: u64) -> Result<()> {
    wait_for(&format!("the nodes to offer {units} units"), START, || {
        Ok((offered(env, GPU)?.values().sum::<u64>() == units).then_some(()))
    })
}

/// The first process of each pod, by the pod's UID.
fn processes_by_uid(pods: &[Pod]) -> Result<BTreeMap<String, Started>> {
    let mut found = BTreeMap::new();
    for pod in pods {
        let process = process_of(pod, "main")?;
        found.insert(uid(pod).to_owned(), (process, processes::started(process)));
    }
    Ok(found)
}

//! A test of `extender.moveForGpus`: one pod is moved, so that another finds all GPUs of a node.
//!
//! No node's total suffices for the pod that waits, so kube-scheduler never asks the extender about it.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::command::wait_for;
use e2e::node::gpus::{GPU_MIB, GPUS};
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::{Value, json};

use crate::env::{NAMESPACE, TestEnv, parse};
use crate::support::extender_client::{EXTENDER, counted};
use crate::support::gpu_audit::audit_exactly;
use crate::support::pods::{
    BINDING, START, create, delete_all, gpu_container, list, name, node, on_node, pod, running,
    runs, unschedulable,
};
use crate::{Fact, on_our_nodes};

pub(crate) const FACTS: &[Fact] = &[on_our_nodes(
    "a_pod_that_wants_all_gpus_of_a_node_gets_them_by_one_move_and_nothing_is_lost",
    moved,
)
.takes(60)];

/// What the tests run on, and with the value.
const VALUES: [&str; 2] = ["tested", "move-for-cards"];
const RIGHTS: &str = "plimsoll-scheduler-extender-moves";
const GPU_UNITS: u64 = GPU_MIB / 1024;
/// Looks at the waiting pod come after 10, 20 and 40 seconds, then a pod ends and its successor starts.
const MOVE: Duration = Duration::from_secs(180);
/// The Deployments, and the units of the pod of each.
const SMALL: [(&str, u64); 2] = [("one", 2), ("two", GPU_UNITS - 1)];

fn moved(env: &TestEnv) -> Result<()> {
    let done = apply(env, VALUES[1]).and_then(|()| scatter(env)).and_then(|()| make_room(env));
    let removed = SMALL.iter().try_for_each(|(name, _)| remove(env, name));
    let restored = apply(env, VALUES[0]).and_then(|()| {
        let kinds = ["clusterrole", "clusterrolebinding"].map(|kind| format!("{kind}/{RIGHTS}"));
        env.cluster()?.kubectl_run(&["delete", &kinds[0], &kinds[1]]).map(drop)
    });
    done?;
    removed?;
    restored
}

/// A pod of a Deployment on each node, and nothing else: other pods hold the GPUs where it is not to go.
fn scatter(env: &TestEnv) -> Result<()> {
    let [first, second] = env.cluster()?.nodes() else { anyhow::bail!("there are two nodes") };
    let [one, two] = SMALL;
    create(env, on_node(first, gpus("filler-0", GPUS, GPU_UNITS)))?;
    running(env, "filler-0", START)?;
    deploy(env, one)?;
    settled(env, 2)?;
    delete_all(env, ["filler-0"])?;
    settled(env, 1)?;
    // It leaves less on the GPU of the first than the second asks for.
    create(env, on_node(second, gpus("filler-1", GPUS - 1, GPU_UNITS)))?;
    running(env, "filler-1", START)?;
    deploy(env, two)?;
    settled(env, 3)?;
    delete_all(env, ["filler-1"])?;
    settled(env, 2)?;
    let on: Vec<Option<String>> =
        list(env)?.iter().map(|pod| node(pod).map(str::to_owned)).collect();
    ensure!(on[0] != on[1], "the pods are on {on:?}");
    Ok(())
}

fn make_room(env: &TestEnv) -> Result<()> {
    let before: Vec<String> = list(env)?.iter().map(|pod| name(pod).to_owned()).collect();
    let evicted = "plimsoll_extender_card_evictions_total{outcome=\"evicted\"}";
    let evictions = counted(env, evicted)?;
    let mut large = gpus("large", GPUS, GPU_UNITS);
    large["metadata"]["labels"] = json!({"app": "large"});
    create(env, large)?;
    unschedulable(env, "large", BINDING)?;
    running(env, "large", MOVE)?;
    settled(env, 3)?;
    audit_exactly(env, 3)?;
    let after: Vec<String> = list(env)?.iter().map(|pod| name(pod).to_owned()).collect();
    let stayed = before.iter().filter(|name| after.contains(name)).count();
    ensure!(stayed == 1, "of {before:?} one was to stay: {after:?}");
    let evictions = counted(env, evicted)? - evictions;
    ensure!(evictions == 1, "{evictions} pods were evicted");
    let events = ["-n", NAMESPACE, "get", "events", "-o", "jsonpath={.items[*].reason}"];
    let events = env.cluster()?.kubectl_run(&events)?;
    for reason in ["MovedForGPUCard", "MovingForGPUCard"] {
        ensure!(events.split(' ').any(|it| it == reason), "no event {reason}: {events}");
    }
    Ok(())
}

/// A pod with several GPUs, of which it takes so many units each.
fn gpus(name: &str, count: u8, units: u64) -> Value {
    let mut pod = pod(name, &[gpu_container("main", units * u64::from(count))]);
    pod["metadata"]["annotations"] = json!({"plimsoll.dev/gpu-card-count": count.to_string()});
    pod
}

/// Waits until so many pods are there, and all of them run.
fn settled(env: &TestEnv, count: usize) -> Result<()> {
    wait_for(&format!("{count} pods to run"), START, || {
        let pods = list(env)?;
        Ok((pods.len() == count && pods.iter().all(runs)).then_some(()))
    })
}

fn deployments(env: &TestEnv) -> Api<Deployment> {
    Api::namespaced(env.client(), NAMESPACE)
}

fn deploy(env: &TestEnv, (name, units): (&str, u64)) -> Result<()> {
    let labels = json!({"app": name});
    let mut template = pod("", &[gpu_container("main", units)]);
    let safe = json!({"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"});
    template["metadata"] = json!({"labels": labels, "annotations": safe});
    let deployment = json!({
        "metadata": {"name": name},
        "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template},
    });
    env.block_on(deployments(env).create(&PostParams::default(), &parse(deployment)?)).map(drop)
}

fn remove(env: &TestEnv, name: &str) -> Result<()> {
    if env.block_on(deployments(env).get_opt(name))?.is_none() {
        return Ok(());
    }
    env.block_on(deployments(env).delete(name, &DeleteParams::foreground()))
        .with_context(|| format!("cannot delete {name}"))?;
    wait_for("the Deployment to be gone", START, || {
        Ok(env.block_on(deployments(env).get_opt(name))?.is_none().then_some(()))
    })
}

fn apply(env: &TestEnv, values: &str) -> Result<()> {
    env.cluster()?.apply(values)?;
    env.rolled_out(EXTENDER)
}

//! A test of a kube-scheduler that has lost the extender's configuration, as after `kubeadm upgrade`: GPU pods wait,
//! and do not fail without end.
//!
//! A pod that failed stays, so as many pods were made as are there.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::cluster::install::{self, Setup};
use e2e::command::wait_for;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use serde_json::json;

use crate::env::{NAMESPACE, TestEnv, parse};
use crate::support::gpu_audit::audit_exactly;
use crate::support::pods::{START, gpu_container, is_unschedulable, list, node, phase, pod};
use crate::{Fact, on_our_nodes};

pub(crate) const FACTS: &[Fact] = &[on_our_nodes(
    "gpu_pods_wait_and_do_not_fail_without_end_where_kube_scheduler_has_lost_the_extender",
    lost,
)
.takes(220)];

const DEPLOYMENT: &str = "lost";
/// Pods of the Deployment. All of them have room: 4 units each, of 2 nodes with 4 GPUs of 16 units.
const REPLICAS: usize = 20;
const UNITS: u64 = 4;
/// Pods that may be made until units are withheld on both nodes, twice. Each of the 20 may be bound and fail once, and
/// each node is tried again with a pod for each GPU; the rest is for those that are bound before kube-scheduler sees
/// that there is no room.
const MADE: usize = 100;
const CONDITION: &str = "GPUUnitsWithheld";
const PLUGIN: &str = "gpushare-device-plugin";
/// The limit for placing the pods. Units may be withheld for the third time, for four minutes.
const PLACING: Duration = Duration::from_secs(600);

fn lost(env: &TestEnv) -> Result<()> {
    let cluster = env.cluster()?;
    let waited = install::disable_scheduler(cluster)
        .and_then(|()| deploy(env))
        .and_then(|()| pods_wait(env));
    let restored = install::enable_scheduler(cluster, Setup::Tested);
    let placed = waited.and_then(|()| {
        restored?;
        pods_are_placed(env)
    });
    let removed = remove(env);
    placed?;
    removed
}

fn deployments(env: &TestEnv) -> Api<Deployment> {
    Api::namespaced(env.client(), NAMESPACE)
}

fn deploy(env: &TestEnv) -> Result<()> {
    let labels = json!({"app": DEPLOYMENT});
    let mut template = pod("", &[gpu_container("main", UNITS)]);
    template["metadata"] = json!({"labels": labels});
    let deployment = json!({
        "metadata": {"name": DEPLOYMENT},
        "spec": {"replicas": REPLICAS, "selector": {"matchLabels": labels}, "template": template},
    });
    env.block_on(deployments(env).create(&PostParams::default(), &parse(deployment)?)).map(drop)
}

/// Waits until both nodes have withheld their units twice, and until all pods wait for room.
fn pods_wait(env: &TestEnv) -> Result<()> {
    let before = withheld_times(env)?;
    for times in 1..=2 {
        wait_for(&format!("all nodes to withhold their units, {times} times"), START, || {
            let now = withheld_times(env)?;
            let all = now.iter().zip(&before).all(|(now, before)| *now >= before + times);
            Ok((all && now.len() == before.len()).then_some(()))
        })?;
        wait_for("all GPU pods to wait for room", START, || {
            let waiting = list(env)?.iter().filter(|pod| is_unschedulable(pod)).count();
            Ok((waiting == REPLICAS).then_some(()))
        })?;
        let made = list(env)?.len();
        env.figure(&format!("pods_made_without_an_extender_until_{times}"), made.to_string());
        ensure!(made <= MADE, "{made} pods were made for {REPLICAS} replicas");
    }
    let message = condition(env)?.with_context(|| format!("no node has {CONDITION}"))?;
    ensure!(message.contains("plimsoll scheduler enable"), "{CONDITION}: {message}");
    let reason = format!("reason={CONDITION}");
    let events = ["-n", "default", "get", "events", "--field-selector", &reason, "-o", "name"];
    let events = env.cluster()?.kubectl_run(&events)?;
    ensure!(!events.trim().is_empty(), "no event {CONDITION}");
    Ok(())
}

/// How often each device plugin has withheld units.
fn withheld_times(env: &TestEnv) -> Result<Vec<u64>> {
    let mut times = Vec::new();
    for (pod, page) in env.metrics_of_each(PLUGIN, 19104)? {
        let mut lines = page.lines();
        let value = lines.find_map(|line| line.strip_prefix("plimsoll_gpu_withheld_total "));
        times.push(value.with_context(|| format!("{pod} has no count"))?.parse()?);
    }
    ensure!(!times.is_empty(), "no device plugin");
    Ok(times)
}

/// The condition's message on one of the nodes where it holds; `None` where it holds on none.
fn condition(env: &TestEnv) -> Result<Option<String>> {
    let nodes: Api<Node> = Api::all(env.client());
    let nodes = env.block_on(nodes.list(&ListParams::default()))?.items;
    let conditions = nodes.into_iter().filter_map(|node| node.status?.conditions).flatten();
    let mut holding = conditions.filter(|it| it.type_ == CONDITION && it.status == "True");
    Ok(holding.next().map(|condition| condition.message.unwrap_or_default()))
}

/// Waits until as many pods run as the Deployment wants, and compares their GPUs.
fn pods_are_placed(env: &TestEnv) -> Result<()> {
    wait_for("all GPU pods to run on their GPUs", PLACING, || {
        let running =
            list(env)?.iter().filter(|pod| phase(pod) == "Running" && node(pod).is_some()).count();
        Ok((running == REPLICAS).then_some(()))
    })?;
    audit_exactly(env, REPLICAS)?;
    wait_for("no node to withhold units", START, || Ok(condition(env)?.is_none().then_some(())))
}

fn remove(env: &TestEnv) -> Result<()> {
    if env.block_on(deployments(env).get_opt(DEPLOYMENT))?.is_none() {
        return Ok(());
    }
    env.block_on(deployments(env).delete(DEPLOYMENT, &DeleteParams::foreground()))?;
    wait_for("the Deployment to be gone", START, || {
        Ok(env.block_on(deployments(env).get_opt(DEPLOYMENT))?.is_none().then_some(()))
    })
}

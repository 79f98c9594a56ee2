//! Tests of small units: as many as a node may have are given out to the last one, and more are refused.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::Node;
use e2e::command::wait_for;
use e2e::node::gpus::{GPU_MIB, GPUS};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::env::TestEnv;
use crate::support::extender_client::{gpu_units, used_units};
use crate::support::gpu_audit::{audit_on_gpus_of, claim};
use crate::support::kubelet_checkpoint;
use crate::support::offers::offered;
use crate::support::pods::{
    BINDING, GPU, START, all_running, bound, create, gpu_container, name, node, on_node, pod, uid,
    unschedulable,
};
use crate::{Fact, on_our_nodes};

pub(crate) const FACTS: &[Fact] = &[on_our_nodes(
    "of_32768_units_of_1_mib_each_is_given_out_and_more_are_refused_with_the_unit_to_choose",
    small_units,
)
.takes(62)];

const PLUGIN: &str = "gpushare-device-plugin";
/// The variable of the flag `--unit-mib`.
const UNIT: &str = "PLIMSOLL_UNIT_MIB";
/// The most units that a node may have.
const MOST: u64 = 32_768;
/// So many of them are on each GPU.
const EACH: u64 = MOST / GPUS as u64;
/// A plugin that was started anew registers within seconds, and the kubelet writes what it offers every ten.
const OFFERED: Duration = Duration::from_secs(300);

/// On nodes whose GPUs are small enough for units of 1 MiB. All nodes have the same unit.
fn small_units(env: &TestEnv) -> Result<()> {
    let nodes = env.cluster()?.nodes();
    let host = &nodes[1];
    let tried = resize(env, nodes, EACH, &format!("{UNIT}=1"))
        .and_then(|()| offers(env, nodes, EACH))
        .and_then(|()| to_the_last_one(env, host))
        .and_then(|()| refused(env, host));
    // A plugin with another unit than that of a pod's ids does not register.
    let gone = env.delete_all_pods();
    let restored = resize(env, nodes, GPU_MIB, &format!("{UNIT}-"))
        .and_then(|()| offers(env, nodes, GPU_MIB / 1024));
    tried.and(gone).and(restored)
}

/// Gives the nodes' GPUs so much memory, sets or removes the variable, and waits for the plugins that start by it.
fn resize(env: &TestEnv, nodes: &[Node], mib: u64, assignment: &str) -> Result<()> {
    let resized = nodes.iter().try_for_each(|node| node.set_gpu_memory(mib));
    let plugins = format!("daemonset/{PLUGIN}");
    kubectl(env, &["set", "env", &plugins, assignment])?;
    kubectl(env, &["rollout", "status", &plugins, "--timeout=400s"])?;
    resized
}

fn kubectl(env: &TestEnv, words: &[&str]) -> Result<String> {
    env.cluster()?.kubectl_run(&[&["-n", "plimsoll"], words].concat())
}

/// Waits until each node offers so many units of each GPU, and the extender knows that.
fn offers(env: &TestEnv, nodes: &[Node], each: u64) -> Result<()> {
    let all = each * u64::from(GPUS);
    wait_for(&format!("{all} units on each node"), OFFERED, || {
        let offered = offered(env, GPU)?;
        for node in nodes {
            let known = gpu_units(env, node.name())?;
            let units = offered.get(node.name());
            ensure!(units == Some(&all), "{} offers {units:?}", node.name());
            ensure!(known == [each; GPUS as usize], "the extender knows {known:?}");
        }
        Ok(Some(()))
    })
}

/// Each pod has what those before it leave: two GPUs, one GPU, and two parts of the last, of which the API server
/// writes one as `6k`.
fn to_the_last_one(env: &TestEnv, host: &Node) -> Result<()> {
    let mut two_gpus = asking("two-cards", 2 * EACH);
    two_gpus["metadata"]["annotations"] = json!({"plimsoll.dev/gpu-card-count": "2"});
    let most = 6_000;
    let rest = EACH - 6_000;
    let one_gpu = asking("one-card", EACH);
    let pods = [two_gpus, one_gpu, asking("most", most), asking("rest", rest)];
    for wanted in &pods {
        create(env, on_node(host, wanted.clone()))?;
        bound(env, wanted["metadata"]["name"].as_str().unwrap_or_default(), BINDING)?;
    }
    let running = all_running(env, START)?;
    let charged = audit_on_gpus_of(env, &running, EACH)?;
    let is_full = charged.values().all(|units| *units == EACH);
    ensure!(charged.len() == usize::from(GPUS) && is_full, "the GPUs are charged {charged:?}");
    let two_gpus = running.iter().find(|pod| name(pod) == "two-cards").context("it is gone")?;
    let claimed = claim(two_gpus)?;
    let mut of_two = host.gpus();
    of_two.retain(|gpu| claimed.values().any(|shares| shares.contains_key(&gpu.uuid)));
    let linked: Vec<u8> = of_two.iter().map(|gpu| gpu.minor).collect();
    ensure!(linked == [0, 2], "two GPUs that NVLink does not connect: {linked:?}");
    every_id_is_held_once(host, &running)?;
    let used = used_units(env, host.name())?;
    ensure!(used == [EACH; GPUS as usize], "the extender counts {used:?}");
    create(env, on_node(host, asking("one-more", 1)))?;
    unschedulable(env, "one-more", BINDING).map(drop)
}

fn asking(name: &str, units: u64) -> Value {
    pod(name, &[gpu_container("main", units)])
}

/// By the kubelet's checkpoint.
fn every_id_is_held_once(host: &Node, pods: &[Pod]) -> Result<()> {
    let held = kubelet_checkpoint::read(host)?;
    let ours = held.iter().filter(|held| pods.iter().any(|pod| uid(pod) == held.pod_uid));
    let ids: Vec<&String> = ours.flat_map(|held| &held.ids).collect();
    let once: BTreeSet<&&String> = ids.iter().collect();
    let all = ids.len() as u64;
    let different = once.len() as u64;
    ensure!((all, different) == (MOST, MOST), "{all} ids are held, {different} different ones");
    Ok(())
}

/// One unit more on each GPU, for a plugin that starts with them: it offers none.
fn refused(env: &TestEnv, host: &Node) -> Result<()> {
    env.delete_all_pods()?;
    host.set_gpu_memory(EACH + 1)?;
    let before = plugin_of(env, host)?.context("no plugin runs")?;
    kubectl(env, &["delete", "pod", name(&before)])?;
    let units = MOST + u64::from(GPUS);
    let message = format!(
        "{units} units of 1 MiB, where a node may have {MOST}: set --unit-mib to 2 or more, on all nodes alike"
    );
    wait_for("the plugin to name the unit to choose", OFFERED, || {
        let plugin = plugin_of(env, host)?.filter(|plugin| uid(plugin) != uid(&before));
        let plugin = plugin.context("no new plugin")?;
        let log = kubectl(env, &["logs", name(&plugin), "--tail=-1"])?;
        Ok(log.contains(&message).then_some(()))
    })?;
    wait_for("the node to offer no units", OFFERED, || {
        let offered = offered(env, GPU)?;
        Ok(offered.get(host.name()).is_none_or(|units| *units == 0).then_some(()))
    })
}

/// The plugin's pod on the node.
fn plugin_of(env: &TestEnv, host: &Node) -> Result<Option<Pod>> {
    let pods = env.program_pods(PLUGIN)?;
    Ok(pods.into_iter().find(|pod| node(pod) == Some(host.name())))
}

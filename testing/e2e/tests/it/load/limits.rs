//! Tests of the way of a reading: /proc, exporter, annotator, annotation, extender.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::command::wait_for;
use e2e::{Load, Node};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Node as NodeObject;
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::{Value, json};

use super::seen;
use crate::env::{TestEnv, parse};
use crate::exporter::signals::set_gpu_use;
use crate::support::pods::{
    START, all_running, create, create_all, gpu_container, idle_container, name, node, on_node, pod,
};
use crate::support::policy;
use crate::{Fact, on_our_nodes};

pub(crate) const FACTS: &[Fact] = &[
    on_our_nodes("a_node_over_the_limit_gets_no_new_pod_but_a_daemonsets", over_the_limit)
        .takes(54)
        .smoke(),
    on_our_nodes("the_cooler_of_two_nodes_wins", cooler_wins).takes(72),
    on_our_nodes("the_share_annotation_holds_a_gpus_use_beside_its_allocated_units", gpu_use)
        .takes(61),
];

/// The metric of the policy in `testing/e2e/deploy/short-periods`. It has no window to fill.
const METRIC: &str = "cpu_usage_active";
/// The name of the tests' DaemonSet.
const EVERYWHERE: &str = "everywhere";
const SHARE: &str = "plimsoll.dev/gpu-share";
const READING: Duration = Duration::from_secs(120);

fn over_the_limit(env: &TestEnv) -> Result<()> {
    with_short_periods(env, |first, second| {
        for (hot, other) in [(second, first), (first, second)] {
            set(env, &[(hot, 0.9), (other, 0.3)])?;
            expect_all_on(env, &format!("avoids-{}", hot.name()), other)?;
            env.delete_all_pods()?;
        }
        set(env, &[(second, 0.9), (first, 0.3)])?;
        daemon_set_reaches(env, second)
    })
}

/// Each node must win once: kube-scheduler's own plugins prefer the one that runs less.
fn cooler_wins(env: &TestEnv) -> Result<()> {
    with_short_periods(env, |first, second| {
        for (cooler, other) in [(first, second), (second, first)] {
            set(env, &[(cooler, 0.1), (other, 0.6)])?;
            expect_all_on(env, &format!("likes-{}", cooler.name()), cooler)?;
            env.delete_all_pods()?;
        }
        Ok(())
    })
}

/// The values go from the driver over exporter and annotator to the node.
fn gpu_use(env: &TestEnv) -> Result<()> {
    with_short_periods(env, |_, node| {
        create(env, on_node(node, pod("gpu", &[gpu_container("main", 3)])))?;
        all_running(env, START)?;
        set_gpu_use(node, 60, 4096)?;
        let uuid = &node.gpus()[2].uuid;
        let annotated = wait_for("the annotation to show the GPU's use", READING, || {
            let text = annotations(env, node)?.remove(SHARE).context("no share yet")?;
            let share: Value = serde_json::from_str(&text)?;
            let gpus = share["cards"].as_array().context("no GPUs")?;
            let gpu = gpus.iter().find(|gpu| gpu["uuid"] == **uuid).context("no such GPU")?;
            let measured = (gpu["utilisation"].as_f64(), gpu["usedMiB"].as_u64());
            let held: u64 = gpus.iter().filter_map(|gpu| gpu["allocated"].as_u64()).sum();
            Ok((held == 3 && measured == (Some(0.6), Some(4096))).then_some(()))
        });
        set_gpu_use(node, 0, 0)?;
        annotated
    })
}

fn expect_all_on(env: &TestEnv, prefix: &str, wanted: &Node) -> Result<()> {
    create_all(
        env,
        (0..4).map(|n| pod(&format!("{prefix}-{n}"), &[idle_container("main")])).collect(),
    )?;
    for pod in all_running(env, START)? {
        ensure!(node(&pod) == Some(wanted.name()), "{} went to {:?}", name(&pod), node(&pod));
    }
    Ok(())
}

/// A DaemonSet of the tests.
pub(crate) fn everywhere() -> Result<DaemonSet> {
    let labels = json!({"app": EVERYWHERE});
    let mut template = pod("", &[idle_container("main")]);
    template["metadata"] = json!({"labels": labels});
    parse(json!({
        "metadata": {"name": EVERYWHERE},
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    }))
}

pub(crate) fn daemon_set_reaches(env: &TestEnv, hot: &Node) -> Result<()> {
    let sets: Api<DaemonSet> = Api::namespaced(env.client(), crate::env::NAMESPACE);
    env.block_on(sets.create(&PostParams::default(), &everywhere()?))?;
    let landed = wait_for("the DaemonSet's pod on the hot node", START, || {
        let pods = all_running(env, START)?;
        Ok(pods.iter().any(|pod| node(pod) == Some(hot.name())).then_some(()))
    });
    env.block_on(sets.delete(EVERYWHERE, &DeleteParams::default()))?;
    landed
}

/// Sets the loads and waits until each node's annotation shows them, and each replica of the extender has read that.
pub(crate) fn set(env: &TestEnv, loads: &[(&Node, f64)]) -> Result<()> {
    for (node, cpu) in loads {
        node.set_load(Load { cpu: *cpu, memory: 0.2 })?;
    }
    loads.iter().try_for_each(|(node, cpu)| annotated(env, node, *cpu))?;
    seen::by_extender(env, METRIC, loads)
}

/// Waits for a reading near `cpu`.
fn annotated(env: &TestEnv, node: &Node, cpu: f64) -> Result<()> {
    wait_for(&format!("{METRIC} of {} to be {cpu}", node.name()), READING, || {
        let text = annotations(env, node)?.remove(METRIC).context("no reading yet")?;
        let value: f64 = text.split(',').next().unwrap_or_default().parse()?;
        Ok(seen::is_near(value, cpu).then_some(()))
    })
}

/// The annotations of a node.
pub(crate) fn annotations(env: &TestEnv, node: &Node) -> Result<BTreeMap<String, String>> {
    let nodes: Api<NodeObject> = Api::all(env.client());
    Ok(env.block_on(nodes.get(node.name()))?.metadata.annotations.unwrap_or_default())
}

/// Runs `work` with a policy whose periods are seconds instead of minutes. It is installed in the documented way: by
/// the value `policy.text`.
pub(crate) fn with_short_periods(
    env: &TestEnv,
    work: impl FnOnce(&Node, &Node) -> Result<()>,
) -> Result<()> {
    let [first, second] = env.cluster()?.nodes() else { anyhow::bail!("two nodes are expected") };
    apply(env, "short-periods")?;
    let done = work(first, second);
    let restored = apply(env, "tested");
    done?;
    restored
}

/// Applies values whose policy differs from the one in force.
fn apply(env: &TestEnv, values: &str) -> Result<()> {
    let cluster = env.cluster()?;
    policy::changed_by(env, || {
        cluster.apply(values)?;
        let wanted = ["-n", "plimsoll", "rollout", "status", "daemonset/node-exporter-plus"];
        cluster.kubectl_run(&[&wanted[..], &["--timeout=300s"]].concat()).map(drop)
    })
}

//! Facts about load, over the whole way: /proc, exporter, annotator, annotations, extender.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::command::wait_for;
use e2e::{Load, Node};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Node as NodeObject;
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::{Value, json};

use crate::exporter::occupy;
use crate::pods::{
    START, all_running, create, create_all, gpu_container, idle_container, name, node, pod,
};
use crate::world::{World, parse};
use crate::{Fact, local};

pub(crate) const FACTS: &[Fact] = &[
    local("a_node_over_the_limit_gets_no_new_pod_but_a_daemonsets", over_the_limit),
    local("the_cooler_of_two_nodes_wins", cooler_wins),
    local("what_a_card_does_is_told_beside_what_pods_hold_of_it", card_use),
];

/// The metric of the policy in `testing/e2e/deploy/short-periods`: it needs no history.
const METRIC: &str = "cpu_usage_active";
const SHARE: &str = "plimsoll.dev/gpu-share";
const READING: Duration = Duration::from_secs(60);

fn over_the_limit(world: &World) -> Result<()> {
    with_short_periods(world, |first, second| {
        for (hot, other) in [(second, first), (first, second)] {
            set(world, &[(hot, 0.9), (other, 0.3)])?;
            expect_all_on(world, &format!("avoids-{}", hot.name()), other)?;
            world.delete_all_pods()?;
        }
        set(world, &[(second, 0.9), (first, 0.3)])?;
        daemon_set_reaches(world, second)
    })
}

/// The in-tree plugins prefer the node that runs less, so each node must win once.
fn cooler_wins(world: &World) -> Result<()> {
    with_short_periods(world, |first, second| {
        for (cooler, other) in [(first, second), (second, first)] {
            set(world, &[(cooler, 0.1), (other, 0.6)])?;
            expect_all_on(world, &format!("likes-{}", cooler.name()), cooler)?;
            world.delete_all_pods()?;
        }
        Ok(())
    })
}

/// From the driver over exporter and annotator to the node.
fn card_use(world: &World) -> Result<()> {
    with_short_periods(world, |_, node| {
        create(world, on(node, pod("gpu", &[gpu_container("main", 3)])))?;
        all_running(world, START)?;
        occupy(node, 60, 4096)?;
        let uuid = &node.cards()[2].uuid;
        let told = wait_for("the node to tell what its card does", READING, || {
            let text = told_of(world, node)?.remove(SHARE).context("no share yet")?;
            let share: Value = serde_json::from_str(&text)?;
            let cards = share["cards"].as_array().context("no cards")?;
            let card = cards.iter().find(|card| card["uuid"] == **uuid).context("no such card")?;
            let measured = (card["utilisation"].as_f64(), card["usedMiB"].as_u64());
            let held: u64 = cards.iter().filter_map(|card| card["allocated"].as_u64()).sum();
            Ok((held == 3 && measured == (Some(0.6), Some(4096))).then_some(()))
        });
        occupy(node, 0, 0)?;
        told
    })
}

/// Makes a pod one that kube-scheduler places on this node or nowhere.
fn on(node: &Node, mut pod: Value) -> Value {
    pod["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": node.name()});
    pod
}

fn expect_all_on(world: &World, prefix: &str, wanted: &Node) -> Result<()> {
    let plain = |n| pod(&format!("{prefix}-{n}"), &[idle_container("main")]);
    create_all(world, (0..4).map(plain).collect())?;
    for pod in all_running(world, START)? {
        ensure!(node(&pod) == Some(wanted.name()), "{} went to {:?}", name(&pod), node(&pod));
    }
    Ok(())
}

fn daemon_set_reaches(world: &World, hot: &Node) -> Result<()> {
    let sets: Api<DaemonSet> = Api::namespaced(world.client(), crate::world::NAMESPACE);
    let labels = json!({"app": "everywhere"});
    let mut template = pod("", &[idle_container("main")]);
    template["metadata"] = json!({"labels": labels});
    let set = json!({
        "metadata": {"name": "everywhere"},
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    });
    world.wait(sets.create(&PostParams::default(), &parse(set)?))?;
    let landed = wait_for("the DaemonSet's pod on the hot node", START, || {
        let pods = all_running(world, START)?;
        Ok(pods.iter().any(|pod| node(pod) == Some(hot.name())).then_some(()))
    });
    world.wait(sets.delete("everywhere", &DeleteParams::default()))?;
    landed
}

/// Sets the loads and waits until each node's annotation has told them twice: what the extender sees comes over the
/// same watch, in order, so by the second it has the first.
fn set(world: &World, loads: &[(&Node, f64)]) -> Result<()> {
    for (node, cpu) in loads {
        node.set_load(Load { cpu: *cpu, memory: 0.2 })?;
    }
    for (node, cpu) in loads {
        let first = told(world, node, *cpu, "")?;
        told(world, node, *cpu, &first)?;
    }
    Ok(())
}

/// Waits for a reading near `cpu` other than `known`, and returns it.
fn told(world: &World, node: &Node, cpu: f64, known: &str) -> Result<String> {
    wait_for(&format!("{METRIC} of {} to tell {cpu}", node.name()), READING, || {
        let text = told_of(world, node)?.remove(METRIC).context("no reading yet")?;
        let value: f64 = text.split(',').next().unwrap_or_default().parse()?;
        Ok(((value - cpu).abs() < 0.05 && text != known).then_some(text))
    })
}

/// The annotations of a node.
fn told_of(world: &World, node: &Node) -> Result<BTreeMap<String, String>> {
    let nodes: Api<NodeObject> = Api::all(world.client());
    Ok(world.wait(nodes.get(node.name()))?.metadata.annotations.unwrap_or_default())
}

/// Runs with a policy that counts seconds instead of minutes, given in the documented way: by a folder of one's own
/// that names `deploy/`.
fn with_short_periods(world: &World, work: impl FnOnce(&Node, &Node) -> Result<()>) -> Result<()> {
    let [first, second] = world.cluster()?.nodes() else { anyhow::bail!("two nodes are expected") };
    apply(world, "testing/e2e/deploy/short-periods")?;
    let done = work(first, second);
    let restored = apply(world, "testing/e2e/deploy/shipped");
    done?;
    restored
}

fn apply(world: &World, folder: &str) -> Result<()> {
    let cluster = world.cluster()?;
    let folder = cluster.settings().sources.join(Path::new(folder));
    let known = policy_changes(world)?;
    cluster.kubectl_run(&["apply", "-k", &folder.to_string_lossy()])?;
    hurry(world)?;
    let wanted = ["-n", "plimsoll", "rollout", "status", "daemonset/node-exporter-plus"];
    cluster.kubectl_run(&[&wanted[..], &["--timeout=90s"]].concat())?;
    wait_for("the programs to take the policy over", Duration::from_secs(90), || {
        let now = policy_changes(world)?;
        Ok(now.iter().zip(&known).all(|(now, known)| now > known).then_some(()))
    })
}

/// The programs that read the policy.
const READERS: [&str; 2] = ["scheduler-extender", "annotator"];

/// How often each of them has logged that a changed policy is in force.
fn policy_changes(world: &World) -> Result<Vec<usize>> {
    let logs = |program: &&str| {
        let workload = format!("deployment/{program}");
        let log = world.cluster()?.kubectl_run(&["-n", "plimsoll", "logs", &workload])?;
        Ok(log.lines().filter(|line| line.contains("policy changed")).count())
    };
    READERS.iter().map(logs).collect()
}

/// A kubelet looks at a pod's ConfigMaps once a minute, and whenever the pod itself changes.
fn hurry(world: &World) -> Result<()> {
    for program in READERS {
        let selector = format!("app.kubernetes.io/name={program}");
        let stamp = format!("plimsoll-e2e/hurry={:?}", std::time::Instant::now());
        let stamp: String = stamp.chars().filter(|c| !" {}:".contains(*c)).collect();
        let words = ["-n", "plimsoll", "annotate", "pods", "--overwrite", "-l", &selector, &stamp];
        world.cluster()?.kubectl_run(&words)?;
    }
    Ok(())
}

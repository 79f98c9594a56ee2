//! Tests of the removal of Plimsoll. After them only the chart is tried.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context, Result, ensure};
use e2e::cluster::install;
use e2e::command::wait_for;
use e2e::{Cluster, Node};
use k8s_openapi::api::core::v1::Node as NodeObject;
use kube::api::{Api, ListParams};

use super::kubeadm_upgrade::MANIFEST;
use crate::env::TestEnv;
use crate::support::fake_nodes::READINGS;
use crate::support::figures;
use crate::support::offers::offered;
use crate::support::pods::{
    BINDING, GPU, START, all_running, create, create_all, gpu_container, idle_container, pod,
    unschedulable,
};
use crate::{Fact, on_our_nodes};

pub(crate) const FACTS: &[Fact] = &[on_our_nodes(
    "uninstalling_leaves_scheduling_as_before_and_nothing_behind_but_what_the_docs_name",
    uninstalled,
)
.takes(17)
.smoke()];

/// The kubelet's own files in the folder of device plugins.
const KUBELET_FILES: [&str; 3] = ["kubelet.sock", "kubelet_internal_checkpoint", "DEPRECATION"];
/// The annotations that remain on Nodes by docs/install.md, beside [`READINGS`].
const DOCUMENTED_ANNOTATIONS: [&str; 4] = [
    "node_hot_value",
    "plimsoll.dev/gpu-cards",
    "plimsoll.dev/gpu-isolation",
    "plimsoll.dev/gpu-share",
];
/// The files that remain on nodes by docs/install.md: a folder that holds nothing else, and a name.
const DOCUMENTED_FILES: [(&str, &str); 4] = [
    ("/var/run/cdi", "plimsoll.dev-gpu-mem.json"),
    ("/run/plimsoll", "node-exporter-plus.samples"),
    ("/run/plimsoll-gpu", "gpushare-device-plugin.json"),
    ("/run/plimsoll-gpu", "cards.json"),
];
/// The folders in `/run` that remain on nodes.
const DOCUMENTED_FOLDERS: [&str; 3] = ["plimsoll", "plimsoll-gpu", "plimsoll-mps"];

fn uninstalled(env: &TestEnv) -> Result<()> {
    let cluster = env.cluster()?;
    let control_plane = cluster.nodes().first().context("no node")?;
    figures::record_memory(env)?;
    install::uninstall(cluster)?;
    env.note_uninstalled();
    scheduler_is_as_before(cluster, control_plane)?;
    no_object_is_left(env, "plimsoll")?;
    cluster.nodes().iter().try_for_each(only_documented_files_are_left)?;
    only_documented_annotations_are_left(env)?;
    scheduling_is_as_before(env)
}

/// The control plane's kube-scheduler knows nothing of the extender.
pub(crate) fn scheduler_is_as_before(cluster: &Cluster, control_plane: &Node) -> Result<()> {
    let manifest = fs::read_to_string(control_plane.path(MANIFEST))?;
    ensure!(!manifest.contains("plimsoll"), "{MANIFEST} still names Plimsoll:\n{manifest}");
    let folder = control_plane.path(install::SCHEDULER_FOLDER);
    ensure!(!folder.exists(), "{} is still there", folder.display());
    let kept = install::kubeadm_config(cluster)?;
    // The cluster itself is named plimsoll.
    let left =
        [install::SCHEDULER_FOLDER, "plimsoll.dev/"].into_iter().find(|it| kept.contains(it));
    ensure!(left.is_none(), "kubeadm-config still has {left:?}:\n{kept}");
    Ok(())
}

/// Lists every kind of object that the API server has, and looks for the namespace that Plimsoll was in.
pub(super) fn no_object_is_left(env: &TestEnv, namespace: &str) -> Result<()> {
    let cluster = env.cluster()?;
    let kinds = cluster.kubectl_run(&["api-resources", "--verbs=list", "-o", "name"])?;
    let kinds: Vec<&str> = kinds.lines().filter(|kind| !kind.starts_with("events")).collect();
    let everything = ["get", "--all-namespaces", "--ignore-not-found", "-o", "name"];
    let plimsoll = ["-l", "app.kubernetes.io/part-of=plimsoll", &kinds.join(",")];
    let left = cluster.kubectl_run(&[&everything[..], &plimsoll].concat())?;
    ensure!(left.trim().is_empty(), "left behind: {left}");
    let namespace = cluster.kubectl_run(&["get", "namespace", namespace, "--ignore-not-found"])?;
    ensure!(namespace.trim().is_empty(), "left behind: {namespace}");
    Ok(())
}

/// Whether the kubelet made the file `name` in the folder of device plugins.
///
/// It writes its checkpoint into a file named by a dot and a number, which it then renames: a
/// kubelet that was killed between the two, as the chaos does, leaves that file behind for ever.
fn is_of_the_kubelet(name: &str) -> bool {
    let interrupted = name.strip_prefix('.').is_some_and(|number| {
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    });
    interrupted || KUBELET_FILES.contains(&name)
}

fn only_documented_files_are_left(node: &Node) -> Result<()> {
    let plugins = names(node, "/var/lib/kubelet/device-plugins")?;
    ensure!(plugins.contains(KUBELET_FILES[0]), "{}: {plugins:?} was not listed", node.name());
    let unexpected: Vec<&String> = plugins.iter().filter(|name| !is_of_the_kubelet(name)).collect();
    ensure!(unexpected.is_empty(), "{}: left beside kubelet.sock: {unexpected:?}", node.name());
    for (folder, _) in DOCUMENTED_FILES {
        let mut unexpected = names(node, folder)?;
        unexpected.retain(|name| !DOCUMENTED_FILES.contains(&(folder, name.as_str())));
        ensure!(unexpected.is_empty(), "{}: left in {folder}: {unexpected:?}", node.name());
    }
    let mut ours = names(node, "/run")?;
    ours.retain(|name| {
        name.starts_with("plimsoll") && !DOCUMENTED_FOLDERS.contains(&name.as_str())
    });
    ensure!(ours.is_empty(), "{}: left in /run: {ours:?}", node.name());
    Ok(())
}

/// The names in a folder, listed inside the node, whose /run is not on this host. A missing folder counts as empty.
fn names(node: &Node, folder: &str) -> Result<BTreeSet<String>> {
    let listed =
        node.run(&["find", folder, "-mindepth", "1", "-maxdepth", "1", "-printf", "%f\\n"]);
    Ok(listed.unwrap_or_default().lines().map(str::to_owned).collect())
}

fn only_documented_annotations_are_left(env: &TestEnv) -> Result<()> {
    let nodes: Api<NodeObject> = Api::all(env.client());
    for node in env.block_on(nodes.list(&ListParams::default()))? {
        let annotations = node.metadata.annotations.unwrap_or_default();
        let ours =
            annotations.into_keys().filter(|key| !key.contains('/') || key.contains("plimsoll"));
        // Of other policies than crane's: `cpu_usage_active` is in that of short periods, `cpu_shared_busy_avg_5m` in
        // the shipped one, which a cluster of `make cluster` had before the tests.
        let unexpected: Vec<String> = ours
            .filter(|key| {
                !DOCUMENTED_ANNOTATIONS.contains(&key.as_str())
                    && !READINGS.contains(&key.as_str())
                    && !["cpu_usage_active", "cpu_shared_busy_avg_5m"].contains(&key.as_str())
            })
            .collect();
        ensure!(unexpected.is_empty(), "annotations that are not documented: {unexpected:?}");
        let labels = node.metadata.labels.unwrap_or_default();
        ensure!(!labels.contains_key("gpushare"), "the label gpushare remains");
    }
    Ok(())
}

fn scheduling_is_as_before(env: &TestEnv) -> Result<()> {
    create_all(
        env,
        (0..6).map(|n| pod(&format!("plain-{n}"), &[idle_container("main")])).collect(),
    )?;
    all_running(env, START)?;
    wait_for("the kubelets to offer no units", START, || {
        Ok(offered(env, GPU)?.values().all(|units| *units == 0).then_some(()))
    })?;
    create(env, pod("gpu", &[gpu_container("main", 1)]))?;
    let message = unschedulable(env, "gpu", BINDING)?;
    ensure!(message.contains("Insufficient aliyun.com/gpu-mem"), "{message}");
    Ok(())
}

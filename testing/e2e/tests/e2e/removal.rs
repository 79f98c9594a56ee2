//! The last fact: Plimsoll goes as it came.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{Node, install};
use k8s_openapi::api::core::v1::Node as NodeObject;
use kube::api::{Api, ListParams};

use crate::pods::{
    START, all_running, create, create_all, gpu_container, idle_container, pod, unschedulable,
};
use crate::world::World;
use crate::{Fact, local};

pub(crate) const FACTS: &[Fact] = &[local(
    "uninstalling_leaves_scheduling_as_before_and_nothing_behind_but_what_the_docs_name",
    uninstalled,
)];

const MANIFEST: &str = "/etc/kubernetes/manifests/kube-scheduler.yaml";
/// What a kubelet keeps in its folder of device plugins by itself.
const KUBELETS_OWN: [&str; 3] = ["kubelet.sock", "kubelet_internal_checkpoint", "DEPRECATION"];
/// What docs/install.md says remains on Nodes.
const NAMED_ANNOTATIONS: [&str; 9] = [
    "cpu_usage_avg_5m",
    "cpu_usage_max_avg_1h",
    "cpu_usage_max_avg_1d",
    "mem_usage_avg_5m",
    "mem_usage_max_avg_1h",
    "mem_usage_max_avg_1d",
    "node_hot_value",
    "plimsoll.dev/gpu-cards",
    "plimsoll.dev/gpu-share",
];
/// What docs/install.md says remains in folders of the host; each belongs to nobody else here.
const NAMED_FILES: [(&str, &str); 2] = [
    ("/var/run/cdi", "plimsoll.dev-gpu-mem.json"),
    ("/run/plimsoll", "node-exporter-plus.samples"),
];

fn uninstalled(world: &World) -> Result<()> {
    let cluster = world.cluster()?;
    let control_plane = cluster.nodes().first().context("no node")?;
    world.note_memory()?;
    install::uninstall(cluster)?;
    world.note_removal();
    scheduler_is_as_before(control_plane)?;
    no_object_is_left(world)?;
    cluster.nodes().iter().try_for_each(only_named_files_are_left)?;
    only_named_annotations_are_left(world)?;
    scheduling_is_as_before(world)
}

fn scheduler_is_as_before(control_plane: &Node) -> Result<()> {
    let manifest = fs::read_to_string(control_plane.path(MANIFEST))?;
    ensure!(!manifest.contains("plimsoll"), "{MANIFEST} still names us:\n{manifest}");
    let folder = control_plane.path("/etc/kubernetes/plimsoll");
    ensure!(!folder.exists(), "{} is still there", folder.display());
    Ok(())
}

/// Asks for every kind of object that the API server knows.
fn no_object_is_left(world: &World) -> Result<()> {
    let cluster = world.cluster()?;
    let kinds = cluster.kubectl_run(&["api-resources", "--verbs=list", "-o", "name"])?;
    let kinds: Vec<&str> = kinds.lines().filter(|kind| !kind.starts_with("events")).collect();
    let everything = ["get", "--all-namespaces", "--ignore-not-found", "-o", "name"];
    let ours = ["-l", "app.kubernetes.io/part-of=plimsoll", &kinds.join(",")];
    let left = cluster.kubectl_run(&[&everything[..], &ours].concat())?;
    ensure!(left.trim().is_empty(), "left behind: {left}");
    let namespace = cluster.kubectl_run(&["get", "namespace", "plimsoll", "--ignore-not-found"])?;
    ensure!(namespace.trim().is_empty(), "left behind: {namespace}");
    Ok(())
}

fn only_named_files_are_left(node: &Node) -> Result<()> {
    let plugins = names(node, "/var/lib/kubelet/device-plugins")?;
    ensure!(plugins.contains(KUBELETS_OWN[0]), "{}: {plugins:?} was not listed", node.name());
    let strange: Vec<&String> =
        plugins.iter().filter(|name| !KUBELETS_OWN.contains(&name.as_str())).collect();
    ensure!(strange.is_empty(), "{}: left beside kubelet.sock: {strange:?}", node.name());
    for (folder, named) in NAMED_FILES {
        let strange: Vec<String> =
            names(node, folder)?.into_iter().filter(|name| name != named).collect();
        ensure!(strange.is_empty(), "{}: left in {folder}: {strange:?}", node.name());
    }
    Ok(())
}

/// Asked inside the machine, for its /run is no folder of this host; a folder that is not there is empty.
fn names(node: &Node, folder: &str) -> Result<BTreeSet<String>> {
    let listed =
        node.run(&["find", folder, "-mindepth", "1", "-maxdepth", "1", "-printf", "%f\\n"]);
    Ok(listed.unwrap_or_default().lines().map(str::to_owned).collect())
}

fn only_named_annotations_are_left(world: &World) -> Result<()> {
    let nodes: Api<NodeObject> = Api::all(world.client());
    for node in world.wait(nodes.list(&ListParams::default()))? {
        let annotations = node.metadata.annotations.unwrap_or_default();
        let ours =
            annotations.into_keys().filter(|key| !key.contains('/') || key.contains("plimsoll"));
        // `cpu_usage_active` came from the tests' own policy, not from the shipped one.
        let strange: Vec<String> = ours
            .filter(|key| !NAMED_ANNOTATIONS.contains(&key.as_str()) && key != "cpu_usage_active")
            .collect();
        ensure!(strange.is_empty(), "annotations that the docs do not name: {strange:?}");
        let labels = node.metadata.labels.unwrap_or_default();
        ensure!(!labels.contains_key("gpushare"), "the label is still there");
    }
    Ok(())
}

fn scheduling_is_as_before(world: &World) -> Result<()> {
    let plain = |n| pod(&format!("plain-{n}"), &[idle_container("main")]);
    create_all(world, (0..6).map(plain).collect())?;
    all_running(world, START)?;
    create(world, pod("gpu", &[gpu_container("main", 1)]))?;
    let words = unschedulable(world, "gpu", Duration::from_secs(30))?;
    ensure!(words.contains("Insufficient aliyun.com/gpu-mem"), "{words}");
    Ok(())
}

//! Owns putting Plimsoll on the cluster and taking it off again, with the commands that the README tells a user.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::cards;
use crate::cluster::Cluster;
use crate::command::wait_for;
use crate::programs;
use crate::progress::step;

/// The documented switch of kube-scheduler's static pod, run on the control plane.
const SCHEDULER_SWITCH: &str = "deploy/scheduler/plimsoll-scheduler";
/// The label by which GPU nodes are told to run the device plugin.
const GPU_LABEL: &str = "gpushare=true";

const WORKLOADS: [&str; 4] = [
    "deployment/scheduler-extender",
    "deployment/annotator",
    "daemonset/node-exporter-plus",
    "daemonset/gpushare-device-plugin",
];

/// Whether Plimsoll is on the cluster.
pub fn is_installed(cluster: &Cluster) -> Result<bool> {
    let found = cluster.kubectl_run(&["get", "namespace", "plimsoll", "--ignore-not-found"])?;
    Ok(!found.trim().is_empty())
}

/// Compiles, packs and loads the programs, then installs them; programs that run already are replaced.
pub fn install(cluster: &Cluster) -> Result<()> {
    let built = programs::compile(cluster.settings())?;
    let archives = programs::pack(cluster.settings(), &built)?;
    cluster.import(&archives)?;
    cluster
        .nodes()
        .iter()
        .try_for_each(|node| cards::install_driver(&node.path("/"), &built.driver))?;
    // New programs under an unchanged tag are no change to Kubernetes.
    if is_installed(cluster)? {
        cluster
            .kubectl_run(&[&["-n", "plimsoll", "rollout", "restart"], &WORKLOADS[..]].concat())?;
    }
    apply(cluster)
}

/// The documented commands alone: apply the manifests, label the GPU nodes, switch kube-scheduler over.
pub fn apply(cluster: &Cluster) -> Result<()> {
    step("installing Plimsoll from deploy/");
    cluster.kubectl_run(&["label", "nodes", "--all", "--overwrite", GPU_LABEL])?;
    cluster.kubectl_run(&["apply", "-k", &overlay(cluster)])?;
    for workload in WORKLOADS {
        cluster.kubectl_run(&["-n", "plimsoll", "rollout", "status", workload, "--timeout=90s"])?;
    }
    switch_scheduler(cluster, "enable")
}

/// The documented commands that undo [`apply`].
pub fn uninstall(cluster: &Cluster) -> Result<()> {
    step("removing Plimsoll");
    switch_scheduler(cluster, "disable")?;
    cluster.kubectl_run(&["delete", "-k", &overlay(cluster), "--wait", "--timeout=120s"])?;
    cluster.kubectl_run(&["label", "nodes", "--all", "gpushare-"]).map(drop)
}

/// The shipped manifests with the shipped component for machines whose driver library lies in a folder of the host.
fn overlay(cluster: &Cluster) -> String {
    cluster.settings().sources.join("testing/e2e/deploy/shipped").display().to_string()
}

fn switch_scheduler(cluster: &Cluster, verb: &str) -> Result<()> {
    step(&format!("kube-scheduler: {SCHEDULER_SWITCH} {verb}"));
    let control_plane = cluster.nodes().first().context("a cluster needs a machine")?;
    let switch: PathBuf = cluster.settings().sources.join(SCHEDULER_SWITCH);
    control_plane.run(&[&switch.to_string_lossy(), verb])?;
    wait_for("kube-scheduler to be ready again", Duration::from_secs(90), || {
        let selector = ["-n", "kube-system", "wait", "pod", "-l", "component=kube-scheduler"];
        cluster
            .kubectl_run(&[&selector[..], &["--for=condition=Ready", "--timeout=5s"]].concat())
            .map(Some)
    })
    .map(drop)
}

//! Owns the installation and removal of Plimsoll on the cluster, with the commands of docs/install.md.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};

use super::Cluster;
use crate::build::programs;
use crate::command::wait_for;
use crate::node::cards;
use crate::progress::step;

/// The shipped script that configures kube-scheduler, run on the control plane.
const SCHEDULER_SWITCH: &str = "deploy/scheduler/plimsoll-scheduler";
/// The administrator's, on the control plane.
const ADMIN_KUBECONFIG: &str = "/etc/kubernetes/admin.conf";
/// kube-scheduler's configuration for crane's policy, which the tests run with.
const SCHEDULER_CONFIG: &str = "deploy/components/crane-policy/kube-scheduler-config.yaml";
/// The shipped manifests, as the tests install them.
const OVERLAY: &str = "shipped";
/// The label of the nodes that run the device plugin.
const GPU_LABEL: &str = "gpushare=true";

const WORKLOADS: [&str; 4] = [
    "deployment/scheduler-extender",
    "deployment/annotator",
    "daemonset/node-exporter-plus",
    "daemonset/gpushare-device-plugin",
];

/// Whether Plimsoll is installed.
pub fn is_installed(cluster: &Cluster) -> Result<bool> {
    let found = cluster.kubectl_run(&["get", "namespace", "plimsoll", "--ignore-not-found"])?;
    Ok(!found.trim().is_empty())
}

/// Compiles, packs and loads the programs, then installs them. Programs that already run are replaced.
pub fn install(cluster: &Cluster) -> Result<()> {
    let built = programs::compile(cluster.settings())?;
    let archives = programs::pack(cluster.settings(), &built)?;
    cluster.import(&archives)?;
    cluster
        .nodes()
        .iter()
        .try_for_each(|node| cards::install_driver(&node.path("/"), &built.driver))?;
    // The images keep their tag, so Kubernetes sees no change.
    if is_installed(cluster)? {
        cluster
            .kubectl_run(&[&["-n", "plimsoll", "rollout", "restart"], &WORKLOADS[..]].concat())?;
    }
    apply(cluster)
}

/// Runs the documented commands only: label the GPU nodes, apply the manifests, make certificates, configure kube-scheduler.
pub fn apply(cluster: &Cluster) -> Result<()> {
    step("installing Plimsoll from deploy/");
    cluster.kubectl_run(&["label", "nodes", "--all", "--overwrite", GPU_LABEL])?;
    cluster.apply(OVERLAY)?;
    make_certificates(cluster, &[])?;
    for workload in WORKLOADS {
        cluster.kubectl_run(&["-n", "plimsoll", "rollout", "status", workload, "--timeout=90s"])?;
    }
    switch_scheduler(cluster, "enable")
}

/// Runs the documented commands that undo [`apply`].
pub fn uninstall(cluster: &Cluster) -> Result<()> {
    step("removing Plimsoll");
    switch_scheduler(cluster, "disable")?;
    cluster.kubectl_run(&[
        "delete",
        "-k",
        &cluster.overlay(OVERLAY),
        "--wait",
        "--timeout=120s",
    ])?;
    cluster.kubectl_run(&["label", "nodes", "--all", "gpushare-"]).map(drop)
}

/// The shipped manifests, with the shipped components for the host's file systems and driver library.
/// Runs the documented command that makes the certificates of extender and kube-scheduler, with more flags.
pub fn make_certificates(cluster: &Cluster, flags: &[&str]) -> Result<()> {
    let control_plane = cluster.nodes().first().context("a cluster needs a node")?;
    let switch = cluster.settings().sources.join(SCHEDULER_SWITCH);
    let command = [&switch.to_string_lossy(), "certificates", "--kubeconfig", ADMIN_KUBECONFIG];
    control_plane.run(&[&command[..], flags].concat()).map(drop)
}

/// Runs the documented command that has kube-scheduler ask the extender (`enable`) or ask it no more (`disable`).
pub fn switch_scheduler(cluster: &Cluster, verb: &str) -> Result<()> {
    step(&format!("kube-scheduler: {SCHEDULER_SWITCH} {verb}"));
    let control_plane = cluster.nodes().first().context("a cluster needs a node")?;
    let source = |path| -> PathBuf { cluster.settings().sources.join(path) };
    let (switch, config) = (source(SCHEDULER_SWITCH), source(SCHEDULER_CONFIG));
    control_plane.run(&[&switch.to_string_lossy(), verb, "--config", &config.to_string_lossy()])?;
    wait_for("kube-scheduler to be ready again", Duration::from_secs(90), || {
        let selector = ["-n", "kube-system", "wait", "pod", "-l", "component=kube-scheduler"];
        cluster
            .kubectl_run(&[&selector[..], &["--for=condition=Ready", "--timeout=5s"]].concat())
            .map(Some)
    })
    .map(drop)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use crate::settings::sources;

    #[test]
    fn every_kustomization_refers_to_existing_files() {
        let overlays = sources().unwrap().join("testing/e2e/deploy");
        let mut references = 0;
        for overlay in fs::read_dir(overlays).unwrap() {
            let folder = overlay.unwrap().path();
            let text = fs::read_to_string(folder.join("kustomization.yaml")).unwrap();
            for path in text.lines().filter_map(|line| line.strip_prefix("- ../")) {
                assert!(folder.join("..").join(path).exists(), "{}: ../{path}", folder.display());
                references += 1;
            }
        }
        assert!(references > 5, "{references}");
    }
}

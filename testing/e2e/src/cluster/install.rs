//! Owns the installation and removal of Plimsoll on the cluster, with the commands of docs/install.md.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::Cluster;
use crate::build::programs;
use crate::command::wait_for;
use crate::node::cards;
use crate::progress::step;

/// The shipped script that configures kube-scheduler, run on the control plane.
const SCHEDULER_SWITCH: &str = "deploy/scheduler/plimsoll-scheduler";
/// The administrator's, on the control plane.
const ADMIN_KUBECONFIG: &str = "/etc/kubernetes/admin.conf";
/// kube-scheduler's configuration for crane's policy, which the tests run with but for one timeout.
const SCHEDULER_CONFIG: &str = "deploy/components/crane-policy/kube-scheduler-config.yaml";
/// How long kube-scheduler waits for an answer by load, as shipped and in the tests. After that it places the pod as if
/// there were no Plimsoll, which a busy host would make of many a test.
const LOAD_TIMEOUT: [&str; 2] = ["httpTimeout: 500ms", "httpTimeout: 3s"];
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

/// Runs the documented commands only: label the GPU nodes, apply the manifests, make certificates, configure
/// kube-scheduler.
pub fn apply(cluster: &Cluster) -> Result<()> {
    step("installing Plimsoll from deploy/");
    cluster.kubectl_run(&["label", "nodes", "--all", "--overwrite", GPU_LABEL])?;
    cluster.apply(OVERLAY)?;
    make_certificates(cluster, &[])?;
    for workload in WORKLOADS {
        cluster.kubectl_run(&[
            "-n",
            "plimsoll",
            "rollout",
            "status",
            workload,
            "--timeout=300s",
        ])?;
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
        "--timeout=400s",
    ])?;
    cluster.kubectl_run(&["label", "nodes", "--all", "gpushare-"]).map(drop)
}

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
    let switch = cluster.settings().sources.join(SCHEDULER_SWITCH);
    let config = patient_config(cluster)?;
    control_plane.run(&[&switch.to_string_lossy(), verb, "--config", &config.to_string_lossy()])?;
    wait_for("kube-scheduler to be ready again", Duration::from_secs(400), || {
        let selector = ["-n", "kube-system", "wait", "pod", "-l", "component=kube-scheduler"];
        cluster
            .kubectl_run(&[&selector[..], &["--for=condition=Ready", "--timeout=5s"]].concat())
            .map(Some)
    })
    .map(drop)
}

/// Writes the tests' configuration of kube-scheduler, and returns its path.
fn patient_config(cluster: &Cluster) -> Result<PathBuf> {
    let settings = cluster.settings();
    let shipped = fs::read_to_string(settings.sources.join(SCHEDULER_CONFIG))?;
    let [as_shipped, patient] = LOAD_TIMEOUT;
    ensure!(shipped.matches(as_shipped).count() == 1, "{SCHEDULER_CONFIG} has no {as_shipped}");
    let path = settings.state.join("kube-scheduler-config.yaml");
    fs::write(&path, shipped.replace(as_shipped, patient))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;
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

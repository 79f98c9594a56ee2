//! Owns the installation and removal of Plimsoll on the cluster, with the commands of docs/install.md. There are three
//! setups: what a user installs by kubectl or by Helm, and what the tests run on.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use serde_json::Value;

use super::Cluster;
use super::chart::{ChartRelease, HELM};
use crate::build::programs;
use crate::command::wait_for;
use crate::node::gpus;
use crate::progress::step;

/// The administrator's, on the control plane.
const ADMIN_KUBECONFIG: &str = "/etc/kubernetes/admin.conf";
/// kube-scheduler's configuration for crane's policy, which the tests run with but for one timeout.
const CRANE_SCHEDULER_CONFIG: &str = "deploy/chart/kube-scheduler/crane.yaml";
/// How long kube-scheduler waits for an answer by load, as shipped and in the tests. After that it places the pod as if
/// there were no Plimsoll, which a busy host would make of many a test.
const LOAD_TIMEOUT: [&str; 2] = ["httpTimeout: 500ms", "httpTimeout: 3s"];
/// The folder of the control plane's node that kube-scheduler's command names where it asks the extender.
pub const SCHEDULER_FOLDER: &str = "/etc/kubernetes/plimsoll";
/// Prints the label of the namespace that says which setup is installed.
const SETUP_OF_NAMESPACE: &str = "jsonpath={.metadata.labels.plimsoll-e2e/setup}";
/// Where Plimsoll is installed.
pub const NAMESPACE: &str = "plimsoll";
/// The label of the nodes that run the device plugin.
const GPU_LABEL: &str = "gpushare=true";

const WORKLOADS: [&str; 4] = [
    "deployment/scheduler-extender",
    "deployment/annotator",
    "daemonset/node-exporter-plus",
    "daemonset/gpushare-device-plugin",
];

/// What is installed. Each has values in `testing/e2e/deploy` and a configuration of kube-scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Setup {
    /// The shipped policy and configuration of kube-scheduler, as a user installs them: rendered, and applied by
    /// kubectl.
    Shipped,
    /// The same by `helm install`.
    Chart,
    /// What the tests run on: crane's policy, more parts, and a kube-scheduler that waits longer.
    Tested,
}

impl Setup {
    /// The name of its values' folder.
    pub fn values(self) -> &'static str {
        match self {
            Self::Shipped | Self::Chart => "shipped",
            Self::Tested => "tested",
        }
    }
}

/// What is installed; `None` without Plimsoll.
pub fn installed(cluster: &Cluster) -> Result<Option<Setup>> {
    let namespace = ["get", "namespace", "plimsoll", "--ignore-not-found"];
    if cluster.kubectl_run(&namespace)?.trim().is_empty() {
        return Ok(None);
    }
    let setup = cluster.kubectl_run(&[&namespace[..], &["-o", SETUP_OF_NAMESPACE]].concat())?;
    let of_helm = ["-n", NAMESPACE, "get", "secrets", "-l", "owner=helm", "-o", "name"];
    match setup.trim() {
        "" if !cluster.kubectl_run(&of_helm)?.trim().is_empty() => Ok(Some(Setup::Chart)),
        "" => Ok(Some(Setup::Shipped)),
        "tested" => Ok(Some(Setup::Tested)),
        other => bail!("the namespace plimsoll is of an unknown setup, {other:?}"),
    }
}

/// Compiles, packs and loads the programs, then installs them. Programs that already run are replaced.
pub fn install(cluster: &Cluster, setup: Setup) -> Result<()> {
    let built = programs::compile(cluster.settings())?;
    let archives = programs::pack(cluster.settings(), &built)?;
    cluster.import(&archives)?;
    cluster
        .nodes()
        .iter()
        .try_for_each(|node| gpus::install_driver(&node.path("/"), &built.driver))?;
    // The images keep their tag, so Kubernetes sees no change.
    if installed(cluster)? == Some(setup) {
        cluster
            .kubectl_run(&[&["-n", "plimsoll", "rollout", "restart"], &WORKLOADS[..]].concat())?;
    }
    apply(cluster, setup)
}

/// Runs the documented commands only: label the GPU nodes, apply the manifests, make certificates, configure
/// kube-scheduler. Another setup is removed first: `kubectl apply` removes no object, and running programs would see
/// another policy a minute later.
pub fn apply(cluster: &Cluster, setup: Setup) -> Result<()> {
    let found = installed(cluster)?;
    if found.is_some_and(|other| other != setup) {
        uninstall(cluster)?;
    }
    if setup == Setup::Chart {
        let release = ChartRelease::new(cluster, NAMESPACE, HELM)?;
        if found == Some(setup) {
            return release.upgrade(&[]);
        }
        release.install(&[])?;
        return release.enable_scheduler();
    }
    step(&format!("installing Plimsoll from testing/e2e/deploy/{}", setup.values()));
    label_gpu_nodes(cluster)?;
    cluster.apply(setup.values())?;
    make_certificates(cluster, &[])?;
    wait_for_rollouts(cluster, NAMESPACE)?;
    enable_scheduler(cluster, setup)
}

/// Has every node run the device plugin.
pub fn label_gpu_nodes(cluster: &Cluster) -> Result<()> {
    cluster.kubectl_run(&["label", "nodes", "--all", "--overwrite", GPU_LABEL]).map(drop)
}

/// Undoes [`label_gpu_nodes`].
pub(super) fn unlabel_gpu_nodes(cluster: &Cluster) -> Result<()> {
    cluster.kubectl_run(&["label", "nodes", "--all", "gpushare-"]).map(drop)
}

/// Waits until the rollout of each program in the namespace is over.
pub fn wait_for_rollouts(cluster: &Cluster, namespace: &str) -> Result<()> {
    let labelled = ["-l", "app.kubernetes.io/part-of=plimsoll", "-o", "json"];
    let list = ["-n", namespace, "get", "deployments,daemonsets"];
    let listed = cluster.kubectl_run(&[&list[..], &labelled].concat())?;
    let listed: Value = serde_json::from_str(&listed).context("kubectl lists no JSON")?;
    let workloads = listed["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    ensure!(!workloads.is_empty(), "{namespace} has no workload");
    // The MPS daemon's pods stay until somebody deletes them.
    for workload in workloads.iter().filter(|it| it["spec"]["updateStrategy"]["type"] != "OnDelete")
    {
        let kind = workload["kind"].as_str().context("no kind")?;
        let name = workload["metadata"]["name"].as_str().context("no name")?;
        let workload = format!("{kind}/{name}");
        let status = ["-n", namespace, "rollout", "status", &workload, "--timeout=300s"];
        cluster.kubectl_run(&status)?;
    }
    Ok(())
}

/// Runs the documented commands that undo [`apply`].
pub fn uninstall(cluster: &Cluster) -> Result<()> {
    let setup = installed(cluster)?.context("Plimsoll is not installed")?;
    if setup == Setup::Chart {
        return ChartRelease::new(cluster, NAMESPACE, HELM)?.uninstall();
    }
    remove(cluster, setup.values())
}

/// Runs the documented commands that remove what was applied with values of the tests.
pub fn remove(cluster: &Cluster, values: &str) -> Result<()> {
    step("removing Plimsoll");
    disable_scheduler(cluster)?;
    let manifests = cluster.rendered(values)?;
    cluster.kubectl_run(&["delete", "-f", &manifests, "--wait", "--timeout=400s"])?;
    unlabel_gpu_nodes(cluster)
}

/// Runs the documented command that makes the certificates of extender and kube-scheduler, with more flags.
pub fn make_certificates(cluster: &Cluster, flags: &[&str]) -> Result<()> {
    let certificates = ["certificates", "--kubeconfig", ADMIN_KUBECONFIG];
    run_switch(cluster, &[&certificates[..], flags].concat()).map(drop)
}

/// Runs the documented command that has kube-scheduler ask the extender.
pub fn enable_scheduler(cluster: &Cluster, setup: Setup) -> Result<()> {
    match setup {
        Setup::Shipped | Setup::Chart => switch_scheduler(cluster, &["enable"]),
        Setup::Tested => {
            let config = patient_config(cluster)?;
            switch_scheduler(cluster, &["enable", "--config", &config.to_string_lossy()])
        }
    }
}

/// Runs the documented command that has kube-scheduler ask the extender no more.
pub fn disable_scheduler(cluster: &Cluster) -> Result<()> {
    switch_scheduler(cluster, &["disable"])
}

/// What the documented command says of kube-scheduler. An error where that does not ask the extender.
pub fn scheduler_status(cluster: &Cluster) -> Result<String> {
    run_switch(cluster, &["status"])
}

/// What kubeadm keeps of the cluster, with its annotations: it writes manifests from that.
pub fn kubeadm_config(cluster: &Cluster) -> Result<String> {
    cluster.kubectl_run(&["-n", "kube-system", "get", "configmap", "kubeadm-config", "-o", "yaml"])
}

fn run_switch(cluster: &Cluster, words: &[&str]) -> Result<String> {
    let control_plane = cluster.nodes().first().context("a cluster needs a node")?;
    let plimsoll = programs::operators_command(cluster.settings())?;
    control_plane.run(&[&[&*plimsoll.to_string_lossy(), "scheduler"], words].concat())
}

pub(super) fn switch_scheduler(cluster: &Cluster, words: &[&str]) -> Result<()> {
    step(&format!("kube-scheduler: plimsoll scheduler {}", words.join(" ")));
    run_switch(cluster, words)?;
    let asks = words.first() == Some(&"enable");
    wait_for("kube-scheduler to run as it was told to", Duration::from_secs(400), || {
        let pods = ["-n", "kube-system", "get", "pod", "-l", "component=kube-scheduler"];
        let pods = cluster.kubectl_run(&[&pods[..], &["-o", "json"]].concat())?;
        let pods: Value = serde_json::from_str(&pods).context("kubectl lists no JSON")?;
        let pod = &pods["items"][0];
        ensure!(pod["metadata"]["deletionTimestamp"].is_null(), "the former pod ends");
        let command = &pod["spec"]["containers"][0]["command"];
        ensure!(
            command.to_string().contains(SCHEDULER_FOLDER) == asks,
            "the kubelet still shows it with {command}"
        );
        let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
        let ready = conditions.any(|it| it["type"] == "Ready" && it["status"] == "True");
        Ok(ready.then_some(()))
    })
}

/// Writes the tests' configuration of kube-scheduler, and returns its path.
fn patient_config(cluster: &Cluster) -> Result<PathBuf> {
    let settings = cluster.settings();
    let crane = fs::read_to_string(settings.sources.join(CRANE_SCHEDULER_CONFIG))?;
    let [as_shipped, patient] = LOAD_TIMEOUT;
    let found = crane.matches(as_shipped).count();
    ensure!(found == 1, "{CRANE_SCHEDULER_CONFIG} has {as_shipped} {found} times");
    let path = settings.state.join("kube-scheduler-config.yaml");
    fs::write(&path, crane.replace(as_shipped, patient))?;
    Ok(path)
}

//! Tests of an upgrade of Kubernetes by kubeadm, which writes kube-scheduler's manifest from scratch.

use std::fs;

use anyhow::{Context, Result, ensure};
use e2e::Node;
use e2e::cluster::install::{self, Setup};
use e2e::command::wait_for;
use e2e::kernel::processes::{self, Pid};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};

use crate::env::TestEnv;
use crate::support::card_audit::audit_exactly;
use crate::support::pods::{START, create, gpu_container, pod, processes_of, running, runs};
use crate::{Fact, on_our_nodes};

pub(crate) const FACTS: &[Fact] = &[on_our_nodes(
    "kube_scheduler_still_calls_the_extender_after_kubeadm_upgrade_has_written_its_manifest_anew",
    upgraded,
)
.takes(70)];

const MANIFEST: &str = "/etc/kubernetes/manifests/kube-scheduler.yaml";
const SCHEDULER: &str = "kube-scheduler";
/// The flag with which kubeadm starts kube-scheduler, by its ConfigMap.
const FLAG: &str = "--config=/etc/kubernetes/plimsoll/kube-scheduler-config.yaml";
/// The folder of the flag, as in every manifest of an enabled node.
const FOLDER: &str = "/etc/kubernetes/plimsoll";
/// What `kubeadm upgrade apply` gets beside the release. The preflight checks are those of `kubeadm init`, etcd stays
/// as it is, and this cluster has no kube-proxy of kubeadm's.
const FLAGS: [&str; 5] = [
    "--yes",
    "--force",
    "--ignore-preflight-errors=all",
    "--etcd-upgrade=false",
    "--skip-phases=addon",
];

/// The release stays the same: one patch release of each minor is pinned. kubeadm then leaves the manifests of API
/// server and controller manager as they are, since what it would write is equal. kube-scheduler's it replaces: that on
/// disk has the lines of `enable`. It also renews kube-scheduler's and the administrator's certificates.
fn upgraded(env: &TestEnv) -> Result<()> {
    let cluster = env.cluster()?;
    let control_plane = cluster.nodes().first().context("no node")?;
    let said = install::scheduler_status(cluster)?;
    ensure!(said.contains("kubeadm upgrade keeps it"), "before the upgrade: {said}");
    // Where this test is the first, its kubelet has just been told to start it anew.
    scheduler_where(env, "kube-scheduler to run with Plimsoll", |words| words.contains(FOLDER))?;
    let release = cluster.release().to_string();
    control_plane.run(&[&["kubeadm", "upgrade", "apply", &release], &FLAGS[..]].concat())?;
    let written = manifest(control_plane)?;
    ensure!(written.contains(FLAG) && !written.contains("# plimsoll"), "kubeadm wrote:\n{written}");

    let process =
        scheduler_where(env, "kube-scheduler to run with the manifest of kubeadm", |words| {
            words.split(' ').any(|word| word == FLAG)
        })?;
    create(env, pod("after-upgrade", &[gpu_container("main", 3)]))?;
    running(env, "after-upgrade", START)?;
    audit_exactly(env, 1)?;
    let said = install::scheduler_status(cluster)?;
    ensure!(
        said.contains("in a manifest that kubeadm wrote") && said.contains("upgrade keeps it"),
        "after the upgrade: {said}"
    );

    install::enable_scheduler(cluster, Setup::Tested)?;
    ensure!(manifest(control_plane)? == written, "enable changed what was in force");
    ensure!(scheduler(env)? == process, "enable restarted kube-scheduler for nothing");
    let disabled = disabled_leaves_nothing(env, control_plane);
    // As it was before, for the tests that follow.
    install::enable_scheduler(cluster, Setup::Tested)?;
    scheduler_where(env, "kube-scheduler to run with Plimsoll again", |words| {
        words.contains(FOLDER)
    })?;
    disabled
}

/// Takes Plimsoll out of kube-scheduler, and of what kubeadm writes next time.
fn disabled_leaves_nothing(env: &TestEnv, control_plane: &Node) -> Result<()> {
    let cluster = env.cluster()?;
    env.delete_all_pods()?;
    install::disable_scheduler(cluster)?;
    let manifest = manifest(control_plane)?;
    ensure!(!manifest.contains("plimsoll"), "{MANIFEST} still names Plimsoll:\n{manifest}");
    let configuration = install::kubeadm_config(cluster)?;
    ensure!(!configuration.contains(FOLDER), "kubeadm-config names {FOLDER}:\n{configuration}");
    scheduler_where(env, "kube-scheduler to run without Plimsoll", |words| !words.contains(FOLDER))
        .map(drop)
}

fn manifest(control_plane: &Node) -> Result<String> {
    Ok(fs::read_to_string(control_plane.path(MANIFEST))?)
}

/// The process of kube-scheduler. An error while it does not run.
fn scheduler(env: &TestEnv) -> Result<Pid> {
    let pods: Api<Pod> = Api::namespaced(env.client(), "kube-system");
    let labelled = ListParams::default().labels("component=kube-scheduler");
    let pods = env.block_on(pods.list(&labelled))?.items;
    let pod = pods.iter().find(|pod| runs(pod)).context("no pod of kube-scheduler runs")?;
    let processes = processes_of(pod, SCHEDULER)?;
    processes.first().copied().context("kube-scheduler has no process")
}

/// Waits until kube-scheduler runs with a command line that `fits`, and returns its process.
fn scheduler_where(env: &TestEnv, what: &str, fits: impl Fn(&str) -> bool) -> Result<Pid> {
    wait_for(what, START, || {
        let now = scheduler(env)?;
        let words = processes::arguments(now).join(" ");
        Ok((!words.is_empty() && fits(&words)).then_some(now))
    })
}

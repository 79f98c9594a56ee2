//! Tests of an upgrade of Kubernetes by kubeadm, which writes kube-scheduler's manifest from scratch.

use std::fs;

use anyhow::{Context, Result, ensure};
use e2e::Node;
use e2e::build::release::Release;
use e2e::build::{binaries, images};
use e2e::cluster::install::{self, SCHEDULER_FOLDER as FOLDER, Setup};
use e2e::command::wait_for;
use e2e::kernel::processes::{self, Pid};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};

use crate::env::TestEnv;
use crate::support::gpu_audit::audit_exactly;
use crate::support::pods::{START, create, gpu_container, pod, processes_of, running, runs};
use crate::{Fact, on_our_nodes};

pub(crate) const FACTS: &[Fact] = &[on_our_nodes(
    "kube_scheduler_still_calls_the_extender_after_kubeadm_upgrade_has_written_its_manifest_anew",
    upgraded,
)
.takes(150)];

pub(crate) const MANIFEST: &str = "/etc/kubernetes/manifests/kube-scheduler.yaml";
const SCHEDULER: &str = "kube-scheduler";
/// The flag with which kubeadm starts kube-scheduler, by its ConfigMap.
const FLAG: &str = "--config=/etc/kubernetes/plimsoll/kube-scheduler-config.yaml";
/// What `kubeadm upgrade apply` gets beside the release. The preflight checks are those of `kubeadm init`, etcd stays
/// as it is, and this cluster has no kube-proxy of kubeadm's.
const FLAGS: [&str; 5] = [
    "--yes",
    "--force",
    "--ignore-preflight-errors=all",
    "--etcd-upgrade=false",
    "--skip-phases=addon",
];

/// Where an earlier patch release is pinned, kubeadm goes to that and back, each time with the kubeadm of where it
/// goes: down, it writes the manifests as it does up. Else the release stays the same; kubeadm then leaves the
/// manifests of API server and controller manager as they are, since what it would write is equal, and replaces
/// kube-scheduler's: that on disk has the lines of `enable`.
fn upgraded(env: &TestEnv) -> Result<()> {
    let cluster = env.cluster()?;
    let control_plane = cluster.nodes().first().context("no node")?;
    let said = install::scheduler_status(cluster)?;
    ensure!(said.contains("kubeadm upgrade keeps it"), "before the upgrade: {said}");
    // Where this test is the first, its kubelet has just been told to start it anew.
    scheduler_where(env, "kube-scheduler to run with Plimsoll", |words| words.contains(FOLDER))?;
    let (settings, release) = (cluster.settings(), cluster.release());
    if let Some(earlier) = release.earlier(&settings.sources)? {
        let bin = binaries::ensure_earlier(settings, earlier)?;
        for image in images::earlier_control_plane(settings, earlier, &bin)? {
            control_plane.import(&image)?;
        }
        upgrade(env, &bin.join("kubeadm").to_string_lossy(), earlier, 1)?;
        upgrade(env, "kubeadm", release, 2)?;
    } else {
        upgrade(env, "kubeadm", release, 1)?;
    }

    let (written, process) = (manifest(control_plane)?, scheduler(env)?);
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

/// Runs `kubeadm upgrade apply` of the release, after which kube-scheduler still asks the extender, and the last of
/// `gpu_pods` gets its GPU by that.
fn upgrade(env: &TestEnv, kubeadm: &str, release: Release, gpu_pods: usize) -> Result<()> {
    let cluster = env.cluster()?;
    let control_plane = cluster.nodes().first().context("no node")?;
    let version = release.to_string();
    control_plane.run(&[&[kubeadm, "upgrade", "apply", &version], &FLAGS[..]].concat())?;
    let server = wait_for("the API server to answer", START, || {
        Ok(env.block_on(env.client().apiserver_version()).ok())
    })?;
    ensure!(server.git_version == version, "the API server is of {}", server.git_version);
    let written = manifest(control_plane)?;
    ensure!(written.contains(FLAG) && !written.contains("# plimsoll"), "kubeadm wrote:\n{written}");
    ensure!(written.contains(&format!("kube-scheduler:{version}\n")), "kubeadm wrote:\n{written}");
    scheduler_where(env, "kube-scheduler to run with the manifest of kubeadm", |words| {
        words.split(' ').any(|word| word == FLAG)
    })?;
    let pod_name = format!("placed-{gpu_pods}");
    create(env, pod(&pod_name, &[gpu_container("main", 3)]))?;
    running(env, &pod_name, START)?;
    audit_exactly(env, gpu_pods)?;
    let said = install::scheduler_status(cluster)?;
    ensure!(
        said.contains("in a manifest that kubeadm wrote") && said.contains("upgrade keeps it"),
        "after the upgrade: {said}"
    );
    Ok(())
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
pub(crate) fn scheduler_where(
    env: &TestEnv,
    what: &str,
    fits: impl Fn(&str) -> bool,
) -> Result<Pid> {
    wait_for(what, START, || {
        let now = scheduler(env)?;
        let words = processes::arguments(now).join(" ");
        Ok((!words.is_empty() && fits(&words)).then_some(now))
    })
}

//! Tests of the moves of docs/migrate.md from crane-scheduler and from Aliyun's gpushare, by plain manifests and by the
//! chart. They run after Plimsoll was removed.
//!
//! A device plugin of the conformance suite stands in for Aliyun's. Its extender's part is done here: annotations, then
//! a Binding.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use conformance::kubelet::{Plugin, Records};
use e2e::cluster::chart::ChartRelease;
use e2e::cluster::install::{self, NAMESPACE as PLIMSOLLS, Setup};
use e2e::command::wait_for;
use e2e::kernel::processes::Pid;
use e2e::{Cluster, Node};
use k8s_openapi::api::core::v1::Node as NodeObject;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::Api;
use serde_json::json;

use super::chart::without_plimsoll;
use crate::env::{NAMESPACE, TestEnv};
use crate::gpu::aliyun::aliyuns_annotations;
use crate::support::callers::{Caller, Verb};
use crate::support::extender_client::used_units;
use crate::support::fake_nodes::READINGS;
use crate::support::gpu_audit::audit_pods;
use crate::support::offers::offered;
use crate::support::pods::{
    BINDING, GPU, START, create, delete_all, get, gpu_container, idle_container, on_node, pod,
    process_of, running, unschedulable,
};
use crate::support::readings::time_of;
use crate::{Fact, on_our_nodes};

pub(crate) const FACTS: &[Fact] = &[
    on_our_nodes(
        "pods_of_crane_and_of_aliyuns_gpushare_run_on_over_the_move_by_plain_manifests_and_count_on_every_gpu",
        |env| moved(env, &By::Manifests(env.cluster()?)),
    )
    .takes(90),
    on_our_nodes(
        "pods_of_crane_and_of_aliyuns_gpushare_run_on_over_the_move_by_the_chart_and_count_on_every_gpu",
        |env| moved(env, &By::Chart(ChartRelease::new(env.cluster()?, PLIMSOLLS, "helm4")?)),
    )
    .takes(90),
];

const VALUES: &str = "moved";
const FLAGS: [&str; 2] = ["--set=policy.crane=true", "--set=fromGpushare=true"];
/// Units of Aliyun's device plugin on a node: as many as the GPUs' memory in GiB.
const UNITS: usize = 64;
/// Units of the pod that runs before the move.
const OLD_UNITS: u64 = 5;
/// Until kubelets and readings follow what was changed. A mean over five minutes is told after half of them.
const FOLLOWED: Duration = Duration::from_secs(300);
/// How far a time of Shanghai is ahead where it is read as UTC.
const AHEAD: SignedDuration = SignedDuration::from_hours(8);

/// How Plimsoll is installed.
enum By<'a> {
    Manifests(&'a Cluster),
    Chart(ChartRelease<'a>),
}

impl By<'_> {
    fn install(&self) -> Result<()> {
        match self {
            Self::Manifests(cluster) => {
                cluster.apply(VALUES)?;
                install::make_certificates(cluster, &[])?;
                install::wait_for_rollouts(cluster, PLIMSOLLS)
            }
            Self::Chart(release) => release.install(&FLAGS),
        }
    }

    /// Takes the parts away that are for the time of the move alone.
    fn end(&self) -> Result<()> {
        match self {
            // The shipped policy comes with that, too.
            Self::Manifests(cluster) => {
                cluster.apply(Setup::Shipped.values())?;
                install::wait_for_rollouts(cluster, PLIMSOLLS)
            }
            Self::Chart(release) => release.upgrade(&["--set=policy.crane=true"]),
        }
    }

    fn uninstall(&self) -> Result<()> {
        match self {
            Self::Manifests(cluster) => install::remove(cluster, VALUES),
            Self::Chart(release) => release.uninstall(),
        }
    }
}

fn moved(env: &TestEnv, by: &By<'_>) -> Result<()> {
    let cluster = env.cluster()?;
    without_plimsoll(env)?;
    install::label_gpu_nodes(cluster)?;
    // The control plane is on the other node.
    let host = cluster.nodes().last().context("no node")?;
    let mut aliyuns = Plugin::new(
        &host.path("/var/lib/kubelet/device-plugins"),
        Records::new(&host.path("/var/lib/kubelet/pod-resources/kubelet.sock"), NAMESPACE),
        GPU,
        UNITS,
    );
    env.block_on(aliyuns.start())?;
    let tried = before(env, host).and_then(|old| {
        aliyuns.kill();
        steps(env, by, host, old)
    });
    aliyuns.kill();
    let _ = fs::remove_file(aliyuns.socket());
    env.delete_all_pods()?;
    // Also after a failure: the next test's setup has objects of the same names.
    let removed = by.uninstall();
    tried?;
    removed
}

/// Two pods as they run before the move: one with units, placed by Aliyun's extender, and one without. Nodes carry the
/// readings of crane's controller, whose times are those of Shanghai. Returns the processes.
fn before(env: &TestEnv, host: &Node) -> Result<[Pid; 2]> {
    offers(env, host, |units| units == UNITS as u64)?;
    let time = (Timestamp::now() + AHEAD).strftime("%Y-%m-%dT%H:%M:%SZ");
    annotate(env, &READINGS.map(|name| format!("{name}=0.10000,{time}")))?;
    let mut old = on_node(host, pod("old", &[gpu_container("main", OLD_UNITS)]));
    old["metadata"]["annotations"] = aliyuns_annotations(16, OLD_UNITS, true);
    create(env, old)?;
    create(env, on_node(host, pod("plain", &[idle_container("main")])))?;
    Ok([running_process(env, "old")?, running_process(env, "plain")?])
}

/// Changes annotations of all nodes, by kubectl's arguments.
fn annotate(env: &TestEnv, changes: &[String]) -> Result<()> {
    let mut words = vec!["annotate", "nodes", "--all", "--overwrite"];
    words.extend(changes.iter().map(String::as_str));
    env.cluster()?.kubectl_run(&words).map(drop)
}

/// The steps of docs/migrate.md from the removal of Aliyun's device plugin on.
fn steps(env: &TestEnv, by: &By<'_>, host: &Node, old: [Pid; 2]) -> Result<()> {
    let cluster = env.cluster()?;
    offers(env, host, |units| units == 0)?;
    annotate(env, &READINGS.map(|name| format!("{name}-")))?;
    by.install()?;
    // The old pod's ids come to those of the GPUs: kube-scheduler charges them to it, and the GPUs have their room.
    offers(env, host, |units| units >= UNITS as u64)?;
    bound_by_aliyuns_extender(env, host, "between")?;
    install::enable_scheduler(cluster, Setup::Tested)?;
    readings_are_new(env, host)?;

    // Nobody has edited its spec.
    let mut of_crane = pod("of-crane", &[idle_container("main")]);
    of_crane["spec"]["schedulerName"] = json!("crane-scheduler");
    create(env, of_crane)?;
    running(env, "of-crane", START)?;

    // The old pod's claim is unknown, so its units are on every GPU; those of the other are on one.
    let mut used = used_units(env, host.name())?;
    used.sort_unstable();
    ensure!(used == [5, 5, 5, 9], "the units in use on the GPUs are {used:?}");
    create(env, on_node(host, pod("beside", &[gpu_container("main", 11)])))?;
    running(env, "beside", START)?;
    create(env, on_node(host, pod("too-large", &[gpu_container("main", 12)])))?;
    unschedulable(env, "too-large", BINDING)?;
    audit_pods(env, &[get(env, "between")?, get(env, "beside")?])?;

    by.end()?;
    let now = [running_process(env, "old")?, running_process(env, "plain")?];
    ensure!(now == old, "other processes run after the move: {old:?}, {now:?}");
    delete_all(env, ["old"])?;
    running(env, "too-large", START)?;
    audit_pods(env, &[get(env, "between")?, get(env, "beside")?, get(env, "too-large")?]).map(drop)
}

/// A pod of four units that Aliyun's extender binds, with Plimsoll's device plugin on the node already.
fn bound_by_aliyuns_extender(env: &TestEnv, host: &Node, name: &str) -> Result<()> {
    let mut waiting = pod(name, &[gpu_container("main", 4)]);
    waiting["spec"]["schedulerName"] = json!("as-if-aliyuns");
    create(env, waiting)?;
    let account = "system:serviceaccount:kube-system:gpushare-schd-extender";
    let extender = Caller::user(env, account, &["system:masters"])?;
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{name}");
    let annotations = json!({"metadata": {"annotations": aliyuns_annotations(16, 4, false)}});
    extender.done(env, Verb::Merge, &path, &annotations)?;
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding", "metadata": {"name": name},
        "target": {"kind": "Node", "name": host.name()},
    });
    extender.done(env, Verb::Create, &format!("{path}/binding"), &binding)?;
    running(env, name, START).map(drop)
}

fn offers(env: &TestEnv, host: &Node, fits: impl Fn(u64) -> bool) -> Result<()> {
    wait_for(&format!("what {} is to offer", host.name()), FOLLOWED, || {
        let units = offered(env, GPU)?.get(host.name()).copied().unwrap_or_default();
        ensure!(fits(units), "it offers {units} units");
        Ok(Some(()))
    })
}

/// Waits until the annotator has written a reading with a time that is not ahead.
fn readings_are_new(env: &TestEnv, host: &Node) -> Result<()> {
    let nodes: Api<NodeObject> = Api::all(env.client());
    wait_for("readings of Plimsoll's annotator", FOLLOWED, || {
        let time = time_of(&env.block_on(nodes.get(host.name()))?, READINGS[0])?;
        ensure!(time < Timestamp::now() + AHEAD / 2, "the reading of {time} is crane's");
        Ok(Some(()))
    })
}

fn running_process(env: &TestEnv, name: &str) -> Result<Pid> {
    process_of(&running(env, name, START)?, "main")
}

//! Tests of the chart: Helm installs, upgrades, rolls back and removes it; and with a scheduler of its own. They run
//! after Plimsoll was removed.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context, Result, bail, ensure};
use e2e::build::images::REGISTRY;
use e2e::cluster::chart::ChartRelease;
use e2e::cluster::install;
use e2e::command::wait_for;
use e2e::kernel::processes::{self, Pid};
use e2e::{Cluster, Load, Node};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use serde_json::{Value, json};

use super::uninstall::{no_object_is_left, scheduler_is_as_before};
use crate::env::TestEnv;
use crate::load::taints::ours as taints;
use crate::support::callers::{Caller, Verb};
use crate::support::gpu_audit::audit_exactly;
use crate::support::pods::{
    START, all_running, create, create_all, get, gpu_container, idle_container, node, pod,
    process_of, running, typed,
};
use crate::support::readings::{WRITTEN_AT_ONCE, written_from_now_on};
use crate::{Fact, on_our_nodes};

pub(crate) const FACTS: &[Fact] = &[
    on_our_nodes(
        "the_chart_is_installed_upgraded_rolled_back_and_removed_while_a_gpu_pod_keeps_its_gpu",
        chart,
    )
    .takes(110)
    .smoke(),
    on_our_nodes(
        "on_a_server_with_a_providers_suffix_the_chart_brings_a_scheduler_of_its_release_in_a_restricted_namespace",
        second_scheduler,
    )
    .takes(100),
    on_our_nodes("with_annotator_and_exporters_alone_pods_avoid_a_hot_node", taints_alone).takes(150),
    on_our_nodes("a_gpu_pod_of_the_quick_start_gets_a_gpu_of_its_script", stand_in_gpus)
        .takes(70),
];

/// Not the namespace of the other tests: nothing may depend on its name.
const NAMESPACE: &str = "load-and-cards";
/// Where the node agents are, in one test.
const AGENTS: &str = "of-each-node";
/// The tag that the programs' images have, and the one that they get for the upgrade.
const TAGS: [&str; 2] = [env!("CARGO_PKG_VERSION"), "0.0.0-next"];

/// The API server's static pod.
pub(crate) const API_SERVER: &str = "/etc/kubernetes/manifests/kube-apiserver.yaml";
/// What a provider appends to the API server's version.
const SUFFIX: &str = "-eks-3a1b2c4";
/// What the chart calls the second scheduler's Deployment.
const SCHEDULER: &str = "kube-scheduler";
/// The text that the author of a GPU pod is to add.
const LINE: &str = "schedulerName: plimsoll-scheduler";

/// A policy whose periods are seconds, from the root of this repository, and the flag for samples to match.
const SHORT_PERIODS: &str = "testing/e2e/deploy/short-periods/policy.yaml";
const SAMPLED_OFTEN: &str = "--set-string=exporter.env.PLIMSOLL_SAMPLE_INTERVAL=1s";
/// The script of docs/quick-start.md that gives a machine GPUs, from the root of this repository.
const STAND_IN: &str = "scripts/stand-in-cards.sh";
/// Its folder, in a part of the file system that each node has to itself.
const STAND_IN_FOLDER: &str = "/var/lib/plimsoll-node/stand-in";

/// A part of crane's policy.
const CRANES: &str = "scheduler.policy.crane.io";

/// Helm 3 installs, Helm 4 goes on.
fn chart(env: &TestEnv) -> Result<()> {
    let cluster = env.cluster()?;
    without_plimsoll(env)?;
    let release = ChartRelease::new(cluster, NAMESPACE, "helm4")?;
    let by_helm_3 = ChartRelease::new(cluster, NAMESPACE, "helm3")?;
    removed_after(env, &release, || {
        by_helm_3.install(&[])?;
        by_helm_3.enable_scheduler()?;
        upgraded_and_rolled_back(env, &release)
    })?;
    scheduler_is_as_before(cluster, cluster.nodes().first().context("no node")?)?;
    no_object_is_left(env, NAMESPACE)
}

/// Removes Plimsoll, where an earlier test has not.
pub(super) fn without_plimsoll(env: &TestEnv) -> Result<()> {
    let cluster = env.cluster()?;
    if install::installed(cluster)?.is_some() {
        install::uninstall(cluster)?;
        env.note_uninstalled();
    }
    Ok(())
}

/// Does `work`, then deletes all pods and removes the release. Also after a failure: the next test's setup has objects
/// of the same names.
pub(super) fn removed_after(
    env: &TestEnv,
    release: &ChartRelease<'_>,
    work: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let done = work();
    env.delete_all_pods()?;
    let removed = release.uninstall();
    done?;
    removed
}

/// The control plane stays as kubeadm made it, but for the version that the API server tells. What needs the host is in
/// a namespace of its own.
fn second_scheduler(env: &TestEnv) -> Result<()> {
    let cluster = env.cluster()?;
    without_plimsoll(env)?;
    let control_plane = cluster.nodes().first().context("no node")?;
    let manifest = control_plane.path(API_SERVER);
    let before = fs::read_to_string(&manifest)?;
    let version = cluster.release().to_string();
    let told = format!("{version}{SUFFIX}");
    let flags = format!("    - kube-apiserver\n    - --version={told}\n");
    let written = before.replacen("    - kube-apiserver\n", &flags, 1);
    ensure!(written != before, "the API server's manifest is of another form:\n{before}");
    fs::write(&manifest, written)?;
    let release = ChartRelease::new(cluster, NAMESPACE, "helm4")?.with_agents_in(AGENTS);
    let tried = removed_after(env, &release, || {
        server_is(env, &told)?;
        release.install(&[&["--set=scheduler.mode=second"], &WRITTEN_AT_ONCE[..]].concat())?;
        its_scheduler_places(env, &version)?;
        written_from_now_on(env)?;
        no_pod_sees_a_node(env)?;
        scheduler_is_as_before(cluster, control_plane)
    });
    fs::write(&manifest, before)?;
    server_is(env, &version)?;
    tried?;
    no_object_is_left(env, NAMESPACE)?;
    no_object_is_left(env, AGENTS)
}

/// The API server refuses a pod that sees the host, in the namespace whose Secrets let their holder bind pods.
fn no_pod_sees_a_node(env: &TestEnv) -> Result<()> {
    let mut on_host = typed(pod("on-host", &[idle_container("main")]));
    on_host["spec"]["hostPID"] = json!(true);
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods");
    let (status, answer) = Caller::administrator(env)?.call(env, Verb::Create, &path, &on_host)?;
    let message = answer["message"].as_str().unwrap_or_default();
    ensure!(
        status == 403 && message.contains("PodSecurity \"restricted:latest\""),
        "{status} {message}"
    );
    Ok(())
}

/// Waits until the API server tells this version.
fn server_is(env: &TestEnv, version: &str) -> Result<()> {
    wait_for(&format!("an API server of {version}"), START, || {
        let told = env.block_on(env.client().apiserver_version()).ok();
        Ok(told.is_some_and(|told| told.git_version == version).then_some(()))
    })
}

/// The Deployment's image is of the release without the suffix, and its scheduler places a GPU pod; one that does not
/// name it is refused with the line to add.
fn its_scheduler_places(env: &TestEnv, version: &str) -> Result<()> {
    let path = "jsonpath={.spec.template.spec.containers[0].image}";
    let image = ["-n", NAMESPACE, "get", "deployment", SCHEDULER, "-o", path];
    let image = env.cluster()?.kubectl_run(&image)?;
    ensure!(image == format!("registry.k8s.io/kube-scheduler:{version}"), "its image is {image}");
    let mut named = pod("by-the-second", &[gpu_container("main", 3)]);
    named["spec"]["schedulerName"] = json!("plimsoll-scheduler");
    create(env, named)?;
    running(env, "by-the-second", START)?;
    audit_exactly(env, 1)?;
    let refused = create(env, pod("nameless", &[gpu_container("main", 3)]));
    let text = refused.err().context("a GPU pod without the line was made")?.to_string();
    ensure!(text.contains(LINE), "{text}");
    Ok(())
}

/// `scheduler.mode` is `none`: kube-scheduler is as kubeadm made it, and goes by the taint.
fn taints_alone(env: &TestEnv) -> Result<()> {
    let cluster = env.cluster()?;
    without_plimsoll(env)?;
    let [cool, hot] = cluster.nodes() else { bail!("two nodes are needed") };
    let release = ChartRelease::new(cluster, NAMESPACE, "helm4")?;
    let policy = cluster.settings().sources.join(SHORT_PERIODS);
    let policy = format!("--set-file=policy.text={}", policy.display());
    let flags = ["--set=scheduler.mode=none", SAMPLED_OFTEN, &policy];
    removed_after(env, &release, || {
        hot.set_load(Load { cpu: 0.9, memory: 0.2 })?;
        release.install(&flags)?;
        scheduler_is_as_before(cluster, cool)?;
        wait_for("a taint of the hot node", START, || {
            Ok((!taints(env, hot)?.is_empty()).then_some(()))
        })?;
        let pods: Vec<_> =
            (0..4).map(|n| pod(&format!("plain-{n}"), &[idle_container("main")])).collect();
        create_all(env, pods)?;
        for placed in all_running(env, START)? {
            ensure!(node(&placed) == Some(cool.name()), "a pod is on the hot node");
        }
        ensure!(taints(env, cool)?.is_empty(), "the cool node carries a taint");
        hot.set_load(Load::IDLE)?;
        wait_for("the taint to go", START, || Ok(taints(env, hot)?.is_empty().then_some(())))
    })?;
    no_object_is_left(env, NAMESPACE)
}

/// Each node has two GPUs of the script's, in place of its own.
fn stand_in_gpus(env: &TestEnv) -> Result<()> {
    let cluster = env.cluster()?;
    without_plimsoll(env)?;
    let release = ChartRelease::new(cluster, NAMESPACE, "helm4")?;
    let library = format!("--set=nvmlHostLibrary={STAND_IN_FOLDER}");
    let tried = removed_after(env, &release, || {
        cluster.nodes().iter().try_for_each(|node| make_stand_in_gpus(cluster, node))?;
        release.install(&[&library])?;
        release.enable_scheduler()?;
        takes_a_gpu_of_the_script(env)
    });
    for node in cluster.nodes() {
        // What docs/install.md names as left: by its file of GPUs the next device plugin would list the script's as
        // lost ones.
        node.run(&["rm", "-rf", STAND_IN_FOLDER, "/run/plimsoll-gpu"])?;
        node.set_cdi(true)?;
    }
    cluster.kubectl_run(&["annotate", "nodes", "--all", "plimsoll.dev/gpu-cards-"])?;
    tried
}

fn make_stand_in_gpus(cluster: &Cluster, node: &Node) -> Result<()> {
    node.set_cdi(false)?;
    node.run(&["mkdir", "-p", STAND_IN_FOLDER])?;
    for library in ["libnvidia-ml.so.1", "libcuda.so.1"] {
        let library = format!("/var/lib/plimsoll-node/nvidia/{library}");
        node.run(&["cp", &library, STAND_IN_FOLDER])?;
    }
    let script = cluster.settings().sources.join(STAND_IN);
    let folder = format!("FOLDER={STAND_IN_FOLDER}");
    let said = node.run(&["env", &folder, "CARDS=2", "sh", &script.to_string_lossy()])?;
    ensure!(said.contains("has 2 GPUs of 16384 MiB"), "{said}");
    // Again, as after a change of mind.
    node.run(&["env", &folder, "CARDS=2", "sh", &script.to_string_lossy()]).map(drop)
}

/// Half of the memory of each GPU, on each node: all of them are used.
fn takes_a_gpu_of_the_script(env: &TestEnv) -> Result<()> {
    let names: Vec<String> = (0..4).map(|number| format!("quick-{number}")).collect();
    for name in &names {
        create(env, pod(name, &[gpu_container("main", 9)]))?;
    }
    let mut seen = BTreeSet::new();
    for name in &names {
        running(env, name, START)?;
        let process = process_of(&get(env, name)?, "main")?;
        let environment = processes::environ(process)?;
        let uuid = environment.get("PLIMSOLL_GPU_UUID").context("no GPU is told")?.clone();
        let claimed = get(env, name)?;
        let host = env.cluster()?.node(node(&claimed).context("no node")?)?;
        let script = fs::read_to_string(host.path(STAND_IN_FOLDER).join("nvml-script.json"))?;
        let script: Value = serde_json::from_str(&script)?;
        let gpu = script["cards"].as_array().into_iter().flatten().find(|it| it["uuid"] == *uuid);
        let minor = gpu.with_context(|| format!("{uuid} is not of the script"))?["minor"].clone();
        let devices = processes::numbered_devices(process, "nvidia")?;
        let numbers: Vec<u8> = devices.into_iter().map(|(number, _)| number).collect();
        ensure!(json!(numbers) == json!([minor]), "{name} on {uuid} has the devices {numbers:?}");
        seen.insert(uuid);
    }
    ensure!(seen.len() == names.len(), "pods of 9 units share GPUs of 16: {seen:?}");
    Ok(())
}

fn upgraded_and_rolled_back(env: &TestEnv, release: &ChartRelease<'_>) -> Result<()> {
    let first = claimed(env, "before", 1)?;
    tag_again(env)?;
    release.upgrade(&[&format!("--set=image.tag={}", TAGS[1]), "--set=policy.crane=true"])?;
    images_have_tag(env, TAGS[1])?;
    ensure!(policy(env)?.contains(CRANES), "the policy is the former one");
    claimed(env, "upgraded", 2)?;
    release.rollback("1", &[])?;
    images_have_tag(env, TAGS[0])?;
    ensure!(!policy(env)?.contains(CRANES), "the policy is crane's still");
    claimed(env, "rolled-back", 3)?;
    ensure!(
        process_of(&get(env, "before")?, "main")? == first,
        "the first pod's process was replaced"
    );
    Ok(())
}

fn images_have_tag(env: &TestEnv, tag: &str) -> Result<()> {
    let found = tags(env)?;
    ensure!(found == BTreeSet::from([tag.to_owned()]), "the images have the tags {found:?}");
    Ok(())
}

/// Creates a GPU pod, and waits until it runs on the GPU that it claims, as do all `running` GPU pods.
fn claimed(env: &TestEnv, name: &str, running_pods: usize) -> Result<Pid> {
    create(env, pod(name, &[gpu_container("main", 3)]))?;
    running(env, name, START)?;
    audit_exactly(env, running_pods)?;
    process_of(&get(env, name)?, "main")
}

/// Gives the programs' images in each node a second tag, as if a release had brought them.
fn tag_again(env: &TestEnv) -> Result<()> {
    for node in env.cluster()?.nodes() {
        for program in e2e::build::programs::PROGRAMS {
            let [tag, next] = TAGS.map(|tag| format!("{REGISTRY}/{program}:{tag}"));
            node.name_image_again(&tag, &next)?;
        }
    }
    Ok(())
}

/// The tags of the images of all pods of the namespace that are not ending.
fn tags(env: &TestEnv) -> Result<BTreeSet<String>> {
    let pods: Api<Pod> = Api::namespaced(env.client(), NAMESPACE);
    let mut tags = BTreeSet::new();
    for pod in env.block_on(pods.list(&ListParams::default()))? {
        let containers = pod.spec.map(|spec| spec.containers).unwrap_or_default();
        if pod.metadata.deletion_timestamp.is_none() {
            let images = containers.into_iter().filter_map(|container| container.image);
            tags.extend(images.filter_map(|image| Some(image.rsplit_once(':')?.1.to_owned())));
        }
    }
    Ok(tags)
}

fn policy(env: &TestEnv) -> Result<String> {
    let text = "jsonpath={.data.policy\\.yaml}";
    env.cluster()?.kubectl_run(&["-n", NAMESPACE, "get", "configmap", "policy", "-o", text])
}

//! A test of the chart: Helm installs, upgrades, rolls back and removes it. It runs after Plimsoll was removed.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use e2e::build::images::REGISTRY;
use e2e::cluster::chart::ChartRelease;
use e2e::cluster::install;
use e2e::kernel::processes::Pid;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};

use super::uninstall::{no_object_is_left, scheduler_is_as_before};
use crate::env::TestEnv;
use crate::support::card_audit::audit_exactly;
use crate::support::pods::{START, create, get, gpu_container, pod, processes_of, running};
use crate::{Fact, on_our_nodes};

pub(crate) const FACTS: &[Fact] = &[on_our_nodes(
    "the_chart_is_installed_upgraded_rolled_back_and_removed_while_a_gpu_pod_keeps_its_card",
    chart,
)
.takes(110)
.smoke()];

/// Not the namespace of the other tests: nothing may depend on its name.
const NAMESPACE: &str = "load-and-cards";
/// The tag that the programs' images have, and the one that they get for the upgrade.
const TAGS: [&str; 2] = [env!("CARGO_PKG_VERSION"), "0.0.0-next"];

/// A part of crane's policy.
const CRANES: &str = "scheduler.policy.crane.io";

/// Helm 3 installs, Helm 4 goes on.
fn chart(env: &TestEnv) -> Result<()> {
    let cluster = env.cluster()?;
    if install::installed(cluster)?.is_some() {
        install::uninstall(cluster)?;
        env.note_uninstalled();
    }
    let release = ChartRelease::new(cluster, NAMESPACE, "helm4")?;
    let installed = ChartRelease::new(cluster, NAMESPACE, "helm3")?.install();
    let tried = installed.and_then(|()| upgraded_and_rolled_back(env, &release));
    env.delete_all_pods()?;
    // Also after a failure: the next test's setup has objects of the same names.
    let removed = release.uninstall();
    tried?;
    removed?;
    scheduler_is_as_before(cluster, cluster.nodes().first().context("no node")?)?;
    no_object_is_left(env, NAMESPACE)
}

fn upgraded_and_rolled_back(env: &TestEnv, release: &ChartRelease<'_>) -> Result<()> {
    let first = claimed(env, "before", 1)?;
    tag_again(env)?;
    release.upgrade(&[&format!("image.tag={}", TAGS[1]), "policy.crane=true"])?;
    images_have_tag(env, TAGS[1])?;
    ensure!(policy(env)?.contains(CRANES), "the policy is the former one");
    claimed(env, "upgraded", 2)?;
    release.rollback("1")?;
    images_have_tag(env, TAGS[0])?;
    ensure!(!policy(env)?.contains(CRANES), "the policy is crane's still");
    claimed(env, "rolled-back", 3)?;
    ensure!(process_of(env, "before")? == first, "the first pod's process was replaced");
    Ok(())
}

fn images_have_tag(env: &TestEnv, tag: &str) -> Result<()> {
    let found = tags(env)?;
    ensure!(found == BTreeSet::from([tag.to_owned()]), "the images have the tags {found:?}");
    Ok(())
}

/// Creates a GPU pod, and waits until it runs on the card that it claims, as do all `running` GPU pods.
fn claimed(env: &TestEnv, name: &str, running_pods: usize) -> Result<Pid> {
    create(env, pod(name, &[gpu_container("main", 3)]))?;
    running(env, name, START)?;
    audit_exactly(env, running_pods)?;
    process_of(env, name)
}

fn process_of(env: &TestEnv, name: &str) -> Result<Pid> {
    processes_of(&get(env, name)?, "main")?.first().copied().context("no process")
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

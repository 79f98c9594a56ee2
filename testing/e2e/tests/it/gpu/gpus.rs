//! Tests of GPU pods: each process sees the GPU of its claim, and no GPU holds more units than it has.

use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use e2e::build::images::BUSYBOX;
use e2e::command::wait_for;
use e2e::node::Node;
use e2e::node::gpus::{GPU_MIB, GPUS};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::aliyun::{FOLLOWED, healthy_gpus, reported_gpus};
use crate::env::TestEnv;
use crate::support::callers::{Caller, Verb};
use crate::support::figures::{Clock, Delays};
use crate::support::gpu_audit::{audit_exactly, claim, visible_gpu};
use crate::support::kubelet_checkpoint::{self, Held};
use crate::support::pods::{
    GPU, START, all_running, create, create_all, delete_all, gpu_container, gpu_pods, list, name,
    node, on_node, pod, processes_of, running, uid, unschedulable,
};
use crate::{Fact, on_our_nodes};

pub(crate) const FACTS: &[Fact] = &[
    on_our_nodes("a_gpu_pods_process_sees_its_claimed_gpu_and_no_other", one_pod).takes(1).smoke(),
    on_our_nodes(
        "forty_gpu_pods_at_once_and_their_refill_are_each_on_their_claimed_gpu",
        forty_pods,
    )
    .takes(32)
    .smoke(),
    on_our_nodes("the_containers_of_a_pod_share_its_gpu", two_containers).takes(5).smoke(),
    on_our_nodes(
        "an_app_container_is_on_the_gpu_whose_ids_its_init_container_had",
        init_containers,
    )
    .takes(5)
    .smoke(),
    on_our_nodes("the_room_beside_a_failed_gpu_that_pods_hold_is_schedulable", failed_gpu)
        .takes(3)
        .smoke(),
    on_our_nodes("a_node_whose_runtime_can_start_no_gpu_pod_gets_none_until_it_can", no_black_hole)
        .takes(40)
        .smoke(),
    on_our_nodes("a_gpu_on_which_cuda_opens_no_context_takes_no_pods_until_it_does", no_context)
        .takes(40),
    on_our_nodes("gpus_that_a_dra_driver_offers_take_no_pods_until_it_does_no_more", by_dra)
        .takes(10),
];

const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";
/// Of the slice, and of its driver.
const OTHER_DRIVER: &str = "gpu.plimsoll-e2e.example";

fn one_pod(env: &TestEnv) -> Result<()> {
    let clock = Clock::now()?;
    create(env, pod("one", &[gpu_container("main", 3)]))?;
    let pods = all_running(env, START)?;
    audit_exactly(env, 1)?;
    env.figure("pod_to_process_ms_alone", Delays::of(&clock, &pods)?.summary());
    Ok(())
}

/// Five pods of three units fill a GPU of 16 but for one unit, so forty of them fill all eight GPUs.
fn forty_pods(env: &TestEnv) -> Result<()> {
    let clock = Clock::now()?;
    create_all(env, gpu_pods("forty", 40, 3))?;
    let pods = all_running(env, START)?;
    audit_exactly(env, 40)?;
    env.figure("pod_to_process_ms_forty", Delays::of(&clock, &pods)?.summary());
    refill(env, "refill", 3)
}

/// Deletes every second pod and creates as many before those have ended.
pub(crate) fn refill(env: &TestEnv, prefix: &str, units: u64) -> Result<()> {
    let pods = list(env)?;
    let deleted: Vec<&str> = pods.iter().step_by(2).map(name).collect();
    delete_all(env, deleted.iter().copied())?;
    create_all(env, gpu_pods(prefix, deleted.len(), units))?;
    all_running(env, START)?;
    audit_exactly(env, pods.len())
}

fn two_containers(env: &TestEnv) -> Result<()> {
    create_all(env, (0..8).map(pod_of_two_containers).collect())?;
    for pod in all_running(env, START)? {
        ensure!(gpu(&pod, "a")? == gpu(&pod, "b")?, "{} is on two GPUs", name(&pod));
    }
    audit_exactly(env, 8)
}

fn pod_of_two_containers(n: usize) -> Value {
    pod(&format!("two-{n}"), &[gpu_container("a", 2), gpu_container("b", 5)])
}

/// Init containers with more, fewer and as many units as the app container. The kubelet reuses ids in each case.
fn init_containers(env: &TestEnv) -> Result<()> {
    let started = Instant::now();
    let shapes = [(4, 2), (2, 4), (3, 3), (1, 5), (6, 6), (5, 1)];
    let pods = shapes.iter().enumerate().map(|(n, (init, app))| {
        let mut pod = pod(&format!("init-{n}"), &[gpu_container("main", *app)]);
        pod["spec"]["initContainers"] = json!([reporter(*init)]);
        pod
    });
    create_all(env, pods.collect())?;
    let pods = all_running(env, START)?;
    pods.iter().try_for_each(|pod| init_and_app_agree(env, pod))?;
    env.figure("init_pods_s", format!("{:.1}", started.elapsed().as_secs_f64()));
    audit_exactly(env, shapes.len())
}

/// Three pods fill three GPUs of a node, and one of these GPUs fails. kube-scheduler counts the units of all three
/// pods, so the room of the fourth GPU is schedulable only while the kubelet counts the failed GPU's held units as
/// allocatable.
fn failed_gpu(env: &TestEnv) -> Result<()> {
    let host = &env.cluster()?.nodes()[1];
    let units = GPU_MIB / 1024;
    create_all(
        env,
        (0..usize::from(GPUS) - 1)
            .map(|n| on_node(host, pod(&format!("full-{n}"), &[gpu_container("main", units)])))
            .collect(),
    )?;
    let pods = all_running(env, START)?;
    let failed = gpu(&pods[0], "main")?;
    let others = usize::from(GPUS) - 1;
    let tried = host.set_gpu_health(&failed, false).and_then(|()| {
        wait_for("the node to report the GPU", FOLLOWED, || {
            Ok((healthy_gpus(env, host)?.len() == others).then_some(()))
        })?;
        create(env, on_node(host, pod("beside", &[gpu_container("main", 4)])))?;
        let beside = running(env, "beside", START)?;
        ensure!(gpu(&beside, "main")? != failed, "it is on the failed GPU");
        Ok(())
    });
    tried.and(host.set_gpu_health(&failed, true))
}

/// Both nodes have room for the pods, and a node on which pods fail at once would look empty for ever.
fn no_black_hole(env: &TestEnv) -> Result<()> {
    let [broken, works] = env.cluster()?.nodes() else { bail!("not two nodes") };
    broken.set_cdi(false)?;
    let tried = closed(env, broken, usize::from(GPUS)).and_then(|()| {
        create_all(env, gpu_pods("started", usize::from(GPUS), GPU_MIB / 1024))?;
        let pods = all_running(env, START)?;
        let stray = pods.iter().find(|pod| node(pod) != Some(works.name()));
        ensure!(stray.is_none(), "{:?} is not on {}", stray.map(name), works.name());
        create(env, pod("waits", &[gpu_container("main", 4)]))?;
        let reason = unschedulable(env, "waits", START)?;
        ensure!(reason.contains("GPUs with room take no new pods"), "{reason}");
        audit_exactly(env, pods.len())
    });
    let mended = broken.set_cdi(true);
    tried.and(mended)?;
    closed(env, broken, 0)?;
    let last = running(env, "waits", START)?;
    ensure!(node(&last) == Some(broken.name()), "waits is on {:?}", node(&last));
    audit_exactly(env, usize::from(GPUS) + 1)
}

/// Both nodes have room for the pods, and a DRA driver offers the GPUs of one.
fn by_dra(env: &TestEnv) -> Result<()> {
    let [shared, works] = env.cluster()?.nodes() else { bail!("not two nodes") };
    let devices: Vec<Value> = reported_gpus(env, shared)?
        .iter()
        .map(|gpu| {
            let name = format!("gpu-{}", gpu["index"]);
            json!({"name": name, "attributes": {"uuid": {"string": gpu["uuid"]}}})
        })
        .collect();
    let slice = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": OTHER_DRIVER},
        "spec": {
            "driver": OTHER_DRIVER, "nodeName": shared.name(), "devices": devices,
            "pool": {"name": shared.name(), "generation": 1, "resourceSliceCount": 1},
        },
    });
    Caller::administrator(env)?.done(env, Verb::Create, SLICES, &slice)?;
    let tried = closed(env, shared, usize::from(GPUS)).and_then(|()| {
        create_all(env, gpu_pods("started", usize::from(GPUS), GPU_MIB / 1024))?;
        let pods = all_running(env, START)?;
        let stray = pods.iter().find(|pod| node(pod) != Some(works.name()));
        ensure!(stray.is_none(), "{:?} is not on {}", stray.map(name), works.name());
        audit_exactly(env, pods.len())
    });
    let removed = env.remove(&format!("{SLICES}/{OTHER_DRIVER}"));
    tried.and(removed)?;
    closed(env, shared, 0)
}

/// The real probe asks the stand-in library when the GPU's health has come back, and after a failure once more.
fn no_context(env: &TestEnv) -> Result<()> {
    let host = &env.cluster()?.nodes()[1];
    let broken = reported_gpus(env, host)?[0]["uuid"].as_str().context("no UUID")?.to_owned();
    let asked = |error: Option<i32>| {
        host.set_gpu_cuda(&broken, error)?;
        host.set_gpu_health(&broken, false)?;
        let fewer = usize::from(GPUS) - 1;
        let reported = wait_for("the node to report the GPU", FOLLOWED, || {
            Ok((healthy_gpus(env, host)?.len() == fewer).then_some(()))
        });
        reported.and(host.set_gpu_health(&broken, true))
    };
    let tried = asked(Some(802)).and_then(|()| closed(env, host, 1)).and_then(|()| {
        let why = reported_gpus(env, host)?[0]["closed"].clone();
        ensure!(why == "context", "{why}");
        for number in 1..GPUS {
            let name = format!("beside-{number}");
            create(env, on_node(host, pod(&name, &[gpu_container("main", GPU_MIB / 1024)])))?;
            let beside = running(env, &name, START)?;
            ensure!(gpu(&beside, "main")? != broken, "{name} is on the GPU that CUDA cannot use");
        }
        create(env, on_node(host, pod("waits", &[gpu_container("main", 4)])))?;
        let reason = unschedulable(env, "waits", START)?;
        ensure!(reason.contains("GPUs with room take no new pods"), "{reason}");
        Ok(())
    });
    let mended = asked(None);
    tried.and(mended)?;
    closed(env, host, 0)?;
    let last = running(env, "waits", START)?;
    ensure!(gpu(&last, "main")? == broken, "waits is on another GPU");
    audit_exactly(env, usize::from(GPUS))
}

/// Waits until the node reports this number of its GPUs as taking no new pods.
pub(crate) fn closed(env: &TestEnv, host: &Node, number: usize) -> Result<()> {
    wait_for(&format!("{number} closed GPUs on {}", host.name()), FOLLOWED, || {
        let closed =
            reported_gpus(env, host)?.iter().filter(|gpu| gpu.get("closed").is_some()).count();
        Ok((closed == number).then_some(()))
    })
}

/// An init container that writes its GPU to its termination message.
fn reporter(units: u64) -> Value {
    json!({
        "name": "init", "image": BUSYBOX, "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", "echo -n $PLIMSOLL_GPU_UUID >/dev/termination-log"],
        "resources": {"limits": {GPU: units}},
    })
}

fn init_and_app_agree(env: &TestEnv, pod: &Pod) -> Result<()> {
    let used = gpu(pod, "main")?;
    let initial = termination_message(pod).context("the init container has no message")?;
    ensure!(initial == used, "{}: init on {initial}, app on {used}", name(pod));
    let claimed = claim(pod)?;
    ensure!(
        claimed.values().all(|gpus| gpus.keys().eq([&used])),
        "{} claims {claimed:?} but uses {used}",
        name(pod)
    );
    reuses_ids(env, pod)
}

fn termination_message(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?.init_container_statuses.as_ref()?.first()?;
    status.state.as_ref()?.terminated.as_ref()?.message.clone()
}

/// Whether the app container has as many of the init container's ids as it can, by the kubelet's checkpoint.
fn reuses_ids(env: &TestEnv, pod: &Pod) -> Result<()> {
    let held = kubelet_checkpoint::read(env.cluster()?.node(node(pod).unwrap_or_default())?)?;
    let init = ids_of(&held, pod, "init")?;
    let app = ids_of(&held, pod, "main")?;
    let shared = app.iter().filter(|id| init.contains(id)).count();
    ensure!(shared == init.len().min(app.len()), "{}: {init:?} then {app:?}", name(pod));
    Ok(())
}

fn ids_of<'held>(held: &'held [Held], pod: &Pod, container: &str) -> Result<&'held Vec<String>> {
    let mine = held.iter().find(|held| held.pod_uid == uid(pod) && held.container == container);
    mine.map(|held| &held.ids).with_context(|| format!("no record of {container}"))
}

fn gpu(pod: &Pod, container: &str) -> Result<String> {
    let processes = processes_of(pod, container)?;
    visible_gpu(*processes.first().context("no process")?)
}

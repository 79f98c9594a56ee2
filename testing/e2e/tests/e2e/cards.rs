//! Facts about GPU pods: each process is on the card of its claim, and no card carries more than it has.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use e2e::images::BUSYBOX;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::audit::{audit_exactly, claim, seen};
use crate::figures::{Clock, Delays};
use crate::pods::{
    GPU, START, all_running, create, create_all, delete_all, gpu_container, gpu_pods, list, name,
    node, pod, processes_of, uid,
};
use crate::world::World;
use crate::{Fact, local, records};

pub(crate) const FACTS: &[Fact] = &[
    local("a_gpu_pods_process_sees_its_claimed_card_and_no_other", one_pod),
    local("forty_gpu_pods_at_once_and_their_refill_are_each_on_their_claimed_card", forty_pods),
    local("the_containers_of_a_pod_share_its_card", two_containers),
    local("an_app_container_is_on_the_card_whose_ids_its_init_container_had", init_containers),
];

fn one_pod(world: &World) -> Result<()> {
    let clock = Clock::start()?;
    create(world, pod("one", &[gpu_container("main", 3)]))?;
    let pods = all_running(world, START)?;
    audit_exactly(world, 1)?;
    world.figure("pod_to_process_ms_alone", Delays::of(&clock, &pods)?.shown());
    Ok(())
}

/// Five pods of three units fill a card but for one unit, so forty of them leave no choice on eight cards.
fn forty_pods(world: &World) -> Result<()> {
    let clock = Clock::start()?;
    create_all(world, gpu_pods("forty", 40, 3))?;
    let pods = all_running(world, START)?;
    audit_exactly(world, 40)?;
    world.figure("pod_to_process_ms_forty", Delays::of(&clock, &pods)?.shown());
    refill(world, "refill", 3)
}

/// Deletes every second pod and creates as many while they still end.
pub(crate) fn refill(world: &World, prefix: &str, units: u64) -> Result<()> {
    let pods = list(world)?;
    let doomed: Vec<&str> = pods.iter().step_by(2).map(name).collect();
    delete_all(world, doomed.iter().copied())?;
    create_all(world, gpu_pods(prefix, doomed.len(), units))?;
    all_running(world, START)?;
    audit_exactly(world, pods.len())
}

fn two_containers(world: &World) -> Result<()> {
    let two = |n| pod(&format!("two-{n}"), &[gpu_container("a", 2), gpu_container("b", 5)]);
    create_all(world, (0..8).map(two).collect())?;
    for pod in all_running(world, START)? {
        ensure!(card(&pod, "a")? == card(&pod, "b")?, "{} is on two cards", name(&pod));
    }
    audit_exactly(world, 8)
}

/// More, fewer and as many units as the app container after it: the kubelet reuses ids in each of them.
fn init_containers(world: &World) -> Result<()> {
    let started = Instant::now();
    let shapes = [(4, 2), (2, 4), (3, 3), (1, 5), (6, 6), (5, 1)];
    let pods = shapes.iter().enumerate().map(|(n, (init, app))| {
        let mut pod = pod(&format!("init-{n}"), &[gpu_container("main", *app)]);
        pod["spec"]["initContainers"] = json!([reporter(*init)]);
        pod
    });
    create_all(world, pods.collect())?;
    let pods = all_running(world, START)?;
    pods.iter().try_for_each(|pod| init_and_app_agree(world, pod))?;
    world.figure("init_pods_s", format!("{:.1}", started.elapsed().as_secs_f64()));
    audit_exactly(world, shapes.len())
}

/// Says in its last words which card it was given.
fn reporter(units: u64) -> Value {
    json!({
        "name": "init", "image": BUSYBOX, "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", "echo -n $PLIMSOLL_GPU_UUID >/dev/termination-log"],
        "resources": {"limits": {GPU: units}},
    })
}

fn init_and_app_agree(world: &World, pod: &Pod) -> Result<()> {
    let used = card(pod, "main")?;
    let said = last_words(pod).context("the init container left no word")?;
    ensure!(said == used, "{}: init on {said}, app on {used}", name(pod));
    let claimed = claim(pod)?;
    ensure!(
        claimed.values().all(|cards| cards.keys().eq([&used])),
        "{} claims {claimed:?} but uses {used}",
        name(pod)
    );
    reuses_ids(world, pod)
}

fn last_words(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?.init_container_statuses.as_ref()?.first()?;
    status.state.as_ref()?.terminated.as_ref()?.message.clone()
}

/// By the kubelet's own record.
fn reuses_ids(world: &World, pod: &Pod) -> Result<()> {
    let held = records::of(world.cluster()?.node(node(pod).unwrap_or_default())?)?;
    let of = |container: &str| {
        let mine = held.iter().find(|held| held.pod_uid == uid(pod) && held.container == container);
        mine.map(|held| &held.ids).with_context(|| format!("no record of {container}"))
    };
    let (init, app) = (of("init")?, of("main")?);
    let shared = app.iter().filter(|id| init.contains(id)).count();
    ensure!(shared == init.len().min(app.len()), "{}: {init:?} then {app:?}", name(pod));
    Ok(())
}

fn card(pod: &Pod, container: &str) -> Result<String> {
    let processes = processes_of(pod, container)?;
    seen(*processes.first().context("no process")?)
}

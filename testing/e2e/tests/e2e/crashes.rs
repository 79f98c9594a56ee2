//! Facts about sudden ends: whoever is killed with SIGKILL, running pods stay as they are and new ones place rightly.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::command::wait_for;
use e2e::processes::{self, Pid, Signal};
use k8s_openapi::api::core::v1::Pod;

use crate::audit::audit_exactly;
use crate::pods::{
    START, all_running, all_running_in_the_end, create, create_all, gpu_container, gpu_pods,
    idle_container, list, name, pod, processes_of, statuses,
};
use crate::world::World;
use crate::{Fact, local};

pub(crate) const FACTS: &[Fact] = &[
    local("a_killed_extender_leaves_running_pods_and_places_new_ones", |world| {
        program_killed(world, "scheduler-extender")
    }),
    local("a_killed_annotator_leaves_running_pods_and_places_new_ones", |world| {
        program_killed(world, "annotator")
    }),
    local("a_killed_exporter_leaves_running_pods_and_places_new_ones", |world| {
        program_killed(world, "node-exporter-plus")
    }),
    local("a_killed_device_plugin_leaves_running_pods_and_places_new_ones", |world| {
        program_killed(world, "gpushare-device-plugin")
    }),
    local("a_killed_kubelet_leaves_running_pods_and_places_new_ones", |world| {
        service_killed(world, "kubelet")
    }),
    local("a_killed_containerd_leaves_running_pods_and_places_new_ones", |world| {
        service_killed(world, "containerd")
    }),
];

/// What must not change: each container's processes with their start times, and its count of restarts.
type Untouched = BTreeMap<(String, String), (Vec<(i32, Option<u64>)>, i32)>;

fn program_killed(world: &World, program: &str) -> Result<()> {
    let before = started(world)?;
    let killed = world.programs(program)?;
    ensure!(!killed.is_empty(), "{program} does not run");
    processes::kill_all(&killed)?;
    // While a node's plugin is away its kubelet offers no units, and refuses pods bound in that moment for good.
    if program == "gpushare-device-plugin" {
        returned(world, program, &killed)?;
    }
    later_pods_place(world, &before, all_running)?;
    returned(world, program, &killed)
}

fn service_killed(world: &World, service: &str) -> Result<()> {
    let before = started(world)?;
    for node in world.cluster()?.nodes() {
        node.signal(service, Signal::KILL)?;
    }
    let settled = if service == "kubelet" { all_running_in_the_end } else { all_running };
    later_pods_place(world, &before, settled)
}

fn started(world: &World) -> Result<Untouched> {
    create_all(world, gpu_pods("before", 6, 3))?;
    create(world, pod("before-plain", &[idle_container("main")]))?;
    untouched(&all_running(world, START)?)
}

/// How the pods' start is waited for.
type Settled = fn(&World, Duration) -> Result<Vec<Pod>>;

fn later_pods_place(world: &World, before: &Untouched, settled: Settled) -> Result<()> {
    create_all(world, gpu_pods("after", 6, 5))?;
    create(world, pod("after-two", &[gpu_container("a", 1), gpu_container("b", 2)]))?;
    create(world, pod("after-plain", &[idle_container("main")]))?;
    settled(world, START)?;
    audit_exactly(world, 13)?;
    let pods = list(world)?;
    let earlier: Vec<Pod> =
        pods.into_iter().filter(|pod| name(pod).starts_with("before")).collect();
    let now = untouched(&earlier)?;
    ensure!(*before == now, "running pods changed: {before:?} became {now:?}");
    Ok(())
}

fn untouched(pods: &[Pod]) -> Result<Untouched> {
    let mut all = Untouched::new();
    for pod in pods {
        for status in statuses(pod) {
            let processes = processes_of(pod, &status.name)?;
            let dated =
                processes.iter().map(|pid| (number(*pid), processes::started(*pid))).collect();
            let key = (name(pod).to_owned(), status.name.clone());
            all.insert(key, (dated, status.restart_count));
        }
    }
    Ok(all)
}

/// Waits until every pod of the program has new processes and is ready.
fn returned(world: &World, program: &str, killed: &[Pid]) -> Result<()> {
    wait_for(&format!("{program} to return"), Duration::from_secs(120), || {
        let now = world.programs(program)?;
        let anew = now.len() >= killed.len() && now.iter().all(|pid| !killed.contains(pid));
        Ok((anew && world.program_ready(program)?).then_some(()))
    })
    .context("the kubelet restarts a killed container")
}

fn number(pid: Pid) -> i32 {
    pid.as_raw_nonzero().get()
}

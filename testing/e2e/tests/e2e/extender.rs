//! Facts about an extender that is away: pods without GPUs never wait for it, GPU pods always do.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::command::wait_for;
use e2e::processes::{self, Signal};

use crate::audit::audit_exactly;
use crate::pods::{START, create, gpu_container, idle_container, pod, running, unschedulable};
use crate::world::World;
use crate::{Fact, local};

pub(crate) const FACTS: &[Fact] = &[
    local("while_the_extender_is_stopped_plain_pods_schedule_and_gpu_pods_wait", stopped),
    local("while_the_extender_hangs_plain_pods_schedule_and_gpu_pods_wait", hanging),
];

const EXTENDER: &str = "scheduler-extender";

fn stopped(world: &World) -> Result<()> {
    scale(world, 0)?;
    wait_for("the extender to be gone", Duration::from_secs(60), || {
        Ok(world.programs(EXTENDER)?.is_empty().then_some(()))
    })?;
    let seen = plain_schedules_and_gpu_waits(world);
    scale(world, 1)?;
    seen?;
    gpu_is_placed(world)
}

fn hanging(world: &World) -> Result<()> {
    let processes = world.programs(EXTENDER)?;
    ensure!(!processes.is_empty(), "the extender does not run");
    processes::signal_all(&processes, Signal::STOP)?;
    let seen = plain_schedules_and_gpu_waits(world);
    // Its liveness probe may have had it replaced by now.
    let _ = processes::signal_all(&processes, Signal::CONT);
    seen?;
    gpu_is_placed(world)
}

fn plain_schedules_and_gpu_waits(world: &World) -> Result<()> {
    create(world, pod("plain", &[idle_container("main")]))?;
    running(world, "plain", Duration::from_secs(20))?;
    create(world, pod("gpu", &[gpu_container("main", 4)]))?;
    unschedulable(world, "gpu", Duration::from_secs(30))?;
    create(world, pod("plain-behind-gpu", &[idle_container("main")]))?;
    running(world, "plain-behind-gpu", Duration::from_secs(30)).map(drop)
}

fn gpu_is_placed(world: &World) -> Result<()> {
    running(world, "gpu", START)?;
    audit_exactly(world, 1)
}

fn scale(world: &World, replicas: usize) -> Result<()> {
    let (workload, count) = (format!("deployment/{EXTENDER}"), format!("--replicas={replicas}"));
    world.cluster()?.kubectl_run(&["-n", "plimsoll", "scale", &workload, &count]).map(drop)
}

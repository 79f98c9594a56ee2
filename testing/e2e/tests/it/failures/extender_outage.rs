//! Tests without a working extender: pods without GPUs are scheduled, GPU pods wait.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::kernel::processes::{self, Signal};

use crate::env::TestEnv;
use crate::support::card_audit::audit_exactly;
use crate::support::extender_client::{EXTENDER, REPLICAS};
use crate::support::pods::{
    START, create, gpu_container, idle_container, pod, running, unschedulable,
};
use crate::{Fact, on_our_nodes};

pub(crate) const FACTS: &[Fact] = &[
    on_our_nodes("while_the_extender_is_stopped_plain_pods_schedule_and_gpu_pods_wait", stopped),
    on_our_nodes("while_the_extender_hangs_plain_pods_schedule_and_gpu_pods_wait", hanging),
];

fn stopped(env: &TestEnv) -> Result<()> {
    env.scale(EXTENDER, 0)?;
    let waited = plain_schedules_and_gpu_waits(env);
    env.scale(EXTENDER, REPLICAS)?;
    waited?;
    gpu_is_placed(env)
}

fn hanging(env: &TestEnv) -> Result<()> {
    let processes = env.programs(EXTENDER)?;
    ensure!(!processes.is_empty(), "the extender does not run");
    processes::signal_all(&processes, Signal::STOP)?;
    let waited = plain_schedules_and_gpu_waits(env);
    // The process may be gone: the kubelet restarts a container whose liveness probe fails.
    let _ = processes::signal_all(&processes, Signal::CONT);
    waited?;
    gpu_is_placed(env)
}

fn plain_schedules_and_gpu_waits(env: &TestEnv) -> Result<()> {
    create(env, pod("plain", &[idle_container("main")]))?;
    running(env, "plain", Duration::from_secs(20))?;
    create(env, pod("gpu", &[gpu_container("main", 4)]))?;
    unschedulable(env, "gpu", Duration::from_secs(30))?;
    create(env, pod("plain-behind-gpu", &[idle_container("main")]))?;
    running(env, "plain-behind-gpu", Duration::from_secs(30)).map(drop)
}

fn gpu_is_placed(env: &TestEnv) -> Result<()> {
    running(env, "gpu", START)?;
    audit_exactly(env, 1)
}

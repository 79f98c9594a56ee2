//! Tests without a working extender: pods without GPUs are scheduled, GPU pods wait.

use anyhow::{Result, ensure};
use e2e::command::wait_for;
use e2e::kernel::processes::{self, Signal};

use crate::env::TestEnv;
use crate::support::extender_client::{EXTENDER, REPLICAS};
use crate::support::gpu_audit::audit_exactly;
use crate::support::pods::{
    BINDING, START, create, get, gpu_container, idle_container, is_unschedulable, node, pod,
    running, runs,
};
use crate::{Fact, on_our_nodes};

pub(crate) const FACTS: &[Fact] = &[
    on_our_nodes("while_the_extender_is_stopped_plain_pods_schedule_and_gpu_pods_wait", stopped)
        .takes(11),
    on_our_nodes("while_the_extender_hangs_plain_pods_schedule_and_gpu_pods_wait", hanging)
        .takes(14),
];

fn stopped(env: &TestEnv) -> Result<()> {
    env.scale(EXTENDER, 0)?;
    let waited = plain_schedules_and_gpu_waits(env, || Ok(()));
    env.scale(EXTENDER, REPLICAS)?;
    waited?;
    gpu_is_placed(env)
}

fn hanging(env: &TestEnv) -> Result<()> {
    ensure!(!env.programs(EXTENDER)?.is_empty(), "the extender does not run");
    // Also one that was started again: it gives out GPUs only when the Lease of the one before is over.
    let waited = plain_schedules_and_gpu_waits(env, || signal_extenders(env, Signal::STOP));
    let continued = signal_extenders(env, Signal::CONT);
    waited?;
    continued?;
    gpu_is_placed(env)
}

fn signal_extenders(env: &TestEnv, signal: Signal) -> Result<()> {
    for process in env.programs(EXTENDER)? {
        // It may be gone: the kubelet restarts a container whose liveness probe fails.
        let _ = processes::signal(process, signal);
    }
    Ok(())
}

/// `stay_away` keeps the extender from answering; it is called again while a pod is waited for.
fn plain_schedules_and_gpu_waits(env: &TestEnv, stay_away: impl Fn() -> Result<()>) -> Result<()> {
    stay_away()?;
    plain_runs(env, "plain", &stay_away)?;
    create(env, pod("gpu", &[gpu_container("main", 4)]))?;
    wait_for("kube-scheduler to report gpu as unschedulable", BINDING, || {
        stay_away()?;
        let gpu = get(env, "gpu")?;
        ensure!(node(&gpu).is_none(), "gpu was bound to {:?}", node(&gpu));
        Ok(is_unschedulable(&gpu).then_some(()))
    })?;
    plain_runs(env, "plain-behind-gpu", &stay_away)?;
    let gpu = get(env, "gpu")?;
    ensure!(node(&gpu).is_none(), "gpu was bound to {:?} without an extender", node(&gpu));
    Ok(())
}

fn plain_runs(env: &TestEnv, name: &str, stay_away: impl Fn() -> Result<()>) -> Result<()> {
    create(env, pod(name, &[idle_container("main")]))?;
    wait_for(&format!("{name} to run beside an extender that is away"), START, || {
        stay_away()?;
        Ok(runs(&get(env, name)?).then_some(()))
    })
}

fn gpu_is_placed(env: &TestEnv) -> Result<()> {
    running(env, "gpu", START)?;
    audit_exactly(env, 1)?;
    // The next test asks each.
    wait_for("every extender to be ready", START, || Ok(env.program_ready(EXTENDER)?.then_some(())))
}

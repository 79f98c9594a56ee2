//! Tests of programs that are killed with SIGKILL: running pods are untouched, and later pods get the right cards.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::command::wait_for;
use e2e::kernel::processes::{self, Pid, Signal};
use k8s_openapi::api::core::v1::Pod;

use crate::env::TestEnv;
use crate::support::card_audit::audit_exactly;
use crate::support::pods::{
    START, all_running, all_running_after_refusals, create, create_all, gpu_container, gpu_pods,
    idle_container, list, name, pod, processes_of, statuses,
};
use crate::{Fact, on_our_nodes};

pub(crate) const FACTS: &[Fact] = &[
    on_our_nodes("a_killed_extender_leaves_running_pods_untouched_and_later_ones_placed", |env| {
        program_killed(env, "scheduler-extender")
    }),
    on_our_nodes("a_killed_annotator_leaves_running_pods_untouched_and_later_ones_placed", |env| {
        program_killed(env, "annotator")
    }),
    on_our_nodes("a_killed_exporter_leaves_running_pods_untouched_and_later_ones_placed", |env| {
        program_killed(env, "node-exporter-plus")
    }),
    on_our_nodes(
        "a_killed_device_plugin_leaves_running_pods_untouched_and_later_ones_placed",
        |env| program_killed(env, "gpushare-device-plugin"),
    ),
    on_our_nodes("a_killed_kubelet_leaves_running_pods_untouched_and_later_ones_placed", |env| {
        service_killed(env, "kubelet")
    }),
    on_our_nodes(
        "a_killed_containerd_leaves_running_pods_untouched_and_later_ones_placed",
        |env| service_killed(env, "containerd"),
    ),
];

/// What must not change, by pod and container: the processes with their start times, and the count of restarts.
type Snapshot = BTreeMap<(String, String), (Vec<(i32, Option<u64>)>, i32)>;

fn program_killed(env: &TestEnv, program: &str) -> Result<()> {
    let before = started(env)?;
    let killed = env.programs(program)?;
    ensure!(!killed.is_empty(), "{program} does not run");
    processes::kill_all(&killed)?;
    // Without its plugin a kubelet refuses a pod that is bound at that moment, for ever.
    if program == "gpushare-device-plugin" {
        returned(env, program, &killed)?;
    }
    later_pods_place(env, &before, all_running)?;
    returned(env, program, &killed)
}

fn service_killed(env: &TestEnv, service: &str) -> Result<()> {
    let before = started(env)?;
    for node in env.cluster()?.nodes() {
        node.signal(service, Signal::KILL)?;
    }
    let wait = if service == "kubelet" { all_running_after_refusals } else { all_running };
    later_pods_place(env, &before, wait)
}

fn started(env: &TestEnv) -> Result<Snapshot> {
    create_all(env, gpu_pods("before", 6, 3))?;
    create(env, pod("before-plain", &[idle_container("main")]))?;
    snapshot(&all_running(env, START)?)
}

/// A way to wait for the start of pods.
type Wait = fn(&TestEnv, Duration) -> Result<Vec<Pod>>;

fn later_pods_place(env: &TestEnv, before: &Snapshot, wait: Wait) -> Result<()> {
    create_all(env, gpu_pods("after", 6, 5))?;
    create(env, pod("after-two", &[gpu_container("a", 1), gpu_container("b", 2)]))?;
    create(env, pod("after-plain", &[idle_container("main")]))?;
    wait(env, START)?;
    audit_exactly(env, 13)?;
    let pods = list(env)?;
    let earlier: Vec<Pod> =
        pods.into_iter().filter(|pod| name(pod).starts_with("before")).collect();
    let now = snapshot(&earlier)?;
    ensure!(*before == now, "running pods changed: {before:?} became {now:?}");
    Ok(())
}

fn snapshot(pods: &[Pod]) -> Result<Snapshot> {
    let mut all = Snapshot::new();
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

/// Waits until every pod of the program is ready with new processes.
fn returned(env: &TestEnv, program: &str, killed: &[Pid]) -> Result<()> {
    wait_for(&format!("{program} to return"), Duration::from_secs(120), || {
        let now = env.programs(program)?;
        let replaced = now.len() >= killed.len() && now.iter().all(|pid| !killed.contains(pid));
        Ok((replaced && env.program_ready(program)?).then_some(()))
    })
    .context("the kubelet restarts a killed container")
}

fn number(pid: Pid) -> i32 {
    pid.as_raw_nonzero().get()
}

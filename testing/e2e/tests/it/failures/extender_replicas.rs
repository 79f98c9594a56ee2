//! Tests of the extender's replicas, of which one gives out cards: it is killed, and stopped. No GPU pod is lost, and
//! no card overbooked. How long pods wait is a figure.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use e2e::command::wait_for;
use e2e::kernel::processes::{self, Pid, Signal};
use k8s_openapi::api::core::v1::Pod;

use crate::env::TestEnv;
use crate::support::card_audit::audit_exactly;
use crate::support::extender_client::EXTENDER;
use crate::support::pods::{START, all_running, bound, create, gpu_container, pod, processes_of};
use crate::{Fact, on_our_nodes};

pub(crate) const FACTS: &[Fact] = &[
    on_our_nodes("when_the_leading_extender_is_killed_the_other_gives_out_cards", killed),
    on_our_nodes("when_the_leading_extender_is_stopped_the_other_gives_out_cards", stopped),
];

/// The Lease lasts 10 s.
const TAKEOVER: Duration = Duration::from_secs(60);
fn killed(env: &TestEnv) -> Result<()> {
    takes_over(env, "killed", processes::kill_all)
}

fn stopped(env: &TestEnv) -> Result<()> {
    let mut frozen = Vec::new();
    let taken = takes_over(env, "stopped", |leader| {
        frozen.extend_from_slice(leader);
        processes::signal_all(leader, Signal::STOP)
    });
    // It may be gone: the kubelet restarts a container whose liveness probe fails.
    let _ = processes::signal_all(&frozen, Signal::CONT);
    taken?;
    create(env, pod("after", &[gpu_container("main", 4)]))?;
    all_running(env, START)?;
    audit_exactly(env, 3)
}

/// Takes the leader away with a GPU pod there, and has another placed.
fn takes_over(
    env: &TestEnv,
    how: &str,
    mut take_away: impl FnMut(&[Pid]) -> Result<()>,
) -> Result<()> {
    create(env, pod("before", &[gpu_container("main", 4)]))?;
    all_running(env, START)?;
    let before = holder(env)?;
    let leader = processes_of_holder(env, &before)?;
    let gone = Instant::now();
    take_away(&leader)?;
    create(env, pod("meanwhile", &[gpu_container("main", 4)]))?;
    wait_for("another extender to lead", TAKEOVER, || {
        let now = holder(env)?;
        Ok((!now.is_empty() && now != before).then_some(()))
    })?;
    env.figure(
        &format!("seconds until another extender leads, the first {how}"),
        tenths(gone.elapsed()),
    );
    bound(env, "meanwhile", 2 * TAKEOVER)?;
    env.figure(
        &format!("seconds until a gpu pod is bound, the leader {how}"),
        tenths(gone.elapsed()),
    );
    all_running(env, START)?;
    audit_exactly(env, 2)?;
    wait_for("both extenders to be ready", START, || {
        let ready = env.program_ready(EXTENDER)? || how == "stopped";
        Ok(ready.then_some(()))
    })
}

/// The process that leads, by the Lease.
fn holder(env: &TestEnv) -> Result<String> {
    let lease = ["-n", "plimsoll", "get", "lease", "plimsoll-scheduler-extender", "-o"];
    let path = ["jsonpath={.spec.holderIdentity}"];
    Ok(env.cluster()?.kubectl_run(&[&lease[..], &path].concat())?.trim().to_owned())
}

/// The processes of the pod that the holder's name begins with.
fn processes_of_holder(env: &TestEnv, holder: &str) -> Result<Vec<Pid>> {
    let pod_name = holder.split('_').next().unwrap_or_default();
    let pods = env.program_pods(EXTENDER)?;
    let leads = |pod: &&Pod| pod.metadata.name.as_deref() == Some(pod_name);
    let pod = pods.iter().find(leads).with_context(|| format!("{holder} has no pod"))?;
    processes_of(pod, EXTENDER)
}

fn tenths(time: Duration) -> String {
    format!("{:.1}", time.as_secs_f64())
}

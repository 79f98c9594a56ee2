//! Tests of the extender's replicas, of which one gives out GPUs: it is replaced in order, killed, and stopped. No GPU
//! pod is lost, and no GPU overbooked. How long pods wait is a figure.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::command::wait_for;
use e2e::kernel::processes::{self, Pid, Signal};

use crate::env::TestEnv;
use crate::support::extender_client::{EXTENDER, REPLICAS, replicas};
use crate::support::gpu_audit::audit_exactly;
use crate::support::pods::{
    BINDING, START, all_running, bound, create, gpu_container, list, name, node, pod, processes_of,
};
use crate::{Fact, on_our_nodes};

pub(crate) const FACTS: &[Fact] = &[
    on_our_nodes("a_rollout_of_the_extender_under_a_stream_of_gpu_pods_loses_none", rollout)
        .takes(12),
    on_our_nodes("when_the_leading_extender_is_killed_the_other_gives_out_gpus", killed)
        .takes(14)
        .smoke(),
    on_our_nodes("when_the_leading_extender_is_stopped_the_other_gives_out_gpus", stopped)
        .takes(16),
];

const DEPLOYMENT: &str = "deployment/scheduler-extender";
/// The Lease lasts 10 s. How long a takeover takes is a figure; this is for a host whose processors are busy.
const TAKEOVER: Duration = Duration::from_secs(180);
/// Between two pods of the stream.
const EVERY: Duration = Duration::from_millis(500);
/// Pods of the stream at most, of one unit each.
const STREAM: usize = 90;

/// The stream begins before the rollout and ends after it.
fn rollout(env: &TestEnv) -> Result<()> {
    let mut stream = Stream::default();
    stream.go_on(env, 4)?;
    env.cluster()?.kubectl_run(&["-n", "plimsoll", "rollout", "restart", DEPLOYMENT])?;
    let began = Instant::now();
    while stream.created.len() < STREAM - 4 && !is_rolled_out(env)? {
        stream.go_on(env, 1)?;
    }
    env.figure("seconds of a rollout of the extender", tenths(began.elapsed()));
    stream.go_on(env, 4)?;
    wait_for("every pod of the stream to be bound", BINDING, || {
        stream.look(env)?;
        Ok((stream.bound.len() == stream.created.len()).then_some(()))
    })?;
    env.figure("gpu pods while the extender is rolled out", stream.summary());
    let pods = all_running(env, START)?.len();
    ensure!(pods == stream.created.len(), "{pods} of {} pods are there", stream.created.len());
    wait_for("the rollout to end", START, || Ok(is_rolled_out(env)?.then_some(())))?;
    audit_exactly(env, pods)
}

fn killed(env: &TestEnv) -> Result<()> {
    takes_over(env, "killed", processes::kill_all)?;
    both_are_ready(env)
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
    audit_exactly(env, 3)?;
    both_are_ready(env)
}

/// Takes the leader away with a GPU pod there, and has another placed.
fn takes_over(
    env: &TestEnv,
    how: &str,
    mut take_away: impl FnMut(&[Pid]) -> Result<()>,
) -> Result<()> {
    create(env, pod("before", &[gpu_container("main", 4)]))?;
    all_running(env, START)?;
    let (before, leader) = leader(env)?;
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
    bound(env, "meanwhile", BINDING)?;
    env.figure(
        &format!("seconds until a gpu pod is bound, the leader {how}"),
        tenths(gone.elapsed()),
    );
    all_running(env, START)?;
    audit_exactly(env, 2)
}

fn both_are_ready(env: &TestEnv) -> Result<()> {
    wait_for("both extenders to be ready", START, || Ok(env.program_ready(EXTENDER)?.then_some(())))
}

/// Pods that come one after the other.
#[derive(Default)]
struct Stream {
    created: BTreeMap<String, Instant>,
    /// From the creation to the first look that found it bound.
    bound: BTreeMap<String, Duration>,
}

impl Stream {
    /// Creates so many more, each some time after the one before.
    fn go_on(&mut self, env: &TestEnv, count: usize) -> Result<()> {
        for _ in 0..count {
            let name = format!("stream-{}", self.created.len());
            let now = Instant::now();
            create(env, pod(&name, &[gpu_container("main", 1)]))?;
            self.created.insert(name, now);
            while now.elapsed() < EVERY {
                self.look(env)?;
                sleep(Duration::from_millis(50));
            }
        }
        Ok(())
    }

    fn look(&mut self, env: &TestEnv) -> Result<()> {
        for pod in list(env)?.iter().filter(|pod| node(pod).is_some()) {
            let Some(created) = self.created.get(name(pod)) else { continue };
            self.bound.entry(name(pod).to_owned()).or_insert_with(|| created.elapsed());
        }
        Ok(())
    }

    fn summary(&self) -> String {
        let mut delays: Vec<u128> = self.bound.values().map(Duration::as_millis).collect();
        delays.sort_unstable();
        let median = delays.get(delays.len() / 2).copied().unwrap_or_default();
        let last = delays.last().copied().unwrap_or_default();
        format!(
            "{} pods, bound after a median of {median} ms, the last after {last} ms",
            delays.len()
        )
    }
}

/// Whether all pods are of the newest template, and ready.
fn is_rolled_out(env: &TestEnv) -> Result<bool> {
    let path = "jsonpath={.status.observedGeneration} {.metadata.generation} {.status.updatedReplicas} {.status.replicas} {.status.readyReplicas}";
    let status = env.cluster()?.kubectl_run(&["-n", "plimsoll", "get", DEPLOYMENT, "-o", path])?;
    let numbers: Vec<&str> = status.split_whitespace().collect();
    let all = REPLICAS.to_string();
    Ok(matches!(numbers.as_slice(), [seen, newest, counts @ ..]
        if seen == newest && counts.len() == 3 && counts.iter().all(|count| *count == all)))
}

/// Who leads, and its processes. The Lease may still name one that has ended before this test.
fn leader(env: &TestEnv) -> Result<(String, Vec<Pid>)> {
    wait_for("an extender to lead", TAKEOVER, || {
        let holder = holder(env)?;
        let processes = processes_of_holder(env, &holder)?;
        let leads = replicas(env)?.iter().any(|(_, leads)| *leads);
        Ok((leads && !processes.is_empty()).then_some((holder, processes)))
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
    let pod = pods
        .iter()
        .find(|pod| pod.metadata.name.as_deref() == Some(pod_name))
        .with_context(|| format!("{holder} has no pod"))?;
    processes_of(pod, EXTENDER)
}

fn tenths(time: Duration) -> String {
    format!("{:.1}", time.as_secs_f64())
}

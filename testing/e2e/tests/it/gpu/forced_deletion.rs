//! Tests of pods that are deleted by force: their objects go at once, their processes later.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use e2e::Node;
use e2e::command::wait_for;
use e2e::kernel::processes::{self, Pid};
use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use serde_json::{Value, json};

use crate::env::TestEnv;
use crate::support::figures::Clock;
use crate::support::gpu_audit::{audit_exactly, claim};
use crate::support::pods::{
    START, all_running, create, get, gpu_pods, message, name, node, on_node, phase, pod,
    processes_of, running, statuses, stubborn_container,
};
use crate::{Fact, on_our_nodes};

pub(crate) const FACTS: &[Fact] = &[
    on_our_nodes(
        "no_pod_gets_a_gpu_while_processes_of_one_that_was_deleted_by_force_have_it",
        forced,
    )
    .takes(9)
    .smoke(),
    on_our_nodes(
        "nor_while_those_of_one_run_that_was_deleted_by_force_when_its_kubelet_was_down",
        without_kubelet,
    )
    .takes(20),
];

/// A GPU of the test cluster's nodes, in units.
const GPU: u64 = 16;
/// The grace period of the deleted pod, in seconds. The kubelet gives it less.
const GRACE: u64 = 20;
/// A device plugin has reported what changed, and the extender has seen it.
const REPORT: Duration = Duration::from_secs(5);
/// A pod that was rejected is tried again after a change of a node; one that changes before the extender has seen it
/// leaves it to the next, or to kube-scheduler, which tries every pod again that has waited for 5 minutes and looks for
/// such pods every 30 s.
const RETRY: Duration = Duration::from_secs(600);
/// The limit for the end of the deleted pod's processes.
const END: Duration = Duration::from_secs(GRACE + 280);

/// A process, told from a later one of the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Started {
    pid: Pid,
    at: Option<u64>,
}

/// The only GPU on which the next pod has room, and who has it.
struct Stubborn<'env> {
    host: &'env Node,
    gpu: String,
    processes: Vec<Started>,
}

fn forced(env: &TestEnv) -> Result<()> {
    let stubborn = Stubborn::start(env)?;
    delete_by_force(env, "stubborn")?;
    let deleted = Clock::now()?;
    stubborn.create_next(env)?;
    let ended = ends_before_next(env, &stubborn.processes)?;
    env.figure("forced_deletion_to_last_process_ms", since(&deleted, &ended));
    stubborn.next_follows(env)?;
    env.figure("last_process_to_next_pod_running_ms", since(&ended, &Clock::now()?));
    Ok(())
}

/// With the kubelet, everything that would end the processes is down for as long as the test wants.
fn without_kubelet(env: &TestEnv) -> Result<()> {
    let stubborn = Stubborn::start(env)?;
    stubborn.host.hold("kubelet")?;
    let stays = delete_by_force(env, "stubborn").and_then(|()| {
        sleep(REPORT);
        stubborn.create_next(env)?;
        sleep(REPORT);
        ensure!(stubborn.processes.iter().all(is_there), "a process has ended by itself");
        let next = get(env, NEXT)?;
        ensure!(node(&next).is_none(), "{NEXT} is bound while the deleted pod's processes run");
        Ok(())
    });
    stubborn.host.release("kubelet")?;
    stays?;
    ends_before_next(env, &stubborn.processes)?;
    stubborn.next_follows(env)
}

/// The pod that waits for the GPU.
pub(crate) const NEXT: &str = "next-0";

impl<'env> Stubborn<'env> {
    /// Fills all GPUs of a node, one of them with the pod that is to be deleted.
    fn start(env: &'env TestEnv) -> Result<Self> {
        let host = &env.cluster()?.nodes()[1];
        let others = gpu_pods("other", host.gpus().len() - 1, GPU);
        for wanted in others.into_iter().chain([stubborn("stubborn")]) {
            create(env, on_node(host, wanted))?;
        }
        let pods = all_running(env, START)?;
        let pod = pods.iter().find(|pod| name(pod) == "stubborn").context("the pod is gone")?;
        let processes = started_of(pod)?;
        ensure!(!processes.is_empty(), "the pod has no process");
        let gpu = claim(pod)?["main"].keys().next().context("an empty claim")?.clone();
        Ok(Self { host, gpu, processes })
    }

    /// Creates a pod that can only go where the deleted one was.
    fn create_next(&self, env: &TestEnv) -> Result<()> {
        create(env, on_node(self.host, gpu_pods("next", 1, GPU).remove(0)))
    }

    /// Waits until that pod runs, and compares all.
    fn next_follows(&self, env: &TestEnv) -> Result<()> {
        let next = running(env, NEXT, RETRY)?;
        ensure!(claim(&next)?["main"].contains_key(&self.gpu), "{NEXT} is on another GPU");
        audit_exactly(env, self.host.gpus().len())
    }
}

/// A pod of a whole GPU that ends by SIGKILL only.
pub(crate) fn stubborn(name: &str) -> Value {
    let mut pod = pod(name, &[stubborn_container("main", GPU)]);
    pod["spec"]["terminationGracePeriodSeconds"] = json!(GRACE);
    pod
}

/// As `kubectl delete --force --grace-period=0`.
pub(crate) fn delete_by_force(env: &TestEnv, name: &str) -> Result<()> {
    let now = DeleteParams::default().grace_period(0);
    env.block_on(env.pods().delete(name, &now)).map(drop)
}

/// Waits until these processes have ended, and returns when. An error if one of them is there after the next pod has a
/// process.
pub(crate) fn ends_before_next(env: &TestEnv, old: &[Started]) -> Result<Clock> {
    end_before(old, || get(env, NEXT))
}

/// The same for another next pod, which is asked for at each look.
pub(crate) fn end_before(old: &[Started], next: impl Fn() -> Result<Pod>) -> Result<Clock> {
    wait_for("the deleted pod's processes to end", END, || {
        let pod = next()?;
        let has_process = !started_of(&pod)?.is_empty();
        // Asked after the other, so that both were there at one time.
        let left = old.iter().filter(|process| is_there(process)).count();
        let name = name(&pod);
        if phase(&pod) == "Failed" {
            return Ok(Some(Err(anyhow!("{name} failed: {}", message(&pod)))));
        }
        if left > 0 && has_process {
            let both = anyhow!("{name} has a process beside {left} of the deleted pod's");
            return Ok(Some(Err(both)));
        }
        Ok((left == 0).then(Clock::now))
    })?
}

/// The processes of the pod's only container; none before it has been made.
pub(crate) fn started_of(pod: &Pod) -> Result<Vec<Started>> {
    let made = statuses(pod).iter().any(|status| status.container_id.is_some());
    let processes = if made { processes_of(pod, "main")? } else { Vec::new() };
    Ok(processes.into_iter().map(|pid| Started { pid, at: processes::started(pid) }).collect())
}

/// Whether it still runs. One that only waits for its parent has no memory of a GPU.
pub(crate) fn is_there(process: &Started) -> bool {
    process.at.is_some_and(|at| processes::runs(process.pid, at))
}

fn since(from: &Clock, to: &Clock) -> String {
    format!("{:.0}", (to.seconds() - from.seconds()) * 1000.0)
}

//! Tests of pods that were bound while kubelets were down. A restarted kubelet admits them in the order of creation,
//! while the claims were made in the order of binding. And it does not wait for its device plugins.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::command::wait_for;
use e2e::kernel::processes::{self, Signal};
use e2e::node::gpus::{GPU_MIB, GPUS};
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::gpus::refill;
use crate::env::TestEnv;
use crate::support::gpu_audit::audit_exactly;
use crate::support::kubelet_checkpoint;
use crate::support::offers::offered;
use crate::support::pods::{
    BINDING, GPU, START, all_bound, all_running_after_refusals, create, create_all, gpu_container,
    gpu_pods, list, name, node, phase, pod, running,
};
use crate::{Fact, on_our_nodes};

pub(crate) const FACTS: &[Fact] = &[
    on_our_nodes(
        "pods_bound_in_another_order_than_created_while_kubelets_were_down_get_their_claimed_gpus",
        shuffled_admission,
    )
    .takes(156)
    .smoke(),
    on_our_nodes(
        "pods_refused_while_their_plugin_was_late_leave_their_gpus_to_others",
        late_plugins,
    )
    .takes(47),
];

const PODS: usize = 36;
/// One round for each: how many places in the order of creation lie between a pod and the one bound after it, modulo
/// [`PODS`]. The first is the reverse order.
const STRIDES: [usize; 3] = [PODS - 1, 5, 7];
/// Pods bound at a time.
const BATCH: usize = 6;
const GATE: &str = "plimsoll.dev/e2e";
const PREFIX: &str = "shuffled";

fn shuffled_admission(env: &TestEnv) -> Result<()> {
    // kube-scheduler, which its kubelet has just been told to start anew where this test is the first, runs before
    // kubelets are held.
    create(env, pod("before", &[gpu_container("main", 1)]))?;
    running(env, "before", START)?;
    for stride in STRIDES {
        env.delete_all_pods()?;
        checkpoints_are_empty(env)?;
        shuffled_round(env, stride).with_context(|| format!("stride {stride}"))?;
    }
    Ok(())
}

/// Waits until the kubelets' checkpoints are empty. A restarted kubelet counts the ids in its checkpoint as used until
/// it knows all pods.
fn checkpoints_are_empty(env: &TestEnv) -> Result<()> {
    for node in env.cluster()?.nodes() {
        wait_for("the kubelet's checkpoint to be empty", START, || {
            let held = kubelet_checkpoint::read(node)?;
            ensure!(held.is_empty(), "{}: {held:?}", node.name());
            Ok(Some(()))
        })?;
    }
    Ok(())
}

fn shuffled_round(env: &TestEnv, stride: usize) -> Result<()> {
    let nodes = env.cluster()?.nodes();
    nodes.iter().try_for_each(|node| node.hold("kubelet"))?;
    let bound = bind_in_another_order(env, stride);
    nodes.iter().try_for_each(|node| node.release("kubelet"))?;
    bound?;
    all_running_after_refusals(env, START)?;
    audit_exactly(env, PODS)?;
    refill(env, "refill", 3)
}

/// Creates pods with a scheduling gate, then opens the gates in another order, a batch at a time.
fn bind_in_another_order(env: &TestEnv, stride: usize) -> Result<()> {
    create_over_two_seconds(env)?;
    let order: Vec<usize> = (1..=PODS).map(|place| place * stride % PODS).collect();
    for batch in order.chunks(BATCH) {
        batch.iter().try_for_each(|place| open_gate(env, *place))?;
        wait_for("the opened pods to be bound", BINDING, || {
            let pods = list(env)?;
            Ok(batch
                .iter()
                .all(|place| {
                    pods.iter().any(|pod| name(pod) == pod_name(*place) && node(pod).is_some())
                })
                .then_some(()))
        })?;
    }
    Ok(())
}

/// Creates half of the pods a second later: creation times, by which kubelets sort, have whole seconds.
fn create_over_two_seconds(env: &TestEnv) -> Result<()> {
    let mut pods = tolerant(gpu_pods(PREFIX, PODS, 3));
    pods.iter_mut().for_each(|pod| pod["spec"]["schedulingGates"] = json!([{"name": GATE}]));
    let later = pods.split_off(PODS / 2);
    create_all(env, pods)?;
    sleep(Duration::from_secs(1));
    create_all(env, later)
}

/// The same pods, which are placed also on nodes that count as lost: those whose kubelet has been down for 50 seconds.
fn tolerant(mut pods: Vec<Value>) -> Vec<Value> {
    for pod in &mut pods {
        pod["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
    }
    pods
}

/// The refused pods claim every GPU, so their replacements fit only once those claims are gone.
fn late_plugins(env: &TestEnv) -> Result<()> {
    const ALL: usize = 40;
    env.delete_all_pods()?;
    checkpoints_are_empty(env)?;
    let nodes = env.cluster()?.nodes();
    let plugins = env.programs("gpushare-device-plugin")?;
    ensure!(plugins.len() == nodes.len(), "{} plugins run", plugins.len());
    nodes.iter().try_for_each(|node| node.hold("kubelet"))?;
    let bound =
        create_all(env, tolerant(gpu_pods("early", ALL, 3))).and_then(|()| all_bound(env, BINDING));
    processes::signal_all(&plugins, Signal::STOP)?;
    nodes.iter().try_for_each(|node| node.release("kubelet"))?;
    let refused = bound.and_then(|_| {
        wait_for("every pod to be refused", START, || {
            let pods = list(env)?;
            Ok(pods.iter().all(|pod| phase(pod) == "Failed").then_some(()))
        })?;
        units_are_offered(env, 0)
    });
    for plugin in plugins {
        // It may be gone: the kubelet restarts a container whose liveness probe fails.
        let _ = processes::signal(plugin, Signal::CONT);
    }
    refused?;
    // No pod that is created again is refused again.
    units_are_offered(env, nodes.len() as u64 * u64::from(GPUS) * GPU_MIB / 1024)?;
    let before = env.counts().refused_too_early;
    all_running_after_refusals(env, START)?;
    let again = env.counts().refused_too_early - before;
    ensure!(again == ALL, "{again} of {ALL} pods were created again");
    audit_exactly(env, ALL)
}

/// Waits until all nodes together offer so many units.
fn units_are_offered(env: &TestEnv, units: u64) -> Result<()> {
    wait_for(&format!("the nodes to offer {units} units"), START, || {
        Ok((offered(env, GPU)?.values().sum::<u64>() == units).then_some(()))
    })
}

fn open_gate(env: &TestEnv, place: usize) -> Result<()> {
    let open = Patch::Merge(json!({"spec": {"schedulingGates": null}}));
    env.block_on(env.pods().patch(&pod_name(place), &PatchParams::default(), &open)).map(drop)
}

fn pod_name(place: usize) -> String {
    format!("{PREFIX}-{place}")
}

//! Facts about kubelets that come back to pods which were bound meanwhile. They admit what they list by creation, while
//! the claims were made in the order of binding; and they wait for no plugin.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::command::wait_for;
use e2e::processes::{self, Signal};
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::audit::audit_exactly;
use crate::cards::refill;
use crate::pods::{
    START, all_bound, all_running_in_the_end, create_all, gpu_pods, list, name, node, phase,
};
use crate::world::World;
use crate::{Fact, local, records};

pub(crate) const FACTS: &[Fact] = &[
    local(
        "pods_bound_in_another_order_than_created_while_kubelets_were_down_get_their_claimed_cards",
        shuffled_admission,
    ),
    local("pods_refused_while_their_plugin_was_late_leave_their_cards_to_others", late_plugins),
];

const PODS: usize = 36;
/// One round each, as often as the field's best-known plugin was tried in this way: a pod is bound this many places
/// after the one bound before it, counted around the order of creation. The first is the reverse.
const STRIDES: [usize; 3] = [PODS - 1, 5, 7];
/// Few enough to be on their way in an instant, so that the kubelets are back long before their nodes count as lost.
const AT_ONCE: usize = 6;
const GATE: &str = "plimsoll.dev/e2e";
const PREFIX: &str = "shuffled";

fn shuffled_admission(world: &World) -> Result<()> {
    for stride in STRIDES {
        world.delete_all_pods()?;
        nothing_is_held(world)?;
        shuffled_round(world, stride).with_context(|| format!("stride {stride}"))?;
    }
    Ok(())
}

/// A kubelet reads its own record back after a restart, and counts what it finds there as held until it knows all pods:
/// what gone pods held must have left the record before.
fn nothing_is_held(world: &World) -> Result<()> {
    for node in world.cluster()?.nodes() {
        wait_for("the kubelet's record to be empty", Duration::from_secs(20), || {
            let held = records::of(node)?;
            ensure!(held.is_empty(), "{}: {held:?}", node.name());
            Ok(Some(()))
        })?;
    }
    Ok(())
}

fn shuffled_round(world: &World, stride: usize) -> Result<()> {
    let nodes = world.cluster()?.nodes();
    nodes.iter().try_for_each(|node| node.hold("kubelet"))?;
    let bound = bind_in_another_order(world, stride);
    nodes.iter().try_for_each(|node| node.release("kubelet"))?;
    bound?;
    all_running_in_the_end(world, START)?;
    audit_exactly(world, PODS)?;
    refill(world, "refill", 3)
}

/// Creates pods that kube-scheduler may not touch, then hands them to it a few at a time.
fn bind_in_another_order(world: &World, stride: usize) -> Result<()> {
    create_over_two_seconds(world)?;
    let order: Vec<usize> = (1..=PODS).map(|place| place * stride % PODS).collect();
    for some in order.chunks(AT_ONCE) {
        some.iter().try_for_each(|place| open_gate(world, *place))?;
        wait_for("the opened pods to be bound", Duration::from_secs(30), || {
            let pods = list(world)?;
            let bound = |place: &usize| {
                pods.iter().any(|pod| name(pod) == pod_name(*place) && node(pod).is_some())
            };
            Ok(some.iter().all(bound).then_some(()))
        })?;
    }
    Ok(())
}

/// A pod's time of creation counts whole seconds, and kubelets admit by it.
fn create_over_two_seconds(world: &World) -> Result<()> {
    let mut pods = gpu_pods(PREFIX, PODS, 3);
    pods.iter_mut().for_each(|pod| pod["spec"]["schedulingGates"] = json!([{"name": GATE}]));
    let later = pods.split_off(PODS / 2);
    create_all(world, pods)?;
    sleep(Duration::from_secs(1));
    create_all(world, later)
}

/// What the pods that are refused had claimed is all that there is.
fn late_plugins(world: &World) -> Result<()> {
    const ALL: usize = 40;
    world.delete_all_pods()?;
    nothing_is_held(world)?;
    let nodes = world.cluster()?.nodes();
    let plugins = world.programs("gpushare-device-plugin")?;
    ensure!(plugins.len() == nodes.len(), "{} plugins run", plugins.len());
    nodes.iter().try_for_each(|node| node.hold("kubelet"))?;
    let bound = create_all(world, gpu_pods("early", ALL, 3))
        .and_then(|()| all_bound(world, Duration::from_secs(30)));
    processes::signal_all(&plugins, Signal::STOP)?;
    nodes.iter().try_for_each(|node| node.release("kubelet"))?;
    let refused = bound.and_then(|_| {
        wait_for("every pod to be refused", START, || {
            let pods = list(world)?;
            Ok(pods.iter().all(|pod| phase(pod) == "Failed").then_some(()))
        })
    });
    processes::signal_all(&plugins, Signal::CONT)?;
    refused?;
    let before = world.tally().refused_too_early;
    all_running_in_the_end(world, START)?;
    let again = world.tally().refused_too_early - before;
    ensure!(again == ALL, "{again} of {ALL} pods were made again");
    audit_exactly(world, ALL)
}

fn open_gate(world: &World, place: usize) -> Result<()> {
    let open = Patch::Merge(json!({"spec": {"schedulingGates": null}}));
    world.wait(world.pods().patch(&pod_name(place), &PatchParams::default(), &open)).map(drop)
}

fn pod_name(place: usize) -> String {
    format!("{PREFIX}-{place}")
}

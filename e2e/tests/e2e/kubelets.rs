//! Facts about kubelets that come back to pods which were bound in another order than created: after a restart a
//! kubelet admits what it lists by creation, while the claims were made in the order of binding.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::Node;
use e2e::command::wait_for;
use e2e::processes::{self, Pid, Signal};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::{Value, json};

use crate::audit::audit_exactly;
use crate::cards::refill;
use crate::pods::{START, all_bound, all_running, annotation, create_all, gpu_pods, name};
use crate::world::{World, parse};
use crate::{Fact, local, records};

pub(crate) const FACTS: &[Fact] = &[local(
    "pods_bound_in_another_order_than_created_while_kubelets_were_down_get_their_claimed_cards",
    shuffled_admission,
)];

const LOW: &str = "plimsoll-e2e-low";
const HIGH: &str = "plimsoll-e2e-high";
const ASSUME_TIME: &str = "ALIYUN_COM_GPU_MEM_ASSUME_TIME";
/// As often as the field's best-known plugin was tried in this way.
const ROUNDS: usize = 3;

fn shuffled_admission(world: &World) -> Result<()> {
    let classes: Api<PriorityClass> = Api::all(world.client());
    for (name, value) in [(LOW, 1), (HIGH, 1000)] {
        let class = parse(json!({"metadata": {"name": name}, "value": value}))?;
        world.ignore_conflict(classes.create(&PostParams::default(), &class))?;
    }
    for round in 0..ROUNDS {
        world.delete_all_pods()?;
        nothing_is_held(world)?;
        shuffled_round(world).with_context(|| format!("round {round}"))?;
    }
    for name in [LOW, HIGH] {
        world.wait(classes.delete(name, &DeleteParams::default()))?;
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

fn shuffled_round(world: &World) -> Result<()> {
    let nodes = world.cluster()?.nodes();
    nodes.iter().try_for_each(|node| node.hold("kubelet"))?;
    let bound = bind_high_before_low(world);
    nodes.iter().try_for_each(|node| node.release("kubelet"))?;
    bound?;
    all_running(world, START)?;
    audit_exactly(world, 36)?;
    refill(world, "refill", 3)
}

/// Low-priority pods are created first and bound last, for kube-scheduler sleeps while all are created.
fn bind_high_before_low(world: &World) -> Result<()> {
    let scheduler = scheduler(&world.cluster()?.nodes()[0])?;
    processes::signal(scheduler, Signal::STOP)?;
    let created = create_all(world, prioritised("low", LOW))
        .and_then(|()| create_all(world, prioritised("high", HIGH)));
    processes::signal(scheduler, Signal::CONT)?;
    created?;
    let pods = all_bound(world, Duration::from_secs(30))?;
    ensure!(shuffled(&pods), "the binding kept the order of creation");
    Ok(())
}

fn prioritised(prefix: &str, class: &str) -> Vec<Value> {
    let mut pods = gpu_pods(prefix, 18, 3);
    pods.iter_mut().for_each(|pod| pod["spec"]["priorityClassName"] = json!(class));
    pods
}

/// Whether most of those bound first were created last; the very first are the ones that kube-scheduler saw first.
fn shuffled(pods: &[Pod]) -> bool {
    let mut bound: Vec<(Option<&str>, &str)> =
        pods.iter().map(|pod| (annotation(pod, ASSUME_TIME), name(pod))).collect();
    bound.sort_unstable();
    let first = &bound[..bound.len() / 2];
    first.iter().filter(|(_, name)| name.starts_with("high")).count() > first.len() / 2
}

/// The scheduler's process, which a static pod holds.
fn scheduler(control_plane: &Node) -> Result<Pid> {
    let space = control_plane.init()?;
    let mine = |pid: &Pid| {
        processes::arguments(*pid).first().is_some_and(|word| word.ends_with("kube-scheduler"))
            && processes::same_machine(*pid, space)
    };
    processes::all()?.into_iter().find(mine).context("kube-scheduler does not run")
}

//! Tests of preemption by kube-scheduler for GPU pods.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::env::TestEnv;
use crate::support::fake_nodes::{self, FakeNode, on_fake_nodes};
use crate::support::pods::{
    BINDING, bound, create, evictable, gpu_container, list, name, node, pod,
};
use crate::support::priorities::{self, HIGH, MIDDLE, of_class};
use crate::{Fact, on_our_nodes};

pub(crate) const FACTS: &[Fact] = &[
    on_our_nodes(
        "preemption_evicts_no_gpu_pod_where_the_victims_do_not_free_enough_on_one_gpu",
        no_eviction_in_vain,
    )
    .takes(2)
    .smoke(),
    on_our_nodes(
        "preemption_evicts_one_pod_of_a_gpu_where_the_totals_would_cost_three_of_several",
        one_pod_of_a_gpu,
    )
    .takes(3),
];

/// A pod of 4 units waits for one of two nodes without room.
///
/// On the node of two GPUs, kube-scheduler would evict `second`, the only less important of three pods: then 4 units
/// are free there, 2 on each GPU, which is no room for it. On the other node it evicts `fourth`, which has the only
/// GPU.
fn no_eviction_in_vain(env: &TestEnv) -> Result<()> {
    let split = "fake-001";
    let whole = "fake-002";
    let nodes = [FakeNode::with_gpus(split, &[4, 4]), FakeNode::with_gpus(whole, &[4])];
    let steps = [
        of_class(gpu(split, "first", 2), HIGH),
        gpu(split, "second", 2),
        of_class(gpu(split, "third", 2), HIGH),
        of_class(gpu(whole, "fourth", 4), MIDDLE),
    ];
    let (on, left) = preempts(env, &nodes, &steps, 4)?;
    ensure!(on.as_deref() == Some(whole), "high is on {on:?}");
    ensure!(left == ["first", "high", "second", "third"], "these pods are left: {left:?}");
    Ok(())
}

/// A pod of 6 units waits for a node of three GPUs of 8, each full with a pod of 6 and a less important one of 2.
/// kube-scheduler's dry run removes the three of 2, which leaves 2 units on each GPU. The extender names one pod of 6
/// in place of them.
fn one_pod_of_a_gpu(env: &TestEnv) -> Result<()> {
    let node_name = "fake-001";
    let nodes = [FakeNode::with_gpus(node_name, &[8, 8, 8])];
    let held = (0..3).flat_map(|index| {
        let large = gpu(node_name, &format!("large-{index}"), 6);
        [of_class(large, MIDDLE), gpu(node_name, &format!("small-{index}"), 2)]
    });
    let (on, left) = preempts(env, &nodes, &held.collect::<Vec<_>>(), 6)?;
    ensure!(on.as_deref() == Some(node_name), "high is on {on:?}");
    let large = left.iter().filter(|name| name.starts_with("large-")).count();
    ensure!(left.len() == 6 && large == 2, "these pods are left: {left:?}");
    Ok(())
}

/// Binds the pods `held` one after the other, and then one of high priority with so many units. The node of that pod,
/// and the names of the pods that are left.
fn preempts(
    env: &TestEnv,
    nodes: &[FakeNode],
    held: &[Value],
    units: u64,
) -> Result<(Option<String>, Vec<String>)> {
    priorities::with(env, || {
        fake_nodes::with(env, nodes, || {
            for pod in held {
                create(env, pod.clone())?;
                let name = pod["metadata"]["name"].as_str().unwrap_or_default();
                bound(env, name, BINDING)?;
                fake_nodes::report_ended(env, name)?;
            }
            let high = evictable(pod("high", &[gpu_container("main", units)]));
            create(env, on_fake_nodes(of_class(high, HIGH)))?;
            let high = bound(env, "high", BINDING)?;
            let left = list(env)?.iter().map(|pod| name(pod).to_owned()).collect();
            Ok((node(&high).map(str::to_owned), left))
        })
    })
}

fn gpu(node: &str, name: &str, units: u64) -> Value {
    let mut pod = on_fake_nodes(evictable(pod(name, &[gpu_container("main", units)])));
    pod["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": node});
    pod
}

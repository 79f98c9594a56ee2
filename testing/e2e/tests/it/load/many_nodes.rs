//! Tests of the choice among many nodes, with the real kube-scheduler and fake nodes.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};

use super::seen;
use crate::env::TestEnv;
use crate::support::fake_nodes::{self, FakeNode, gpu_uuid, on_fake_nodes};
use crate::support::gpu_audit::claim;
use crate::support::pods::{
    BINDING, all_bound, create, create_all, gpu_container, idle_container, node, pod,
};
use crate::{Fact, on_any_cluster};

pub(crate) const FACTS: &[Fact] = &[
    on_any_cluster("the_one_node_of_three_hundred_with_a_large_enough_gpu_is_found", one_gpu_fits)
        .takes(14),
    on_any_cluster("the_one_node_of_three_hundred_below_the_limit_is_found", one_load_fits)
        .takes(8),
    on_any_cluster("fifty_pods_at_once_do_not_herd_onto_the_coldest_of_fifty_nodes", no_herd)
        .takes(4),
];

const MANY: usize = 300;
/// The number of the node that fits; neither the first nor the last.
const FITTING: usize = 217;
/// A reading above the limits of crane's policy.
const OVERLOADED: f64 = 0.9;
/// The most of 50 pods that one node may get. Without in-flight pods in the score it is about 25.
const MOST_ON_ONE_NODE: usize = 8;

/// Every node has eight units, but only one has them on a single GPU.
fn one_gpu_fits(env: &TestEnv) -> Result<()> {
    let mut nodes: Vec<FakeNode> =
        (0..MANY).map(|n| FakeNode::with_gpus(&name(n), &[4, 4])).collect();
    nodes[FITTING] = FakeNode::with_gpus(&name(FITTING), &[8]);
    fake_nodes::with(env, &nodes, || {
        create(env, on_fake_nodes(pod("large", &[gpu_container("main", 6)])))?;
        let pods = all_bound(env, BINDING)?;
        let large = pods.first().context("the pod is gone")?;
        ensure!(node(large) == Some(&name(FITTING)), "the pod is on {:?}", node(large));
        let claimed = claim(large)?;
        ensure!(
            claimed["main"].keys().eq([&gpu_uuid(&name(FITTING), 0)]),
            "the claim is {claimed:?}"
        );
        Ok(())
    })
}

fn one_load_fits(env: &TestEnv) -> Result<()> {
    let mut nodes: Vec<FakeNode> =
        (0..MANY).map(|n| FakeNode::loaded(&name(n), OVERLOADED)).collect();
    nodes[FITTING] = FakeNode::loaded(&name(FITTING), 0.6);
    fake_nodes::with(env, &nodes, || {
        create_all(env, plain_pods(5))?;
        for pod in all_bound(env, BINDING)? {
            ensure!(node(&pod) == Some(&name(FITTING)), "a pod is on {:?}", node(&pod));
        }
        Ok(())
    })
}

fn no_herd(env: &TestEnv) -> Result<()> {
    let mut nodes: Vec<FakeNode> =
        (0..50).map(|n| FakeNode::loaded(&name(n), 0.2 + n as f64 / 500.0)).collect();
    nodes[0] = FakeNode::loaded(&name(0), 0.02);
    fake_nodes::with(env, &nodes, || {
        seen::by_kube_scheduler(env)?;
        create_all(env, plain_pods(50))?;
        let pods = all_bound(env, BINDING)?;
        let mut by_node = BTreeMap::<&str, usize>::new();
        pods.iter().filter_map(node).for_each(|node| *by_node.entry(node).or_default() += 1);
        let coldest = by_node.get(name(0).as_str()).copied().unwrap_or(0);
        env.figure(
            "fifty_pods_on_fifty_nodes",
            format!("{coldest} on the coldest, {} used", by_node.len()),
        );
        ensure!(coldest >= 1, "the coldest node got nothing: {by_node:?}");
        ensure!(by_node.values().all(|pods| *pods <= MOST_ON_ONE_NODE), "{by_node:?}");
        Ok(())
    })
}

fn plain_pods(count: usize) -> Vec<serde_json::Value> {
    (0..count)
        .map(|n| on_fake_nodes(pod(&format!("plain-{n}"), &[idle_container("main")])))
        .collect()
}

fn name(n: usize) -> String {
    format!("fake-{n:03}")
}

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

pub(crate) const FACTS: &[Fact] = &[on_our_nodes(
    "preemption_evicts_no_gpu_pod_where_the_victims_do_not_free_enough_on_one_card",
    no_eviction_in_vain,
)
.smoke()];

/// A pod of 4 units waits for one of two nodes without room.
///
/// On the node of two cards, kube-scheduler would evict `second`, the least important of three pods: then 4 units are
/// free there, 2 on each card, which is no room for it. On the other node it evicts `fourth`, which has the only card.
fn no_eviction_in_vain(env: &TestEnv) -> Result<()> {
    let (split, whole) = ("fake-001", "fake-002");
    let nodes = [FakeNode::with_cards(split, &[4, 4]), FakeNode::with_cards(whole, &[4])];
    let steps = [
        gpu(split, "first", 2),
        gpu(split, "second", 2),
        of_class(gpu(split, "third", 2), MIDDLE),
        of_class(gpu(whole, "fourth", 4), MIDDLE),
    ];
    priorities::with(env, || {
        fake_nodes::with(env, &nodes, || {
            for step in &steps {
                create(env, step.clone())?;
                bound(env, step["metadata"]["name"].as_str().unwrap_or_default(), BINDING)?;
            }
            let high = evictable(pod("high", &[gpu_container("main", 4)]));
            create(env, on_fake_nodes(of_class(high, HIGH)))?;
            let high = bound(env, "high", BINDING)?;
            ensure!(node(&high) == Some(whole), "high is on {:?}", node(&high));
            let left: Vec<String> = list(env)?.iter().map(|pod| name(pod).to_owned()).collect();
            ensure!(left == ["first", "high", "second", "third"], "these pods are left: {left:?}");
            Ok(())
        })
    })
}

fn gpu(node: &str, name: &str, units: u64) -> Value {
    let mut pod = on_fake_nodes(evictable(pod(name, &[gpu_container("main", units)])));
    pod["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": node});
    pod
}

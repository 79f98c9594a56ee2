//! Tests of where the replicas of one workload go, with the real kube-scheduler and fake nodes.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::seen;
use crate::env::TestEnv;
use crate::support::fake_nodes::{self, FakeNode, on_fake_nodes};
use crate::support::pods::{BINDING, all_bound, create_all, idle_container, node, pod};
use crate::support::policy;
use crate::{Fact, on_our_nodes};

pub(crate) const FACTS: &[Fact] = &[
    on_our_nodes("a_node_that_cluster_autoscaler_is_about_to_remove_takes_no_replica", candidate)
        .takes(20),
    on_our_nodes("replicas_spread_over_three_nodes_that_are_all_over_a_soft_limit", all_hot)
        .takes(20),
];

/// CPU alone, with the shipped limit. kube-scheduler has the weight 3 here, as for crane's policy: with it a scale of
/// 10 is worth 300 points.
const BY_CPU: &str = "\
apiVersion: plimsoll.dev/v1alpha1
kind: SchedulingPolicy
spec:
  metrics:
  - {name: cpu_usage_avg_5m, period: 3m, limit: 0.80, weight: 1}
  scoring: {scale: 10}
";
const REPLICAS: usize = 6;

/// Its soft taint costs a node 300 points. A spread has 200 for a node without a replica, and load must not add to
/// that.
fn candidate(env: &TestEnv) -> Result<()> {
    let taint = json!({
        "key": "DeletionCandidateOfClusterAutoscaler", "value": "1767225600", "effect": "PreferNoSchedule",
    });
    let nodes = [
        FakeNode::loaded("fake-candidate", 0.10).tainted(&taint),
        FakeNode::loaded("fake-a", 0.55),
        FakeNode::loaded("fake-b", 0.55),
        FakeNode::loaded("fake-c", 0.55),
    ];
    let mut replica = replica();
    // What the controllers of nodes set may be there, and the soft taint counts.
    replica["spec"]["tolerations"] = json!([
        {"operator": "Exists", "effect": "NoSchedule"}, {"operator": "Exists", "effect": "NoExecute"},
    ]);
    let by_node = placed(env, &nodes, &replica)?;
    env.figure("replicas_beside_a_node_about_to_be_removed", format!("{by_node:?}"));
    ensure!(!by_node.contains_key("fake-candidate"), "{by_node:?}");
    Ok(())
}

fn all_hot(env: &TestEnv) -> Result<()> {
    let loads = [("fake-80", 0.80), ("fake-85", 0.85), ("fake-90", 0.90)];
    let nodes = loads.map(|(name, load)| FakeNode::loaded(name, load));
    let by_node = placed(env, &nodes, &replica())?;
    env.figure("replicas_on_three_hot_nodes", format!("{by_node:?}"));
    let counts = loads.map(|(name, _)| by_node.get(name).copied().unwrap_or(0));
    ensure!([[2, 2, 2], [3, 2, 1]].contains(&counts), "{by_node:?}");
    Ok(())
}

/// How many of the replicas each node takes that takes one.
fn placed(env: &TestEnv, nodes: &[FakeNode], replica: &Value) -> Result<BTreeMap<String, usize>> {
    policy::with(env, BY_CPU, || {
        fake_nodes::with(env, nodes, || {
            seen::by_kube_scheduler(env)?;
            create_all(env, (0..REPLICAS).map(|n| named(replica, n)).collect())?;
            let mut by_node = BTreeMap::new();
            for pod in all_bound(env, BINDING)? {
                *by_node.entry(node(&pod).unwrap_or_default().to_owned()).or_default() += 1;
            }
            Ok(by_node)
        })
    })
}

fn named(replica: &Value, number: usize) -> Value {
    let mut pod = replica.clone();
    pod["metadata"]["name"] = json!(format!("replica-{number}"));
    pod
}

/// One of several that kube-scheduler spreads over nodes where it can. It requests 1% of a node.
fn replica() -> Value {
    let mut main = idle_container("main");
    main["resources"] = json!({"requests": {"cpu": "640m"}});
    let mut pod = on_fake_nodes(pod("replica", &[main]));
    let labels = json!({"app": "replica"});
    pod["metadata"]["labels"] = labels.clone();
    pod["spec"]["topologySpreadConstraints"] = json!([{
        "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": labels},
    }]);
    pod
}

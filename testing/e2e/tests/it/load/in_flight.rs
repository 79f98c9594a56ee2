//! Tests of pods that no reading shows yet, with the real kube-scheduler and fake nodes.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use super::seen;
use crate::env::TestEnv;
use crate::support::fake_nodes::{self, FakeNode, on_fake_nodes};
use crate::support::pods::{BINDING, all_bound, create_all, idle_container, node, pod};
use crate::support::policy::{self, CRANE_WITHOUT_HOT_VALUE, OURS};
use crate::{Fact, on_our_nodes};

pub(crate) const FACTS: &[Fact] =
    &[on_our_nodes("a_hundred_pods_at_once_spread_over_fifty_nodes", hundred_at_once).takes(36)];

const NODES: usize = 50;
const PODS: usize = 100;
/// The most of the pods that the coldest node may get.
const MOST_ON_THE_COLDEST: usize = 5;
/// Requests of one CPU, in thousandths.
const ALIKE: &[u64] = &[1000];
/// Requests between which there is a factor of forty, in thousandths of a CPU.
const DIFFERENT: &[u64] = &[100, 4000, 250, 2000, 500, 1000];

/// All readings stay as they are, as within one period of the metrics.
fn hundred_at_once(env: &TestEnv) -> Result<()> {
    policy::with(env, CRANE_WITHOUT_HOT_VALUE, || spread(env, "crane", one_step, ALIKE))?;
    policy::with(env, OURS, || {
        spread(env, "ours", even_steps, ALIKE)?;
        spread(env, "mixed", even_steps, DIFFERENT)
    })
}

/// Of crane's eleven scores the coldest node alone has 8, and the others 7. Three pods of one CPU take that away.
fn one_step(n: usize) -> f64 {
    if n == 0 { 0.22 } else { 0.26 + n as f64 / 5000.0 }
}

/// From 20% to 25%. Three pods of one CPU bring the coldest node level with the warmest.
fn even_steps(n: usize) -> f64 {
    0.2 + n as f64 / 1000.0
}

/// Nodes of other rounds have other names: pods that were bound to a name count there for minutes.
fn spread(env: &TestEnv, round: &str, load: fn(usize) -> f64, requests: &[u64]) -> Result<()> {
    let nodes: Vec<FakeNode> = (0..NODES)
        .map(|n| FakeNode::loaded(&fake_name(round, n), load(n)).with_processors(32))
        .collect();
    fake_nodes::with(env, &nodes, || {
        seen::by_kube_scheduler(env)?;
        create_all(
            env,
            (0..PODS)
                .map(|n| asking(&format!("{round}-{n}"), requests[n % requests.len()]))
                .collect(),
        )?;
        let pods = all_bound(env, BINDING)?;
        let by_node = by_node(&pods);
        let coldest = by_node.get(fake_name(round, 0).as_str()).copied().unwrap_or_default();
        let most = by_node.values().map(|of| of.pods).max();
        let most_cpu = by_node.values().map(|of| of.cpu).max();
        env.figure(
            &format!("hundred_pods_on_fifty_nodes {round}"),
            format!(
                "{coldest:?} on the coldest, at most {most:?} and {most_cpu:?}m on a node, {} used",
                by_node.len()
            ),
        );
        ensure!((1..=MOST_ON_THE_COLDEST).contains(&coldest.pods), "{round}: {by_node:?}");
        Ok(())
    })
}

fn fake_name(round: &str, n: usize) -> String {
    format!("fake-{round}-{n:02}")
}

/// What a node got.
#[derive(Debug, Clone, Copy, Default)]
struct Got {
    pods: usize,
    /// The sum of requests, in thousandths of a CPU.
    cpu: u64,
}

fn by_node(pods: &[Pod]) -> BTreeMap<&str, Got> {
    let mut by_node = BTreeMap::<&str, Got>::new();
    for pod in pods {
        let Some(node) = node(pod) else { continue };
        let got = by_node.entry(node).or_default();
        got.pods += 1;
        got.cpu += requested(pod);
    }
    by_node
}

/// A pod that requests so many thousandths of a CPU.
fn asking(name: &str, cpu: u64) -> serde_json::Value {
    let mut container = idle_container("main");
    container["resources"] = json!({"requests": {"cpu": format!("{cpu}m"), "memory": "512Mi"}});
    let mut pod = on_fake_nodes(pod(name, &[container]));
    pod["metadata"]["labels"] = json!({REQUEST: cpu.to_string()});
    pod
}

/// The label with a pod's request, in thousandths of a CPU.
const REQUEST: &str = "plimsoll-e2e/millicores";

fn requested(pod: &Pod) -> u64 {
    let label = pod.metadata.labels.as_ref().and_then(|labels| labels.get(REQUEST));
    label.and_then(|label| label.parse().ok()).unwrap_or_default()
}

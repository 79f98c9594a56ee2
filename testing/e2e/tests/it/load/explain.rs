//! Tests of what explain tells of a pod that kube-scheduler has placed.

use anyhow::{Context, Result, ensure};
use e2e::command::wait_for;
use serde_json::Value;

use super::seen;
use crate::env::{NAMESPACE, TestEnv};
use crate::support::extender_client::{REPLICAS, explain, explained_by_each, plimsoll};
use crate::support::fake_nodes::{self, FakeNode, on_fake_nodes, set_readings};
use crate::support::pods::{BINDING, bound, create, idle_container, node, pod, uid};
use crate::{Fact, on_our_nodes};

pub(crate) const FACTS: &[Fact] =
    &[on_our_nodes("explain_tells_by_what_a_placed_pod_was_decided", placed_pod).takes(17).smoke()];

const METRIC: &str = "cpu_usage_avg_5m";
const COOL: &str = "fake-cool";
const HOT: &str = "fake-hot";

/// The readings change after the decision: explain tells the earlier ones, and, where asked to, those of now.
fn placed_pod(env: &TestEnv) -> Result<()> {
    let nodes = [FakeNode::loaded(COOL, 0.2), FakeNode::loaded(HOT, 0.9)];
    fake_nodes::with(env, &nodes, || {
        seen::by_kube_scheduler(env)?;
        create(env, on_fake_nodes(pod("placed", &[idle_container("main")])))?;
        let pod = bound(env, "placed", BINDING)?;
        ensure!(node(&pod) == Some(COOL), "the pod is on {:?}", node(&pod));
        set_readings(env, &[(COOL, 0.8), (HOT, 0.1)])?;
        wait_for("explain to know the new readings", BINDING, || {
            let now = explain(env, "placed", true)?;
            let changed = reading(&now, COOL)? == Some(0.8) && reading(&now, HOT)? == Some(0.1);
            Ok((changed && now["basis"] == "now").then_some(()))
        })?;
        // kube-scheduler asked one of the replicas. The other asks it, and tells what holds now where it has no answer
        // in 3 s.
        let each = wait_for("each replica to tell the decision", BINDING, || {
            let each = explained_by_each(env, "placed")?;
            ensure!(each.len() == REPLICAS, "{} replicas", each.len());
            ensure!(each.iter().all(|told| told["basis"] == "decision"), "{each:?}");
            Ok(Some(each))
        })?;
        for told in each {
            ensure!(told["node"] == COOL, "{told}");
            ensure!(told["pod"]["uid"] == *uid(&pod), "{told}");
            ensure!(accepted(&told, COOL)? && !accepted(&told, HOT)?, "{told}");
            let readings = (reading(&told, COOL)?, reading(&told, HOT)?);
            ensure!(readings == (Some(0.2), Some(0.9)), "{told}");
        }
        wait_for("the command to tell the decision", BINDING, || table(env).map(Some))
    })
}

/// The operators' command marks the pod's node.
fn table(env: &TestEnv) -> Result<()> {
    let table = plimsoll(env, &["explain", "pod", "placed", "-n", NAMESPACE])?;
    ensure!(
        row(&table, COOL).starts_with('*') && row(&table, COOL).contains("accepted"),
        "{table}"
    );
    ensure!(
        !row(&table, HOT).starts_with('*') && row(&table, HOT).contains("over limit"),
        "{table}"
    );
    Ok(())
}

/// The pod's node is also named in the first lines, without a verdict.
fn row<'table>(table: &'table str, name: &str) -> &'table str {
    table
        .lines()
        .find(|line| line.get(4..).is_some_and(|row| row.starts_with(name)))
        .unwrap_or_default()
}

fn of_node<'a>(explained: &'a Value, name: &str) -> Result<&'a Value> {
    let nodes = explained["nodes"].as_array().context("no nodes")?;
    let node = nodes.iter().find(|node| node["name"] == name);
    node.with_context(|| format!("{name} is not in {explained}"))
}

fn accepted(explained: &Value, name: &str) -> Result<bool> {
    of_node(explained, name)?["accepted"].as_bool().context("not said")
}

/// The value by which the limit of [`METRIC`] was judged.
fn reading(explained: &Value, name: &str) -> Result<Option<f64>> {
    let limits = of_node(explained, name)?["load"]["limits"].as_array().context("no limits")?;
    let limit = limits.iter().find(|limit| limit["metric"] == METRIC).context("no such limit")?;
    Ok(limit["reading"]["value"].as_f64())
}

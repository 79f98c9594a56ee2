//! Tests of readings in NodeLoads, in place of the Nodes' annotations.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::command::wait_for;
use e2e::{Load, Node};

use super::limits::{METRIC, annotations, with_short_periods};
use super::seen;
use crate::env::TestEnv;
use crate::support::pods::{BINDING, bound, create, idle_container, node, pod, unschedulable};
use crate::{Fact, on_our_nodes};

pub(crate) const FACTS: &[Fact] = &[on_our_nodes(
    "with_readings_in_nodeloads_a_rejected_pod_is_scheduled_once_a_node_cools_and_nodes_carry_no_readings",
    woken,
).takes(96)];

/// The note that kube-scheduler sees of a node that has cooled.
const COOLED_AT: &str = "plimsoll.dev/cooled-at";
const WRITTEN: Duration = Duration::from_secs(120);
/// By itself kube-scheduler tries a pod again after five minutes.
const WOKEN: Duration = Duration::from_secs(180);
const PROGRAMS: [&str; 2] = ["annotator", "scheduler-extender"];

fn woken(env: &TestEnv) -> Result<()> {
    with_short_periods(env, |first, second| {
        in_node_loads(env, || {
            set(env, &[(first, 0.9), (second, 0.9)])?;
            no_readings_on_nodes(env, &[first, second])?;
            create(env, pod("waits", &[idle_container("main")]))?;
            let message = unschedulable(env, "waits", BINDING)?;
            ensure!(message.contains(METRIC), "{message}");
            let before = notes(env, &[first, second])?;
            set(env, &[(second, 0.3)])?;
            let placed = bound(env, "waits", WOKEN)?;
            ensure!(node(&placed) == Some(second.name()), "it went to {:?}", node(&placed));
            // Another change of a Node may have had the pod tried before.
            wait_for("a Node to note that one has cooled", WOKEN, || {
                Ok((notes(env, &[first, second])? != before).then_some(()))
            })?;
            no_readings_on_nodes(env, &[first, second])
        })
    })
}

/// Runs `work` with readings in NodeLoads, and removes all that the component adds.
fn in_node_loads(env: &TestEnv, work: impl FnOnce() -> Result<()>) -> Result<()> {
    let cluster = env.cluster()?;
    let done = apply(env, "nodeloads").and_then(|()| work());
    let restored = apply(env, "short-periods").and_then(|()| {
        let objects = ["clusterrole", "clusterrolebinding"]
            .map(|kind| PROGRAMS.map(|program| format!("{kind}/plimsoll-{program}-nodeloads")))
            .concat();
        let objects = objects.iter().map(String::as_str).chain(["crd/nodeloads.plimsoll.dev"]);
        let words: Vec<&str> =
            ["delete", "--wait", "--timeout=180s"].into_iter().chain(objects).collect();
        cluster.kubectl_run(&words).map(drop)
    });
    done?;
    restored
}

/// Applies a kustomization of the tests, and waits for the two programs' new pods.
fn apply(env: &TestEnv, overlay: &str) -> Result<()> {
    env.cluster()?.apply(overlay)?;
    PROGRAMS.iter().try_for_each(|program| env.rolled_out(program))?;
    seen::through_its_service(env)
}

/// Sets the loads and waits until the NodeLoads show them, and each replica of the extender has read that.
fn set(env: &TestEnv, loads: &[(&Node, f64)]) -> Result<()> {
    for (node, cpu) in loads {
        node.set_load(Load { cpu: *cpu, memory: 0.2 })?;
    }
    let path = format!("jsonpath={{.readings.{METRIC}.value}}");
    loads.iter().try_for_each(|(node, cpu)| {
        wait_for(&format!("the NodeLoad of {} to be {cpu}", node.name()), WRITTEN, || {
            let words = ["get", "nodeload", node.name(), "--ignore-not-found", "-o", &path];
            let text = env.cluster()?.kubectl_run(&words)?;
            let value: f64 = text.trim().parse().context("no reading yet")?;
            Ok(seen::is_near(value, *cpu).then_some(()))
        })
    })?;
    seen::by_extender(env, METRIC, loads)
}

/// Waits until no Node carries the metric: what an annotator wrote there before is removed.
fn no_readings_on_nodes(env: &TestEnv, nodes: &[&Node]) -> Result<()> {
    wait_for("readings to be gone from Nodes", WRITTEN, || {
        let all = nodes.iter().map(|node| annotations(env, node)).collect::<Result<Vec<_>>>()?;
        Ok(all.iter().all(|one| !one.contains_key(METRIC)).then_some(()))
    })
}

fn notes(env: &TestEnv, nodes: &[&Node]) -> Result<Vec<Option<String>>> {
    nodes.iter().map(|node| Ok(annotations(env, node)?.remove(COOLED_AT))).collect()
}

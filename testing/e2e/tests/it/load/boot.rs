//! Tests of a node that has just booted.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::command::wait_for;
use e2e::{Load, Node};
use serde_json::{Value, json};

use crate::env::{NAMESPACE, TestEnv};
use crate::exporter::signals::replaced;
use crate::load::limits::annotations;
use crate::support::extender_client::call;
use crate::support::fake_nodes::{self, FakeNode, READINGS};
use crate::{Fact, on_our_nodes};

pub(crate) const FACTS: &[Fact] = &[on_our_nodes(
    "minutes_after_its_boot_a_node_scores_as_another_does_after_a_day_of_the_same_load",
    scores_soon_after_boot,
)
.takes(182)];

/// A load other than the one before the boot.
const LOAD: f64 = 0.4;
/// The limit for all readings after a boot. They are due after three minutes, if the exporter starts within the first;
/// here that minute may be longer, since the processors are shared.
const READINGS_AFTER_BOOT: Duration = Duration::from_secs(600);
/// The largest difference between the extender scores, which are 0 to 10.
const TOLERANCE: i64 = 1;
const DAY_OLD: &str = "fake-001";

fn scores_soon_after_boot(env: &TestEnv) -> Result<()> {
    let node = &env.cluster()?.nodes()[1];
    node.set_load(Load { cpu: LOAD, memory: LOAD })?;
    node.pretend_boot()?;
    replaced(env, node)?;
    let started = Instant::now();
    wait_for("every reading of the booted node", READINGS_AFTER_BOOT, || {
        let readings = readings(env, node)?;
        Ok(readings.iter().all(|value| (value - LOAD).abs() < 0.05).then_some(()))
    })?;
    env.figure("readings_after_boot_s", started.elapsed().as_secs().to_string());
    fake_nodes::with(env, &[FakeNode::loaded(DAY_OLD, LOAD)], || {
        let (booted, old) = scores(env, node.name(), DAY_OLD)?;
        ensure!((booted - old).abs() <= TOLERANCE, "it scores {booted}, the other {old}");
        Ok(())
    })
}

/// The value of each metric of crane's policy.
fn readings(env: &TestEnv, node: &Node) -> Result<Vec<f64>> {
    let annotations = annotations(env, node)?;
    READINGS
        .iter()
        .map(|metric| {
            let text = annotations.get(*metric).with_context(|| format!("no {metric} yet"))?;
            text.split(',').next().unwrap_or_default().parse().with_context(|| text.clone())
        })
        .collect()
}

/// The extender scores of two nodes for a pod without requests.
fn scores(env: &TestEnv, first: &str, second: &str) -> Result<(i64, i64)> {
    let pod = json!({"metadata": {"name": "scored", "namespace": NAMESPACE, "uid": "scored"}});
    let args = json!({"Pod": pod, "NodeNames": [first, second]});
    let response = call(env, "load-aware/prioritize", &args)?;
    let scores: Vec<Value> = serde_json::from_str(&response.body).context(response.body)?;
    Ok((score_of(&scores, first)?, score_of(&scores, second)?))
}

fn score_of(scores: &[Value], node: &str) -> Result<i64> {
    let found = scores.iter().find(|score| score["Host"] == node);
    found.and_then(|score| score["Score"].as_i64()).with_context(|| format!("{scores:?}"))
}

//! Asks the extender as kube-scheduler would, without a pod to place, until it knows what the API does.
//!
//! The annotations stand in the API before the extender's watch has told it of them, and on a busy
//! machine long before: pods that came in between would be scored with nothing known of any load.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::bail;
use serde_json::{Value, json};
use sim::NODES;

use crate::evidence::{reading, text};
use crate::fleet::gpu_nodes;
use crate::loads::LIMIT;
use crate::pods::{gpu, plain};
use crate::world::{PATIENCE, World, local};

/// Between two questions.
const AGAIN: Duration = Duration::from_millis(100);

/// Waits until the extender turns down every node that is told to be overloaded, and has a card on every
/// GPU node.
pub(crate) async fn until_the_extender_knows(world: &World) -> anyhow::Result<()> {
    let http = sim::http_client()?;
    let start = Instant::now();
    loop {
        world.all_run()?;
        let unknown = unknown(world, &http).await;
        match unknown {
            Ok(unknown) if unknown.is_empty() => return Ok(()),
            last if start.elapsed() > PATIENCE => {
                bail!("the extender does not know after {PATIENCE:?}: {last:?}")
            }
            _ => tokio::time::sleep(AGAIN).await,
        }
    }
}

/// Nodes of which it does not know enough.
async fn unknown(world: &World, http: &reqwest::Client) -> reqwest::Result<BTreeSet<String>> {
    let nodes = world.sim.list(NODES);
    let passed_by_load = passed(world, http, "load-aware", &plain("nobody"), &nodes).await?;
    let passed_by_card =
        passed(world, http, "gpushare-scheduler", &gpu("nobody", &[1]), &nodes).await?;
    let hot = nodes.iter().filter(|node| is_over(node)).map(name);
    let cold = hot.filter(|node| passed_by_load.contains(node));
    let bare = gpu_nodes().map(|(_, plan)| plan.name.to_owned());
    Ok(cold.chain(bare.filter(|node| !passed_by_card.contains(node))).collect())
}

async fn passed(
    world: &World,
    http: &reqwest::Client,
    extender: &str,
    pod: &Value,
    nodes: &[Value],
) -> reqwest::Result<BTreeSet<String>> {
    let names: Vec<String> = nodes.iter().map(name).collect();
    let url = format!("http://{}/{extender}/filter", local(world.verbs()));
    let body = json!({"Pod": pod, "Nodes": null, "NodeNames": names});
    let answer = http.post(url).timeout(PATIENCE).json(&body).send().await?;
    let answer: Value = answer.error_for_status()?.json().await?;
    let passed = answer["NodeNames"].as_array().into_iter().flatten();
    Ok(passed.map(|name| text(name).to_owned()).collect())
}

fn is_over(node: &Value) -> bool {
    ["cpu_usage_active", "mem_usage_active"]
        .iter()
        .any(|metric| reading(node, metric).is_some_and(|load| load > LIMIT))
}

fn name(node: &Value) -> String {
    text(&node["metadata"]["name"]).to_owned()
}

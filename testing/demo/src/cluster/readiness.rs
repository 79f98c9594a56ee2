//! Asks the extender as kube-scheduler would, about pods that do not exist, to find out what it knows by now.
//!
//! The annotations are in the API before the extender's watch delivers them, on a busy machine seconds before. Pods
//! that came in between would be placed without any known load.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::bail;
use serde_json::{Value, json};
use sim::NODES;

use super::{Cluster, PATIENCE};
use crate::model::loads::LIMIT;
use crate::model::nodes::{FLEET, gpu_nodes};
use crate::model::objects::{list, name, reading, text};
use crate::model::pods::{gpu, plain};

/// Pause between two questions.
const PAUSE: Duration = Duration::from_millis(100);

/// Asks the extender's Filter verbs.
pub(crate) struct ExtenderProbe<'a> {
    cluster: &'a Cluster,
    http: reqwest::Client,
}

impl<'a> ExtenderProbe<'a> {
    /// # Errors
    /// When no HTTP client can be made.
    pub(crate) fn new(cluster: &'a Cluster) -> std::io::Result<Self> {
        Ok(Self { cluster, http: sim::http_client()? })
    }

    /// Waits until Filter rejects every node that its annotations show overloaded, and finds a card on every GPU node.
    ///
    /// # Errors
    /// After [`PATIENCE`], or when a program has ended.
    pub(crate) async fn knows_every_node(&self) -> anyhow::Result<()> {
        self.wait("the extender knows every node", async || self.unknown_nodes().await).await
    }

    /// The nodes that Filter rejects for their load now.
    ///
    /// # Errors
    /// When the extender does not answer.
    pub(crate) async fn rejected_by_load(&self) -> reqwest::Result<Vec<String>> {
        let passed = self.passed_by_load().await?;
        let names = FLEET.iter().map(|plan| plan.name.to_owned());
        Ok(names.filter(|node| !passed.contains(node)).collect())
    }

    /// Waits until Filter rejects a node for its load.
    ///
    /// # Errors
    /// After [`PATIENCE`], or when a program has ended.
    pub(crate) async fn rejects(&self, node: &str) -> anyhow::Result<()> {
        let what = format!("the extender rejects {node}");
        let passed = async || {
            let mut passed = self.passed_by_load().await?;
            passed.retain(|name| name == node);
            Ok(passed)
        };
        self.wait(&what, passed).await
    }

    /// Waits until `wrong_nodes` returns no nodes.
    async fn wait(
        &self,
        what: &str,
        wrong_nodes: impl AsyncFn() -> reqwest::Result<BTreeSet<String>>,
    ) -> anyhow::Result<()> {
        let start = Instant::now();
        loop {
            self.cluster.check_programs()?;
            match wrong_nodes().await {
                Ok(nodes) if nodes.is_empty() => return Ok(()),
                last if start.elapsed() > PATIENCE => {
                    bail!("{what}: still not so after {PATIENCE:?}: {last:?}")
                }
                _ => tokio::time::sleep(PAUSE).await,
            }
        }
    }

    async fn unknown_nodes(&self) -> reqwest::Result<BTreeSet<String>> {
        let nodes = self.cluster.sim.list(NODES);
        let passed_by_load = self.passed_by_load().await?;
        let passed_by_card = self.passed("gpushare-scheduler", &gpu("probe", &[1])).await?;
        let overloaded = nodes.iter().filter(|node| is_overloaded(node)).map(name);
        let passed_though_overloaded = overloaded.filter(|node| passed_by_load.contains(*node));
        let gpu_nodes = gpu_nodes().map(|(_, plan)| plan.name);
        let without_card = gpu_nodes.filter(|node| !passed_by_card.contains(*node));
        Ok(passed_though_overloaded.chain(without_card).map(str::to_owned).collect())
    }

    async fn passed_by_load(&self) -> reqwest::Result<BTreeSet<String>> {
        self.passed("load-aware", &plain("probe")).await
    }

    /// The nodes that an entry's Filter lets pass.
    async fn passed(&self, entry: &str, pod: &Value) -> reqwest::Result<BTreeSet<String>> {
        let nodes = self.cluster.sim.list(NODES);
        let names: Vec<&str> = nodes.iter().map(name).collect();
        let url = format!("http://{}/{entry}/filter", self.cluster.extender_address());
        let body = json!({"Pod": pod, "Nodes": null, "NodeNames": names});
        let answer = self.http.post(url).timeout(PATIENCE).json(&body).send().await?;
        let answer: Value = answer.error_for_status()?.json().await?;
        Ok(list(&answer["NodeNames"]).map(|name| text(name).to_owned()).collect())
    }
}

/// Whether a node's annotations show it above a limit.
fn is_overloaded(node: &Value) -> bool {
    ["cpu_usage_active", "mem_usage_active"]
        .iter()
        .any(|metric| reading(node, metric).is_some_and(|load| load > LIMIT))
}

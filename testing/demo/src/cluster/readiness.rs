//! What the extender knows of the nodes by now, found out with pods that do not exist.
//!
//! The annotations are in the API before the extender's watch delivers them, on a busy machine seconds before. Pods
//! that came in between would be placed without any known load.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::bail;
use api::explain;
use serde_json::Value;
use sim::NODES;

use super::explain::{Explainer, is_overloaded, lacks_card};
use super::{Cluster, PATIENCE};
use crate::model::nodes::{FLEET, gpu_nodes};
use crate::model::objects::{is_annotated_overloaded, name};
use crate::model::pods::gpu;

/// Pause between two questions.
const PAUSE: Duration = Duration::from_millis(100);

/// Asks the extender about a pod of one unit of GPU memory.
pub(crate) struct ExtenderProbe<'a> {
    cluster: &'a Cluster,
    explainer: Explainer,
}

impl<'a> ExtenderProbe<'a> {
    /// # Errors
    /// When no HTTP client can be made.
    pub(crate) fn new(cluster: &'a Cluster) -> std::io::Result<Self> {
        Ok(Self { cluster, explainer: Explainer::new(cluster)? })
    }

    /// Waits until the extender rejects every node that its annotations show overloaded, and finds a card on every GPU
    /// node.
    ///
    /// # Errors
    /// After [`PATIENCE`], or when a program has ended.
    pub(crate) async fn knows_every_node(&self) -> anyhow::Result<()> {
        self.wait("the extender knows every node", async || {
            Ok(unknown_nodes(&self.nodes().await?, &self.cluster.sim.list(NODES)))
        })
        .await
    }

    /// The nodes that the extender rejects for their load now.
    ///
    /// # Errors
    /// When the extender does not answer.
    pub(crate) async fn rejected_by_load(&self) -> reqwest::Result<Vec<String>> {
        let rejected = self.nodes().await?.into_iter().filter(is_overloaded);
        Ok(rejected.map(|node| node.name).collect())
    }

    /// Waits until the extender rejects a node for its load.
    ///
    /// # Errors
    /// After [`PATIENCE`], or when a program has ended.
    pub(crate) async fn rejects(&self, node: &str) -> anyhow::Result<()> {
        let what = format!("the extender rejects {node}");
        self.wait(&what, async || {
            let is_rejected = self.rejected_by_load().await?.iter().any(|name| name == node);
            Ok(if is_rejected { BTreeSet::new() } else { BTreeSet::from([node.to_owned()]) })
        })
        .await
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

    /// What the extender decides for the probe pod on every node of the fleet.
    async fn nodes(&self) -> reqwest::Result<Vec<explain::Node>> {
        let names: Vec<&str> = FLEET.iter().map(|plan| plan.name).collect();
        Ok(self.explainer.explain(&gpu("probe", &[1]), &names).await?.nodes)
    }
}

/// The nodes of which the extender knows less than their annotations tell: their overload, or their cards.
fn unknown_nodes(explained: &[explain::Node], objects: &[Value]) -> BTreeSet<String> {
    let overloaded: BTreeSet<&str> =
        objects.iter().filter(|node| is_annotated_overloaded(node)).map(name).collect();
    let with_cards: BTreeSet<&str> = gpu_nodes().map(|(_, plan)| plan.name).collect();
    explained
        .iter()
        .filter(|node| {
            let name = node.name.as_str();
            !node.known
                || overloaded.contains(name) && !is_overloaded(node)
                || with_cards.contains(name) && lacks_card(node)
        })
        .map(|node| node.name.clone())
        .collect()
}

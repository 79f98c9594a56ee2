//! What the extender knows of the nodes by now, found out with pods that do not exist.
//!
//! The annotations are in the API before the extender's watch delivers them, on a busy machine seconds before. Pods
//! that came in between would be placed without any known load.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::bail;
use api::explain::{self, ReadingStatus};
use jiff::Timestamp;
use serde_json::Value;
use sim::NODES;

use super::explain::{Explainer, is_overloaded, lacks_gpu};
use super::{Cluster, PATIENCE, exporter};
use crate::model::nodes::{FLEET, gpu_nodes};
use crate::model::objects::{annotated_overload, name};
use crate::model::pods::gpu;
use crate::model::policy::{Limits, Policy};

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

    /// Waits until the extender rejects every node that its annotations show overloaded, and finds a GPU on every GPU
    /// node.
    ///
    /// # Errors
    /// After [`PATIENCE`], or when a program has ended.
    pub(crate) async fn knows_every_node(&self) -> anyhow::Result<()> {
        self.wait("the extender knows every node", async || {
            let limits = self.cluster.loads.policy().limits();
            Ok(unknown_nodes(&self.nodes().await?, &self.cluster.sim.list(NODES), limits))
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
        self.wait_for_node(node, "the extender rejects it", is_overloaded).await
    }

    /// Waits until extender and annotator follow a policy: the extender compares a reading of every node with the
    /// policy's limit, and the annotator has written that reading for it after `since`. A node whose exporter was
    /// killed gets no new reading.
    ///
    /// # Errors
    /// After [`PATIENCE`], or when a program has ended.
    pub(crate) async fn programs_follow(
        &self,
        policy: Policy,
        since: Timestamp,
    ) -> anyhow::Result<()> {
        let what = format!("extender and annotator follow the policy with {}", policy.cpu_metric());
        self.wait(&what, async || {
            let mut others = self.nodes().await?;
            others.retain(|node| {
                let is_measured = self.cluster.runs(&exporter(&node.name));
                !is_judged_by(node, policy, is_measured.then_some(since))
            });
            Ok(others.into_iter().map(|node| node.name).collect())
        })
        .await
    }

    /// Waits until a node's reading of its CPU is too old to count for the extender.
    ///
    /// # Errors
    /// After [`PATIENCE`], or when a program has ended.
    pub(crate) async fn finds_stale(&self, node: &str) -> anyhow::Result<()> {
        let metric = self.cluster.loads.policy().cpu_metric();
        let what = format!("its last {metric} is too old for the extender");
        self.wait_for_node(node, &what, |explained| is_stale(explained, metric)).await
    }

    /// Waits until something holds for what the extender decides about a node.
    async fn wait_for_node(
        &self,
        node: &str,
        what: &str,
        holds: impl Fn(&explain::Node) -> bool,
    ) -> anyhow::Result<()> {
        self.wait(what, async || {
            let mut others = self.nodes().await?;
            others.retain(|other| other.name == node && !holds(other));
            Ok(others.into_iter().map(|node| node.name).collect())
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

/// The nodes of which the extender knows less than their annotations tell: their overload, or their GPUs.
fn unknown_nodes(
    explained: &[explain::Node],
    objects: &[Value],
    limits: Limits,
) -> BTreeSet<String> {
    let overloaded = objects.iter().filter(|node| annotated_overload(node, limits).is_any());
    let overloaded: BTreeSet<&str> = overloaded.map(name).collect();
    let with_gpus: BTreeSet<&str> = gpu_nodes().map(|(_, plan)| plan.name).collect();
    explained
        .iter()
        .filter(|node| {
            let name = node.name.as_str();
            !node.known
                || overloaded.contains(name) && !is_overloaded(node)
                || with_gpus.contains(name) && lacks_gpu(node)
        })
        .map(|node| node.name.clone())
        .collect()
}

/// Whether the node's reading of this metric is too old to count.
fn is_stale(node: &explain::Node, metric: &str) -> bool {
    let limits = node.load.iter().flat_map(|load| &load.limits);
    limits
        .into_iter()
        .any(|limit| limit.metric == metric && limit.reading.status == ReadingStatus::Stale)
}

/// Whether the extender compares a reading of the node with the policy's limit of the CPU; with a time, one that was
/// taken later.
fn is_judged_by(node: &explain::Node, policy: Policy, since: Option<Timestamp>) -> bool {
    let limits = node.load.iter().flat_map(|load| &load.limits);
    limits.into_iter().any(|limit| {
        let is_new = since.is_none_or(|since| limit.reading.time.is_some_and(|at| at > since));
        limit.metric == policy.cpu_metric() && is_new
    })
}

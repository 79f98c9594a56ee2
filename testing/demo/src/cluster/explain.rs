//! Asks the extender for its decision about a pod: `POST /explain`, which changes nothing in the extender.

use api::explain::{self, Explanation, LimitOutcome};
use serde_json::{Value, json};

use super::{Cluster, PATIENCE};

/// A client of the extender's `/explain`.
#[derive(Debug, Clone)]
pub(crate) struct Explainer {
    http: reqwest::Client,
    url: String,
}

impl Explainer {
    /// # Errors
    /// When no HTTP client can be made.
    pub(crate) fn new(cluster: &Cluster) -> std::io::Result<Self> {
        let url = format!("http://{}/explain", cluster.extender_address());
        Ok(Self { http: sim::http_client()?, url })
    }

    /// What the extender decides for the pod on these nodes now.
    ///
    /// # Errors
    /// When the extender does not answer, or not with an explanation.
    pub(crate) async fn explain(
        &self,
        pod: &Value,
        nodes: &[&str],
    ) -> reqwest::Result<Explanation> {
        let body = json!({"Pod": pod, "NodeNames": nodes});
        let answer = self.http.post(&self.url).timeout(PATIENCE).json(&body).send().await?;
        answer.error_for_status()?.json().await
    }
}

/// Whether the node is rejected for its load.
pub(crate) fn is_overloaded(node: &explain::Node) -> bool {
    let limits = node.load.iter().flat_map(|load| &load.limits);
    limits.into_iter().any(|limit| limit.outcome == LimitOutcome::Exceeded)
}

/// Whether the node is rejected because none of its GPUs takes the pod.
pub(crate) fn lacks_gpu(node: &explain::Node) -> bool {
    node.gpus.as_ref().is_some_and(|gpus| gpus.chosen.is_empty())
}

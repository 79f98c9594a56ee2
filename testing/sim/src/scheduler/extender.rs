//! The calls to an extender, as kube-scheduler makes them (`pkg/scheduler/extender.go` of v1.36).

use std::collections::{HashMap, HashSet};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::config::Extender;
use super::cycle::Verdict;

/// Why a call came to nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    #[error(transparent)]
    Http(#[from] reqwest::Error),
    #[error("failed {verb} with extender at URL {url}, code {code}")]
    Status { verb: String, url: String, code: u16 },
    #[error("{0}")]
    Said(String),
}

/// What Filter answers; Go's absent lists are null.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct FilterResult {
    node_names: Option<Vec<String>>,
    failed_nodes: Option<HashMap<String, String>>,
    failed_and_unresolvable_nodes: Option<HashMap<String, String>>,
    error: Option<String>,
}

impl FilterResult {
    /// The result, if it lets no other nodes pass than those that were asked about.
    fn about(self, nodes: &[&str], url: &str) -> Result<Self, CallError> {
        let asked: HashSet<&str> = nodes.iter().copied().collect();
        let mut passed = self.node_names.iter().flatten();
        match passed.find(|name| !asked.contains(name.as_str())) {
            Some(name) => Err(CallError::Said(format!(
                "extender {url:?} claims a filtered node {name:?} which is not found in the input \
                 node list"
            ))),
            None => Ok(self),
        }
    }

    /// What it says of a node.
    pub(super) fn verdict(&self, node: &str) -> Verdict {
        if self.node_names.iter().flatten().any(|name| name == node) {
            return Verdict::Fits;
        }
        let reason = |map: &Option<HashMap<String, String>>| map.as_ref()?.get(node).cloned();
        let unresolvable = reason(&self.failed_and_unresolvable_nodes);
        Verdict::Rejected {
            unresolvable: unresolvable.is_some(),
            reason: unresolvable.or_else(|| reason(&self.failed_nodes)).unwrap_or_default(),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct HostPriority {
    host: String,
    /// A fraction would break the whole answer in Go, and does here.
    score: i64,
}

impl Extender {
    /// Whether it wants to see the pod.
    pub(super) fn wants(&self, pod: &Value) -> bool {
        let containers = ["initContainers", "containers"].map(|part| pod["spec"][part].as_array());
        let asks = |container: &Value| {
            let of = |part: &str| container["resources"][part].as_object();
            let names = of("limits").into_iter().chain(of("requests")).flatten();
            names
                .into_iter()
                .any(|(name, _)| self.managed_resources.iter().any(|r| r.name == *name))
        };
        self.managed_resources.is_empty() || containers.into_iter().flatten().flatten().any(asks)
    }

    /// Filter.
    pub(super) async fn filter(
        &self,
        http: &reqwest::Client,
        pod: &Value,
        nodes: &[&str],
    ) -> Result<FilterResult, CallError> {
        let body = json!({"Pod": pod, "Nodes": null, "NodeNames": nodes});
        let result: FilterResult = self.call(http, &self.filter_verb, &body).await?;
        match result.error.clone().filter(|error| !error.is_empty()) {
            Some(error) => Err(CallError::Said(error)),
            None => result.about(nodes, &self.url_prefix),
        }
    }

    /// Prioritize: points by node, weighted and on kube-scheduler's scale.
    pub(super) async fn prioritize(
        &self,
        http: &reqwest::Client,
        pod: &Value,
        nodes: &[&str],
    ) -> Result<HashMap<String, i64>, CallError> {
        let body = json!({"Pod": pod, "Nodes": null, "NodeNames": nodes});
        let scores: Vec<HostPriority> = self.call(http, &self.prioritize_verb, &body).await?;
        // MaxNodeScore over MaxExtenderPriority: 100 / 10.
        Ok(scores.into_iter().map(|s| (s.host, s.score * self.weight * 10)).collect())
    }

    /// Bind.
    pub(super) async fn bind(
        &self,
        http: &reqwest::Client,
        pod: &Value,
        node: &str,
    ) -> Result<(), CallError> {
        let meta = &pod["metadata"];
        let body = json!({
            "PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"],
            "Node": node,
        });
        let answer: Value = self.call(http, &self.bind_verb, &body).await?;
        match answer["Error"].as_str() {
            None | Some("") => Ok(()),
            Some(error) => Err(CallError::Said(error.to_owned())),
        }
    }

    async fn call<T: for<'de> Deserialize<'de>>(
        &self,
        http: &reqwest::Client,
        verb: &str,
        body: &impl Serialize,
    ) -> Result<T, CallError> {
        let url = format!("{}/{verb}", self.url_prefix.trim_end_matches('/'));
        let answer = http.post(&url).timeout(self.http_timeout).json(body).send().await?;
        match answer.status().as_u16() {
            200 => Ok(answer.json().await?),
            code => Err(CallError::Status { verb: verb.to_owned(), url, code }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_is_not_returned_is_rejected_whether_it_is_named_or_not() {
        let answer = r#"{"NodeNames": ["a"], "FailedNodes": {"b": "full", "c": "full"},
            "FailedAndUnresolvableNodes": {"c": "hot"}, "Error": ""}"#;
        let result: FilterResult = serde_json::from_str(answer).unwrap();
        let rejected = |reason: &str, unresolvable| {
            let reason = reason.to_owned();
            Verdict::Rejected { reason, unresolvable }
        };
        assert_eq!(result.verdict("a"), Verdict::Fits);
        assert_eq!(result.verdict("b"), rejected("full", false));
        assert_eq!(result.verdict("c"), rejected("hot", true));
        assert_eq!(result.verdict("d"), rejected("", false));
        let empty: FilterResult = serde_json::from_str(r#"{"NodeNames": null}"#).unwrap();
        assert_eq!(empty.verdict("a"), rejected("", false));
    }
}

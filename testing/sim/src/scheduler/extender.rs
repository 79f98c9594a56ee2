//! The calls to an extender, as kube-scheduler makes them (`pkg/scheduler/extender.go` of v1.36).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::config::Extender;
use super::decision::Verdict;
use crate::json::{list, text, uid};

/// Why a call has no usable answer. The text is kube-scheduler's.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    #[error(transparent)]
    Http(reqwest::Error),
    #[error("failed {verb} with extender at URL {url}, code {code}")]
    Status { verb: String, url: String, code: u16 },
    /// The answer's own error, or why the answer is not accepted.
    #[error("{0}")]
    Answer(String),
}

/// The answer to Filter. Go's absent lists are null.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct FilterResult {
    node_names: Option<Vec<String>>,
    failed_nodes: Option<HashMap<String, String>>,
    failed_and_unresolvable_nodes: Option<HashMap<String, String>>,
    error: Option<String>,
}

impl FilterResult {
    /// Checks that the answer names no other nodes than the question.
    fn check(self, nodes: &[&str], url: &str) -> Result<Self, CallError> {
        let asked: HashSet<&str> = nodes.iter().copied().collect();
        let mut passed = self.node_names.iter().flatten();
        match passed.find(|name| !asked.contains(name.as_str())) {
            Some(name) => Err(CallError::Answer(format!(
                "extender {url:?} claims a filtered node {name:?} which is not found in the input \
                 node list"
            ))),
            None => Ok(self),
        }
    }

    /// The verdict on a node. A node that the answer does not name is rejected.
    pub(super) fn verdict(&self, node: &str) -> Verdict {
        if self.node_names.iter().flatten().any(|name| name == node) {
            return Verdict::Fits;
        }
        let unresolvable =
            self.failed_and_unresolvable_nodes.as_ref().and_then(|map| map.get(node));
        let failed = self.failed_nodes.as_ref().and_then(|map| map.get(node));
        Verdict::Rejected {
            unresolvable: unresolvable.is_some(),
            reason: unresolvable.or(failed).cloned().unwrap_or_default(),
        }
    }
}

/// One entry of the answer to Prioritize.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct HostPriority {
    host: String,
    /// In Go a fraction makes the whole answer unreadable, and so it does here.
    score: i64,
}

/// The pods to evict, by node.
pub(super) type Victims = BTreeMap<String, Vec<Arc<Value>>>;

/// The answer to Preempt.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct PreemptResult {
    node_name_to_meta_victims: Option<BTreeMap<String, Option<MetaVictims>>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct MetaVictims {
    pods: Option<Vec<MetaPod>>,
}

#[derive(Debug, Deserialize)]
struct MetaPod {
    #[serde(rename = "UID")]
    uid: String,
}

impl PreemptResult {
    /// The victims themselves. The answer may name any pods of a node.
    fn victims(self, pods: &[Arc<Value>], url: &str) -> Result<Victims, CallError> {
        let mut victims = Victims::new();
        for (node, named) in self.node_name_to_meta_victims.unwrap_or_default() {
            let mut on_node = Vec::new();
            for victim in named.and_then(|named| named.pods).unwrap_or_default() {
                on_node.push(pod_on(&node, &victim.uid, pods, url)?);
            }
            victims.insert(node, on_node);
        }
        Ok(victims)
    }
}

/// The pod with this UID on the node.
fn pod_on(
    node: &str,
    wanted: &str,
    pods: &[Arc<Value>],
    url: &str,
) -> Result<Arc<Value>, CallError> {
    let found = pods.iter().find(|pod| pod["spec"]["nodeName"] == node && uid(pod) == wanted);
    found.cloned().ok_or_else(|| {
        CallError::Answer(format!(
            "extender: {url} claims to preempt pod (UID: {wanted}) on node: {node}, but the pod is \
             not found on that node"
        ))
    })
}

impl Extender {
    /// Whether it is asked about the pod.
    pub(super) fn wants(&self, pod: &Value) -> bool {
        if self.managed_resources.is_empty() {
            return true;
        }
        let spec = &pod["spec"];
        let mut containers = list(&spec["initContainers"]).chain(list(&spec["containers"]));
        containers.any(|container| {
            let resources = &container["resources"];
            self.manages_one_of(&resources["limits"]) || self.manages_one_of(&resources["requests"])
        })
    }

    fn manages_one_of(&self, amounts: &Value) -> bool {
        self.managed_resources.iter().any(|resource| amounts.get(&resource.name).is_some())
    }

    /// Calls Filter.
    pub(super) async fn filter(
        &self,
        http: &reqwest::Client,
        pod: &Value,
        nodes: &[&str],
    ) -> Result<FilterResult, CallError> {
        let body = json!({"Pod": pod, "Nodes": null, "NodeNames": nodes});
        let result: FilterResult = self.call(http, &self.filter_verb, &body).await?;
        match result.error.clone().filter(|error| !error.is_empty()) {
            Some(error) => Err(CallError::Answer(error)),
            None => result.check(nodes, &self.url_prefix),
        }
    }

    /// Calls Prioritize. The scores are by node, weighted and on kube-scheduler's scale.
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

    /// Calls Preempt with the victims of each node. `pods` are all pods. Returns the nodes and victims that are left.
    pub(super) async fn preempt(
        &self,
        http: &reqwest::Client,
        pod: &Value,
        victims: &Victims,
        pods: &[Arc<Value>],
    ) -> Result<Victims, CallError> {
        let mut meta_victims: BTreeMap<&String, Value> = BTreeMap::new();
        for (node, pods) in victims {
            let pods: Vec<Value> = pods.iter().map(|pod| json!({"UID": uid(pod)})).collect();
            meta_victims.insert(node, json!({"Pods": pods, "NumPDBViolations": 0}));
        }
        let body =
            json!({"Pod": pod, "NodeNameToVictims": null, "NodeNameToMetaVictims": meta_victims});
        let result: PreemptResult = self.call(http, &self.preempt_verb, &body).await?;
        result.victims(pods, &self.url_prefix)
    }

    /// Calls Bind.
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
        match text(&answer["Error"]) {
            "" => Ok(()),
            error => Err(CallError::Answer(error.to_owned())),
        }
    }

    async fn call<T: for<'de> Deserialize<'de>>(
        &self,
        http: &reqwest::Client,
        verb: &str,
        body: &impl Serialize,
    ) -> Result<T, CallError> {
        let url = format!("{}/{verb}", self.url_prefix.trim_end_matches('/'));
        let answer = http.post(&url).timeout(self.http_timeout).json(body).send().await;
        let answer = answer.map_err(CallError::Http)?;
        match answer.status().as_u16() {
            200 => answer.json().await.map_err(CallError::Http),
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
        assert_eq!(result.verdict("a"), Verdict::Fits);
        assert_eq!(result.verdict("b"), rejected("full", false));
        assert_eq!(result.verdict("c"), rejected("hot", true));
        assert_eq!(result.verdict("d"), rejected("", false));
        let empty: FilterResult = serde_json::from_str(r#"{"NodeNames": null}"#).unwrap();
        assert_eq!(empty.verdict("a"), rejected("", false));
    }

    fn rejected(reason: &str, unresolvable: bool) -> Verdict {
        let reason = reason.to_owned();
        Verdict::Rejected { reason, unresolvable }
    }
}

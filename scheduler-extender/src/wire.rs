//! kube-scheduler's extender JSON, v1.
//!
//! Go writes these structs without tags, so keys are field names in PascalCase, absent lists are
//! `null`, and reading is case-insensitive; we accept the spellings that are seen. Names of nodes
//! are borrowed from the request and written back from there.

use std::borrow::Cow;

use cluster::Pod;
use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};

/// A node's name, borrowed from the request body wherever it holds no escapes.
///
/// The newtype is needed: serde borrows a `Cow` only as a field, never as an element of a list.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(transparent)]
pub struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

impl Name<'_> {
    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What Filter and Prioritize are asked with.
#[derive(Debug, Deserialize)]
pub struct ExtenderArgs<'a> {
    /// The pod to place.
    #[serde(rename = "Pod", alias = "pod")]
    pub pod: Pod,
    /// The candidates, where kube-scheduler knows us as `nodeCacheCapable`.
    #[serde(borrow, default, rename = "NodeNames")]
    #[serde(alias = "nodeNames", alias = "nodenames")]
    pub node_names: Option<Vec<Name<'a>>>,
}

/// Reads a request.
///
/// # Errors
///
/// Says what is wrong and what to do, in words for kube-scheduler's log.
pub fn read(body: &[u8]) -> Result<(Pod, Vec<Name<'_>>), WireError> {
    let args: ExtenderArgs<'_> = parse(body)?;
    let names = args.node_names.ok_or(WireError::NoNames)?;
    Ok((args.pod, names))
}

/// Reads any of the requests.
///
/// # Errors
///
/// Where the body is not of the type.
pub fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, WireError> {
    serde_json::from_slice(body).map_err(|e| WireError::Json(e.to_string()))
}

/// Why a request cannot be answered.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// Not the JSON that kube-scheduler sends.
    #[error("cannot read the request as kube-scheduler's extender v1 JSON: {0}")]
    Json(String),
    /// Whole nodes instead of names.
    #[error(
        "the request has no NodeNames: set `nodeCacheCapable: true` in this extender's entry of the KubeSchedulerConfiguration"
    )]
    NoNames,
}

/// Filter's answer. `Nodes` is never sent: with `nodeCacheCapable`, the names are used.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct FilterResult<'a> {
    /// The nodes that may take the pod. Both lists absent would mean none, silently.
    pub node_names: Option<Vec<&'a str>>,
    /// Nodes that may not, where removing pods may help.
    pub failed_nodes: Reasons<'a>,
    /// Nodes that may not, whatever kube-scheduler removes.
    pub failed_and_unresolvable_nodes: Reasons<'a>,
    /// Why the call as a whole failed; empty where it did not.
    pub error: String,
}

impl FilterResult<'_> {
    /// A call that failed as a whole.
    pub fn failed(error: &impl ToString) -> Self {
        Self { error: error.to_string(), ..Self::default() }
    }
}

/// Reasons by node, written as a JSON object.
#[derive(Debug, Default)]
pub struct Reasons<'a>(pub Vec<(&'a str, String)>);

impl Serialize for Reasons<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (node, reason) in &self.0 {
            map.serialize_entry(node, reason)?;
        }
        map.end()
    }
}

/// One node's score. Prioritize answers a bare list of these.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct HostPriority<'a> {
    /// The node.
    pub host: &'a str,
    /// 0 to 10, whole: a fraction would break the whole answer in Go.
    pub score: i64,
}

/// What Bind is asked with.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct BindingArgs {
    /// The pod's name.
    #[serde(rename = "PodName", alias = "podName", alias = "podname")]
    pub pod_name: String,
    /// The pod's namespace.
    #[serde(rename = "PodNamespace", alias = "podNamespace", alias = "podnamespace")]
    pub pod_namespace: String,
    /// The pod's UID.
    #[serde(rename = "PodUID", alias = "podUID", alias = "poduid")]
    pub pod_uid: String,
    /// The node that kube-scheduler chose.
    #[serde(rename = "Node", alias = "node")]
    pub node: String,
}

/// Bind's answer: HTTP 200 either way.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct BindingResult {
    /// Empty where the pod is bound.
    pub error: String,
}

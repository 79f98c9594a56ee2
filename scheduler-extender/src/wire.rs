//! kube-scheduler's extender JSON, v1.
//!
//! Go writes these structs without tags, so keys are field names in PascalCase, absent lists are
//! `null`, and Go reads keys case-insensitively. The spellings that occur are accepted here. Node names
//! are borrowed from the request.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};

use api::simulate::MAX_PODS;
use api::stored::partly;
use cluster::{Node, Pod};
use placement::units::PodUid;
use serde::de::DeserializeOwned;
use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;

/// The largest number of nodes in a request; no cluster has as many. The answer for one node can take 100 times the
/// memory of a short name, so without this limit a body of the largest size could exceed the container's memory.
pub const MAX_NODES: usize = 100_000;

/// A node's name, borrowed from the request body unless it holds escapes.
///
/// The newtype is needed: serde borrows a `Cow` only as a field, not as an element of a list.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
#[serde(transparent)]
pub struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

impl Name<'_> {
    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The body of Filter and Prioritize.
#[derive(Debug, Deserialize)]
pub struct ExtenderArgs<'a> {
    /// The pod to place.
    #[serde(rename = "Pod", alias = "pod")]
    pub pod: Pod,
    /// The candidates, which kube-scheduler sends by name to an extender that is `nodeCacheCapable`.
    #[serde(borrow, default, rename = "NodeNames")]
    #[serde(alias = "nodeNames", alias = "nodenames")]
    pub node_names: Option<Vec<Name<'a>>>,
}

/// Reads a request of Filter or Prioritize.
///
/// # Errors
///
/// Where the body is not of the type, has no node names or too many. The text goes to kube-scheduler's log.
pub fn read(body: &[u8]) -> Result<(Pod, Vec<Name<'_>>), WireError> {
    let args = read_args(body)?;
    let names = args.node_names.ok_or(WireError::NoNames)?;
    Ok((args.pod, names))
}

fn read_args(body: &[u8]) -> Result<ExtenderArgs<'_>, WireError> {
    let args: ExtenderArgs<'_> = parse(body)?;
    check_count(args.node_names.as_ref().map_or(0, Vec::len))?;
    Ok(args)
}

/// A request of explain.
#[derive(Debug)]
pub struct ExplainRequest<'a> {
    /// The pod.
    pub pod: ExplainPod<'a>,
    /// The nodes; `None` for all.
    pub node_names: Option<Vec<Name<'a>>>,
}

/// The pod of a request of explain.
#[derive(Debug)]
pub enum ExplainPod<'a> {
    /// The pod's object, and its JSON.
    Object(Box<Pod>, &'a str),
    /// The pod's name.
    Named {
        /// Its namespace.
        namespace: Name<'a>,
        /// Its name.
        name: Name<'a>,
        /// Which one of pods that had this name one after another; `None` for the newest.
        uid: Option<Name<'a>>,
        /// Explain a new decision even if the decision log has one.
        fresh: bool,
    },
}

impl ExplainPod<'_> {
    /// Whether a decision from the decision log is explained, if there is one.
    pub(crate) fn uses_decision_log(&self) -> bool {
        matches!(self, Self::Named { fresh: false, .. })
    }
}

#[derive(Deserialize)]
struct ExplainBody<'a> {
    #[serde(borrow, default, rename = "Pod", alias = "pod")]
    pod: Option<&'a RawValue>,
    #[serde(borrow, default)]
    namespace: Option<Name<'a>>,
    #[serde(borrow, default)]
    name: Option<Name<'a>>,
    #[serde(borrow, default)]
    uid: Option<Name<'a>>,
    #[serde(default)]
    fresh: bool,
    #[serde(borrow, default, rename = "NodeNames")]
    #[serde(alias = "nodeNames", alias = "nodenames")]
    node_names: Option<Vec<Name<'a>>>,
}

/// Reads a request of explain.
///
/// # Errors
///
/// Where the body is not of the type, has no pod or too many nodes.
pub fn read_explain_request(body: &[u8]) -> Result<ExplainRequest<'_>, WireError> {
    let fault = |error: serde_json::Error| WireError::ExplainRequest(error.to_string());
    let ExplainBody { pod, namespace, name, uid, fresh, node_names } =
        serde_json::from_slice(body).map_err(fault)?;
    check_count(node_names.as_ref().map_or(0, Vec::len))?;
    let pod = match (pod, namespace, name) {
        (Some(pod), None, None) => {
            ExplainPod::Object(serde_json::from_str(pod.get()).map_err(fault)?, pod.get())
        }
        (None, Some(namespace), Some(name)) => ExplainPod::Named { namespace, name, uid, fresh },
        _ => return Err(WireError::ExplainRequest("it names no pod, or two".to_owned())),
    };
    Ok(ExplainRequest { pod, node_names })
}

/// A request of simulate.
#[derive(Debug)]
pub struct SimulationRequest<'a> {
    /// The pods' objects in the order in which they are tried, each with its JSON.
    pub pods: Vec<(Pod, &'a str)>,
    /// The new node.
    pub node: Box<Node>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SimulationBody<'a> {
    #[serde(borrow)]
    pods: Vec<&'a RawValue>,
    #[serde(borrow)]
    node: &'a RawValue,
}

/// Reads a request of simulate.
///
/// # Errors
///
/// Where the body is not of the type or has too many pods. Names the field and its line.
pub fn read_simulation(body: &[u8]) -> Result<SimulationRequest<'_>, WireError> {
    let SimulationBody { pods, node } =
        serde_json::from_slice(body).map_err(|error| WireError::Simulation(error.to_string()))?;
    if pods.len() > MAX_PODS {
        let error = format!("pods: {} of them, and at most {MAX_PODS} are tried", pods.len());
        return Err(WireError::Simulation(error));
    }
    let node = Box::new(read_part(body, node, "node")?);
    let mut read = Vec::with_capacity(pods.len());
    for (at, pod) in pods.into_iter().enumerate() {
        read.push((read_part(body, pod, &format!("pods[{at}]"))?, pod.get()));
    }
    Ok(SimulationRequest { pods: read, node })
}

/// Reads an object of Kubernetes that is a part of a body. The error names the fields that cannot be read.
fn read_part<T: DeserializeOwned>(
    body: &[u8],
    part: &RawValue,
    name: &str,
) -> Result<T, WireError> {
    let text = part.get();
    serde_json::from_str(text).map_err(|error| {
        let lost = partly::<T>(text.as_bytes()).map(|partly| partly.lost).unwrap_or_default();
        let fields: Vec<String> = lost.iter().map(|field| format!("{name}.{field}")).collect();
        let fields = if fields.is_empty() { name.to_owned() } else { fields.join(", ") };
        // The part is borrowed from the body; serde counts its lines from 1.
        let before = text.as_ptr().addr().saturating_sub(body.as_ptr().addr());
        let lines = body.iter().take(before).filter(|byte| **byte == b'\n').count();
        let (line, error) = (lines + error.line(), error.to_string());
        let what = error.rsplit_once(" at line ").map_or(error.as_str(), |(what, _)| what);
        WireError::Simulation(format!("{fields}: {what} at line {line}"))
    })
}

/// Reads a request of Preempt.
///
/// # Errors
///
/// As [`read_explain_request`].
pub fn read_preemption(body: &[u8]) -> Result<PreemptionArgs<'_>, WireError> {
    let args: PreemptionArgs<'_> = parse(body)?;
    let by_uid = args.meta_victims.as_ref().map_or(0, HashMap::len);
    let as_pods = args.victims.as_ref().map_or(0, HashMap::len);
    check_count(by_uid + as_pods)?;
    Ok(args)
}

fn check_count(nodes: usize) -> Result<(), WireError> {
    if nodes > MAX_NODES { Err(WireError::TooManyNodes) } else { Ok(()) }
}

/// Reads the body of a request.
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
    /// The body is not the JSON that kube-scheduler sends.
    #[error("cannot read the request as kube-scheduler's extender v1 JSON: {0}")]
    Json(String),
    /// The body is no request of explain.
    #[error(
        "cannot read the question: {0}; ask by name as in {{\"namespace\":\"default\",\"name\":\"web-0\"}}, \
         or send the pod under `Pod`"
    )]
    ExplainRequest(String),
    /// The body is no request of simulate.
    #[error(
        "cannot read the request: {0}; send Pods and a Node as in {{\"pods\":[{{\"spec\":…}}],\"node\":{{\"status\":…}}}}"
    )]
    Simulation(String),
    /// The body has whole nodes instead of names.
    #[error(
        "the request has no NodeNames: set `nodeCacheCapable: true` in this extender's entry of the \
         KubeSchedulerConfiguration"
    )]
    NoNames,
    /// The body has more than [`MAX_NODES`] nodes.
    #[error("the request names more than {MAX_NODES} nodes")]
    TooManyNodes,
}

/// Filter's answer. `Nodes` is never sent: with `nodeCacheCapable`, kube-scheduler reads the names.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct FilterResult<'a> {
    /// The nodes that may take the pod. Without both lists kube-scheduler would silently take no node.
    pub node_names: Option<Vec<&'a str>>,
    /// Nodes that may not take the pod, where preemption may help.
    pub failed_nodes: Reasons<'a>,
    /// Nodes that may not take the pod, where preemption cannot help.
    pub failed_and_unresolvable_nodes: Reasons<'a>,
    /// The error of the whole call; empty without one.
    pub error: String,
}

impl FilterResult<'_> {
    /// The answer of a call that failed as a whole.
    pub fn failed(error: &impl ToString) -> Self {
        Self { error: error.to_string(), ..Self::default() }
    }
}

/// Reasons by node, written as a JSON object.
#[derive(Debug, Default)]
pub struct Reasons<'a>(pub Vec<(&'a str, &'a str)>);

impl Serialize for Reasons<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (node, reason) in &self.0 {
            map.serialize_entry(node, reason)?;
        }
        map.end()
    }
}

/// One node's score. Prioritize answers with a JSON list of these.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct HostPriority<'a> {
    /// The node.
    pub host: &'a str,
    /// 0 to 10 or to 100, by the policy's scale. An integer: Go could not parse an answer with a fraction.
    pub score: i64,
}

/// The body of Preempt: the nodes where evicting pods would make room, and which pods.
#[derive(Debug, Deserialize)]
pub struct PreemptionArgs<'a> {
    /// The pod to place.
    #[serde(rename = "Pod", alias = "pod")]
    pub pod: Pod,
    /// Victims by node, as UIDs: for an extender that is `nodeCacheCapable`.
    #[serde(borrow, default, rename = "NodeNameToMetaVictims")]
    #[serde(alias = "nodeNameToMetaVictims", alias = "nodenametometavictims")]
    meta_victims: Option<HashMap<Name<'a>, MetaVictims<'a>>>,
    /// Victims by node, as whole pods: for an extender that is not.
    #[serde(borrow, default, rename = "NodeNameToVictims")]
    #[serde(alias = "nodeNameToVictims", alias = "nodenametovictims")]
    victims: Option<HashMap<Name<'a>, WholeVictims<'a>>>,
}

impl<'a> PreemptionArgs<'a> {
    /// The victims of each candidate, by UID.
    pub fn victims(self) -> impl Iterator<Item = (Name<'a>, MetaVictims<'a>)> {
        let meta = self.meta_victims.unwrap_or_default();
        let whole = self.victims.unwrap_or_default();
        meta.into_iter().chain(whole.into_iter().map(|(node, victims)| (node, victims.into())))
    }
}

/// The pods to evict from one node, by UID. Go writes an empty list as `null`.
#[derive(Debug, Deserialize, Serialize)]
pub struct MetaVictims<'a> {
    /// The pods.
    #[serde(borrow, default, rename = "Pods", alias = "pods")]
    pub pods: Option<Vec<MetaPod<'a>>>,
    /// How many PodDisruptionBudgets their eviction violates.
    #[serde(default, rename = "NumPDBViolations", alias = "numPDBViolations")]
    pub pdb_violations: i64,
}

impl MetaVictims<'_> {
    /// These pods, with the number of PodDisruptionBudget violations.
    pub fn of(pods: &BTreeSet<PodUid>, violations: usize) -> Self {
        let meta = |pod: &PodUid| MetaPod { uid: Name(Cow::Owned(pod.to_string())) };
        Self {
            pods: Some(pods.iter().map(meta).collect()),
            pdb_violations: i64::try_from(violations).unwrap_or(i64::MAX),
        }
    }

    /// The UIDs of the pods.
    pub fn uids(&self) -> impl Iterator<Item = &str> {
        self.pods.iter().flatten().map(|pod| pod.uid.as_str())
    }
}

/// A pod by its UID.
#[derive(Debug, Deserialize, Serialize)]
pub struct MetaPod<'a> {
    /// The UID.
    #[serde(borrow, rename = "UID", alias = "uid")]
    pub uid: Name<'a>,
}

/// The pods to evict from one node, as whole pods. Only their UIDs are read.
#[derive(Debug, Deserialize)]
struct WholeVictims<'a> {
    #[serde(borrow, default, rename = "Pods", alias = "pods")]
    pods: Option<Vec<WholePod<'a>>>,
    #[serde(default, rename = "NumPDBViolations", alias = "numPDBViolations")]
    pdb_violations: i64,
}

#[derive(Debug, Deserialize)]
struct WholePod<'a> {
    #[serde(borrow, default)]
    metadata: PodMeta<'a>,
}

#[derive(Debug, Default, Deserialize)]
struct PodMeta<'a> {
    #[serde(borrow, default)]
    uid: Name<'a>,
}

impl<'a> From<WholeVictims<'a>> for MetaVictims<'a> {
    fn from(victims: WholeVictims<'a>) -> Self {
        let pods = victims
            .pods
            .map(|pods| pods.into_iter().map(|pod| MetaPod { uid: pod.metadata.uid }).collect());
        Self { pods, pdb_violations: victims.pdb_violations }
    }
}

/// Preempt's answer: the remaining candidates with their victims.
#[derive(Debug, Serialize)]
pub struct PreemptionResult<'a> {
    /// By node, in the order of names.
    #[serde(rename = "NodeNameToMetaVictims", serialize_with = "as_map")]
    pub victims: Vec<(Name<'a>, MetaVictims<'a>)>,
}

fn as_map<S: Serializer>(
    entries: &[(Name<'_>, MetaVictims<'_>)],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(entries.iter().map(|(node, victims)| (node.as_str(), victims)))
}

/// The body of Bind.
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

/// Bind's answer, sent with HTTP status 200 also for an error.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct BindingResult {
    /// Empty where the pod is bound.
    pub error: String,
}

//! The pods of a node that may be moved to another, and what each node has room for: the API server's side of
//! [`placement::gpu::fewest_moves`].
//!
//! A pod is moved by evicting it: its controller makes a successor, which kube-scheduler places. So a pod may be moved
//! only where something makes that successor, and where all that kube-scheduler would ask of a node can be answered
//! here: resources, taints, and the pod's own rules about labels. Rules about other pods, volumes and ports cannot, so
//! pods with these stay. [`Stays`] has every reason.
//!
//! Invariant: what cannot be read of a pod or a node never makes a pod movable or a node fit.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use kube::api::{GetParams, ListParams, Request};
use kube::core::{ObjectMeta, Selector, SelectorExt};
use kube::{Client, Resource as _};
use placement::gpu::GpuRequest;
use placement::names::Names;
use placement::units::PodUid;
use serde::de::{DeserializeOwned, Error as _, IgnoredAny};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::answer::{OF_A_NODE, OF_ALL_WAITING, PAGE, each, object};
use crate::budget::{Budgets, Covering, Labelled};
use crate::call::{CallError, within};
use crate::event::PodReference;
use crate::meta::null_is_default;
use crate::node::Node;
use crate::object::Object;
use crate::pod::Pod;
use crate::preemption::{MAX_PODS, about};
use crate::taint::Toleration;

/// By which cluster autoscalers are told that a pod may be moved, or may not.
const SAFE_TO_EVICT: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict";

/// Controllers that make a successor which goes on where the pod was.
const REPLACING: [&str; 3] = ["ReplicaSet", "ReplicationController", "StatefulSet"];

/// The most resources that a pod of a plan may ask for: each is counted on every node.
const MAX_RESOURCES: usize = 64;

/// The most rules of a pod about labels that are checked. A pod with more stays.
const MAX_TERMS: usize = 64;

/// A node's places for pods, as a resource.
const PODS: &str = "pods";

/// Why a pod is not moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stays {
    /// No controller would make a successor.
    NoController,
    /// A DaemonSet's pod belongs to its node.
    DaemonSet,
    /// A Job would begin anew, and what another controller does is not known. With the annotation `safe-to-evict:
    /// "true"` it may be moved.
    Controller,
    /// Its annotation `cluster-autoscaler.kubernetes.io/safe-to-evict` is `"false"`.
    Annotation,
    /// It has a persistent volume, which may be bound to the node.
    Volume,
    /// It takes a port of its node.
    HostPort,
    /// It requires other pods near it, or not near it.
    OtherPods,
    /// Its rules about nodes cannot be checked here.
    NodeRules,
    /// It has claims of dynamic resource allocation.
    ResourceClaims,
    /// What it asks for cannot be read, or is too much to count, or no node can ever give it.
    Request,
    /// It is ending.
    Ending,
    /// PodDisruptionBudgets allow no eviction of it, or several cover it.
    Budget,
    /// It is as important as the pod that needs the room, or more.
    Priority,
    /// A pod of its workload was moved a short time ago.
    Moved,
}

/// A pod with cards.
#[derive(Debug, Clone)]
pub struct Resident {
    /// The pod.
    pub pod: PodReference,
    /// Its UID.
    pub uid: PodUid,
    /// Its priority.
    pub priority: i32,
    /// Its controller, as `Deployment/web`; `None` if it has none.
    pub controller: Option<String>,
    /// What it asks of cards; `None` where that cannot be read.
    pub request: Option<GpuRequest>,
    /// What kube-scheduler counts of each other resource, its place for a pod included.
    pub takes: BTreeMap<String, f64>,
    /// The budgets that cover it.
    pub covering: Vec<Covering>,
    /// Why it is not moved; `None` if it may be.
    pub stays: Option<Stays>,
    /// Whether its annotation `cluster-autoscaler.kubernetes.io/safe-to-evict` is `"true"`.
    pub consents: bool,
    rules: NodeRules,
    labelled: Labelled,
}

/// A node, as moves see it.
#[derive(Debug, Clone)]
pub struct NodeRoom {
    /// What is allocatable and not requested, of each resource but units of cards; may be below 0.
    pub free: BTreeMap<String, f64>,
    /// Whether what one of its pods requests is not known.
    has_unread_pod: bool,
    node: Node,
}

impl NodeRoom {
    /// Whether the pod's rules allow the node, and the node's taints the pod. It says nothing of room.
    pub fn accepts(&self, pod: &Resident) -> bool {
        self.is_known() && pod.rules.allow(&self.node)
    }

    fn is_known(&self) -> bool {
        !self.has_unread_pod
    }
}

/// A pod that room is made for: its rules about nodes and what it takes.
#[derive(Debug, Clone)]
pub struct Applicant {
    /// What kube-scheduler counts of each resource but units of cards, its place for a pod included.
    pub takes: BTreeMap<String, f64>,
    rules: NodeRules,
}

impl Applicant {
    /// A pod without rules, that takes nothing but cards.
    #[must_use]
    pub fn of_cards() -> Self {
        Self { takes: BTreeMap::from([(PODS.to_owned(), 1.0)]), rules: NodeRules::default() }
    }

    /// Whether the pod's rules allow the node, and the node's taints the pod.
    pub fn may_go_to(&self, node: &NodeRoom) -> bool {
        node.is_known() && self.rules.allow(&node.node)
    }
}

/// Reads a pod that waits. `None` if it is gone, is another by now, or its rules about nodes cannot be checked here.
///
/// # Errors
///
/// Where the API server refuses or does not answer within `limit`.
pub async fn applicant(
    client: &Client,
    pod: &PodReference,
    names: &Names,
    limit: Duration,
) -> Result<Option<Applicant>, CallError> {
    let request = Request::new(Pod::url_path(&(), Some(&pod.namespace)));
    let get =
        async { object::<WholePod>(client, request.get(&pod.name, &GetParams::default())).await };
    let WholePod { pod: read, rest } = within(limit, get).await?;
    let takes = takes(&read, names);
    let is_another = read.uid().as_str() != pod.uid;
    if is_another
        || read.is_unread()
        || rest.stays().is_some()
        || read.has_resource_claims()
        || takes.len() > MAX_RESOURCES
    {
        return Ok(None);
    }
    Ok(NodeRules::of(&read, rest).map(|rules| Applicant { takes, rules }))
}

/// A node's room, and its pods with cards, without the budgets that cover these: [`Resident::cover`] adds them.
///
/// # Errors
///
/// Where the API server refuses or does not answer within `limit`, or the list is too long.
pub async fn residents(
    client: &Client,
    node: &str,
    names: &Names,
    limit: Duration,
) -> Result<(NodeRoom, Vec<Resident>), CallError> {
    let nodes = Request::new(Node::url_path(&(), None));
    let pods = Request::new(Pod::url_path(&(), None));
    let on_node = ListParams::default().fields(&format!("spec.nodeName={node}")).limit(PAGE);
    let mut used = BTreeMap::<String, f64>::new();
    let mut residents = Vec::new();
    let mut has_unread_pod = false;
    let get = async { object::<Node>(client, nodes.get(node, &GetParams::default())).await };
    let add = |whole: WholePod| {
        if whole.pod.is_finished() {
            return;
        }
        has_unread_pod |= whole.pod.is_unread();
        let takes = takes(&whole.pod, names);
        for (resource, amount) in &takes {
            *used.entry(resource.clone()).or_default() += amount;
        }
        let has_cards = !matches!(whole.pod.request(names), Ok(None));
        if has_cards && residents.len() < MAX_PODS {
            residents.push(Resident::new(whole, takes, names));
        }
    };
    let list = each(client, &pods, &on_node, OF_A_NODE, add);
    let (node, ()) = tokio::try_join!(within(limit, get), within(limit, list))?;
    let room = NodeRoom { has_unread_pod, ..NodeRoom::new(node, &used, names) };
    Ok((room, residents))
}

fn takes(pod: &Pod, names: &Names) -> BTreeMap<String, f64> {
    let mut takes = pod.scheduled_requests();
    takes.retain(|resource, amount| *resource != names.gpu_resource() && *amount > 0.0);
    takes.insert(PODS.to_owned(), 1.0);
    takes
}

impl NodeRoom {
    fn new(node: Node, used: &BTreeMap<String, f64>, names: &Names) -> Self {
        let allocatable = node.allocatable().iter();
        let mut free: BTreeMap<String, f64> = allocatable
            .filter(|(resource, _)| **resource != names.gpu_resource())
            .filter_map(|(resource, amount)| Some((resource.clone(), amount.amount()?)))
            .collect();
        for (resource, used) in used {
            *free.entry(resource.clone()).or_default() -= used;
        }
        Self { free, has_unread_pod: false, node }
    }
}

impl Resident {
    /// Whether it may be moved for a pod of this priority: if it is less important, or as important and marked as safe
    /// to evict. Else anyone could have the pods of others restarted.
    pub fn gives_way_to(&self, priority: i32) -> bool {
        self.priority < priority || (self.priority == priority && self.consents)
    }

    /// Its namespace.
    pub fn namespace(&self) -> &str {
        self.labelled.namespace()
    }

    /// Sets which of the budgets cover it, and that it stays if they keep it.
    pub fn cover(&mut self, budgets: &Budgets) {
        self.covering = budgets.covering(&self.labelled);
        self.stays = self.stays.or(stays_by_budget(&self.covering));
    }

    fn new(whole: WholePod, takes: BTreeMap<String, f64>, names: &Names) -> Self {
        let WholePod { pod, rest } = whole;
        let request = pod.request(names).ok().flatten();
        let by_spec = pod.has_volume_claims().then_some(Stays::Volume).or(rest.stays());
        let rules = NodeRules::of(&pod, rest);
        let stays = stays_by_owner(&pod)
            .or(by_spec)
            .or(pod.is_deleting().then_some(Stays::Ending))
            .or(pod.has_resource_claims().then_some(Stays::ResourceClaims))
            .or((request.is_none() || takes.len() > MAX_RESOURCES).then_some(Stays::Request))
            .or(rules.is_none().then_some(Stays::NodeRules));
        Self {
            pod: about(&pod),
            uid: pod.uid(),
            priority: pod.priority(),
            controller: pod.controller().map(|(kind, name)| format!("{kind}/{name}")),
            request,
            takes,
            covering: Vec::new(),
            stays,
            consents: pod.metadata.annotation(SAFE_TO_EVICT) == Some("true"),
            rules: rules.unwrap_or_default(),
            labelled: Labelled::new(&pod),
        }
    }
}

fn stays_by_owner(pod: &Pod) -> Option<Stays> {
    let allowed = pod.metadata.annotation(SAFE_TO_EVICT);
    if allowed == Some("false") {
        return Some(Stays::Annotation);
    }
    match pod.metadata.owners.iter().find(|owner| owner.controller) {
        None => Some(Stays::NoController),
        // A static pod's controller is its node.
        Some(owner) if owner.kind == "Node" => Some(Stays::NoController),
        Some(owner) if owner.kind == "DaemonSet" => Some(Stays::DaemonSet),
        Some(owner) if REPLACING.contains(&owner.kind.as_str()) => None,
        Some(_) => (allowed != Some("true")).then_some(Stays::Controller),
    }
}

fn stays_by_budget(covering: &[Covering]) -> Option<Stays> {
    match covering {
        [] => None,
        [budget] if budget.allowed > 0 => None,
        _ => Some(Stays::Budget),
    }
}

/// A pod with what moves need besides. It is parsed twice, from one text: the watch, which reads the same [`Pod`], has
/// no use for the rest.
struct WholePod {
    pod: Pod,
    rest: Rest,
}

impl Object for WholePod {
    const KIND: &'static str = Pod::KIND;

    fn about(&self) -> &ObjectMeta {
        self.pod.about()
    }

    fn set_lost(&mut self, lost: Vec<String>) {
        self.pod.set_lost(lost);
    }
}

impl<'de> Deserialize<'de> for WholePod {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        fn part<T: DeserializeOwned, E: serde::de::Error>(text: &RawValue) -> Result<T, E> {
            serde_json::from_str(text.get()).map_err(E::custom)
        }
        let text = Box::<RawValue>::deserialize(deserializer).map_err(D::Error::custom)?;
        Ok(Self { pod: part(&text)?, rest: part(&text)? })
    }
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Rest {
    #[serde(deserialize_with = "null_is_default")]
    spec: RestOfSpec,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RestOfSpec {
    #[serde(deserialize_with = "null_is_default")]
    node_selector: BTreeMap<String, String>,
    #[serde(deserialize_with = "null_is_default")]
    affinity: Affinity,
    #[serde(deserialize_with = "null_is_default")]
    topology_spread_constraints: Vec<Spread>,
    #[serde(deserialize_with = "null_is_default")]
    containers: Vec<Ports>,
    #[serde(deserialize_with = "null_is_default")]
    init_containers: Vec<Ports>,
    #[serde(deserialize_with = "null_is_default")]
    host_network: bool,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Affinity {
    #[serde(deserialize_with = "null_is_default")]
    node_affinity: Required<NodeSelector>,
    #[serde(deserialize_with = "null_is_default")]
    pod_affinity: Required<Vec<IgnoredAny>>,
    #[serde(deserialize_with = "null_is_default")]
    pod_anti_affinity: Required<Vec<IgnoredAny>>,
}

/// What is preferred only is not read: it forbids no node.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, bound = "T: Default + Deserialize<'de>")]
struct Required<T> {
    #[serde(
        rename = "requiredDuringSchedulingIgnoredDuringExecution",
        deserialize_with = "null_is_default"
    )]
    required: Option<T>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct NodeSelector {
    #[serde(deserialize_with = "null_is_default")]
    node_selector_terms: Vec<Term>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Term {
    #[serde(deserialize_with = "null_is_default")]
    match_expressions: Vec<LabelSelectorRequirement>,
    #[serde(deserialize_with = "null_is_default")]
    match_fields: Vec<IgnoredAny>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spread {
    #[serde(deserialize_with = "null_is_default")]
    when_unsatisfiable: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Ports {
    #[serde(deserialize_with = "null_is_default")]
    ports: Vec<Port>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Port {
    #[serde(deserialize_with = "null_is_default")]
    host_port: i64,
}

impl Rest {
    /// Why a pod with this spec cannot be moved.
    fn stays(&self) -> Option<Stays> {
        let spec = &self.spec;
        let mut ports =
            spec.containers.iter().chain(&spec.init_containers).flat_map(|it| &it.ports);
        let affinity = &spec.affinity;
        let of_pods = [&affinity.pod_affinity, &affinity.pod_anti_affinity];
        let near_pods =
            of_pods.iter().any(|it| it.required.as_ref().is_some_and(|terms| !terms.is_empty()));
        let spread = spec
            .topology_spread_constraints
            .iter()
            .any(|spread| spread.when_unsatisfiable != "ScheduleAnyway");
        if spec.host_network || ports.any(|port| port.host_port != 0) {
            Some(Stays::HostPort)
        } else if near_pods || spread {
            Some(Stays::OtherPods)
        } else {
            None
        }
    }
}

/// What a pod asks of its node's labels and taints.
#[derive(Debug, Clone, Default)]
struct NodeRules {
    node_selector: BTreeMap<String, String>,
    /// One of these has to match; none for a pod without such a rule.
    terms: Option<Vec<Selector>>,
    tolerations: Vec<Toleration>,
}

impl NodeRules {
    /// `None` where they cannot be checked here.
    fn of(pod: &Pod, rest: Rest) -> Option<Self> {
        let RestOfSpec { node_selector, affinity, .. } = rest.spec;
        let terms = match affinity.node_affinity.required {
            None => None,
            Some(selector) if selector.node_selector_terms.len() > MAX_TERMS => return None,
            Some(selector) => {
                let terms = selector.node_selector_terms.into_iter().map(Term::selector);
                Some(terms.collect::<Option<Vec<_>>>()?)
            }
        };
        Some(Self { node_selector, terms, tolerations: pod.tolerations().to_vec() })
    }

    /// Whether these rules, and the node's readiness and taints, let the pod be placed there.
    fn allow(&self, node: &Node) -> bool {
        let labels = node.labels();
        let by_terms = self.terms.as_ref().is_none_or(|terms| {
            terms.iter().any(|term| !term.selects_all() && term.matches(labels))
        });
        let mut selector = self.node_selector.iter();
        node.is_ready()
            && !node.keeps_out(&self.tolerations)
            && by_terms
            && selector.all(|(key, value)| labels.get(key) == Some(value))
    }
}

impl Term {
    /// `None` where it has a rule that is not about labels, or an operator that label selectors lack (`Gt`, `Lt`).
    /// A term without rules matches no node, as in kube-scheduler.
    fn selector(self) -> Option<Selector> {
        let Self { match_expressions, match_fields } = self;
        let known = ["In", "NotIn", "Exists", "DoesNotExist"];
        let are_known = match_expressions.iter().all(|it| known.contains(&it.operator.as_str()));
        if !match_fields.is_empty() || !are_known || match_expressions.len() > MAX_TERMS {
            return None;
        }
        let selector =
            LabelSelector { match_expressions: Some(match_expressions), match_labels: None };
        Selector::try_from(selector).ok()
    }
}

/// The pods that wait for cards and for which others may be evicted, each with its priority: those that kube-scheduler
/// has marked as unschedulable. The most important come first, of equals the oldest, `most` of them at most.
///
/// # Errors
///
/// Where the API server refuses or does not answer within `limit`.
pub async fn waiting_for_cards(
    client: &Client,
    names: &Names,
    most: usize,
    limit: Duration,
) -> Result<Vec<(PodReference, i32)>, CallError> {
    let pods = Request::new(Pod::url_path(&(), None));
    let pending = ListParams::default().fields("spec.nodeName=,status.phase=Pending").limit(PAGE);
    let mut waiting: Vec<(PodReference, i32, Option<Timestamp>)> = Vec::new();
    let add = |pod: Pod| {
        let waits = pod.is_unschedulable() && pod.may_preempt() && !pod.is_deleting();
        if waits && matches!(pod.request(names), Ok(Some(_))) {
            waiting.push((about(&pod), pod.priority(), pod.created_at()));
            if waiting.len() >= 2 * most.max(1) {
                keep_most_important(&mut waiting, most);
            }
        }
    };
    within(limit, each(client, &pods, &pending, OF_ALL_WAITING, add)).await?;
    keep_most_important(&mut waiting, most);
    Ok(waiting.into_iter().map(|(pod, priority, _)| (pod, priority)).collect())
}

fn keep_most_important(waiting: &mut Vec<(PodReference, i32, Option<Timestamp>)>, most: usize) {
    waiting.sort_by_key(|(_, priority, created_at)| (Reverse(*priority), *created_at));
    waiting.truncate(most);
}

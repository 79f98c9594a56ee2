//! The pods of a node that may be moved to another, and what each node has room for: the API server's side of
//! [`placement::gpu::fewest_moves`].
//!
//! A pod is moved by evicting it: its controller makes a successor, which kube-scheduler places. So a pod may be moved
//! only where something makes that successor, and where all that kube-scheduler would ask of a node can be answered
//! here: resources, taints, the pod's own rules about labels, and which pods the pods of a node keep out. Its own rules
//! about other pods, volumes and ports cannot, so pods with these stay. [`Stays`] has every reason.
//!
//! Invariant: what cannot be read of a pod or a node never makes a pod movable or a node fit.

mod rules;

use std::collections::BTreeMap;
use std::time::Duration;

use kube::api::{GetParams, ListParams, Request};
use kube::core::ObjectMeta;
use kube::{Client, Resource as _};
use placement::gpu::GpuRequest;
use placement::names::Names;
use placement::selector::Labels;
use placement::units::PodUid;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use self::rules::{KeepsOut, MAX_KEEPING_OUT, NodeRules, Rest};
use crate::answer::{OF_A_NODE, PAGE, each, object};
use crate::budget::{Budgets, Covering, Labelled};
use crate::call::{CallError, within};
use crate::event::PodReference;
use crate::node::Node;
use crate::object::Object;
use crate::pod::Pod;
use crate::preemption::{MAX_PODS, about};

/// By which cluster autoscalers are told that a pod may be moved, or may not.
const SAFE_TO_EVICT: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict";

/// Controllers that make a successor which goes on where the pod was.
const REPLACING: [&str; 3] = ["ReplicaSet", "ReplicationController", "StatefulSet"];

/// The most resources that a pod of a plan may ask for: each is counted on every node.
const MAX_RESOURCES: usize = 64;

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
    /// It is a client of MPS beside others, and nothing terminates it before it is killed.
    MpsClient,
}

/// A pod with cards.
#[derive(Debug, Clone)]
pub struct Resident<D> {
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
    /// What kube-scheduler counts of each resource, its place for a pod included.
    pub takes: BTreeMap<String, f64>,
    /// The budgets that cover it.
    pub covering: Vec<Covering>,
    /// Why it is not moved; `None` if it may be.
    pub stays: Option<Stays>,
    /// Whether its annotation `cluster-autoscaler.kubernetes.io/safe-to-evict` is `"true"`.
    pub consents: bool,
    /// What the caller makes of the pod.
    pub decided: D,
    rules: NodeRules,
    labelled: Labelled,
}

/// A node, as moves see it.
#[derive(Debug, Clone)]
pub struct NodeRoom {
    /// What is allocatable and not requested, of each resource; may be below 0. Units of cards are among them: while
    /// the device plugin withholds a node's, they are not allocatable.
    pub free: BTreeMap<String, f64>,
    /// Whether what one of its pods requests is not known.
    has_unread_pod: bool,
    /// By which its pods keep others out; one more than are checked at most.
    keeping_out: Vec<KeepsOut>,
    node: Node,
}

impl NodeRoom {
    /// Whether the pod's rules allow the node, and the node's taints and pods the pod. It says nothing of room.
    pub fn accepts<D>(&self, pod: &Resident<D>) -> bool {
        self.takes_in(&pod.rules, &pod.labelled)
    }

    fn takes_in(&self, rules: &NodeRules, pod: &Labelled) -> bool {
        !self.has_unread_pod
            && rules.allow(&self.node)
            && self.keeping_out.len() <= MAX_KEEPING_OUT
            && !self.keeping_out.iter().any(|rule| rule.selects(pod))
    }
}

/// A pod that room is made for: its rules about nodes and what it takes.
#[derive(Debug, Clone)]
pub struct Applicant {
    /// What kube-scheduler counts of each resource, its place for a pod included.
    pub takes: BTreeMap<String, f64>,
    rules: NodeRules,
    labelled: Labelled,
}

impl Applicant {
    /// A pod of no namespace and without rules, that takes nothing but these units of cards.
    #[must_use]
    pub fn of_cards(names: &Names, units: u32) -> Self {
        let takes = [(PODS.to_owned(), 1.0), (names.gpu_resource().to_owned(), f64::from(units))];
        let (rules, labelled) = (NodeRules::default(), Labelled::new(&Pod::default()));
        Self { takes: takes.into(), rules, labelled }
    }

    /// Whether the pod's rules allow a node with these labels.
    pub fn may_go_by_labels(&self, labels: &Labels) -> bool {
        self.rules.allow_labels(labels)
    }

    /// Whether the pod's rules allow the node, and the node's taints and pods the pod.
    pub fn may_go_to(&self, node: &NodeRoom) -> bool {
        node.takes_in(&self.rules, &self.labelled)
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
    limit: Duration,
) -> Result<Option<Applicant>, CallError> {
    let request = Request::new(Pod::url_path(&(), Some(&pod.namespace)));
    let get =
        async { object::<WholePod>(client, request.get(&pod.name, &GetParams::default())).await };
    let WholePod { pod: read, rest } = within(limit, get).await?;
    let takes = takes(&read);
    let is_another = read.uid().as_str() != pod.uid;
    if is_another
        || read.is_unread()
        || rest.stays().is_some()
        || read.has_resource_claims()
        || takes.len() > MAX_RESOURCES
    {
        return Ok(None);
    }
    let labelled = Labelled::new(&read);
    Ok(NodeRules::of(&read, rest).map(|rules| Applicant { takes, rules, labelled }))
}

/// A node's room, and its pods with cards, each with what `decide` makes of it, without the budgets that cover these:
/// [`Resident::cover`] adds them.
///
/// # Errors
///
/// Where the API server refuses or does not answer within `limit`, or the list is too long.
pub async fn residents<D>(
    client: &Client,
    node: &str,
    names: &Names,
    decide: impl Fn(&Pod) -> D,
    limit: Duration,
) -> Result<(NodeRoom, Vec<Resident<D>>), CallError> {
    let nodes = Request::new(Node::url_path(&(), None));
    let pods = Request::new(Pod::url_path(&(), None));
    let on_node = ListParams::default().fields(&format!("spec.nodeName={node}")).limit(PAGE);
    let mut used = BTreeMap::<String, f64>::new();
    let mut residents = Vec::new();
    let (mut has_unread_pod, mut keeping_out) = (false, Vec::new());
    let get = async { object::<Node>(client, nodes.get(node, &GetParams::default())).await };
    let add = |whole: WholePod| {
        if whole.pod.is_finished() {
            return;
        }
        has_unread_pod |= whole.pod.is_unread();
        let left = (MAX_KEEPING_OUT + 1).saturating_sub(keeping_out.len());
        keeping_out.extend(whole.rest.keeps_out(whole.pod.namespace()).take(left));
        let takes = takes(&whole.pod);
        for (resource, amount) in &takes {
            *used.entry(resource.clone()).or_default() += amount;
        }
        let has_cards = !matches!(whole.pod.request(names), Ok(None));
        if has_cards && residents.len() < MAX_PODS {
            let decided = decide(&whole.pod);
            residents.push(Resident::new(whole, takes, names, decided));
        }
    };
    let list = each(client, &pods, &on_node, OF_A_NODE, add);
    let (node, ()) = tokio::try_join!(within(limit, get), within(limit, list))?;
    let free = free(&node, &used);
    Ok((NodeRoom { free, has_unread_pod, keeping_out, node }, residents))
}

fn takes(pod: &Pod) -> BTreeMap<String, f64> {
    let mut takes = pod.scheduled_requests();
    takes.retain(|_, amount| *amount > 0.0);
    takes.insert(PODS.to_owned(), 1.0);
    takes
}

fn free(node: &Node, used: &BTreeMap<String, f64>) -> BTreeMap<String, f64> {
    let mut free: BTreeMap<String, f64> = BTreeMap::new();
    for (resource, quantity) in node.allocatable() {
        free.extend(quantity.amount().map(|amount| (resource.clone(), amount)));
    }
    for (resource, used) in used {
        *free.entry(resource.clone()).or_default() -= used;
    }
    free
}

impl<D> Resident<D> {
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

    fn new(whole: WholePod, takes: BTreeMap<String, f64>, names: &Names, decided: D) -> Self {
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
            decided,
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

//! Which pods to move to other nodes so that a GPU pod finds room on one node: the fewest.
//!
//! Placement cannot mend every gap: pods end in another order than they came, and what they leave is spread over GPUs
//! that are half full. A move evicts a pod, and its controller makes a successor, which kube-scheduler places. So it
//! costs a restart, and no pod its place: a plan names a place for each pod that has to go, beside the pod for which
//! the room is made.
//!
//! [`fewest_moves`] plans for one node ([`one_node`]), [`Search`] for all ([`search`]).
//!
//! Invariants: no plan moves a pod twice, nor one with a [`StayReason`], nor more pods than budgets allow together;
//! none sends a pod to a node that Filter rejects for it, or that was not read.

mod budgets;
mod one_node;
mod search;

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::SignedDuration;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::demand::Rates;
use crate::gpu::{Choice, GpuRequest, NodeGpus};
use crate::load::{PodKind, PodToPlace};
use crate::node_rules::{NodeRules, NodeTraits};
use crate::resources::{Amounts, PODS, Requests};
use crate::selector::{Labels, Requirements};
use crate::units::{NodeName, PodUid};

pub use budgets::{Covering, beyond_budgets};
pub use one_node::{fewest_moves, fewest_to_leave};
pub use search::{Cluster, KnownNode, Search, Step};

/// A node's place in a list of nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeIndex(pub usize);

/// A node that pods may leave or come to.
#[derive(Debug, Clone, PartialEq)]
pub struct MoveNode {
    /// Its name. Of nodes that cost the same the first by name is taken.
    pub name: NodeName,
    /// Its GPUs; without any for a node that has none.
    pub gpus: Arc<NodeGpus>,
    /// What is allocatable and not requested, of each other resource; may be below 0. Units of GPUs are among them:
    /// while the device plugin withholds a node's, they are not allocatable. `None` where that is not known: then it is
    /// taken for enough.
    pub free: Option<Requests>,
}

/// A pod's namespace, name and labels, for selectors.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Labelled {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its labels; `None` for more than are kept.
    pub labels: Option<Labels>,
}

/// What a pod needs of a node.
#[derive(Debug, Clone, PartialEq)]
pub struct PodNeeds {
    /// The pod.
    pub uid: PodUid,
    /// The pod, for the rules of others.
    pub labelled: Labelled,
    /// The GPUs that it asks for; `None` for a pod without GPUs, or where what it asks for cannot be read.
    pub request: Option<GpuRequest>,
    /// What kube-scheduler counts of each resource, its place for a pod included.
    pub takes: Requests,
    /// Its rules about nodes.
    pub rules: NodeRules,
    /// Its priority class; empty where it has none.
    pub priority_class: String,
    /// Whether a DaemonSet owns it.
    pub kind: PodKind,
    /// What it will probably use.
    pub uses: Amounts,
    /// What it declares of network and disk.
    pub declares: Rates,
    /// How long it has waited for a node; zero where it has not.
    pub waited: SignedDuration,
}

impl PodNeeds {
    /// A pod of no namespace and without rules, that needs nothing but these GPUs and resources.
    #[must_use]
    pub fn new(uid: PodUid, request: Option<GpuRequest>, mut takes: Requests) -> Self {
        takes.insert(PODS.to_owned(), 1.0);
        Self {
            uid,
            labelled: Labelled { labels: Some(Labels::new()), ..Labelled::default() },
            request,
            takes,
            rules: NodeRules::default(),
            priority_class: String::new(),
            kind: PodKind::Ordinary,
            uses: Amounts::default(),
            declares: Rates::NONE,
            waited: SignedDuration::ZERO,
        }
    }

    fn to_place(&self) -> PodToPlace<'_> {
        PodToPlace {
            namespace: &self.labelled.namespace,
            priority_class: &self.priority_class,
            kind: self.kind,
            uses: self.uses,
            declares: self.declares,
            waited: self.waited,
            typical: &[],
        }
    }
}

/// A pod with GPUs, on its node.
#[derive(Debug, Clone, PartialEq)]
pub struct Resident {
    /// What its successor needs.
    pub needs: PodNeeds,
    /// Its priority.
    pub priority: i32,
    /// Its controller; `None` if it has none.
    pub controller: Option<Controller>,
    /// The budgets that cover it.
    pub covering: Vec<Covering>,
    /// Why it is not moved, by its object; `None` if it may be.
    pub stays: Option<StayReason>,
    /// Whether its annotation `cluster-autoscaler.kubernetes.io/safe-to-evict` is `"true"`.
    pub consents: bool,
}

impl Resident {
    /// Whether it may be moved for a pod of this priority: if it is less important, or as important and marked as safe
    /// to evict. Else anyone could have the pods of others restarted.
    fn gives_way_to(&self, priority: i32) -> bool {
        self.priority < priority || (self.priority == priority && self.consents)
    }

    /// Sets the budgets that cover it. It stays if they keep it: the API server evicts no pod that several cover.
    pub fn set_covering(&mut self, covering: Vec<Covering>) {
        let is_kept = match covering.as_slice() {
            [] => false,
            [budget] => budget.allowed <= 0,
            _ => true,
        };
        self.stays = self.stays.or(is_kept.then_some(StayReason::Budget));
        self.covering = covering;
    }
}

/// A rule by which a pod of a node keeps others out: its required anti-affinity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeepsOut {
    /// The namespaces of these; `None` for all, or where they are not known here.
    pub namespaces: Option<Vec<String>>,
    /// Their labels; `None` for any.
    pub labels: Option<Requirements>,
}

impl KeepsOut {
    fn selects(&self, pod: &Labelled) -> bool {
        let by_namespace = self.namespaces.as_ref().is_none_or(|all| all.contains(&pod.namespace));
        let by_labels = match (&self.labels, &pod.labels) {
            (Some(required), Some(labels)) => required.match_labels(labels),
            (None, _) | (_, None) => true,
        };
        by_namespace && by_labels
    }
}

/// A node as it was read from the API server.
#[derive(Debug, Clone, PartialEq)]
pub struct ReadNode {
    /// As [`MoveNode::free`].
    pub free: Requests,
    /// Whether it takes any pod: it is ready, and all of it and of its pods' rules was read.
    pub is_open: bool,
    /// Its name, labels and taints.
    pub traits: NodeTraits,
    /// By which its pods keep others out.
    pub keeps_out: Vec<KeepsOut>,
    /// Its pods with GPUs.
    pub residents: Vec<Resident>,
}

impl ReadNode {
    /// Whether the pod's rules allow the node, and the node's taints and pods the pod. It says nothing of room.
    fn accepts(&self, pod: &PodNeeds) -> bool {
        self.is_open
            && pod.rules.allow(&self.traits)
            && !self.keeps_out.iter().any(|rule| rule.selects(&pod.labelled))
    }
}

/// A controller of pods.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Controller {
    /// Its namespace.
    pub namespace: String,
    /// Its kind and name: `ReplicaSet/web`.
    pub name: String,
}

/// Room for a pod on one node of a list, and what has to be moved for it.
#[derive(Debug, Clone, PartialEq)]
pub struct MovePlan {
    /// The node that the pod gets.
    pub node: NodeIndex,
    /// Its GPUs there.
    pub choice: Choice,
    /// The pods to move. None where the pod fits as it is.
    pub moves: Vec<Move>,
}

/// A pod that is moved, and where its successor fits.
#[derive(Debug, Clone, PartialEq)]
pub struct Move {
    /// The pod.
    pub pod: PodUid,
    /// The node that its successor fits: another, or the same with other GPUs.
    pub to: NodeIndex,
    /// The GPUs there; `None` for a pod without GPUs.
    pub choice: Option<Choice>,
}

/// What a search found.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Found {
    /// `None` where no moves make room.
    pub proposal: Option<Proposal>,
    /// Nodes of which the pods were looked at.
    pub nodes: usize,
    /// The pods of these that are not moved, counted by the reason.
    pub stays: BTreeMap<StayReason, usize>,
}

/// What makes room.
#[derive(Debug, Clone, PartialEq)]
pub struct Proposal {
    /// The node that has room then.
    pub node: NodeName,
    /// The GPUs there.
    pub choice: Choice,
    /// The pods to move; none where there is room as it is.
    pub moves: Vec<ProposedMove>,
}

/// A pod to move, and where its successor fits.
#[derive(Debug, Clone, PartialEq)]
pub struct ProposedMove {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: PodUid,
    /// Its controller; `None` if it has none.
    pub controller: Option<Controller>,
    /// Its priority.
    pub priority: i32,
    /// Its units on all its GPUs.
    pub units: u32,
    /// The indices of its GPUs.
    pub from: Vec<u32>,
    /// Another node, or other GPUs of the same.
    pub to: NodeName,
    /// The indices of the GPUs there.
    pub to_gpus: Vec<u32>,
}

/// Why a pod is not moved.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "camelCase")]
pub enum StayReason {
    /// No controller would make a successor.
    NoController,
    /// A DaemonSet's pod belongs to its node.
    DaemonSet,
    /// A Job would begin anew, and what another controller does is not known; the annotation `safe-to-evict` allows it.
    Controller,
    /// Its annotation `cluster-autoscaler.kubernetes.io/safe-to-evict` is `"false"`.
    Annotation,
    /// It has a persistent volume.
    Volume,
    /// It takes a port of its node.
    HostPort,
    /// It requires other pods near it, or not near it.
    OtherPods,
    /// Its rules about nodes cannot be checked.
    NodeRules,
    /// It has claims of dynamic resource allocation.
    ResourceClaims,
    /// What it asks for cannot be read.
    Request,
    /// It is ending.
    Ending,
    /// PodDisruptionBudgets allow no eviction of it, or several cover it.
    Budget,
    /// It is as important as the pod that needs the room, or more.
    Priority,
    /// A pod of its workload was moved a short time ago.
    Moved,
    /// It is a client of NVIDIA's MPS beside others, and nothing terminates it before it is killed: a kill with work in
    /// flight would end the others.
    MpsClient,
    /// Any other reason, of a newer version.
    #[serde(other)]
    Other,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::selector::Requirement;

    #[test]
    fn what_pods_keep_out_by_labels_is_not_what_has_none() {
        let required = Requirements(vec![Requirement::is("app".to_owned(), "db".to_owned())]);
        let any = KeepsOut { namespaces: None, labels: None };
        let shape = PodNeeds::new("shape".into(), None, Requests::new()).labelled;
        assert!(any.selects(&shape));
        let by_label = KeepsOut { labels: Some(required), ..any };
        assert!(!by_label.selects(&shape));
    }
}

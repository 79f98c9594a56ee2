//! Pods and nodes as facts for [`placement::moves`].
//!
//! A pod is moved by evicting it: its controller makes a successor, which kube-scheduler places. So a pod may be moved
//! only where something makes that successor, and where all that kube-scheduler would ask of a node can be answered
//! here: resources, taints, the pod's own rules about labels, and which pods the pods of a node keep out. Its own rules
//! about other pods, volumes and ports cannot, so pods with these stay.
//!
//! Invariant: what cannot be read of a pod or a node never makes a pod movable or a node fit.

mod spec;

use std::time::Duration;

use jiff::SignedDuration;
use kube::api::{GetParams, ListParams, Request};
use kube::{Client, Resource as _};
use placement::moves::{Controller, PodNeeds, ReadNode, Resident, StayReason};
use placement::names::Names;
use placement::resources::{Amounts, PODS, Requests, add, subtract};

use self::spec::WholePod;
use crate::answer::{OF_A_NODE, PAGE, each, object};
use crate::budget::labelled;
use crate::call::{CallError, within};
use crate::event::PodReference;
use crate::node::Node;
use crate::pod::Pod;
use crate::preemption::MAX_PODS;

/// By which cluster autoscalers are told that a pod may be moved, or may not.
const SAFE_TO_EVICT: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict";

/// Controllers that make a successor which goes on where the pod was.
const REPLACING: [&str; 3] = ["ReplicaSet", "ReplicationController", "StatefulSet"];

/// The most resources that a pod of a plan may ask for.
const MAX_RESOURCES: usize = 64;

/// The most rules by which the pods of a node keep others out that are kept. A node with more takes none.
const MAX_KEEPING_OUT: usize = 128;

/// Reads what a pod that waits needs. `None` if it is gone, is another by now, or its rules about nodes cannot be
/// checked here. What it will use and how long it has waited is left to the caller.
///
/// # Errors
///
/// Where the API server refuses or does not answer within `limit`.
pub async fn applicant(
    client: &Client,
    pod: &PodReference,
    names: &Names,
    limit: Duration,
) -> Result<Option<PodNeeds>, CallError> {
    let request = Request::new(Pod::url_path(&(), Some(&pod.namespace)));
    let get =
        async { object::<WholePod>(client, request.get(&pod.name, &GetParams::default())).await };
    let whole = within(limit, get).await?;
    let is_another = whole.pod.uid().as_str() != pod.uid;
    // What a pod without units asks for by ResourceClaims, the caller has read.
    let by_units = !matches!(whole.pod.request(names), Ok(None));
    let stays = whole.stays.filter(|why| *why != StayReason::ResourceClaims || by_units);
    if is_another || whole.pod.is_unread() || stays.is_some() {
        return Ok(None);
    }
    let takes = takes(&whole.pod);
    let can_be_checked = whole.rules.can_be_checked() && takes.len() <= MAX_RESOURCES;
    Ok(can_be_checked.then(|| needs(whole, takes, names, Amounts::default())))
}

/// Reads a node and its pods with GPUs, each with what it will probably use by `uses`, and without the budgets that
/// cover it.
///
/// # Errors
///
/// Where the API server refuses or does not answer within `limit`, or the list is too long.
pub async fn read_node(
    client: &Client,
    node: &str,
    names: &Names,
    uses: impl Fn(&Pod) -> Amounts,
    limit: Duration,
) -> Result<ReadNode, CallError> {
    let nodes = Request::new(Node::url_path(&(), None));
    let pods = Request::new(Pod::url_path(&(), None));
    let on_node = ListParams::default().fields(&format!("spec.nodeName={node}")).limit(PAGE);
    let (mut used, mut keeps_out, mut residents) = (Requests::new(), Vec::new(), Vec::new());
    let mut has_unread_pod = false;
    let get = async { object::<Node>(client, nodes.get(node, &GetParams::default())).await };
    let take = |mut whole: WholePod| {
        if whole.pod.is_finished() {
            return;
        }
        has_unread_pod |= whole.pod.is_unread();
        let left = (MAX_KEEPING_OUT + 1).saturating_sub(keeps_out.len());
        keeps_out.extend(whole.keeps_out.drain(..).take(left));
        let takes = takes(&whole.pod);
        add(&mut used, &takes);
        let has_gpus = !matches!(whole.pod.request(names), Ok(None));
        if has_gpus && residents.len() < MAX_PODS {
            residents.push(resident(whole, takes, names, &uses));
        }
    };
    let list = each(client, &pods, &on_node, OF_A_NODE, take);
    let (node, ()) = tokio::try_join!(within(limit, get), within(limit, list))?;
    let mut free = Requests::new();
    for (resource, quantity) in node.allocatable() {
        free.extend(quantity.amount().map(|amount| (resource.clone(), amount)));
    }
    subtract(&mut free, &used);
    let is_known = node.is_whole() && !has_unread_pod && keeps_out.len() <= MAX_KEEPING_OUT;
    let is_open = node.is_ready() && is_known;
    Ok(ReadNode { free, is_open, traits: node.traits(), keeps_out, residents })
}

/// What kube-scheduler counts of each resource for a pod, its place for a pod included.
fn takes(pod: &Pod) -> Requests {
    let mut takes = pod.scheduled_requests();
    takes.retain(|_, amount| *amount > 0.0);
    takes.insert(PODS.to_owned(), 1.0);
    takes
}

fn needs(whole: WholePod, takes: Requests, names: &Names, uses: Amounts) -> PodNeeds {
    let WholePod { pod, rules, .. } = whole;
    PodNeeds {
        uid: pod.uid(),
        labelled: labelled(&pod),
        request: pod.request(names).ok().flatten(),
        takes,
        rules,
        priority_class: pod.priority_class().to_owned(),
        kind: pod.kind(),
        uses,
        declares: pod.declared(names).rates,
        waited: SignedDuration::ZERO,
    }
}

fn resident(
    whole: WholePod,
    takes: Requests,
    names: &Names,
    uses: impl Fn(&Pod) -> Amounts,
) -> Resident {
    let pod = &whole.pod;
    let stays = if let Some(by_owner) = stays_by_owner(pod) {
        Some(by_owner)
    } else if pod.has_volume_claims() {
        Some(StayReason::Volume)
    } else if whole.stays.is_some() {
        whole.stays
    } else if pod.is_deleting() {
        Some(StayReason::Ending)
    } else if pod.request(names).is_err() || takes.len() > MAX_RESOURCES {
        Some(StayReason::Request)
    } else if !whole.rules.can_be_checked() {
        Some(StayReason::NodeRules)
    } else {
        None
    };
    let (priority, controller, uses) = (pod.priority(), controller(pod), uses(pod));
    let consents = pod.metadata.annotation(SAFE_TO_EVICT) == Some("true");
    let needs = needs(whole, takes, names, uses);
    Resident { needs, priority, controller, covering: Vec::new(), stays, consents }
}

/// The controller of a pod; `None` if it has none.
pub fn controller(pod: &Pod) -> Option<Controller> {
    let (kind, name) = pod.controller()?;
    Some(Controller { namespace: pod.namespace().to_owned(), name: format!("{kind}/{name}") })
}

fn stays_by_owner(pod: &Pod) -> Option<StayReason> {
    let allowed = pod.metadata.annotation(SAFE_TO_EVICT);
    if allowed == Some("false") {
        return Some(StayReason::Annotation);
    }
    match pod.metadata.owners.iter().find(|owner| owner.controller) {
        None => Some(StayReason::NoController),
        // A static pod's controller is its node.
        Some(owner) if owner.kind == "Node" => Some(StayReason::NoController),
        Some(owner) if owner.kind == "DaemonSet" => Some(StayReason::DaemonSet),
        Some(owner) if REPLACING.contains(&owner.kind.as_str()) => None,
        Some(_) => (allowed != Some("true")).then_some(StayReason::Controller),
    }
}

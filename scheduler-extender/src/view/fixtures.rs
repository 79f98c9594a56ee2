//! Helpers of unit tests.

use cluster::{Event, GpuPod, Node, NodeFacts, PodFacts};
use jiff::Timestamp;
use placement::gpu::{Card, CardIsolation, Claim, GpuRequest};
use placement::load::PodKind;
use placement::names::Names;
use placement::policy::LoadPolicy;
use placement::reading::ReadingCodec;
use placement::units::{MiB, NodeName, Units};
use serde_json::json;

use super::{GpuPodId, Index, View, WatchState};

/// The card `GPU-0` of 16 units, empty.
pub(crate) fn card() -> Card {
    Card {
        uuid: "GPU-0".into(),
        index: 0,
        model: "NVIDIA A10".into(),
        memory: MiB(16384),
        units: Units(16),
        numa_node: None,
        healthy: true,
        closed: None,
        isolation: CardIsolation::default(),
        outside_mps: Vec::new(),
        pods: [].into(),
    }
}

/// A policy without limits.
fn policy() -> LoadPolicy {
    let text =
        "apiVersion: scheduler.policy.crane.io/v1alpha1\nkind: DynamicSchedulerPolicy\nspec: {}";
    LoadPolicy::from_yaml(text).unwrap()
}

/// The index of a cluster of which nothing is known.
pub(crate) fn index() -> Index {
    Index::new(policy(), false)
}

/// The view of a cluster of which nothing is known.
pub(crate) fn view() -> View {
    view_under(policy())
}

/// As [`view`], under another policy.
pub(crate) fn view_under(policy: LoadPolicy) -> View {
    View::new(policy, false, watch_state("nodes"), watch_state("pods"))
}

fn watch_state(name: &'static str) -> WatchState {
    WatchState::new(daemon::Health::default().gate(name))
}

/// A pod that asks for these units, and that is bound to a node with this claim.
pub(crate) fn gpu_pod(id: &GpuPodId, units: u32, bound: Option<(&NodeName, Claim)>) -> PodFacts {
    let (node, claim) = bound.unzip();
    let gpu = GpuPod {
        request: GpuRequest::single("c", Units(units)).unwrap(),
        fault: None,
        isolation: None,
        mps_conflicts: Default::default(),
        claim: Ok(claim),
        assigned: false,
    };
    PodFacts {
        uid: id.uid.clone(),
        namespace: id.namespace.clone(),
        name: id.name.clone(),
        version: None,
        node: node.cloned(),
        kind: PodKind::Ordinary,
        nominated_node: None,
        gpu: Ok(Some(gpu)),
        admitted: false,
        finished: false,
        refused: false,
        started: false,
        stopped: false,
        deleting: false,
        waits_at: None,
        created_at: None,
        bound_at: None,
    }
}

/// A node that the watch shows with these cards; without cards it reports none any more.
pub(crate) fn join(view: &View, name: &str, cards: Vec<Card>) {
    view.apply_nodes(Event::Applied(node(name, cards)), Timestamp::UNIX_EPOCH);
}

/// A list of all nodes, each with that card.
pub(crate) fn list(view: &View, names: &[String], card: &Card) {
    let nodes = names.iter().map(|name| node(name, vec![card.clone()]));
    view.apply_nodes(Event::Listed(nodes.collect()), Timestamp::UNIX_EPOCH);
}

pub(crate) fn node(name: &str, cards: Vec<Card>) -> NodeFacts {
    let node: Node = serde_json::from_value(json!({ "metadata": { "name": name } })).unwrap();
    let facts = node.facts(&Names::default(), &ReadingCodec::default());
    NodeFacts { cards: Some(Ok(cards)), ..facts }
}

/// The node is gone.
pub(crate) fn leave(view: &View, name: &str) {
    view.apply_nodes(Event::Gone(node(name, Vec::new())), Timestamp::UNIX_EPOCH);
}

//! Helpers of unit tests.

use cluster::{Event, GpuPod, Node, NodeFacts, PodFacts};
use jiff::Timestamp;
use placement::gpu::{Claim, Gpu, GpuIsolation, GpuRequest, Topology};
use placement::load::PodKind;
use placement::names::Names;
use placement::policy::LoadPolicy;
use placement::reading::ReadingCodec;
use placement::units::{MiB, NodeName, Units};
use serde_json::json;

use super::{GpuPodId, Index, View, WatchState};

/// The GPU `GPU-0` of 16 units, empty.
pub(crate) fn gpu() -> Gpu {
    Gpu {
        uuid: "GPU-0".into(),
        index: 0,
        model: "NVIDIA A10".into(),
        memory: MiB(16384),
        units: Units(16),
        topology: Topology::default(),
        healthy: true,
        closed: None,
        isolation: GpuIsolation::default(),
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
        group: None,
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

/// A node that the watch shows with these GPUs; without GPUs it reports none any more.
pub(crate) fn join(view: &View, name: &str, gpus: Vec<Gpu>) {
    view.apply_nodes(Event::Applied(node(name, gpus)), Timestamp::UNIX_EPOCH);
}

/// A list of all nodes, each with that GPU.
pub(crate) fn list(view: &View, names: &[String], gpu: &Gpu) {
    let nodes = names.iter().map(|name| node(name, vec![gpu.clone()]));
    view.apply_nodes(Event::Listed(nodes.collect()), Timestamp::UNIX_EPOCH);
}

pub(crate) fn node(name: &str, gpus: Vec<Gpu>) -> NodeFacts {
    let node: Node = serde_json::from_value(json!({ "metadata": { "name": name } })).unwrap();
    let facts = node.facts(&Names::default(), &ReadingCodec::default());
    NodeFacts { gpus: Some(Ok(gpus)), ..facts }
}

/// The node is gone.
pub(crate) fn leave(view: &View, name: &str) {
    view.apply_nodes(Event::Gone(node(name, Vec::new())), Timestamp::UNIX_EPOCH);
}

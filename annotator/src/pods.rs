//! What is kept of a pod that is bound to a node.

use cluster::{Pod, PodFacts};
use jiff::Timestamp;
use placement::gpu::{GpuRequest, Placed, Stage};
use placement::names::Names;
use placement::units::{NodeName, PodUid};

/// A pod that is bound to a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoundPod {
    /// Its UID.
    pub uid: PodUid,
    /// Its node.
    pub node: NodeName,
    /// When it was bound, where that is known.
    pub bound_at: Option<Timestamp>,
    /// What it holds of the node's cards, unless it has ended.
    pub gpu: Option<Held>,
}

/// What a pod holds of a node's cards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// What it asks for.
    pub request: GpuRequest,
    /// Where that is.
    pub placed: Placed,
    /// How far its claim has come.
    pub stage: Stage,
}

impl BoundPod {
    /// The pod, unless it is not bound yet: until then it concerns no node.
    #[must_use]
    pub fn select(pod: &Pod, names: &Names) -> Option<Self> {
        let facts = pod.facts(names);
        let (uid, node, bound_at) = (facts.uid.clone(), facts.node.clone()?, facts.bound_at);
        Some(Self { uid, node, bound_at, gpu: held(facts) })
    }
}

fn held(facts: PodFacts) -> Option<Held> {
    if facts.finished {
        return None;
    }
    // A quantity that cannot be read is one that no kubelet admits.
    let gpu = facts.gpu.ok().flatten()?;
    let stage = if gpu.assigned { Stage::Allocated } else { Stage::Bound };
    Some(Held { request: gpu.request, placed: gpu.placed, stage })
}

//! Bound pods: recent bindings by node, and the units that pods hold on each node's cards.
//!
//! Invariant: a pod is counted by its UID, once, however often the watch shows it.

pub mod ledgers;
pub mod recent_bindings;
pub mod share;

use cluster::{Pod, PodFacts};
use jiff::Timestamp;
use placement::gpu::{Claim, GpuRequest};
use placement::names::Names;
use placement::resources::PodResources;
use placement::units::{NodeName, PodUid};
use placement::workload::WorkloadId;

/// What the annotator keeps of a pod that is bound to a node.
#[derive(Debug, Clone, PartialEq)]
pub struct BoundPod {
    /// The pod's UID.
    pub uid: PodUid,
    /// The node that it is bound to.
    pub node: NodeName,
    /// The time of its PodScheduled condition; `None` for static pods, which no scheduler binds.
    pub bound_at: Option<Timestamp>,
    /// What it is charged on the node's cards; `None` where it asks for no GPU memory, or has ended.
    pub gpu: Option<GpuCharge>,
    /// Whose use it teaches; `None` where it belongs to no workload, or has ended.
    pub user: Option<User>,
}

/// What there is to know of a pod whose use is learned.
#[derive(Debug, Clone, PartialEq)]
pub struct User {
    /// Its workload.
    pub workload: WorkloadId,
    /// What it asks for.
    pub resources: PodResources,
}

/// What a pod is charged on a node's cards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuCharge {
    /// The units that its containers ask for.
    pub request: GpuRequest,
    /// The claim of its annotation, where that agrees with its spec.
    pub claim: Option<Claim>,
}

impl BoundPod {
    /// The pod; `None` where it is not bound yet.
    #[must_use]
    pub fn select(pod: &Pod, names: &Names) -> Option<Self> {
        let facts = pod.facts(names);
        let (uid, node, bound_at) = (facts.uid.clone(), facts.node.clone()?, facts.bound_at);
        let user = pod.workload().filter(|_| !facts.finished);
        let user = user.map(|workload| User { workload, resources: pod.resources() });
        Some(Self { uid, node, bound_at, gpu: charge(facts), user })
    }
}

fn charge(facts: PodFacts) -> Option<GpuCharge> {
    if facts.finished {
        return None;
    }
    // The kubelet admits no pod with a quantity that cannot be read, so such a pod holds nothing.
    let gpu = facts.gpu.ok().flatten()?;
    Some(GpuCharge { request: gpu.request, claim: gpu.claim.ok().flatten() })
}

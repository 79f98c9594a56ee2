//! Bound pods: recent bindings by node, and the units that pods hold on each node's GPUs.
//!
//! Invariant: a pod is counted by its UID, once, however often the watch shows it.

pub(crate) mod ledgers;
pub(crate) mod recent_bindings;

use cluster::{Pod, PodFacts};
use jiff::Timestamp;
use placement::gpu::{Claim, GpuRequest};
use placement::names::Names;
use placement::resources::PodResources;
use placement::units::{NodeName, PodUid};
use placement::workload::WorkloadId;

/// A pod that is bound to a node.
#[derive(Debug, Clone, PartialEq)]
pub struct BoundPod {
    /// The pod's UID.
    pub uid: PodUid,
    /// The node that it is bound to.
    pub node: NodeName,
    /// The time of its PodScheduled condition; `None` for static pods, which are not bound by a scheduler.
    pub bound_at: Option<Timestamp>,
    /// Its charge on the node's GPUs; `None` if it requests no GPU memory, or has ended.
    pub gpu: Option<GpuCharge>,
    /// The workload that learns from its use; `None` if it belongs to none, or has ended.
    pub workload: Option<PodWorkload>,
}

/// The workload and the requests of a pod whose use is learned.
#[derive(Debug, Clone, PartialEq)]
pub struct PodWorkload {
    /// Its workload.
    pub workload: WorkloadId,
    /// Its requests and limits.
    pub resources: PodResources,
}

/// The charge of a pod on a node's GPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuCharge {
    /// The units that its containers request.
    pub request: GpuRequest,
    /// The claim of its annotation; `None` if it does not agree with its spec.
    pub claim: Option<Claim>,
    /// Whether its kubelet has reported that it admitted the pod.
    pub admitted: bool,
}

impl BoundPod {
    /// Converts a pod; `None` if it is not bound yet.
    #[must_use]
    pub fn select(pod: &Pod, names: &Names) -> Option<Self> {
        let mut facts = pod.facts(names);
        let node = facts.node.take()?;
        let uid = facts.uid.clone();
        let bound_at = facts.bound_at;
        if facts.finished {
            return Some(Self { uid, node, bound_at, gpu: None, workload: None });
        }
        let workload =
            pod.workload().map(|workload| PodWorkload { workload, resources: pod.resources() });
        Some(Self { uid, node, bound_at, gpu: charge(facts), workload })
    }
}

fn charge(facts: PodFacts) -> Option<GpuCharge> {
    // The kubelet admits no pod with a quantity that does not parse, so such a pod holds no units.
    let gpu = facts.gpu.ok().flatten()?;
    let claim = gpu.claim.ok().flatten();
    Some(GpuCharge { request: gpu.request, claim, admitted: facts.admitted })
}

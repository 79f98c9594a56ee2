//! What is known of one pod that requests GPU memory, and how the index answers about it.

use cluster::{Pod, PodFacts, PodGroup};
use jiff::Timestamp;
use placement::gpu::{GpuRequest, NoFit};
use placement::units::{NodeName, PodUid, Units};

use super::back_offs::Sent;

/// A pod's UID, namespace and name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuPodId {
    /// Its UID.
    pub uid: PodUid,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// A pod that requests GPU memory, on any node or none.
#[derive(Debug, Clone)]
pub(super) struct PodRecord {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) request: GpuRequest,
    /// Its annotations cannot be read, or no node can meet them: it must not be bound.
    pub(super) faulty: bool,
    /// The version of the pod, until it is bound, that these are of.
    pub(super) version: Option<String>,
    /// The nodes on which it holds units.
    pub(super) nodes: Vec<NodeName>,
    /// The nominated node in its status.
    pub(super) nominated_by_scheduler: Option<NodeName>,
    /// The node where GPUs are kept for it, after pods were evicted.
    pub(super) nominated: Option<NodeName>,
    /// The node where this program has evicted pods for it, which is not in its status.
    pub(super) kept: Option<NodeName>,
    /// Its group.
    pub(super) group: Option<PodGroup>,
    /// The node where GPUs are kept for it with those of its group.
    pub(super) place: Option<(PodGroup, NodeName)>,
    /// The GPU that this process chose for it, until its admission is known.
    pub(super) sent: Option<Sent>,
    /// While kube-scheduler finds no node for it: its priority, and when it was created.
    pub(super) waits: Option<(i32, Option<Timestamp>)>,
    /// The last list of all pods did not have it, and no event and no look-up has come since. It may be deleted.
    pub(super) unlisted: bool,
    /// Its kubelet has reported that it admitted the pod.
    pub(super) admitted: bool,
    /// Since when it was seen admitted while its claim names a GPU that its node does not report.
    pub(super) on_lost_gpu_since: Option<Timestamp>,
    /// Whether its request counts in the measure of fragmentation.
    pub(super) measured: bool,
}

/// Why no GPU was reserved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReservationError {
    /// No GPU of the node fits.
    NoFit(NodeName, NoFit),
    /// The pod is bound to the node already.
    Bound(NodeName),
    /// GPUs of the node are reserved for what the pod asked for before, since a binding may be under way.
    Changed(NodeName),
    /// The UID belongs to a pod of another name.
    OtherPod(OtherPod),
    /// Deleted pods of the pod's namespace still hold units.
    HeldByDeleted(HeldByDeleted),
}

/// Deleted pods of a namespace hold units, so that its other pods have to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeldByDeleted {
    /// One of them was deleted seconds ago.
    Recently,
    /// All have lingered for longer.
    ForLong,
}

/// The error of a UID that belongs to a pod with another name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the UID belongs to pod {namespace}/{name}")]
pub struct OtherPod {
    /// The namespace of the UID's pod.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// The units that one pod or ResourceClaim holds of a GPU, with its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodOnGpu {
    /// Its namespace; empty for a pod that is only in the node's report.
    pub namespace: String,
    /// Its name, or its UID for a pod that is only in the node's report.
    pub name: String,
    /// The units that it holds.
    pub units: Units,
}

impl GpuPodId {
    /// The UID, namespace and name of a pod.
    #[must_use]
    pub fn of(pod: &Pod) -> Self {
        let (namespace, name) = (pod.namespace().to_owned(), pod.name().to_owned());
        Self { uid: pod.uid(), namespace, name }
    }

    pub(super) fn of_facts(pod: &PodFacts) -> Self {
        let PodFacts { uid, namespace, name, .. } = pod;
        Self { uid: uid.clone(), namespace: namespace.clone(), name: name.clone() }
    }
}

impl PodRecord {
    pub(super) fn new(id: &GpuPodId, request: &GpuRequest) -> Self {
        Self {
            namespace: id.namespace.clone(),
            name: id.name.clone(),
            request: request.clone(),
            faulty: false,
            version: None,
            nodes: Vec::new(),
            nominated_by_scheduler: None,
            nominated: None,
            kept: None,
            group: None,
            place: None,
            sent: None,
            waits: None,
            unlisted: false,
            admitted: false,
            on_lost_gpu_since: None,
            measured: false,
        }
    }

    pub(super) fn is_of(&self, pod: &GpuPodId) -> Result<(), OtherPod> {
        if self.namespace == pod.namespace && self.name == pod.name {
            Ok(())
        } else {
            Err(OtherPod { namespace: self.namespace.clone(), name: self.name.clone() })
        }
    }

    pub(super) fn id(&self, uid: &PodUid) -> GpuPodId {
        GpuPodId { uid: uid.clone(), namespace: self.namespace.clone(), name: self.name.clone() }
    }
}

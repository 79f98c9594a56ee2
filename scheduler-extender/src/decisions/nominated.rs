//! Soft limits for a pod that kube-scheduler has evicted others for.
//!
//! kube-scheduler first asks about the node alone for which it has nominated the pod, and about all nodes only if that
//! one is rejected. A node that is asked about alone is always the least loaded. So an overloaded nominated node is
//! rejected once; the next request for the pod shows whether there are others.

use std::sync::{Mutex, PoisonError};

use placement::units::PodUid;

/// The last pod whose nominated node was rejected so that kube-scheduler asks about all nodes. kube-scheduler decides
/// about one pod at a time.
#[derive(Debug, Default)]
pub struct NominatedPods(Mutex<Option<PodUid>>);

impl NominatedPods {
    /// Whether the last request for the pod was rejected so. Ends that.
    pub fn take(&self, pod: &PodUid) -> bool {
        let mut rejected = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        rejected.take_if(|rejected| rejected == pod).is_some()
    }

    /// Records that the request for the pod is rejected so.
    pub fn reject(&self, pod: &PodUid) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(pod.clone());
    }
}

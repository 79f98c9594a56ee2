//! What is known of one pod that was granted ids.

use std::collections::BTreeMap;
use std::sync::Arc;

use cluster::PodFacts;
use placement::gpu::{ContainerKind, ContainerRequest};
use placement::units::{GpuId, Units};
use tokio::time::Instant;

use crate::gpus::ids::{DeviceId, Ids};
use crate::gpus::{Gpus, units_of};
use crate::pods::{PodRef, container_requests};

/// A pod's grants, by container.
#[derive(Debug, Clone)]
pub struct GrantedPod {
    /// The pod as it was at its last grant.
    pub facts: Arc<PodFacts>,
    /// Granted ids by container.
    pub containers: BTreeMap<String, Ids>,
}

impl GrantedPod {
    /// The containers without a grant, in the order in which the kubelet admits them.
    pub fn pending(&self) -> impl Iterator<Item = &ContainerRequest> {
        container_requests(&self.facts).filter(|ask| !self.has_grant(&ask.name))
    }

    /// Whether a container has a grant.
    pub fn has_grant(&self, container: &str) -> bool {
        self.containers.contains_key(container)
    }

    /// Whether that container is an init container, which the kubelet never lists.
    pub fn is_init(&self, container: &str) -> bool {
        container_requests(&self.facts)
            .any(|ask| ask.name == container && ask.kind == ContainerKind::Init)
    }

    /// The ids of all its containers.
    pub fn ids(&self) -> impl Iterator<Item = &DeviceId> {
        self.containers.values().flatten()
    }
}

/// Whether a pod that was granted ids is still there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// The kubelet and the API server have the pod, or may not show it yet.
    Present,
    /// One of them no longer has it, and it has processes or may have some.
    Lingers,
    /// Its processes have ended.
    Ended,
}

/// A pod that was granted ids. Its parts end at different times: the grants when the kubelet no longer lists the
/// pod, the ids when its processes have ended.
#[derive(Debug, Clone)]
pub struct PodRecord {
    /// Its namespace and name; the UID in place of the name if only the kubelet's checkpoint shows the pod.
    pub pod: PodRef,
    /// Its grants, while the kubelet has the pod.
    pub(super) granted: Option<GrantedPod>,
    /// All ids that were granted to it. Empty once its processes have ended.
    pub(super) ids: Ids,
    /// The most units that it holds at one time.
    pub(super) peak: Units,
    /// Whether no other pod may be on its GPUs.
    pub(super) exclusive: bool,
    /// Whether this plugin chose ids for this pod. `false` if only the kubelet's records show that it holds ids.
    pub(super) chosen: bool,
    /// When this process recorded the last grant.
    pub granted_at: Instant,
    /// Whether the watch of pods has shown it. The watch may be late.
    pub seen: bool,
    /// Whether it is [`Presence::Lingers`].
    pub lingers: bool,
}

impl PodRecord {
    pub(super) fn new(pod: PodRef) -> Self {
        Self {
            pod,
            granted: None,
            ids: Ids::new(),
            peak: Units::ZERO,
            exclusive: false,
            chosen: false,
            granted_at: Instant::now(),
            seen: false,
            lingers: false,
        }
    }

    /// Adds ids that the pod was granted.
    pub(super) fn add_ids(&mut self, facts: &PodFacts, ids: &Ids) {
        self.pod = PodRef::of(facts);
        self.granted_at = Instant::now();
        self.ids.extend(ids.iter().cloned());
        let peak = facts.gpu_pod().map(|gpu| gpu.request.peak()).unwrap_or_default();
        self.peak = self.peak.max(peak);
        // The claim may have become exclusive since an earlier grant.
        self.exclusive |=
            facts.claim().is_some_and(|claim| claim.gpus().values().any(|share| share.exclusive));
    }

    /// Adds the grant of a container, in place of the one that it had.
    pub(super) fn add_grant(&mut self, facts: &Arc<PodFacts>, container: &str, ids: Ids) {
        let granted = self.granted.get_or_insert_with(|| GrantedPod {
            facts: facts.clone(),
            containers: BTreeMap::new(),
        });
        granted.containers.insert(container.to_owned(), ids);
    }

    /// Its processes have ended.
    pub(super) fn end(&mut self) {
        self.ids.clear();
        self.seen = false;
        self.lingers = false;
    }

    /// Whether the kubelet no longer has the pod and its processes have ended.
    pub(super) fn is_over(&self) -> bool {
        self.granted.is_none() && self.ids.is_empty()
    }

    /// The units that are counted for it on each GPU: all units of the GPU if it is exclusive.
    pub fn charge(&self, gpus: &Gpus) -> BTreeMap<GpuId, Units> {
        let mut charge = at_peak(units_of(&self.ids, gpus), self.peak);
        if self.exclusive {
            for (gpu, units) in &mut charge {
                *units = gpus.get(gpu).map_or(*units, |gpu| gpu.units.max(*units));
            }
        }
        charge
    }
}

/// The units that are counted for a pod on each GPU, from the units of its listed ids. The kubelet reserves the ids
/// of init containers for the pod's whole life but does not list them, so on a single GPU the pod's peak is counted if
/// it is larger. No pod on several GPUs has an init container that requests units.
pub fn at_peak(mut units: BTreeMap<GpuId, Units>, peak: Units) -> BTreeMap<GpuId, Units> {
    if let (1, Some(held)) = (units.len(), units.values_mut().next()) {
        *held = peak.max(*held);
    }
    units
}

#[cfg(test)]
mod tests {
    use placement::gpu::GpuUse;

    use super::*;
    use crate::fixtures::{A, B, gpus, ids, with_use};

    #[test]
    fn a_pod_that_has_its_gpu_for_itself_counts_as_all_of_it() {
        let gpu_use = GpuUse { exclusive: true, ..GpuUse::default() };
        let pod = with_use("p", A, 1, gpu_use);
        let mut record = PodRecord::new(PodRef::of(&pod));
        record.add_ids(&pod, &ids(["aaaaaaaa-0"]));
        let charge = record.charge(&gpus(&[(A, 4), (B, 4)]));
        assert_eq!(charge, [(A.into(), Units(4))].into());
    }
}

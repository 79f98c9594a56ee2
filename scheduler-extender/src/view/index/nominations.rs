//! GPUs that are kept for pods for which others were evicted.

use placement::gpu::{Charge, ChoiceRule, GivenOut, GpuRequest};
use placement::shares::SharedTable;
use placement::units::{GpuId, NodeName, PodUid};

use super::{Index, PodRecord};

/// By pod: the GPUs of each node where kube-scheduler may evict others for it.
pub(super) type Plans = SharedTable<PodUid, Vec<(NodeName, Vec<GpuId>)>>;

impl Index {
    /// Stores the plan of a pod's preemption: the GPUs that the pod would get, by node.
    pub fn plan(&mut self, namespace: &str, pod: &PodUid, gpus: Vec<(NodeName, Vec<GpuId>)>) {
        self.plans.insert(namespace, pod.clone(), gpus);
    }

    /// Keeps GPUs of a node for a waiting pod, for which pods were evicted there, until it is bound or deleted, or
    /// until [`Index::release_kept`]. Releases GPUs that were kept for it before.
    pub fn keep(&mut self, pod: &PodUid, node: &NodeName, gpus: Vec<GpuId>) {
        self.release_kept(pod);
        self.change_record(pod, |index, record| {
            index.plan(&record.namespace, pod, vec![(node.clone(), gpus)]);
            record.kept = Some(node.clone());
            index.set_nominated(pod, record);
        });
    }

    /// Ends [`Index::keep`] or [`Index::keep_for_claim`].
    pub fn release_kept(&mut self, pod: &PodUid) {
        self.end_kept_for_claim(pod);
        self.change_record(pod, |index, record| {
            if record.kept.take().is_some() {
                index.set_nominated(pod, record);
            }
        });
    }

    /// Whether pods that are being deleted still hold units of these GPUs.
    #[must_use]
    pub fn has_ending_pods_on(&self, node: &NodeName, gpus: &[GpuId]) -> bool {
        let Some(node) = self.nodes.get(node) else { return false };
        let ends = |pod: &PodUid| self.ending.contains_key(pod) || self.claims.ending.contains(pod);
        let is_ending = |charge: &Charge| charge.pods().iter().any(ends);
        node.ledger.read().accounts().iter().any(|account| {
            gpus.contains(&account.gpu.uuid) && account.charges.iter().any(is_ending)
        })
    }

    /// Updates the nomination in the ledgers, after the pod's nominated node or its kept GPUs have changed.
    pub(super) fn set_nominated(&mut self, uid: &PodUid, record: &mut PodRecord) {
        let place = record.place.as_ref().map(|(_, node)| node);
        let evicted_for = record.nominated_by_scheduler.as_ref().or(record.kept.as_ref());
        let wanted = place.or(evicted_for).cloned();
        if record.nominated == wanted {
            return;
        }
        self.end_nomination(uid, record);
        let Some(node) = wanted else { return };
        if self.nodes.get(&node).is_none_or(|known| known.ledger.is_empty()) {
            return;
        }
        let gpus = self.planned(uid, &node);
        let Some(gpus) = gpus.or_else(|| self.freed(uid, &node, &record.request)) else { return };
        self.nodes.change(&node, |known| known.ledger.nominate(uid, &record.request, &gpus));
        record.nominated = Some(node);
    }

    /// The GPUs that the preemption of a pod planned on a node.
    fn planned(&self, uid: &PodUid, node: &NodeName) -> Option<Vec<GpuId>> {
        let (_, gpus) = self.plans.get(uid)?.iter().find(|(at, _)| at == node)?;
        Some(gpus.clone())
    }

    /// The GPUs that a nominated pod gets once the ending pods of its node are gone, for a pod without a plan: if
    /// another replica led at the preemption, the plan is in that process. The victims are among the ending pods, and
    /// the choice follows the same rule.
    fn freed(&self, uid: &PodUid, node: &NodeName, request: &GpuRequest) -> Option<Vec<GpuId>> {
        // Whatever the policy's strategy, any GPU that is free then suffices. What the namespace may take is in the
        // request.
        let measure = self.measures[GivenOut::Units as usize].current();
        let rule = ChoiceRule { measure, ..ChoiceRule::default() };
        let gpus = self.nodes.get(node)?.ledger.read();
        let choice =
            gpus.fit_without(|pod| self.ending.contains_key(pod), uid, request, &rule).ok()?;
        Some(choice.gpu_ids())
    }

    pub(super) fn end_nomination(&mut self, uid: &PodUid, record: &mut PodRecord) {
        if let Some(node) = record.nominated.take() {
            self.nodes.change(&node, |known| known.ledger.end_nomination(uid));
        }
    }
}

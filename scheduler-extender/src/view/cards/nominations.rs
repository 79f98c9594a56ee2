//! Cards that are kept for pods for which others were evicted.

use std::collections::HashMap;
use std::sync::{MutexGuard, PoisonError};

use placement::gpu::{ChoiceRule, GpuRequest};
use placement::units::{CardId, NodeName, PodUid};

use super::{CardBook, PodRecord};

/// By pod: the cards of each node where kube-scheduler may evict others for it.
pub(super) type Plans = HashMap<PodUid, Vec<(NodeName, Vec<CardId>)>>;

/// Plans at most. They are few: a plan ends when the pod is bound or deleted.
const MAX_PLANS: usize = 1_024;

impl CardBook {
    /// Stores the plan of a pod's preemption: the cards that the pod would get, by node.
    pub fn plan(&self, pod: &PodUid, cards: impl Iterator<Item = (NodeName, Vec<CardId>)>) {
        let mut plans = self.plans();
        if plans.len() >= MAX_PLANS && !plans.contains_key(pod) {
            plans.clear();
        }
        plans.insert(pod.clone(), cards.collect());
    }

    /// Keeps cards of a node for a waiting pod, for which pods were evicted there, until it is bound or deleted, or until
    /// [`CardBook::release_kept`]. Releases cards that were kept for it before.
    pub fn keep(&self, pod: &PodUid, node: &NodeName, cards: Vec<CardId>) {
        self.release_kept(pod);
        self.plan(pod, [(node.clone(), cards)].into_iter());
        if let Some(mut record) = self.pods.get_mut(pod) {
            record.kept = Some(node.clone());
            self.set_nominated(pod, &mut record);
        }
    }

    /// Ends [`CardBook::keep`].
    pub fn release_kept(&self, pod: &PodUid) {
        if let Some(mut record) = self.pods.get_mut(pod)
            && record.kept.take().is_some()
        {
            self.set_nominated(pod, &mut record);
        }
    }

    /// Whether pods that are being deleted still hold units of these cards.
    pub fn has_ending_pods_on(&self, node: &NodeName, cards: &[CardId]) -> bool {
        let index = self.read();
        let accounts = index.node(node.as_str()).map(|node| node.accounts()).unwrap_or_default();
        let mut accounts = accounts.iter().filter(|account| cards.contains(&account.card.uuid));
        accounts.any(|account| account.charges.iter().any(|it| self.ending.contains(&it.pod)))
    }

    /// Updates the nomination in the ledgers, after the pod's nominated node or its kept cards have changed.
    pub(super) fn set_nominated(&self, uid: &PodUid, record: &mut PodRecord) {
        let wanted = record.nominated_by_scheduler.as_ref().or(record.kept.as_ref()).cloned();
        if record.nominated == wanted {
            return;
        }
        self.end_nomination(uid, record);
        let Some(node) = wanted else { return };
        if self.read().node(node.as_str()).is_none() {
            return;
        }
        let cards = self.planned(uid, &node);
        let Some(cards) = cards.or_else(|| self.freed(uid, &node, &record.request)) else { return };
        self.ledgers.change(&node, |ledger| ledger.nominate(uid, &record.request, &cards));
        record.nominated = Some(node);
    }

    /// The cards that the preemption of a pod planned on a node.
    fn planned(&self, uid: &PodUid, node: &NodeName) -> Option<Vec<CardId>> {
        let plans = self.plans();
        let (_, cards) = plans.get(uid)?.iter().find(|(at, _)| at == node)?;
        Some(cards.clone())
    }

    /// The cards that a nominated pod gets once the ending pods of its node are gone, for a pod without a plan: if another replica led at
    /// the preemption, the plan is in that process. The victims are among the ending pods, and the choice follows the same rule.
    fn freed(&self, uid: &PodUid, node: &NodeName, request: &GpuRequest) -> Option<Vec<CardId>> {
        let ending = |pod: &PodUid| self.ending.contains(pod);
        // The policy's strategy is not available here; any card that is free then suffices. What the namespace may take is in the request.
        let rule = ChoiceRule { measure: self.measure(), ..ChoiceRule::default() };
        let choice = self.read().fit_without(node.as_str(), ending, uid, request, &rule).ok()?;
        Some(choice.card_ids())
    }

    pub(super) fn end_nomination(&self, uid: &PodUid, record: &mut PodRecord) {
        if let Some(node) = record.nominated.take() {
            self.ledgers.change(&node, |ledger| ledger.end_nomination(uid));
        }
    }

    // Every change of a plan is one insertion, so that a panic leaves no partial change.
    pub(super) fn plans(&self) -> MutexGuard<'_, Plans> {
        self.plans.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! Cards that are kept for pods for which kube-scheduler has evicted others.

use std::collections::HashMap;
use std::sync::{MutexGuard, PoisonError};

use placement::gpu::{ChoiceRule, GpuRequest};
use placement::units::{CardId, NodeName, PodUid};

use super::{CardBook, PodRecord};

/// By pod: the cards of each node where kube-scheduler may evict others for it.
pub(super) type Plans = HashMap<PodUid, Vec<(NodeName, Vec<CardId>)>>;

/// Pods whose plans are kept. They are few: a plan ends when the pod is bound or gone.
const MAX_PLANS: usize = 1_024;

impl CardBook {
    /// Keeps what a preemption of a pod planned: the cards that it would go to, by node.
    pub fn plan(&self, pod: &PodUid, cards: impl Iterator<Item = (NodeName, Vec<CardId>)>) {
        let mut plans = self.plans();
        if plans.len() >= MAX_PLANS && !plans.contains_key(pod) {
            plans.clear();
        }
        plans.insert(pod.clone(), cards.collect());
    }

    /// Keeps cards of a node for a pod that waits, since pods were evicted there for it; until it is bound or gone, or
    /// [`CardBook::release_kept`]. Ends what was kept for it before.
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

    /// Whether pods that are ending still hold something of these cards.
    pub fn has_ending_pods_on(&self, node: &NodeName, cards: &[CardId]) -> bool {
        let index = self.read();
        let accounts = index.node(node.as_str()).map(|node| node.accounts()).unwrap_or_default();
        let mut accounts = accounts.iter().filter(|account| cards.contains(&account.card.uuid));
        accounts.any(|account| account.charges.iter().any(|it| self.ending.contains(&it.pod)))
    }

    /// kube-scheduler has evicted pods on a node for this one, or does so no more.
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

    /// The cards that a nominee gets when the pods of its node that are ending are gone: where another replica led at its preemption, that
    /// one alone knew the plan. The victims are among these pods, and the rule of choice is the same.
    fn freed(&self, uid: &PodUid, node: &NodeName, request: &GpuRequest) -> Option<Vec<CardId>> {
        let ending = |pod: &PodUid| self.ending.contains(pod);
        // The policy's strategy is not known here, and any card that is free then will do.
        let rule = ChoiceRule { measure: self.measure(), ..ChoiceRule::default() };
        let choice = self.read().fit_without(node.as_str(), ending, uid, request, &rule).ok()?;
        Some(choice.card_ids())
    }

    pub(super) fn end_nomination(&self, uid: &PodUid, record: &mut PodRecord) {
        if let Some(node) = record.nominated.take() {
            self.ledgers.change(&node, |ledger| ledger.end_nomination(uid));
        }
    }

    // Every change of a plan is one insertion, so that a panic leaves nothing half done.
    pub(super) fn plans(&self) -> MutexGuard<'_, Plans> {
        self.plans.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

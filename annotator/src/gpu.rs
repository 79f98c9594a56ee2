//! What pods hold of each node's cards, kept in placement's own ledgers.
//!
//! Invariant: nothing is told before the pods were listed; until then nobody knows what they hold.

use std::collections::{HashMap, HashSet};

use placement::gpu::{Card, CardShare, CardUse, NodeLedger};
use placement::units::{NodeName, PodUid};

use crate::pods::{BoundPod, Held};

/// The accounts of all nodes.
#[derive(Debug, Clone, Default)]
pub struct Accounts {
    ledgers: HashMap<NodeName, NodeLedger>,
    pods: HashMap<PodUid, NodeName>,
    listed: bool,
}

impl Accounts {
    /// Takes over a list of all bound pods; returns the nodes that it concerns.
    pub fn listed(&mut self, pods: &[BoundPod]) -> HashSet<NodeName> {
        let present: HashSet<&PodUid> = pods.iter().map(|pod| &pod.uid).collect();
        let gone: Vec<PodUid> =
            self.pods.keys().filter(|uid| !present.contains(uid)).cloned().collect();
        // The first list makes every account known.
        let mut concerned: HashSet<NodeName> = match self.listed {
            true => HashSet::new(),
            false => self.ledgers.keys().cloned().collect(),
        };
        self.listed = true;
        concerned.extend(gone.iter().filter_map(|uid| self.gone(uid)));
        concerned.extend(pods.iter().filter_map(|pod| self.saw(pod)));
        concerned
    }

    /// Takes over a bound pod; returns its node if that concerns the node's cards.
    pub fn saw(&mut self, pod: &BoundPod) -> Option<NodeName> {
        match &pod.gpu {
            Some(held) => Some(self.hold(pod, held)),
            None => self.gone(&pod.uid),
        }
    }

    /// Forgets a pod; returns the node that it was on if it held something there.
    pub fn gone(&mut self, uid: &PodUid) -> Option<NodeName> {
        let node = self.pods.remove(uid)?;
        self.ledgers.entry(node.clone()).or_default().release(uid);
        Some(node)
    }

    fn hold(&mut self, pod: &BoundPod, held: &Held) -> NodeName {
        let ledger = self.ledgers.entry(pod.node.clone()).or_default();
        ledger.observe(&pod.uid, &held.request, held.placed.clone(), held.stage);
        self.pods.insert(pod.uid.clone(), pod.node.clone());
        pod.node.clone()
    }

    /// Takes over a node's report of its cards.
    pub fn set_cards(&mut self, node: &NodeName, cards: Vec<Card>) {
        self.ledgers.entry(node.clone()).or_default().set_cards(cards);
    }

    /// The node is gone, or reports no cards any more. Pods that hold something there still do.
    pub fn forget_cards(&mut self, node: &NodeName) {
        if let Some(ledger) = self.ledgers.get_mut(node) {
            ledger.set_cards(Vec::new());
            if ledger.stages().next().is_none() {
                self.ledgers.remove(node);
            }
        }
    }

    /// Each card's share, by index; `None` where nothing is known yet. A node without cards has an
    /// empty list.
    #[must_use]
    pub fn shares(&self, node: &NodeName) -> Option<Vec<CardShare>> {
        let accounts = self.ledgers.get(node).map(NodeLedger::accounts);
        self.listed.then(|| accounts.unwrap_or_default().into_iter().map(share).collect())
    }
}

fn share(account: CardUse) -> CardShare {
    CardShare {
        uuid: account.card.uuid,
        units: account.card.units,
        allocated: account.used,
        used: None,
        utilisation: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use placement::gpu::{GpuRequest, Placed, Stage};
    use placement::units::{CardId, MiB, Units};

    fn card(uuid: &str, index: u32) -> Card {
        Card {
            uuid: uuid.into(),
            index,
            model: "NVIDIA A10".to_owned(),
            memory: MiB(16384),
            units: Units(16),
            numa_node: None,
            healthy: true,
            pods: Default::default(),
        }
    }

    fn pod(uid: &str, card: &str, units: u32) -> BoundPod {
        let request = GpuRequest::single("main", Units(units)).unwrap();
        let placed = Placed::Cards([(CardId::from(card), Units(units))].into());
        let gpu = Some(Held { request, placed, stage: Stage::Bound });
        BoundPod { uid: uid.into(), node: "a".into(), bound_at: None, gpu }
    }

    fn allocated(accounts: &Accounts) -> Vec<u32> {
        let shares = accounts.shares(&"a".into()).unwrap();
        shares.iter().map(|share| share.allocated.0).collect()
    }

    fn two_cards() -> Accounts {
        let mut accounts = Accounts::default();
        accounts.set_cards(&"a".into(), vec![card("GPU-0", 0), card("GPU-1", 1)]);
        accounts
    }

    #[test]
    fn nothing_is_told_before_the_pods_were_listed() {
        let mut accounts = two_cards();
        assert_eq!(accounts.shares(&"a".into()), None);
        assert_eq!(accounts.listed(&[]), HashSet::from(["a".into()]));
        assert_eq!(allocated(&accounts), [0, 0]);
    }

    #[test]
    fn pods_count_on_their_card_until_they_end() {
        let mut accounts = two_cards();
        accounts.listed(&[pod("p", "GPU-0", 3), pod("q", "GPU-1", 4)]);
        assert_eq!(accounts.saw(&pod("r", "GPU-1", 2)), Some("a".into()));
        assert_eq!(allocated(&accounts), [3, 6]);
        let ended = BoundPod { gpu: None, ..pod("q", "GPU-1", 4) };
        assert_eq!(accounts.saw(&ended), Some("a".into()));
        assert_eq!(allocated(&accounts), [3, 2]);
    }

    #[test]
    fn a_pod_that_is_in_no_list_any_more_is_gone() {
        let mut accounts = two_cards();
        accounts.listed(&[pod("p", "GPU-0", 3), pod("q", "GPU-1", 4)]);
        assert_eq!(accounts.listed(&[pod("q", "GPU-1", 4)]), HashSet::from(["a".into()]));
        assert_eq!(allocated(&accounts), [0, 4]);
    }

    #[test]
    fn a_pod_without_cards_concerns_nobody() {
        let mut accounts = two_cards();
        accounts.listed(&[]);
        let plain = BoundPod { gpu: None, ..pod("p", "GPU-0", 3) };
        assert_eq!(accounts.saw(&plain), None);
    }

    #[test]
    fn a_node_that_comes_back_finds_its_pods() {
        let mut accounts = two_cards();
        accounts.listed(&[pod("p", "GPU-0", 3)]);
        accounts.forget_cards(&"a".into());
        assert_eq!(allocated(&accounts), [0_u32; 0]);
        accounts.set_cards(&"a".into(), vec![card("GPU-0", 0)]);
        assert_eq!(allocated(&accounts), [3]);
    }
}

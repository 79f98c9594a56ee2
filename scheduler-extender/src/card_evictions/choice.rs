//! Which pods of which node to evict for a GPU pod: the least important, then the fewest.

use std::collections::BTreeSet;

use cluster::{AboutPod, Budget, Client, Occupants, Pod, budgets, occupants};
use futures::{StreamExt as _, stream};
use placement::gpu::{Evictable, GpuRequest, NodeCards, victims};
use placement::names::Names;
use placement::units::{CardId, NodeName, PodUid};

use super::CALL;
use crate::view::View;

/// Nodes that are read for one pod: those where the fewest pods are on a card, whatever their priority. Each takes two calls.
const MAX_READ: usize = 32;

/// Nodes that are read at once.
const AT_ONCE: usize = 4;

/// A pod that waits, and what it asks for.
pub(super) struct Search<'a> {
    pub(super) view: &'a View,
    pub(super) client: &'a Client,
    pub(super) names: &'a Names,
    pub(super) pod: &'a Pod,
    pub(super) request: &'a GpuRequest,
}

/// The pods to evict on a node, and the cards that the waiting pod goes to then.
#[derive(Debug, Clone)]
pub(super) struct Eviction {
    pub(super) node: NodeName,
    pub(super) cards: Vec<CardId>,
    pub(super) victims: Vec<AboutPod>,
}

/// What a search has found.
pub(super) enum Found {
    /// Evicting these pods makes room.
    Eviction(Eviction),
    /// No eviction helps, none is needed any more, or the nodes cannot be read.
    Nothing,
}

/// How bad an eviction is: the most important pod, the number of pods, all their priorities.
type Cost = (Option<i32>, usize, i64);

/// What one node is good for.
enum OfNode {
    /// The pod has room there already, or once pods that are ending have ended.
    Fits,
    Costs(Cost, Eviction),
    /// No eviction helps there, or it cannot be read.
    Nothing,
}

impl Search<'_> {
    /// The best eviction on one of these nodes.
    pub(super) async fn among(&self, nodes: &[NodeName]) -> Found {
        let budgets = match budgets(self.client, CALL).await {
            Ok(budgets) => budgets,
            Err(error) => {
                tracing::warn!(%error, "PodDisruptionBudgets cannot be read: no pod is evicted");
                return Found::Nothing;
            }
        };
        let looks = self.worth_reading(nodes).into_iter().map(|node| self.look(node, &budgets));
        let looks: Vec<_> = looks.collect();
        let seen: Vec<OfNode> = stream::iter(looks).buffered(AT_ONCE).collect().await;
        let mut best: Option<(Cost, Eviction)> = None;
        for of_node in seen {
            match of_node {
                OfNode::Fits => return Found::Nothing,
                OfNode::Nothing => {}
                OfNode::Costs(cost, eviction) => {
                    if best.as_ref().is_none_or(|(least, _)| cost < *least) {
                        best = Some((cost, eviction));
                    }
                }
            }
        }
        best.map_or(Found::Nothing, |(_, eviction)| Found::Eviction(eviction))
    }

    /// The nodes where the fewest pods would have to go if all were unimportant.
    fn worth_reading(&self, nodes: &[NodeName]) -> Vec<NodeName> {
        let cards = self.view.cards.read();
        let count = |node: &NodeName| Some((self.least(cards.node(node.as_str())?)?, node.clone()));
        let mut counted: Vec<(usize, NodeName)> = nodes.iter().filter_map(count).collect();
        counted.sort();
        counted.truncate(MAX_READ);
        counted.into_iter().map(|(_, node)| node).collect()
    }

    fn least(&self, cards: &NodeCards) -> Option<usize> {
        let charges = cards.accounts().iter().flat_map(|account| &account.charges);
        let pods: BTreeSet<&PodUid> = charges.map(|charge| &charge.pod).collect();
        let evictable = |uid: &PodUid| Evictable {
            uid: uid.clone(),
            priority: 0,
            violates_budget: false,
            frees: Vec::new(),
        };
        let all: Vec<Evictable> = pods.into_iter().map(evictable).collect();
        let none = BTreeSet::new();
        let rule = self.view.choice_rule();
        let victims =
            victims(cards, &self.pod.uid(), self.request, &all, &none, &Vec::new(), &rule);
        victims.map(|victims| victims.pods.len())
    }

    async fn look(&self, node: NodeName, budgets: &[Budget]) -> OfNode {
        let read = occupants(self.client, node.as_str(), self.pod, self.names, budgets, CALL).await;
        match read {
            Ok(occupants) => self.of_node(node, occupants),
            Err(error) => {
                tracing::warn!(node = node.as_str(), %error, "cannot be read: no pod is evicted there");
                OfNode::Nothing
            }
        }
    }

    fn of_node(&self, node: NodeName, occupants: Occupants) -> OfNode {
        let Occupants { mut evictable, names, ending, lack, .. } = occupants;
        let Some(cards) = self.view.cards.read().node(node.as_str()).cloned() else {
            return OfNode::Nothing;
        };
        let uid = self.pod.uid();
        let gone = |other: &PodUid| *other == uid || ending.contains(other);
        let rule = self.view.choice_rule();
        if cards.fit_without(gone, &uid, self.request, &rule).is_ok() {
            return OfNode::Fits;
        }
        evictable.retain(|pod| !pod.violates_budget);
        let none = BTreeSet::new();
        let chosen = victims(&cards, &uid, self.request, &evictable, &none, &lack, &rule);
        let Some(chosen) = chosen.filter(|chosen| !chosen.pods.is_empty()) else {
            return OfNode::Nothing;
        };
        let going = evictable.iter().filter(|pod| chosen.pods.contains(&pod.uid));
        let priorities: Vec<i32> = going.map(|pod| pod.priority).collect();
        let sum = priorities.iter().map(|priority| i64::from(*priority)).sum();
        let cost = (priorities.iter().max().copied(), priorities.len(), sum);
        let victims = chosen.pods.iter().filter_map(|uid| names.get(uid).cloned()).collect();
        OfNode::Costs(cost, Eviction { node, cards: chosen.choice.card_ids(), victims })
    }
}

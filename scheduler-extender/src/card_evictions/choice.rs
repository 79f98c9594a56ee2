//! Which pods of which node to evict for a GPU pod: the least important, then the fewest.

use std::collections::BTreeSet;

use cluster::{Budget, Client, Occupants, Pod, PodReference, beyond_budgets, budgets, occupants};
use futures::future::ready;
use futures::{StreamExt as _, stream};
use placement::gpu::{ChoiceRule, Evictable, GpuRequest, NodeCards, victims};
use placement::names::Names;
use placement::units::{CardId, NodeName, PodUid};

use super::CALL_TIMEOUT;
use crate::view::View;

/// Nodes that are read for one pod: those with the fewest pods on a card, of any priority. Each takes two calls.
const MAX_READ: usize = 32;

/// Nodes that are read concurrently.
const MAX_CONCURRENT: usize = 4;

/// A search for victims, for one waiting pod and its GPU request.
pub(super) struct Search<'a> {
    pub(super) view: &'a View,
    pub(super) client: &'a Client,
    pub(super) names: &'a Names,
    pub(super) pod: &'a Pod,
    pub(super) request: &'a GpuRequest,
}

/// The pods to evict on a node, and the cards that the waiting pod gets then.
#[derive(Debug, Clone)]
pub(super) struct Eviction {
    pub(super) node: NodeName,
    pub(super) cards: Vec<CardId>,
    pub(super) victims: Vec<PodReference>,
}

/// A node with its pods, as read from the API server.
pub(super) struct NodeOccupants {
    node: NodeName,
    occupants: Occupants,
}

/// The result of a search.
pub(super) enum SearchResult {
    /// Evicting these pods makes room.
    Eviction(Eviction),
    /// No eviction helps, or none is needed any more.
    Nothing,
}

/// The cost of an eviction: the highest priority, the number of pods, the sum of priorities. Compared in this order.
type Cost = (Option<i32>, usize, i64);

/// The result for one node.
enum NodeResult {
    /// The pod has room there already, or once pods that are ending have ended.
    Fits,
    Costs(Cost, Eviction),
    /// No eviction helps there.
    Nothing,
}

impl Search<'_> {
    /// Reads these nodes. Leaves out those that cannot be read.
    pub(super) async fn read(&self, nodes: Vec<NodeName>) -> Vec<NodeOccupants> {
        let budgets = match budgets(self.client, CALL_TIMEOUT).await {
            Ok(budgets) => budgets,
            Err(error) => {
                tracing::warn!(%error, "PodDisruptionBudgets cannot be read: no pod is evicted");
                return Vec::new();
            }
        };
        let looks: Vec<_> = nodes.into_iter().map(|node| self.look(node, &budgets)).collect();
        stream::iter(looks).buffered(MAX_CONCURRENT).filter_map(ready).collect().await
    }

    /// The cheapest eviction on one of these nodes, without the pods of `left_out`.
    pub(super) fn best(&self, seen: &[NodeOccupants], left_out: &BTreeSet<PodUid>) -> SearchResult {
        let mut best: Option<(Cost, Eviction)> = None;
        for node in seen {
            match self.of_node(node, left_out) {
                NodeResult::Fits => return SearchResult::Nothing,
                NodeResult::Nothing => {}
                NodeResult::Costs(cost, eviction) => {
                    if best.as_ref().is_none_or(|(least, _)| cost < *least) {
                        best = Some((cost, eviction));
                    }
                }
            }
        }
        best.map_or(SearchResult::Nothing, |(_, eviction)| SearchResult::Eviction(eviction))
    }

    /// The nodes to read, those that would need the fewest evictions (of any priority) first, and those of `of_no_use` last.
    pub(super) fn worth_reading(
        &self,
        nodes: &[NodeName],
        of_no_use: &BTreeSet<NodeName>,
    ) -> Vec<NodeName> {
        let snapshot = self.view.read();
        let rule = snapshot.choice_rule();
        let rank = |node: &NodeName| {
            let least = self.least(snapshot.cards(node.as_str())?, &rule)?;
            Some((of_no_use.contains(node), least, node.clone()))
        };
        let mut ranked: Vec<(bool, usize, NodeName)> = nodes.iter().filter_map(rank).collect();
        ranked.sort();
        ranked.truncate(MAX_READ);
        ranked.into_iter().map(|(.., node)| node).collect()
    }

    fn least(&self, cards: &NodeCards, rule: &ChoiceRule) -> Option<usize> {
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
        let victims = victims(cards, &self.pod.uid(), self.request, &all, &none, &Vec::new(), rule);
        victims.map(|victims| victims.pods.len())
    }

    async fn look(&self, node: NodeName, budgets: &[Budget]) -> Option<NodeOccupants> {
        let read =
            occupants(self.client, node.as_str(), self.pod, self.names, budgets, CALL_TIMEOUT)
                .await;
        match read {
            Ok(occupants) => Some(NodeOccupants { node, occupants }),
            Err(error) => {
                tracing::warn!(node = node.as_str(), %error, "cannot be read: no pod is evicted there");
                None
            }
        }
    }

    fn of_node(&self, seen: &NodeOccupants, left_out: &BTreeSet<PodUid>) -> NodeResult {
        let NodeOccupants { node, occupants } = seen;
        let snapshot = self.view.read();
        let Some(cards) = snapshot.cards(node.as_str()) else { return NodeResult::Nothing };
        if occupants.keeps_out {
            return NodeResult::Nothing;
        }
        let (uid, rule) = (self.pod.uid(), snapshot.choice_rule());
        // What pods that are ending hold will be free, and what is held for pods that are gone.
        let goes = |pod: &PodUid| occupants.ending.contains(pod) || cards.departed().contains(pod);
        let cards = cards.without(goes);
        if cards.fit_without(|pod| *pod == uid, &uid, self.request, &rule).is_ok() {
            return NodeResult::Fits;
        }
        let mut evictable = may_go(occupants);
        evictable.retain(|pod| !left_out.contains(&pod.uid));
        let none = BTreeSet::new();
        loop {
            let shortfall = &occupants.shortfall;
            let chosen = victims(&cards, &uid, self.request, &evictable, &none, shortfall, &rule);
            let Some(chosen) = chosen.filter(|chosen| !chosen.pods.is_empty()) else {
                return NodeResult::Nothing;
            };
            let mut going = evictable.clone();
            going.retain(|pod| chosen.pods.contains(&pod.uid));
            let surplus = surplus(occupants, &going);
            if surplus.is_empty() {
                let victims = going.iter().filter_map(|pod| occupants.names.get(&pod.uid).cloned());
                let (node, victims) = (node.clone(), victims.collect());
                let cards = chosen.choice.card_ids();
                return NodeResult::Costs(cost(&going), Eviction { node, cards, victims });
            }
            evictable.retain(|pod| !surplus.contains(&pod.uid));
        }
    }
}

/// The pods that may go, each by itself. The API server evicts none that several budgets cover.
fn may_go(occupants: &Occupants) -> Vec<Evictable> {
    let allowed = |pod: &&Evictable| match occupants.covering(&pod.uid) {
        [] => true,
        [budget] => budget.allowed > 0,
        _ => false,
    };
    let stays = |pod: &&Evictable| !occupants.ending.contains(&pod.uid);
    let pods = occupants.evictable.iter().filter(stays).filter(allowed);
    pods.map(|pod| Evictable { violates_budget: false, ..pod.clone() }).collect()
}

/// Those of these pods, the most important, that are more than a budget allows to go together.
fn surplus(occupants: &Occupants, going: &[Evictable]) -> BTreeSet<PodUid> {
    let mut by_priority: Vec<&Evictable> = going.iter().collect();
    by_priority.sort_by_key(|pod| pod.priority);
    let beyond = beyond_budgets(by_priority.iter().map(|pod| occupants.covering(&pod.uid)));
    let surplus = by_priority.into_iter().zip(beyond).filter(|(_, beyond)| *beyond);
    surplus.map(|(pod, _)| pod.uid.clone()).collect()
}

fn cost(going: &[Evictable]) -> Cost {
    let sum = going.iter().map(|pod| i64::from(pod.priority)).sum();
    (going.iter().map(|pod| pod.priority).max(), going.len(), sum)
}

//! Which pods of a node to evict for a GPU pod. Preempt answers kube-scheduler with them ([`crate::preemption`]), and
//! `--evict-for-cards` evicts them ([`crate::gpu_evictions`]).
//!
//! Pods and PodDisruptionBudgets are read from the API server; `read` bounds how many nodes are read, and for how long.
//!
//! Invariant: of a node that was not read, no pod is chosen here. A pod whose namespace's budgets could not be read is
//! chosen only where a budget may be violated. None of [`NodeGpus::undrained_clients`] is chosen.

mod read;

use std::collections::BTreeSet;
use std::iter::zip;

use cluster::{Client, Occupants, Pod, PodReference};
use placement::gpu::{
    Candidates, ChoiceRule, Evictable, GivenOut, GpuRequest, NodeGpus, Victims, fewest_on_gpus,
    victims,
};
use placement::moves::beyond_budgets;
use placement::names::Names;
use placement::node_rules::NodeRules;
use placement::units::{GpuId, NodeName, PodUid};

use crate::view::View;

pub(crate) use read::MAX_READ;

/// The search for pods to evict, for one pod and its GPU request.
pub(crate) struct VictimSearch<'a> {
    pub(crate) view: &'a View,
    pub(crate) client: &'a Client,
    pub(crate) names: &'a Names,
    pub(crate) pod: &'a Pod,
    pub(crate) request: &'a GpuRequest,
    /// The nodes that the pod may be placed on.
    pub(crate) rules: NodeRules,
}

/// The rules about nodes that are left to check where kube-scheduler has looked at a pod's others.
pub(crate) fn rules_left(pod: &Pod) -> NodeRules {
    NodeRules { tolerations: pod.tolerations().to_vec(), ..NodeRules::default() }
}

/// What evictions achieve on one node, if each is to be carried out through the Eviction API.
pub(crate) enum NodeResult {
    /// The pod has room there already, or once pods that are ending have ended.
    Fits,
    /// These evictions make room.
    Eviction(Eviction),
    /// No eviction helps.
    NoneHelps,
}

/// The pods to evict on a node, and the GPUs that the pod gets then.
pub(crate) struct Eviction {
    pub(crate) node: NodeName,
    pub(crate) cost: Cost,
    pub(crate) gpus: Vec<GpuId>,
    pub(crate) victims: Vec<PodReference>,
}

/// The cost of an eviction. Compared by its fields in this order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Cost {
    highest_priority: Option<i32>,
    pods: usize,
    sum_of_priorities: i64,
}

impl VictimSearch<'_> {
    /// The pods to evict on a node in place of those that kube-scheduler's dry run would evict, if that costs less.
    /// Budgets are violated only where no other eviction makes room: kube-scheduler deletes the pods itself.
    /// `None` where no eviction makes room, or none is needed.
    pub(crate) fn instead_of(
        &self,
        dry_run: &BTreeSet<PodUid>,
        node: &str,
        occupants: &Occupants,
    ) -> Option<Victims> {
        let snapshot = self.view.read();
        let gpus = snapshot.gpus(node)?;
        let from = Candidates {
            evictable: &occupants.evictable,
            of_dry_run: dry_run,
            shortfall: &occupants.shortfall,
        };
        let victims = self.victims(gpus, from, &snapshot.choice_rule())?;
        (!victims.pods.is_empty()).then_some(victims)
    }

    /// The pods to evict on a node so that no budget is violated. Never those of `left_out`.
    pub(crate) fn within_budgets(
        &self,
        node: &NodeName,
        occupants: &Occupants,
        left_out: &BTreeSet<PodUid>,
    ) -> NodeResult {
        let snapshot = self.view.read();
        let Some(held) = snapshot.gpus(node.as_str()) else { return NodeResult::NoneHelps };
        let Some(found) = held.found_by(self.request) else { return NodeResult::NoneHelps };
        if occupants.keeps_out {
            return NodeResult::NoneHelps;
        }
        let uid = self.pod.uid();
        let rule = snapshot.choice_rule_of(self.request.given_out());
        // Before pods that are ending are left out: a client still ends these.
        let undrained = held.undrained_clients();
        // What pods that are ending hold will be free, and what is held for pods that are gone.
        let gpus =
            found.without(|pod| occupants.ending.contains(pod) || held.departed().contains(pod));
        if gpus.fit_without(|pod| *pod == uid, &uid, self.request, &rule).is_ok() {
            // Filter was asked about units only where other resources suffice. What of these those hold that are ending
            // is not known.
            let is_short = occupants.shortfall.iter().any(|lacks| *lacks > 0.0);
            let is_by_claim = self.request.given_out() == GivenOut::Claims;
            let fits = !is_by_claim || !is_short || !occupants.ending.is_empty();
            return if fits { NodeResult::Fits } else { NodeResult::NoneHelps };
        }
        let mut evictable = may_go(occupants);
        evictable.retain(|pod| !left_out.contains(&pod.uid) && !undrained.contains(&pod.uid));
        loop {
            let from = Candidates {
                evictable: &evictable,
                of_dry_run: &BTreeSet::new(),
                shortfall: &occupants.shortfall,
            };
            let Some(chosen) = self.victims(&gpus, from, &rule) else {
                return NodeResult::NoneHelps;
            };
            if chosen.pods.is_empty() {
                return NodeResult::NoneHelps;
            }
            let mut going = evictable.clone();
            going.retain(|pod| chosen.pods.contains(&pod.uid));
            let surplus = surplus(occupants, &going);
            if surplus.is_empty() {
                let named = |pod: &Evictable| occupants.names.get(&pod.uid).cloned();
                return NodeResult::Eviction(Eviction {
                    node: node.clone(),
                    cost: Cost::of(&going),
                    gpus: chosen.choice.gpu_ids(),
                    victims: going.iter().filter_map(named).collect(),
                });
            }
            evictable.retain(|pod| !surplus.contains(&pod.uid));
        }
    }

    /// How many pods would have to be evicted if any could be: known without reading the node. `None` where even that
    /// makes no room.
    pub(crate) fn fewest(&self, gpus: &NodeGpus, rule: &ChoiceRule) -> Option<usize> {
        fewest_on_gpus(gpus, &self.pod.uid(), self.request, rule)
    }

    fn victims(&self, gpus: &NodeGpus, from: Candidates<'_>, rule: &ChoiceRule) -> Option<Victims> {
        victims(gpus, &self.pod.uid(), self.request, from, rule)
    }
}

impl Cost {
    fn of(going: &[Evictable]) -> Self {
        Self {
            highest_priority: going.iter().map(|pod| pod.priority).max(),
            pods: going.len(),
            sum_of_priorities: going.iter().map(|pod| i64::from(pod.priority)).sum(),
        }
    }
}

/// The pods that may go, each by itself. The API server evicts none that several budgets cover.
fn may_go(occupants: &Occupants) -> Vec<Evictable> {
    let mut pods = occupants.evictable.clone();
    pods.retain(|pod| {
        let is_allowed = match occupants.covering(&pod.uid) {
            [] => true,
            [budget] => budget.allowed > 0,
            _ => false,
        };
        is_allowed && !occupants.ending.contains(&pod.uid)
    });
    for pod in &mut pods {
        pod.violates_budget = false;
    }
    pods
}

/// Those of these pods, the most important, that are more than a budget allows to go together.
fn surplus(occupants: &Occupants, going: &[Evictable]) -> BTreeSet<PodUid> {
    let mut by_priority: Vec<&Evictable> = going.iter().collect();
    by_priority.sort_by_key(|pod| pod.priority);
    let beyond = beyond_budgets(by_priority.iter().map(|pod| occupants.covering(&pod.uid)));
    zip(by_priority, beyond).filter(|(_, beyond)| *beyond).map(|(pod, _)| pod.uid.clone()).collect()
}

//! The fewest moves that make room on one node.
//!
//! The pods that go are chosen by a greedy search, and each that turns out to be unnecessary stays. Where the successor
//! of one fits nowhere, others go in its place. A pod is never moved to make room for one that is moved, and none of
//! [`NodeGpus::undrained_clients`](crate::gpu::NodeGpus::undrained_clients) is.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Move, MoveNode, MovePlan, NodeIndex, PodNeeds};
use crate::gpu::fragmentation::Cost;
use crate::gpu::{Choice, ChoiceRule, Evictable, GpuRequest, Rating, freeing_gpus};
use crate::resources::{Requests, add, missing, subtract};
use crate::units::PodUid;

/// The most pods of a node for which others are tried, because their successors fit nowhere.
const MAX_TRIES: usize = 16;

/// The fewest moves that make room for a pod on the node at `at`. `pods` are those of this node that may be moved, and
/// `may_go` says whether the rules of one allow another node. `None` where no moves make room.
pub fn fewest_moves(
    nodes: &[MoveNode],
    at: NodeIndex,
    wanted: &PodNeeds,
    pods: &[&PodNeeds],
    rule: &ChoiceRule,
    may_go: impl Fn(&PodNeeds, NodeIndex) -> bool,
) -> Option<MovePlan> {
    let node = nodes.get(at.0)?;
    let mut movable = pods.to_vec();
    for _ in 0..=MAX_TRIES {
        let leaving = fewest_to_leave(node, wanted, &movable)?;
        let (node, choice) = node.after(&leaving, wanted, rule)?;
        let mut elsewhere = Elsewhere { nodes, changed: BTreeMap::from([(at, node)]) };
        match elsewhere.place_all(leaving, rule, &may_go) {
            Ok(moves) => return Some(MovePlan { node: at, choice, moves }),
            Err(fits_nowhere) => movable.retain(|pod| pod.uid != fits_nowhere),
        }
    }
    None
}

/// The fewest of `pods` without which the wanted pod fits the node, whether they fit elsewhere or not. `None` where it
/// does not fit without all of them.
pub fn fewest_to_leave<'p>(
    node: &MoveNode,
    wanted: &PodNeeds,
    pods: &[&'p PodNeeds],
) -> Option<Vec<&'p PodNeeds>> {
    let request = wanted.request.as_ref()?;
    let undrained = node.gpus.undrained_clients();
    let mut movable = pods.to_vec();
    movable.retain(|pod| !undrained.contains(&pod.uid));
    let mut with_gpus = Vec::new();
    for pod in movable.iter().filter(|pod| pod.request.is_some()) {
        // Every pod may go alike: the fewest are chosen, not the least important.
        let uid = pod.uid.clone();
        with_gpus.push(Evictable { uid, priority: 0, violates_budget: false, frees: Vec::new() });
    }
    let freeing = freeing_gpus(&node.gpus, &wanted.uid, request, &with_gpus)?;
    let frees: BTreeSet<&PodUid> = freeing.iter().map(|pod| &pod.uid).collect();
    let (mut leaving, mut others): (Vec<_>, Vec<_>) =
        movable.into_iter().partition(|pod| frees.contains(&pod.uid));
    loop {
        let missing = node.missing(wanted, &leaving);
        if missing.is_empty() {
            break;
        }
        let parts = others.iter().map(|pod| part_of(&missing, pod)).enumerate();
        let most = parts.max_by(|(_, a), (_, b)| a.total_cmp(b)).filter(|(_, part)| *part > 0.0);
        leaving.push(others.remove(most?.0));
    }
    let mut at = 0;
    while at < leaving.len() {
        let pod = leaving.remove(at);
        if !node.fits_without(wanted, &leaving) {
            leaving.insert(at, pod);
            at += 1;
        }
    }
    node.fits_without(wanted, &leaving).then_some(leaving)
}

/// How much of what is missing a pod takes, each resource as a part of what is missing of it.
fn part_of(missing: &Requests, pod: &PodNeeds) -> f64 {
    let part = |(resource, missing): (&String, &f64)| {
        pod.takes.get(resource).map_or(0.0, |takes| takes.min(*missing) / missing)
    };
    missing.iter().map(part).sum()
}

impl MoveNode {
    /// What is missing of other resources once these pods are gone.
    fn missing(&self, wanted: &PodNeeds, gone: &[&PodNeeds]) -> Requests {
        let Some(known) = &self.free else { return Requests::new() };
        let mut free = Requests::new();
        for resource in wanted.takes.keys() {
            let freed: f64 = gone.iter().filter_map(|pod| pod.takes.get(resource)).sum();
            let before = known.get(resource).copied().unwrap_or_default();
            free.insert(resource.clone(), before + freed);
        }
        missing(&wanted.takes, &free)
    }

    fn fits_without(&self, wanted: &PodNeeds, gone: &[&PodNeeds]) -> bool {
        let is_gone = |uid: &PodUid| *uid == wanted.uid || gone.iter().any(|pod| pod.uid == *uid);
        let left = || self.gpus.without(is_gone);
        self.missing(wanted, gone).is_empty()
            && wanted.request.as_ref().is_some_and(|it| left().check(&wanted.uid, it).is_ok())
    }

    /// The node without the pods that leave, and with the wanted pod on these GPUs. `None` where it does not fit.
    fn after(
        &self,
        leaving: &[&PodNeeds],
        wanted: &PodNeeds,
        rule: &ChoiceRule,
    ) -> Option<(Self, Choice)> {
        let is_gone =
            |uid: &PodUid| *uid == wanted.uid || leaving.iter().any(|pod| pod.uid == *uid);
        let mut cpu = self.gpus.cpu();
        for request in leaving.iter().filter_map(|pod| pod.request.as_ref()) {
            cpu = cpu.map(|free| free.saturating_add(request.cpu()));
        }
        let mut node = self.clone();
        node.gpus = Arc::new(self.gpus.without(is_gone).with_cpu(cpu));
        let choice = node.gpus.fit(&wanted.uid, wanted.request.as_ref()?, rule).ok()?;
        if let Some(free) = &mut node.free {
            leaving.iter().for_each(|pod| add(free, &pod.takes));
        }
        node.put(wanted, Some(&choice));
        Some((node, choice))
    }

    /// Takes a pod in, on these GPUs.
    fn put(&mut self, pod: &PodNeeds, choice: Option<&Choice>) {
        if let (Some(request), Some(choice)) = (&pod.request, choice) {
            self.gpus = Arc::new(self.gpus.with(&pod.uid, request, choice));
        }
        if let Some(free) = &mut self.free {
            subtract(free, &pod.takes);
        }
    }

    /// What it costs to take the pod, and the GPUs that it gets; `None` where it does not fit.
    fn offer(&self, pod: &PodNeeds, rule: &ChoiceRule) -> Option<(Cost, Option<Choice>)> {
        if self.free.as_ref().is_some_and(|free| !missing(&pod.takes, free).is_empty()) {
            return None;
        }
        let Some(request) = &pod.request else { return Some((Cost(0), None)) };
        let choice = self.gpus.fit(&pod.uid, request, rule).ok()?;
        let cost = match choice.rate(request, rule) {
            Rating::Cost(cost) => cost,
            Rating::Score(score) => Cost(-i64::from(score.get())),
        };
        Some((cost, Some(choice)))
    }
}

/// The nodes while pods are placed on them.
struct Elsewhere<'n> {
    nodes: &'n [MoveNode],
    /// Nodes as they will be.
    changed: BTreeMap<NodeIndex, MoveNode>,
}

impl Elsewhere<'_> {
    /// A place for each pod, those with most units first: the cheapest.
    ///
    /// # Errors
    ///
    /// The first pod that fits nowhere.
    fn place_all(
        &mut self,
        mut pods: Vec<&PodNeeds>,
        rule: &ChoiceRule,
        may_go: &impl Fn(&PodNeeds, NodeIndex) -> bool,
    ) -> Result<Vec<Move>, PodUid> {
        pods.sort_by_key(|pod| Reverse(pod.request.as_ref().map(GpuRequest::peak)));
        let mut moves = Vec::with_capacity(pods.len());
        for pod in pods {
            let mut best: Option<(Cost, &MoveNode, NodeIndex, Option<Choice>)> = None;
            for (at, node) in self.nodes.iter().enumerate() {
                let at = NodeIndex(at);
                if !may_go(pod, at) {
                    continue;
                }
                let node = self.changed.get(&at).unwrap_or(node);
                let Some((cost, choice)) = node.offer(pod, rule) else { continue };
                if best.as_ref().is_none_or(|it| (cost, &node.name) < (it.0, &it.1.name)) {
                    best = Some((cost, node, at, choice));
                }
            }
            let Some((_, node, to, choice)) = best else { return Err(pod.uid.clone()) };
            let mut node = node.clone();
            node.put(pod, choice.as_ref());
            self.changed.insert(to, node);
            moves.push(Move { pod: pod.uid.clone(), to, choice });
        }
        Ok(moves)
    }
}

//! Which pods to move to other nodes so that a pod finds room on one node: the fewest.
//!
//! Placement cannot mend every gap: pods end in another order than they came, and what they leave is spread over cards
//! that are half full. A move evicts a pod whose successor fits on another node. So it costs a restart, and no pod its
//! place: a plan names a place for each pod that has to go, beside the pod for which the room is made.
//!
//! The pods that go are chosen by a greedy search, and each that turns out to be unnecessary stays. Where the successor
//! of one fits nowhere, others go in its place. A pod is never moved to make room for one that is moved, and none of
//! [`NodeCards::undrained_clients`] is.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::fragmentation::Cost;
use super::preemption::freeing_cards;
use super::{Choice, ChoiceRule, Evictable, GpuRequest, NodeCards, Rating};
use crate::units::{NodeName, PodUid};

/// The most pods of a node for which others are tried, because their successors fit nowhere.
const MAX_TRIES: usize = 16;

/// The part of an amount by which sums of decimal fractions may be off.
const ROUNDING: f64 = 1e-9;

/// A node that pods may leave or come to.
#[derive(Debug, Clone, PartialEq)]
pub struct MoveNode {
    /// Its name. Of nodes that cost the same the first by name is taken.
    pub name: NodeName,
    /// Its cards; without any for a node that has none.
    pub cards: Arc<NodeCards>,
    /// What is free of each other resource, such as CPU and memory: the same resources in the same order for all nodes
    /// and pods of one plan, each in a unit of its own.
    pub free: Vec<f64>,
}

/// A pod that may be moved.
#[derive(Debug, Clone, PartialEq)]
pub struct Movable {
    /// The pod.
    pub uid: PodUid,
    /// The cards that its successor asks for; `None` for a pod without cards.
    pub request: Option<GpuRequest>,
    /// What it takes of each other resource, as [`MoveNode::free`].
    pub takes: Vec<f64>,
}

/// The pod to make room for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Wanted<'a> {
    /// The pod.
    pub pod: &'a PodUid,
    /// The cards that it asks for.
    pub request: &'a GpuRequest,
    /// What it takes of each other resource, as [`MoveNode::free`].
    pub takes: &'a [f64],
}

/// Room for a pod, and what has to be moved for it.
#[derive(Debug, Clone, PartialEq)]
pub struct MovePlan {
    /// The node that the pod gets: a position.
    pub node: usize,
    /// Its cards there.
    pub choice: Choice,
    /// The pods to move. None where the pod fits as it is.
    pub moves: Vec<Move>,
}

/// A pod that is moved, and where its successor fits.
#[derive(Debug, Clone, PartialEq)]
pub struct Move {
    /// The pod.
    pub pod: PodUid,
    /// The node that its successor fits: a position.
    pub to: usize,
    /// The cards there; `None` for a pod without cards.
    pub choice: Option<Choice>,
}

/// The fewest moves that make room for a pod on node `at`. `pods` are those of this node that may be moved, and
/// `may_go` says whether the rules of one allow another node. `None` where no moves make room.
pub fn fewest_moves(
    nodes: &[MoveNode],
    at: usize,
    wanted: Wanted<'_>,
    pods: &[Movable],
    rule: &ChoiceRule,
    may_go: impl Fn(&Movable, usize) -> bool,
) -> Option<MovePlan> {
    let node = nodes.get(at)?;
    let mut stay = BTreeSet::new();
    while stay.len() <= MAX_TRIES {
        let movable: Vec<&Movable> = pods.iter().filter(|pod| !stay.contains(&pod.uid)).collect();
        let leaving = fewest_to_leave(node, wanted, &movable)?;
        let (node, choice) = node.after(&leaving, wanted, rule)?;
        let mut elsewhere = Elsewhere { nodes, changed: BTreeMap::from([(at, node)]) };
        match elsewhere.place_all(&leaving, rule, &may_go) {
            Ok(moves) => return Some(MovePlan { node: at, choice, moves }),
            Err(fits_nowhere) => stay.insert(fits_nowhere),
        };
    }
    None
}

/// The fewest of `pods` without which the wanted pod fits the node, whether they fit elsewhere or not. `None` where it
/// does not fit without all of them.
pub fn fewest_to_leave<'p>(
    node: &MoveNode,
    wanted: Wanted<'_>,
    pods: &[&'p Movable],
) -> Option<Vec<&'p Movable>> {
    let undrained = node.cards.undrained_clients();
    let mut movable = pods.to_vec();
    movable.retain(|pod| !undrained.contains(&pod.uid));
    let with_cards: Vec<Evictable> =
        movable.iter().filter(|pod| pod.request.is_some()).map(|pod| evictable(pod)).collect();
    let freeing = freeing_cards(&node.cards, wanted.pod, wanted.request, &with_cards)?;
    let mut leaving = movable.clone();
    leaving.retain(|pod| freeing.iter().any(|evicted| evicted.uid == pod.uid));
    while let Some(missing) = node.missing(wanted, &leaving) {
        let most = movable
            .iter()
            .filter(|pod| leaving.iter().all(|gone| gone.uid != pod.uid))
            .map(|pod| (pod.part_of(&missing), *pod))
            .filter(|(part, _)| *part > 0.0)
            .max_by(|(a, _), (b, _)| a.total_cmp(b));
        leaving.push(most?.1);
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

/// Every pod may go alike: the fewest are chosen, not the least important.
fn evictable(pod: &Movable) -> Evictable {
    Evictable { uid: pod.uid.clone(), priority: 0, violates_budget: false, frees: Vec::new() }
}

impl Movable {
    /// How much of what is missing it takes, each resource as a part of what is missing of it.
    fn part_of(&self, missing: &[f64]) -> f64 {
        let part = |(takes, missing): (&f64, &f64)| takes.min(*missing) / missing;
        self.takes.iter().zip(missing).filter(|(_, missing)| **missing > 0.0).map(part).sum()
    }
}

impl MoveNode {
    /// What is missing of each other resource once these pods are gone; `None` where nothing is.
    fn missing(&self, wanted: Wanted<'_>, gone: &[&Movable]) -> Option<Vec<f64>> {
        let missing: Vec<f64> = wanted
            .takes
            .iter()
            .enumerate()
            .map(|(at, takes)| {
                let freed: f64 = gone.iter().filter_map(|pod| pod.takes.get(at)).sum();
                let free = self.free.get(at).copied().unwrap_or_default() + freed;
                // What a pod does not ask for may be overdrawn. Less by what rounding can add.
                if *takes > 0.0 { (takes - free - ROUNDING * (takes + free)).max(0.0) } else { 0.0 }
            })
            .collect();
        missing.iter().any(|amount| *amount > 0.0).then_some(missing)
    }

    fn fits_without(&self, wanted: Wanted<'_>, gone: &[&Movable]) -> bool {
        let is_gone = |uid: &PodUid| uid == wanted.pod || gone.iter().any(|pod| pod.uid == *uid);
        self.missing(wanted, gone).is_none()
            && self.cards.without(is_gone).check(wanted.pod, wanted.request).is_ok()
    }

    /// The node without the pods that leave, and with the wanted pod on these cards. `None` where it does not fit.
    fn after(
        &self,
        leaving: &[&Movable],
        wanted: Wanted<'_>,
        rule: &ChoiceRule,
    ) -> Option<(Self, Choice)> {
        let is_gone = |uid: &PodUid| uid == wanted.pod || leaving.iter().any(|pod| pod.uid == *uid);
        let mut cpu = self.cards.cpu();
        for request in leaving.iter().filter_map(|pod| pod.request.as_ref()) {
            cpu = cpu.map(|free| free.saturating_add(request.cpu()));
        }
        let left = self.cards.without(is_gone).with_cpu(cpu);
        let choice = left.fit(wanted.pod, wanted.request, rule).ok()?;
        let cards = Arc::new(left.with(wanted.pod, wanted.request, &choice));
        let mut node = Self { cards, ..self.clone() };
        leaving.iter().for_each(|pod| node.change(&pod.takes, 1.0));
        node.change(wanted.takes, -1.0);
        Some((node, choice))
    }

    fn change(&mut self, takes: &[f64], sign: f64) {
        for (free, takes) in self.free.iter_mut().zip(takes) {
            *free += sign * takes;
        }
    }

    fn has_room(&self, pod: &Movable) -> bool {
        pod.takes
            .iter()
            .zip(&self.free)
            .all(|(takes, free)| *takes <= 0.0 || *takes <= free + ROUNDING * (takes + free.abs()))
    }

    /// What it costs to take the pod, and the cards that it gets; `None` where it does not fit.
    fn offer(&self, pod: &Movable, rule: &ChoiceRule) -> Option<(Cost, Option<Choice>)> {
        if !self.has_room(pod) {
            return None;
        }
        let Some(request) = &pod.request else { return Some((Cost(0), None)) };
        let choice = self.cards.fit(&pod.uid, request, rule).ok()?;
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
    /// Nodes as they will be, by position.
    changed: BTreeMap<usize, MoveNode>,
}

impl Elsewhere<'_> {
    fn node(&self, at: usize) -> Option<&MoveNode> {
        self.changed.get(&at).or_else(|| self.nodes.get(at))
    }

    /// A place for each pod, those with most units first.
    ///
    /// # Errors
    ///
    /// The first pod that fits nowhere.
    fn place_all(
        &mut self,
        pods: &[&Movable],
        rule: &ChoiceRule,
        may_go: &impl Fn(&Movable, usize) -> bool,
    ) -> Result<Vec<Move>, PodUid> {
        let mut sorted = pods.to_vec();
        sorted.sort_by_key(|pod| std::cmp::Reverse(pod.request.as_ref().map(GpuRequest::peak)));
        let mut moves = Vec::with_capacity(sorted.len());
        for pod in sorted {
            let offer = |at: usize| {
                let node = self.node(at).filter(|_| may_go(pod, at))?;
                let (cost, choice) = node.offer(pod, rule)?;
                Some(((cost, &node.name, at), choice))
            };
            let best = (0..self.nodes.len()).filter_map(offer).min_by_key(|(rank, _)| *rank);
            let Some(((.., to), choice)) = best else { return Err(pod.uid.clone()) };
            self.put(pod, to, choice.as_ref());
            moves.push(Move { pod: pod.uid.clone(), to, choice });
        }
        Ok(moves)
    }

    fn put(&mut self, pod: &Movable, at: usize, choice: Option<&Choice>) {
        let Some(mut node) = self.node(at).cloned() else { return };
        if let (Some(request), Some(choice)) = (&pod.request, choice) {
            node.cards = Arc::new(node.cards.with(&pod.uid, request, choice));
        }
        node.change(&pod.takes, -1.0);
        self.changed.insert(at, node);
    }
}

//! The search for the fewest moves on all nodes of a cluster.
//!
//! The GPUs of all nodes are known from the start. The rest is read from the API server: the pods of the nodes that
//! would need the fewest moves, and the room and rules of each node that a plan sends a pod to. Until a node is read it
//! is taken for one with room. So a plan is made again whenever a node of it turns out otherwise.
//!
//! [`Search::step`] says what to read and does a part of the work; the caller reads, and lets others have a turn.
//!
//! Invariant: at most [`MAX_READ`] nodes are read, and [`MAX_PLANS`] plans made.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;

use super::{
    Controller, Found, MoveNode, MovePlan, NodeIndex, PodNeeds, Proposal, ProposedMove, ReadNode,
    Resident, StayReason, beyond_budgets, fewest_moves, fewest_to_leave,
};
use crate::gpu::{Account, Choice, ChoiceRule, NodeBackOff, NodeGpus, fewest_on_gpus};
use crate::load::{Evaluation, NodeLoad, ResolvedPolicy, Verdict};
use crate::units::{NodeName, PodUid};

/// Nodes that are read for one search. Each takes two calls.
const MAX_READ: usize = 64;

/// Nodes whose pods may be moved, those with the fewest pods on the GPUs first.
const MAX_SOURCES: usize = 32;

/// The most pods that are moved for one.
const MAX_MOVES: usize = 16;

/// Plans that are made for one search: each but the last met a node or a budget that refused.
const MAX_PLANS: usize = 32;

/// The cluster, as far as it is known without reading from the API server.
#[derive(Debug, Clone)]
pub struct Cluster<'a> {
    /// The policy in force.
    pub policy: &'a ResolvedPolicy,
    /// The rule by which GPUs are chosen.
    pub rule: ChoiceRule,
    /// The time.
    pub now: Timestamp,
    /// The nodes with GPUs.
    pub nodes: Vec<KnownNode<'a>>,
    /// Workloads of which a pod was moved a short time ago: they have none moved now.
    pub moved: BTreeSet<Controller>,
    /// Pods that are not moved, since their eviction was refused.
    pub left_out: BTreeSet<PodUid>,
}

/// A node with GPUs.
#[derive(Debug, Clone, Copy)]
pub struct KnownNode<'a> {
    /// Its name.
    pub name: &'a NodeName,
    /// Its GPUs.
    pub gpus: &'a Arc<NodeGpus>,
    /// Its load.
    pub load: &'a NodeLoad,
    /// Which pods it takes none of for a while; `None` for a node without back-off.
    pub back_off: Option<&'a NodeBackOff>,
}

/// What a search needs next.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// The caller reads these nodes and hands each to [`Search::set_read`].
    Read(Vec<NodeIndex>),
    /// Nothing: another step follows.
    Next,
    /// It has ended.
    End(Found),
}

/// The search for the fewest moves for a pod.
#[derive(Debug)]
pub struct Search<'a> {
    cluster: Cluster<'a>,
    wanted: &'a PodNeeds,
    /// Only pods that give way to this priority are moved; `None`: any.
    priority: Option<i32>,
    /// The nodes of the cluster, in its order.
    nodes: Vec<MoveNode>,
    /// The nodes that moves may make room on, those that need the fewest first.
    sources: Vec<NodeIndex>,
    /// The nodes that were read; `None` for one that could not be.
    read: BTreeMap<NodeIndex, Option<ReadNode>>,
    /// Pods that are moved by no further plan.
    stay: BTreeSet<PodUid>,
    plans: usize,
    plan: Option<Planning>,
}

/// A plan that is being made.
#[derive(Debug)]
struct Planning {
    /// Sources, each with a lower bound of its moves; the fewest last.
    left: Vec<(usize, NodeIndex)>,
    best: Option<MovePlan>,
}

impl<'a> Search<'a> {
    /// Begins a search for a pod that asks for GPUs.
    #[must_use]
    pub fn new(cluster: Cluster<'a>, wanted: &'a PodNeeds, priority: Option<i32>) -> Self {
        let mut nodes = Vec::new();
        for KnownNode { name, gpus, .. } in &cluster.nodes {
            let (name, gpus) = ((*name).clone(), Arc::clone(gpus));
            nodes.push(MoveNode { name, gpus, free: None });
        }
        let stay = cluster.left_out.clone();
        let (sources, read) = (Vec::new(), BTreeMap::new());
        let mut search =
            Self { cluster, wanted, priority, nodes, sources, read, stay, plans: 0, plan: None };
        search.sources = search.best_sources();
        search
    }

    /// Does a part of the search.
    pub fn step(&mut self) -> Step {
        if self.sources.is_empty() {
            return self.end(None);
        }
        if self.read.is_empty() {
            return Step::Read(self.sources.clone());
        }
        let mut planning = match self.plan.take() {
            Some(planning) => planning,
            None if self.plans == MAX_PLANS => return self.end(None),
            None => {
                self.plans += 1;
                self.new_planning()
            }
        };
        // Only fewer moves than the best has are of use.
        let most = match &planning.best {
            None => Some(MAX_MOVES),
            Some(best) => best.moves.len().checked_sub(1),
        };
        if let Some((fewest, node)) = planning.left.pop()
            && most.is_some_and(|most| fewest <= most)
        {
            let plan = self.plan_on(node).filter(|plan| Some(plan.moves.len()) <= most);
            planning.best = plan.or(planning.best);
            self.plan = Some(planning);
            return Step::Next;
        }
        let Some(plan) = planning.best else { return self.end(None) };
        let mut unread: Vec<NodeIndex> = plan.moves.iter().map(|it| it.to).collect();
        unread.retain(|node| !self.read.contains_key(node));
        unread.sort_unstable();
        unread.dedup();
        if self.read.len() + unread.len() > MAX_READ {
            self.end(None)
        } else if !unread.is_empty() {
            Step::Read(unread)
        } else if let Some(surplus) = self.surplus(&plan) {
            self.stay.insert(surplus);
            Step::Next
        } else {
            self.end(Some(self.proposal(&plan)))
        }
    }

    fn end(&self, proposal: Option<Proposal>) -> Step {
        let mut stays = BTreeMap::new();
        for node in &self.sources {
            for why in self.residents(*node).into_iter().filter_map(|(_, why)| why) {
                *stays.entry(why).or_default() += 1;
            }
        }
        Step::End(Found { proposal, nodes: self.sources.len(), stays })
    }

    /// Takes in a node; `None` where it could not be read: then it takes no pods, and its pods stay.
    pub fn set_read(&mut self, node: NodeIndex, mut read: Option<ReadNode>) {
        for resident in read.iter_mut().flat_map(|read| &mut read.residents) {
            let needs = &mut resident.needs;
            let beyond = self.cluster.policy.policy.gpu.beyond_units_of(&needs.labelled.namespace);
            needs.request = needs.request.take().map(|asked| asked.with_beyond_units(beyond));
        }
        self.nodes[node.0].free = read.as_ref().map(|read| read.free.clone());
        self.read.insert(node, read);
    }

    /// The name of a node.
    #[must_use]
    pub fn name(&self, node: NodeIndex) -> &NodeName {
        &self.nodes[node.0].name
    }

    /// Whether none of the nodes that moves may make room on could be read.
    #[must_use]
    pub fn is_blind(&self) -> bool {
        self.sources.iter().all(|node| self.read_node(*node).is_none())
    }

    /// The nodes that need the fewest moves, by their GPUs alone.
    fn best_sources(&self) -> Vec<NodeIndex> {
        let Some(request) = &self.wanted.request else { return Vec::new() };
        let (uid, rule) = (&self.wanted.uid, &self.cluster.rule);
        let mut sources = Vec::new();
        for (at, KnownNode { name, gpus, load, .. }) in self.cluster.nodes.iter().enumerate() {
            let node = NodeIndex(at);
            let is_selected = self.wanted.rules.select(name.as_str(), &load.labels);
            if !is_selected || !self.passes_filter(self.wanted, node) {
                continue;
            }
            let fewest = if gpus.fit(uid, request, rule).is_ok() {
                Some(0)
            } else {
                fewest_on_gpus(gpus, uid, request, rule)
            };
            if let Some(fewest) = fewest.filter(|fewest| *fewest <= MAX_MOVES) {
                sources.push((fewest, *name, node));
            } else if !gpus.undrained_clients().is_empty() {
                // Read last, so that the answer says why its pods stay.
                sources.push((MAX_MOVES + 1, *name, node));
            }
        }
        sources.sort_unstable();
        sources.into_iter().take(MAX_SOURCES).map(|(.., node)| node).collect()
    }

    /// Whether Filter lets a pod go to a node: with the pod it is over no limit, it is not backed off from, and the
    /// policy gives the pod's namespace no other nodes.
    fn passes_filter(&self, pod: &PodNeeds, node: NodeIndex) -> bool {
        let Cluster { policy, now, .. } = self.cluster;
        let KnownNode { load, back_off, .. } = self.cluster.nodes[node.0];
        let namespace = &pod.labelled.namespace;
        let evaluation = Evaluation { policy, node: load, pod: pod.to_place(), now };
        back_off.is_none_or(|back_off| !back_off.rejects(namespace, now))
            && policy.broken_namespace_rule(namespace, &load.labels).is_none()
            && matches!(evaluation.verdict(), Verdict::Accepted)
    }

    fn read_node(&self, node: NodeIndex) -> Option<&ReadNode> {
        self.read.get(&node)?.as_ref()
    }

    /// Whether a node may take a pod, but for room.
    fn may_go(&self, pod: &PodNeeds, to: NodeIndex) -> bool {
        let accepts = match self.read.get(&to) {
            None => true,
            Some(read) => read.as_ref().is_some_and(|read| read.accepts(pod)),
        };
        accepts && self.passes_filter(pod, to)
    }

    /// The pods with GPUs of a node that was read, each with why it is not moved.
    fn residents(&self, node: NodeIndex) -> Vec<(&Resident, Option<StayReason>)> {
        let undrained = self.nodes[node.0].gpus.undrained_clients();
        let mut residents = Vec::new();
        for pod in self.read_node(node).into_iter().flat_map(|read| &read.residents) {
            let moved = &self.cluster.moved;
            let was_moved = pod.controller.as_ref().is_some_and(|it| moved.contains(it));
            let gives_way = self.priority.is_none_or(|priority| pod.gives_way_to(priority));
            let why = if pod.stays.is_some() {
                pod.stays
            } else if was_moved {
                Some(StayReason::Moved)
            } else if !gives_way {
                Some(StayReason::Priority)
            } else if undrained.contains(&pod.needs.uid) {
                Some(StayReason::MpsClient)
            } else {
                None
            };
            residents.push((pod, why));
        }
        residents
    }

    /// The pods of a node that may be moved.
    fn movable(&self, node: NodeIndex) -> Vec<&PodNeeds> {
        let mut movable = Vec::new();
        for (pod, why) in self.residents(node) {
            if why.is_none() && !self.stay.contains(&pod.needs.uid) {
                movable.push(&pod.needs);
            }
        }
        movable
    }

    fn new_planning(&self) -> Planning {
        let mut left = Vec::new();
        for node in &self.sources {
            if self.read_node(*node).is_some_and(|read| read.accepts(self.wanted))
                && let Some(leaving) =
                    fewest_to_leave(&self.nodes[node.0], self.wanted, &self.movable(*node))
            {
                left.push((leaving.len(), *node));
            }
        }
        left.sort_unstable();
        left.reverse();
        Planning { left, best: None }
    }

    /// The fewest moves that make room on one node.
    fn plan_on(&self, node: NodeIndex) -> Option<MovePlan> {
        let (pods, rule) = (self.movable(node), &self.cluster.rule);
        let may_go = |pod: &PodNeeds, to| self.may_go(pod, to);
        fewest_moves(&self.nodes, node, self.wanted, &pods, rule, may_go)
    }

    /// The pods that a plan moves.
    fn moved<'s>(&'s self, plan: &'s MovePlan) -> impl Iterator<Item = &'s Resident> {
        let residents = self.read_node(plan.node).map_or(&[][..], |read| &read.residents[..]);
        plan.moves.iter().filter_map(|it| residents.iter().find(|pod| pod.needs.uid == it.pod))
    }

    /// A pod that the plan moves beyond what budgets allow together, or beside another of its workload without a
    /// budget.
    fn surplus(&self, plan: &MovePlan) -> Option<PodUid> {
        let beyond = beyond_budgets(self.moved(plan).map(|pod| pod.covering.as_slice()));
        let mut workloads = BTreeSet::new();
        for (pod, beyond) in self.moved(plan).zip(beyond) {
            if beyond || (pod.covering.is_empty() && !workloads.insert(&pod.controller)) {
                return Some(pod.needs.uid.clone());
            }
        }
        None
    }

    fn proposal(&self, plan: &MovePlan) -> Proposal {
        let node = &self.nodes[plan.node.0];
        let mut moves = Vec::new();
        for (pod, step) in self.moved(plan).zip(&plan.moves) {
            let PodNeeds { uid, labelled, request, .. } = &pod.needs;
            moves.push(ProposedMove {
                namespace: labelled.namespace.clone(),
                name: labelled.name.clone(),
                uid: uid.clone(),
                controller: pod.controller.clone(),
                priority: pod.priority,
                units: request.as_ref().map_or(0, |request| request.peak().0),
                from: indices_with(&node.gpus, uid),
                to: self.name(step.to).clone(),
                to_gpus: step.choice.as_ref().map_or_else(Vec::new, Choice::indices),
            });
        }
        Proposal { node: node.name.clone(), choice: plan.choice.clone(), moves }
    }
}

/// The indices of the GPUs that a pod is charged on.
fn indices_with(gpus: &NodeGpus, pod: &PodUid) -> Vec<u32> {
    let is_on = |account: &&Account| account.charges.iter().any(|charge| charge.pod == *pod);
    gpus.accounts().iter().filter(is_on).map(|account| account.gpu.index).collect()
}

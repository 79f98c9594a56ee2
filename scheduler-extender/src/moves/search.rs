//! The search for the fewest moves.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use cluster::{
    Budget, CallError, Client, NodeRoom, Resident, Stays, beyond_budgets, budgets, residents,
};
use futures::{StreamExt as _, stream};
use jiff::Timestamp;
use placement::gpu::{
    ChoiceRule, Movable, MoveNode, MovePlan, NodeCards, Wanted, fewest_moves, fewest_to_leave,
};
use placement::load::{Evaluation, PodToPlace};
use placement::names::Names;
use placement::units::{NodeName, PodUid};

use super::{MAX_MOVES, MAX_READ, MovesFor, Proposal, ProposedMove, Search};
use crate::victims::fewest_on_cards;
use crate::view::{Snapshot, View};

/// Nodes whose pods may be moved, those with the fewest pods on the cards first.
const MAX_SOURCES: usize = 32;

/// Nodes that are read concurrently.
const MAX_CONCURRENT: usize = 4;

/// Plans that are made for one search: each but the last met a node or a budget that refused.
const MAX_PLANS: usize = 32;

/// The timeout of a call.
const CALL_TIMEOUT: Duration = Duration::from_secs(2);

/// The time for a whole search.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(10);

/// What a node that is not read yet is taken to have of each resource.
const UNREAD: f64 = f64::INFINITY;

/// The search for the fewest moves for a pod.
pub(crate) struct MoveSearch<'a> {
    pub(crate) view: &'a View,
    pub(crate) client: &'a Client,
    pub(crate) names: &'a Names,
    /// Pods that are not moved, since their eviction was refused.
    pub(crate) left_out: &'a BTreeSet<PodUid>,
}

impl MoveSearch<'_> {
    /// The fewest moves that make room.
    ///
    /// # Errors
    ///
    /// If the PodDisruptionBudgets or no node can be read, or if it takes too long.
    pub(crate) async fn run(
        &self,
        pod: &MovesFor<'_>,
        now: Timestamp,
    ) -> Result<Search, CallError> {
        let search = self.search(pod, now);
        let late =
            || CallError::Unknown(format!("not all nodes were read within {SEARCH_TIMEOUT:?}"));
        tokio::time::timeout(SEARCH_TIMEOUT, search).await.unwrap_or_else(|_| Err(late()))
    }

    async fn search(&self, pod: &MovesFor<'_>, now: Timestamp) -> Result<Search, CallError> {
        let snapshot = self.view.read();
        let mut nodes = Nodes::new(&snapshot, pod, now);
        let sources = nodes.sources(pod, &snapshot.choice_rule());
        let budgets = budgets(self.client, CALL_TIMEOUT).await?;
        self.read(&mut nodes, sources.clone(), &budgets).await?;
        let mut stay = self.left_out.clone();
        let mut plan = None;
        for _ in 0..MAX_PLANS {
            let Some(next) = nodes.best_plan(&sources, pod, &stay, &snapshot.choice_rule()) else {
                break;
            };
            let unread: Vec<usize> =
                next.moves.iter().map(|it| it.to).filter(|at| !nodes.is_read(*at)).collect();
            if !unread.is_empty() {
                if nodes.read.len() + unread.len() > MAX_READ {
                    break;
                }
                self.read(&mut nodes, unread, &budgets).await?;
            } else if let Some(surplus) = nodes.surplus(&next) {
                stay.insert(surplus);
            } else {
                plan = Some(next);
                break;
            }
        }
        Ok(Search {
            nodes: sources.iter().filter(|at| nodes.is_read(**at)).count(),
            stays: nodes.stays(&sources, pod),
            proposal: plan.map(|plan| nodes.proposal(&plan)),
        })
    }

    /// Reads nodes. One that cannot be read takes no pods, and its pods stay.
    async fn read(
        &self,
        nodes: &mut Nodes<'_>,
        places: Vec<usize>,
        budgets: &[Budget],
    ) -> Result<(), CallError> {
        let names: Vec<(usize, NodeName)> =
            places.iter().map(|at| (*at, nodes.all[*at].name.clone())).collect();
        let reads = stream::iter(names).map(async |(at, name)| {
            (at, residents(self.client, name.as_str(), self.names, budgets, CALL_TIMEOUT).await)
        });
        let reads: Vec<_> = reads.buffer_unordered(MAX_CONCURRENT).collect().await;
        let mut fault = None;
        let mut any = false;
        for (at, read) in reads {
            match read {
                Ok((room, pods)) => {
                    any = true;
                    nodes.set_read(at, Some((room, pods)));
                }
                Err(error) => {
                    tracing::warn!(node = %nodes.all[at].name, %error, "no pods are moved to or from a node: it cannot be read");
                    nodes.set_read(at, None);
                    fault = Some(error);
                }
            }
        }
        match fault {
            Some(error) if !any => Err(error),
            _ => Ok(()),
        }
    }
}

/// A node as it was read; `None` where it could not be.
type ReadNode = Option<(NodeRoom, Vec<Resident>)>;

/// The nodes with cards.
struct Nodes<'s> {
    snapshot: &'s Snapshot,
    all: Vec<MoveNode>,
    /// Nodes that take no pod now: over a limit, or backed off.
    closed: BTreeSet<usize>,
    read: HashMap<usize, ReadNode>,
    /// The resources of [`MoveNode::free`], by name.
    resources: Vec<String>,
}

impl<'s> Nodes<'s> {
    fn new(snapshot: &'s Snapshot, pod: &MovesFor<'_>, now: Timestamp) -> Self {
        let resources: Vec<String> = pod.applicant.takes.keys().cloned().collect();
        let mut all = Vec::new();
        let mut closed = BTreeSet::new();
        for (name, cards) in snapshot.nodes_with_cards() {
            if cards.accounts().is_empty() {
                continue;
            }
            let over_limit = snapshot.load(name.as_str()).is_none_or(|node| {
                let policy = &snapshot.policy;
                let evaluation = Evaluation { policy, node, pod: PodToPlace::ORDINARY, now };
                evaluation.measured_limit_ratio().is_some_and(|ratio| ratio > 1.0)
            });
            if over_limit || snapshot.is_backed_off(name, pod.namespace, now) {
                closed.insert(all.len());
            }
            let free = vec![UNREAD; resources.len()];
            all.push(MoveNode { name: name.clone(), cards: Arc::clone(cards), free });
        }
        Self { snapshot, all, closed, read: HashMap::new(), resources }
    }

    /// Whether the policy lets pods of a namespace go to a node.
    fn is_open_to(&self, namespace: &str, at: usize) -> bool {
        let node = self.snapshot.load(self.all[at].name.as_str());
        node.is_some_and(|node| {
            self.snapshot.policy.broken_namespace_rule(namespace, &node.labels).is_none()
        })
    }

    /// The nodes that moves may make room on, those that need the fewest first, by their cards alone.
    fn sources(&self, pod: &MovesFor<'_>, rule: &ChoiceRule) -> Vec<usize> {
        let mut sources = Vec::new();
        for (at, node) in self.all.iter().enumerate() {
            if self.closed.contains(&at) || !self.is_open_to(pod.namespace, at) {
                continue;
            }
            let fewest = if node.cards.fit(pod.uid, pod.request, rule).is_ok() {
                Some(0)
            } else {
                fewest_on_cards(&node.cards, pod.uid, pod.request, rule)
            };
            if let Some(fewest) = fewest.filter(|fewest| *fewest <= MAX_MOVES) {
                sources.push((fewest, &node.name, at));
            }
        }
        sources.sort_unstable();
        sources.into_iter().take(MAX_SOURCES).map(|(.., at)| at).collect()
    }

    fn is_read(&self, at: usize) -> bool {
        self.read.contains_key(&at)
    }

    fn set_read(&mut self, at: usize, read: ReadNode) {
        for resource in read.iter().flat_map(|(_, pods)| pods).flat_map(|pod| pod.takes.keys()) {
            if !self.resources.contains(resource) {
                self.resources.push(resource.clone());
            }
        }
        self.read.insert(at, read);
        for (at, node) in self.all.iter_mut().enumerate() {
            let room = self.read.get(&at).and_then(Option::as_ref).map(|(room, _)| room);
            let free = self.resources.iter().map(|resource| match room {
                Some(room) => room.free.get(resource).copied().unwrap_or_default(),
                None => UNREAD,
            });
            node.free = free.collect();
        }
    }

    fn amounts(&self, takes: &BTreeMap<String, f64>) -> Vec<f64> {
        let amounts = self.resources.iter().map(|resource| takes.get(resource));
        amounts.map(|amount| amount.copied().unwrap_or_default()).collect()
    }

    /// The pods of a node that may be moved.
    fn movable(&self, at: usize, pod: &MovesFor<'_>, stay: &BTreeSet<PodUid>) -> Vec<Movable> {
        let Some(Some((_, residents))) = self.read.get(&at) else { return Vec::new() };
        let may_go = residents.iter().filter(|it| why_stays(it, pod).is_none());
        may_go
            .filter(|it| !stay.contains(&it.uid))
            .map(|it| Movable {
                uid: it.uid.clone(),
                request: it.request.clone(),
                takes: self.amounts(&it.takes),
            })
            .collect()
    }

    /// The plan with the fewest moves. One goes to nodes that are not read as if they had room.
    fn best_plan(
        &self,
        sources: &[usize],
        pod: &MovesFor<'_>,
        stay: &BTreeSet<PodUid>,
        rule: &ChoiceRule,
    ) -> Option<MovePlan> {
        let takes = self.amounts(&pod.applicant.takes);
        let wanted = Wanted { pod: pod.uid, request: pod.request, takes: &takes };
        let mut best: Option<MovePlan> = None;
        let mut lower_bounds: Vec<(usize, usize, Vec<Movable>)> = Vec::new();
        for at in sources {
            let Some(Some((room, _))) = self.read.get(at) else { continue };
            if !pod.applicant.may_go_to(room) {
                continue;
            }
            let movable = self.movable(*at, pod, stay);
            let all: Vec<&Movable> = movable.iter().collect();
            if let Some(leaving) = fewest_to_leave(&self.all[*at], wanted, &all) {
                lower_bounds.push((leaving.len(), *at, movable));
            }
        }
        lower_bounds.sort_by_key(|(fewest, at, _)| (*fewest, *at));
        for (fewest, at, movable) in &lower_bounds {
            let most = best.as_ref().map_or(MAX_MOVES, |best| best.moves.len().saturating_sub(1));
            if *fewest > most {
                break;
            }
            let may_go = |movable: &Movable, to: usize| self.takes_pod(*at, movable, to);
            let plan = fewest_moves(&self.all, *at, wanted, movable, rule, may_go);
            best = plan.filter(|plan| plan.moves.len() <= most).or(best);
        }
        best
    }

    /// Whether a node may take a pod of node `from`, but for room.
    fn takes_pod(&self, from: usize, pod: &Movable, to: usize) -> bool {
        let resident = self.resident(from, &pod.uid);
        let accepts = |room: &NodeRoom| resident.is_some_and(|pod| room.accepts(pod));
        let is_open = resident.is_some_and(|pod| self.is_open_to(&pod.pod.namespace, to));
        !self.closed.contains(&to)
            && is_open
            && match self.read.get(&to) {
                None => true,
                Some(None) => false,
                Some(Some((room, _))) => accepts(room),
            }
    }

    fn resident(&self, at: usize, uid: &PodUid) -> Option<&Resident> {
        let (_, residents) = self.read.get(&at)?.as_ref()?;
        residents.iter().find(|resident| resident.uid == *uid)
    }

    /// A pod that the plan moves beyond what budgets allow together, or beside another of its workload without a
    /// budget.
    fn surplus(&self, plan: &MovePlan) -> Option<PodUid> {
        let moved = plan.moves.iter().filter_map(|it| self.resident(plan.node, &it.pod));
        let moved: Vec<&Resident> = moved.collect();
        let beyond = beyond_budgets(moved.iter().map(|pod| pod.covering.as_slice()));
        let mut workloads = BTreeSet::new();
        let mut both = moved.iter().zip(beyond);
        let surplus = both.find(|(pod, beyond)| {
            let workload = pod.workload.as_ref().map(|it| (&it.namespace, &it.kind, &it.name));
            *beyond || (pod.covering.is_empty() && !workloads.insert(workload))
        });
        surplus.map(|(pod, _)| pod.uid.clone())
    }

    /// The pods of these nodes that are not moved, counted by the reason.
    fn stays(&self, sources: &[usize], pod: &MovesFor<'_>) -> BTreeMap<Stays, usize> {
        let mut stays = BTreeMap::new();
        let read = sources.iter().filter_map(|at| self.read.get(at)?.as_ref());
        for resident in read.flat_map(|(_, residents)| residents) {
            if let Some(why) = why_stays(resident, pod) {
                *stays.entry(why).or_default() += 1;
            }
        }
        stays
    }

    fn proposal(&self, plan: &MovePlan) -> Proposal {
        let node = &self.all[plan.node];
        let moves = plan.moves.iter().filter_map(|it| {
            let resident = self.resident(plan.node, &it.pod)?;
            let cards = it.choice.iter().flat_map(|choice| &choice.cards);
            Some(ProposedMove {
                pod: resident.pod.clone(),
                workload: resident
                    .workload
                    .as_ref()
                    .map(|it| format!("{}/{}", it.kind, it.name))
                    .unwrap_or_default(),
                priority: resident.priority,
                units: resident.request.as_ref().map_or(0, |request| request.peak().0),
                from: indices(&node.cards, &it.pod),
                to: self.all[it.to].name.clone(),
                to_cards: cards.map(|card| card.index).collect(),
            })
        });
        Proposal {
            node: node.name.clone(),
            cards: plan.choice.card_ids(),
            indices: plan.choice.cards.iter().map(|card| card.index).collect(),
            moves: moves.collect(),
        }
    }
}

/// The indices of the cards that a pod is charged on.
fn indices(cards: &NodeCards, pod: &PodUid) -> Vec<u32> {
    let charged = cards
        .accounts()
        .iter()
        .filter(|account| account.charges.iter().any(|charge| charge.pod == *pod));
    charged.map(|account| account.card.index).collect()
}

/// Why a pod is not moved for this one; `None` if it may be.
fn why_stays(resident: &Resident, pod: &MovesFor<'_>) -> Option<Stays> {
    let gives_way = pod.priority.is_none_or(|priority| resident.gives_way_to(priority));
    resident.stays.or((!gives_way).then_some(Stays::Priority))
}

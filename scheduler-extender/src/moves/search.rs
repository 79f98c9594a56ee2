//! The search for the fewest moves.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use cluster::{Budgets, CallError, Client, NodeRoom, Stays, beyond_budgets, residents};
use futures::{StreamExt as _, stream};
use jiff::{SignedDuration, Timestamp};
use placement::gpu::{
    Account, Choice, ChoiceRule, Movable, MoveNode, MovePlan, NodeCards, Wanted, fewest_moves,
    fewest_to_leave,
};
use placement::load::{Evaluation, Verdict};
use placement::names::Names;
use placement::units::{NodeName, PodUid};

use super::{MAX_MOVES, MAX_READ, MovesFor, Proposal, ProposedMove, Search, Workload};
use crate::decisions::DecidedPod;
use crate::victims::fewest_on_cards;
use crate::view::{Current, Snapshot, View};

/// Nodes whose pods may be moved, those with the fewest pods on the cards first.
const MAX_SOURCES: usize = 32;

/// Nodes that are read concurrently.
const MAX_CONCURRENT: usize = 4;

/// Plans that are made for one search: each but the last met a node or a budget that refused.
const MAX_PLANS: usize = 32;

/// Resources that are counted on every node. A pod that takes another one stays.
const MAX_RESOURCES: usize = 128;

/// The timeout of a call.
const CALL_TIMEOUT: Duration = Duration::from_secs(2);

/// The time for a whole search.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(10);

/// What a node that is not read yet is taken to have of each resource.
const UNREAD: f64 = f64::INFINITY;

/// A pod of a node, as Filter would decide about its successor.
type Resident = cluster::Resident<DecidedPod>;

/// The search for the fewest moves for a pod.
pub(crate) struct MoveSearch<'a> {
    pub(crate) view: &'a View,
    pub(crate) client: &'a Client,
    pub(crate) names: &'a Names,
    /// Pods that are not moved, since their eviction was refused.
    pub(crate) left_out: &'a BTreeSet<PodUid>,
    /// Workloads of which a pod was moved a short time ago: they have none moved now.
    pub(crate) moved: &'a BTreeSet<Workload>,
}

impl MoveSearch<'_> {
    /// The fewest moves that make room.
    ///
    /// # Errors
    ///
    /// If no node can be read, or if it takes too long.
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
        let current = self.view.current();
        let snapshot = &*current.snapshot;
        let mut nodes = Nodes::new(snapshot, pod, self.moved, now);
        let sources = nodes.sources(pod, &snapshot.choice_rule());
        if sources.is_empty() {
            return Ok(Search::default());
        }
        let mut budgets = Budgets::default();
        self.read(&mut nodes, &sources, &current, &mut budgets).await;
        if sources.iter().all(|at| nodes.residents(*at).is_none()) {
            return Err(CallError::Unknown("no node could be read".to_owned()));
        }
        let mut stay = self.left_out.clone();
        let mut plan = None;
        for _ in 0..MAX_PLANS {
            let rule = snapshot.choice_rule();
            let Some(next) = nodes.best_plan(&sources, pod, &stay, &rule).await else { break };
            let unread: BTreeSet<usize> =
                next.moves.iter().map(|it| it.to).filter(|at| !nodes.is_read(*at)).collect();
            if !unread.is_empty() {
                if nodes.read.len() + unread.len() > MAX_READ {
                    break;
                }
                self.read(&mut nodes, &Vec::from_iter(unread), &current, &mut budgets).await;
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

    /// Reads nodes, and the budgets of their pods' namespaces. A node that cannot be read takes no pods, and its pods
    /// stay.
    async fn read(
        &self,
        nodes: &mut Nodes<'_>,
        places: &[usize],
        current: &Current,
        budgets: &mut Budgets,
    ) {
        let names: Vec<(usize, NodeName)> =
            places.iter().map(|at| (*at, nodes.all[*at].name.clone())).collect();
        let decide = |pod: &cluster::Pod| {
            let estimates = current.estimates(pod, self.names);
            let decided = DecidedPod::new(pod, estimates, SignedDuration::ZERO);
            decided.with_declared(pod.declared(self.names))
        };
        let calls = stream::iter(names).map(async |(at, name)| {
            let node = name.as_str();
            let read = residents(self.client, node, self.names, decide, CALL_TIMEOUT);
            (at, read.await)
        });
        let mut reads: Vec<_> = calls.buffer_unordered(MAX_CONCURRENT).collect().await;
        let mut namespaces = BTreeSet::new();
        for resident in reads.iter().flat_map(|(_, read)| read).flat_map(|(_, pods)| pods) {
            if resident.stays.is_none() {
                namespaces.insert(resident.namespace().to_owned());
            }
        }
        budgets.read(self.client, namespaces, CALL_TIMEOUT).await;
        for resident in reads.iter_mut().flat_map(|(_, read)| read).flat_map(|(_, pods)| pods) {
            resident.cover(budgets);
        }
        for (at, read) in reads {
            match read {
                Ok(read) => nodes.set_read(at, Some(read)),
                Err(error) => {
                    tracing::warn!(node = %nodes.all[at].name, %error, "no pods are moved to or from a node: it cannot be read");
                    nodes.set_read(at, None);
                }
            }
        }
    }
}

/// A node as it was read; `None` where it could not be.
type ReadNode = Option<(NodeRoom, Vec<Resident>)>;

/// The nodes with cards.
struct Nodes<'s> {
    snapshot: &'s Snapshot,
    moved: &'s BTreeSet<Workload>,
    now: Timestamp,
    all: Vec<MoveNode>,
    read: HashMap<usize, ReadNode>,
    /// The resources of [`MoveNode::free`], by name.
    resources: Vec<String>,
}

impl<'s> Nodes<'s> {
    fn new(
        snapshot: &'s Snapshot,
        pod: &MovesFor<'_>,
        moved: &'s BTreeSet<Workload>,
        now: Timestamp,
    ) -> Self {
        let resources: Vec<String> = pod.applicant.takes.keys().cloned().collect();
        let mut all = Vec::new();
        for (name, cards) in snapshot.nodes_with_cards() {
            if cards.accounts().is_empty() {
                continue;
            }
            let free = vec![UNREAD; resources.len()];
            all.push(MoveNode { name: name.clone(), cards: Arc::clone(cards), free });
        }
        Self { snapshot, moved, now, all, read: HashMap::new(), resources }
    }

    /// Whether Filter lets a pod go to a node: with the pod it is over no limit, it is not backed off from, and the
    /// policy gives the pod's namespace no other nodes.
    fn is_open_to(&self, pod: &DecidedPod, at: usize) -> bool {
        let name = &self.all[at].name;
        let policy = &self.snapshot.policy;
        let Some(node) = self.snapshot.load(name.as_str()) else { return false };
        let evaluation = Evaluation { policy, node, pod: pod.to_place(), now: self.now };
        !self.snapshot.is_backed_off(name, &pod.namespace, self.now)
            && policy.broken_namespace_rule(&pod.namespace, &node.labels).is_none()
            && matches!(evaluation.verdict(), Verdict::Accepted)
    }

    /// Whether the labels of a node let the pod go there.
    fn is_selected(&self, pod: &MovesFor<'_>, at: usize) -> bool {
        let node = self.snapshot.load(self.all[at].name.as_str());
        node.is_some_and(|node| pod.applicant.may_go_by_labels(&node.labels))
    }

    /// The nodes that moves may make room on, those that need the fewest first, by their cards alone.
    fn sources(&self, pod: &MovesFor<'_>, rule: &ChoiceRule) -> Vec<usize> {
        let mut sources = Vec::new();
        for (at, node) in self.all.iter().enumerate() {
            if !self.is_selected(pod, at) || !self.is_open_to(pod.decided, at) {
                continue;
            }
            let uid = &pod.decided.uid;
            let fewest = if node.cards.fit(uid, pod.request, rule).is_ok() {
                Some(0)
            } else {
                fewest_on_cards(&node.cards, uid, pod.request, rule)
            };
            if let Some(fewest) = fewest.filter(|fewest| *fewest <= MAX_MOVES) {
                sources.push((fewest, &node.name, at));
            } else if !node.cards.undrained_clients().is_empty() {
                // Read last, so that the answer says why its pods stay.
                sources.push((MAX_MOVES + 1, &node.name, at));
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
            if self.resources.len() < MAX_RESOURCES && !self.resources.contains(resource) {
                self.resources.push(resource.clone());
            }
        }
        self.read.insert(at, read);
        for (at, node) in self.all.iter_mut().enumerate() {
            let room = self.read.get(&at).and_then(Option::as_ref).map(|(room, _)| room);
            let free = |resource: &String| match room {
                Some(room) => room.free.get(resource).copied().unwrap_or_default(),
                None => UNREAD,
            };
            node.free = self.resources.iter().map(free).collect();
        }
    }

    fn amounts(&self, takes: &BTreeMap<String, f64>) -> Vec<f64> {
        self.resources.iter().map(|name| takes.get(name).copied().unwrap_or_default()).collect()
    }

    /// The pods of a node that may be moved.
    fn movable(&self, at: usize, pod: &MovesFor<'_>, stay: &BTreeSet<PodUid>) -> Vec<Movable> {
        let mut movable = Vec::new();
        for resident in self.residents(at).into_iter().flatten() {
            let stays = self.why_stays(at, resident, pod).is_some() || stay.contains(&resident.uid);
            if !stays && resident.takes.keys().all(|resource| self.resources.contains(resource)) {
                let beyond = self.snapshot.beyond_units_of(&resident.pod.namespace);
                movable.push(Movable {
                    uid: resident.uid.clone(),
                    request: resident.request.clone().map(|asked| asked.with_beyond_units(beyond)),
                    takes: self.amounts(&resident.takes),
                });
            }
        }
        movable
    }

    /// The plan with the fewest moves. One goes to nodes that are not read as if they had room.
    async fn best_plan(
        &self,
        sources: &[usize],
        pod: &MovesFor<'_>,
        stay: &BTreeSet<PodUid>,
        rule: &ChoiceRule,
    ) -> Option<MovePlan> {
        let takes = self.amounts(&pod.applicant.takes);
        let wanted = Wanted { pod: &pod.decided.uid, request: pod.request, takes: &takes };
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
            // Looking at thousands of nodes for each pod takes long: others have a turn, and the search an end.
            tokio::task::yield_now().await;
            let residents: HashMap<&PodUid, &Resident> =
                self.residents(*at).into_iter().flatten().map(|it| (&it.uid, it)).collect();
            let may_go = |movable: &Movable, to: usize| {
                residents.get(&movable.uid).is_some_and(|pod| self.takes_pod(pod, to))
            };
            let plan = fewest_moves(&self.all, *at, wanted, movable, rule, may_go);
            best = plan.filter(|plan| plan.moves.len() <= most).or(best);
        }
        best
    }

    /// Whether a node may take a pod, but for room.
    fn takes_pod(&self, pod: &Resident, to: usize) -> bool {
        let accepts = match self.read.get(&to) {
            None => true,
            Some(None) => false,
            Some(Some((room, _))) => room.accepts(pod),
        };
        accepts && self.is_open_to(&pod.decided, to)
    }

    /// A node's pods with cards; `None` where it was not read.
    fn residents(&self, at: usize) -> Option<&[Resident]> {
        self.read.get(&at)?.as_ref().map(|(_, residents)| residents.as_slice())
    }

    fn resident(&self, at: usize, uid: &PodUid) -> Option<&Resident> {
        self.residents(at)?.iter().find(|resident| resident.uid == *uid)
    }

    /// A pod that the plan moves beyond what budgets allow together, or beside another of its workload without a
    /// budget.
    fn surplus(&self, plan: &MovePlan) -> Option<PodUid> {
        let moved: Vec<&Resident> =
            plan.moves.iter().filter_map(|step| self.resident(plan.node, &step.pod)).collect();
        let beyond = beyond_budgets(moved.iter().map(|pod| pod.covering.as_slice()));
        let mut workloads = BTreeSet::new();
        for (pod, beyond) in moved.into_iter().zip(beyond) {
            if beyond || (pod.covering.is_empty() && !workloads.insert(workload(pod))) {
                return Some(pod.uid.clone());
            }
        }
        None
    }

    /// The pods of these nodes that are not moved, counted by the reason.
    fn stays(&self, sources: &[usize], pod: &MovesFor<'_>) -> BTreeMap<Stays, usize> {
        let mut stays = BTreeMap::new();
        for at in sources {
            for resident in self.residents(*at).into_iter().flatten() {
                if let Some(why) = self.why_stays(*at, resident, pod) {
                    *stays.entry(why).or_default() += 1;
                }
            }
        }
        stays
    }

    /// Why a pod of node `at` is not moved for this one; `None` if it may be.
    fn why_stays(&self, at: usize, resident: &Resident, pod: &MovesFor<'_>) -> Option<Stays> {
        let gives_way = pod.priority.is_none_or(|priority| resident.gives_way_to(priority));
        let was_moved = workload(resident).is_some_and(|it| self.moved.contains(&it));
        let stays = resident.stays.or(was_moved.then_some(Stays::Moved));
        if let Some(stays) = stays.or((!gives_way).then_some(Stays::Priority)) {
            return Some(stays);
        }
        // Last: it reads all charges of the node.
        let undrained = self.all[at].cards.undrained_clients();
        undrained.contains(&resident.uid).then_some(Stays::MpsClient)
    }

    fn proposal(&self, plan: &MovePlan) -> Proposal {
        let node = &self.all[plan.node];
        let indices_of = |choice: &Choice| choice.cards.iter().map(|card| card.index).collect();
        let mut moves = Vec::new();
        for step in &plan.moves {
            let Some(resident) = self.resident(plan.node, &step.pod) else { continue };
            moves.push(ProposedMove {
                pod: resident.pod.clone(),
                workload: workload(resident),
                priority: resident.priority,
                units: resident.request.as_ref().map_or(0, |request| request.peak().0),
                from: indices(&node.cards, &step.pod),
                to: self.all[step.to].name.clone(),
                to_cards: step.choice.as_ref().map_or_else(Vec::new, indices_of),
            });
        }
        Proposal {
            node: node.name.clone(),
            cards: plan.choice.card_ids(),
            indices: indices_of(&plan.choice),
            moves,
        }
    }
}

/// The controller of a pod; `None` if it has none.
fn workload(pod: &Resident) -> Option<Workload> {
    let name = pod.controller.clone()?;
    Some(Workload { namespace: Arc::from(pod.pod.namespace.as_str()), name })
}

/// The indices of the cards that a pod is charged on.
fn indices(cards: &NodeCards, pod: &PodUid) -> Vec<u32> {
    let is_on = |account: &&Account| account.charges.iter().any(|charge| charge.pod == *pod);
    cards.accounts().iter().filter(is_on).map(|account| account.card.index).collect()
}

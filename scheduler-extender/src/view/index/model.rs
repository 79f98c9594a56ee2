//! Pods on two nodes, exhaustively: every order in which the extender's events can come, over the real index.
//!
//! One fault is among them: a binding's request or reply that is late or lost, or a pod that is deleted by force. The
//! watch shows each change of a pod at any later time, or not at all before a list. What holds in every state: the
//! bindings that the API server has carried out never exceed a GPU; each of them, and each that it still may carry
//! out, is charged on its node; the snapshot has what the index has. And once everything has arrived and the pods are
//! gone, nothing is charged.

use std::array;
use std::collections::{HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use cluster::{Event, GpuPod, NodeFacts, PodFacts};
use jiff::{SignedDuration, Timestamp};
use placement::gpu::{ChoiceRule, Claim, GpuRequest, NodeLedger};
use placement::units::{NodeName, PodUid};

use super::{GpuPodId, Index, PodUse, WatchedPod};
use crate::view::{Current, fixtures};

const NODES: usize = 2;
/// Of a GPU's 16 units: the first two fit one GPU together, the third does not fit beside the first.
const SIZES: [u32; 3] = [9, 7, 8];
const PODS: usize = SIZES.len();
/// Requests and replies that are lost, and pods that are deleted, together.
const FAULTS: u8 = 1;

/// A pod as the API server has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum ApiPod {
    Pending,
    Bound(usize),
    Deleted,
}

/// A binding on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Way {
    Sent,
    /// The API server has answered: whether it has carried it out.
    Answered(bool),
    /// The sender will get no answer. Whether the API server may still carry it out.
    InDoubt(bool),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Binding {
    pod: usize,
    node: usize,
    way: Way,
}

/// What no event changes.
struct Objects {
    ids: [GpuPodId; PODS],
    nodes: [NodeName; NODES],
    request: [GpuRequest; PODS],
    claims: [Claim; PODS],
    pending: [PodFacts; PODS],
    /// By pod and node.
    bound: [[PodFacts; NODES]; PODS],
}

impl Objects {
    fn new() -> Self {
        let id = |pod: usize| {
            let name = format!("pod-{pod}");
            GpuPodId { uid: PodUid::from(name.as_str()), namespace: "ml".to_owned(), name }
        };
        let ids: [GpuPodId; PODS] = array::from_fn(id);
        let nodes = array::from_fn(|at| NodeName::from(format!("n{at}")));
        let pending = array::from_fn(|pod| fixtures::gpu_pod(&ids[pod], SIZES[pod], None));
        let request = pending.each_ref().map(|facts| gpu(facts).request.clone());
        // The nodes' GPUs have one name, so that two worlds whose nodes have changed places are alike.
        let claims =
            request.each_ref().map(|request| Claim::on_gpu(request, &fixtures::gpu().uuid));
        let bound = array::from_fn(|pod| {
            let on = |node| Some((node, claims[pod].clone()));
            nodes.each_ref().map(|node| fixtures::gpu_pod(&ids[pod], SIZES[pod], on(node)))
        });
        Self { ids, nodes, request, claims, pending, bound }
    }

    /// The pod's object.
    fn facts(&self, pod: usize, at: ApiPod) -> &PodFacts {
        match at {
            ApiPod::Bound(node) => &self.bound[pod][node],
            ApiPod::Pending | ApiPod::Deleted => &self.pending[pod],
        }
    }

    fn watched(&self, pod: usize, at: ApiPod) -> WatchedPod {
        WatchedPod::Gpu(Box::new(self.facts(pod, at).clone()), PodUse::default())
    }
}

fn gpu(facts: &PodFacts) -> &GpuPod {
    facts.gpu.as_ref().unwrap().as_ref().unwrap()
}

fn now() -> Timestamp {
    Timestamp::from_second(1_000_000).unwrap()
}

#[derive(Clone)]
struct World {
    objects: Arc<Objects>,
    index: Index,
    api: [ApiPod; PODS],
    /// As the watch has last shown each pod; `None` where it has not.
    shown: [Option<ApiPod>; PODS],
    bindings: Vec<Binding>,
    faults: u8,
}

impl World {
    fn new() -> Self {
        let objects = Arc::new(Objects::new());
        let mut index = fixtures::index();
        let node = |name: &NodeName| fixtures::node(name.as_str(), vec![fixtures::gpu()]);
        let nodes: Vec<NodeFacts> = objects.nodes.iter().map(node).collect();
        index.apply_nodes(Event::Listed(nodes), now());
        let none = index.apply_pods(Event::Listed(Vec::new()), &mut HashSet::new(), now());
        assert!(none.is_empty());
        let (api, shown) = ([ApiPod::Pending; PODS], [None; PODS]);
        Self { objects, index, api, shown, bindings: Vec::new(), faults: 0 }
    }

    fn uid(&self, pod: usize) -> &PodUid {
        &self.objects.ids[pod].uid
    }

    fn ledger(&self, node: usize) -> &NodeLedger {
        &self.index.nodes.get(&self.objects.nodes[node]).unwrap().ledger
    }

    /// Applies a pod as it was read from the API server.
    fn read(&mut self, pod: usize) {
        let objects = Arc::clone(&self.objects);
        if self.api[pod] == ApiPod::Deleted {
            self.index.depart(&objects.ids[pod].uid, now());
        } else {
            let facts = objects.facts(pod, self.api[pod]);
            self.index.apply_known(facts, gpu(facts));
        }
    }

    /// A reservation is made, and its binding is sent.
    fn bind(&self, pod: usize, node: usize) -> Option<Self> {
        let mut next = self.clone();
        let Objects { ids, nodes, request, .. } = &*self.objects;
        let rule = ChoiceRule::default();
        next.index.reserve(&ids[pod], &request[pod], &nodes[node], &rule).ok()?;
        next.bindings.push(Binding { pod, node, way: Way::Sent });
        Some(next)
    }

    /// The API server gets a binding.
    fn carry_out(&mut self, at: usize) {
        let Binding { pod, node, .. } = self.bindings[at];
        let is_first = self.api[pod] == ApiPod::Pending;
        if is_first {
            self.api[pod] = ApiPod::Bound(node);
        }
        self.bindings[at].way = match self.bindings[at].way {
            Way::InDoubt(_) => Way::InDoubt(false),
            Way::Sent | Way::Answered(_) => Way::Answered(is_first),
        };
    }

    /// Whether another binding of the same pod to the same node is under way.
    fn is_tried_again(&self, at: usize) -> bool {
        let Binding { pod, node, .. } = self.bindings[at];
        let is_same = |other: &Binding| other.pod == pod && other.node == node;
        (0..self.bindings.len()).any(|other| other != at && is_same(&self.bindings[other]))
    }

    /// The answer arrives. After a conflict the pod is read.
    fn learn(&mut self, at: usize, is_bound: bool) {
        let Binding { pod, node, .. } = self.bindings.remove(at);
        if is_bound {
            let Objects { ids, nodes, claims, .. } = &*self.objects;
            self.index.confirm(&ids[pod].uid, &nodes[node], &claims[pod]);
        } else {
            self.read(pod);
        }
    }

    /// The pod of a binding in doubt is read, once nothing can carry the binding out any more.
    fn settle(&mut self, at: usize) {
        let Binding { pod, node, .. } = self.bindings.remove(at);
        let objects = Arc::clone(&self.objects);
        let (uid, node) = (&objects.ids[pod].uid, &objects.nodes[node]);
        if !self.index.is_reserved(uid, node) {
            return;
        }
        if self.api[pod] == ApiPod::Pending {
            self.index.cancel(uid, node);
        } else {
            self.read(pod);
        }
    }

    /// Whether the watch has not shown yet how the pod is.
    fn is_behind(&self, pod: usize) -> bool {
        match self.api[pod] {
            ApiPod::Deleted => self.shown[pod].is_some(),
            at => self.shown[pod] != Some(at),
        }
    }

    /// The watch shows the pod as it is.
    fn show(&mut self, pod: usize) {
        let at = self.api[pod];
        let event = match self.shown[pod].filter(|_| at == ApiPod::Deleted) {
            Some(last) => Event::Gone(self.objects.watched(pod, last)),
            None => Event::Applied(self.objects.watched(pod, at)),
        };
        let looked_up = self.index.apply_pods(event, &mut HashSet::new(), now());
        assert!(looked_up.is_empty());
        self.shown[pod] = if at == ApiPod::Deleted { None } else { Some(at) };
    }

    /// Whether a list can change anything: the watch is behind, or would never show the end of a pod.
    fn may_list(&self) -> bool {
        let is_unseen =
            |pod| self.api[pod] == ApiPod::Deleted && self.index.pods.contains_key(self.uid(pod));
        (0..PODS).any(|pod| self.is_behind(pod) || is_unseen(pod))
    }

    /// The watch begins again with a list. Pods that it does not have are read.
    fn list(&mut self) {
        let mut settled = HashSet::new();
        let none = self.index.apply_pods(Event::Listing, &mut settled, now());
        assert!(none.is_empty());
        let there = (0..PODS).filter(|pod| self.api[*pod] != ApiPod::Deleted);
        let listed = there.map(|pod| self.objects.watched(pod, self.api[pod])).collect();
        for pod in self.index.apply_pods(Event::Listed(listed), &mut settled, now()) {
            self.index.begin_look_up(&pod.uid);
            self.index.depart(&pod.uid, now());
        }
        self.shown = self.api.map(|at| (at != ApiPod::Deleted).then_some(at));
    }

    fn changed(&self, change: impl FnOnce(&mut Self)) -> Self {
        let mut world = self.clone();
        change(&mut world);
        world
    }

    /// All that can happen next.
    fn steps(&self) -> Vec<Self> {
        let mut next = Vec::new();
        for (at, binding) in self.bindings.iter().enumerate() {
            match binding.way {
                Way::Sent => next.push(self.changed(|world| world.carry_out(at))),
                Way::Answered(is_bound) => {
                    next.push(self.changed(|world| world.learn(at, is_bound)));
                }
                Way::InDoubt(true) => {
                    next.push(self.changed(|world| world.carry_out(at)));
                    // Its time is over.
                    next.push(self.changed(|world| world.bindings[at].way = Way::InDoubt(false)));
                }
                Way::InDoubt(false) if !self.is_tried_again(at) => {
                    next.push(self.changed(|world| world.settle(at)));
                }
                Way::InDoubt(false) => {}
            }
        }
        for pod in 0..PODS {
            if self.is_behind(pod) {
                next.push(self.changed(|world| world.show(pod)));
            }
            // kube-scheduler sends a pod again once it has had an answer, also where that was an error.
            let is_in_doubt = |it: &Binding| matches!(it.way, Way::InDoubt(_));
            let waits = self.bindings.iter().any(|it| it.pod == pod && !is_in_doubt(it));
            if self.api[pod] == ApiPod::Pending && !waits {
                next.extend((0..NODES).filter_map(|node| self.bind(pod, node)));
            }
        }
        if self.may_list() {
            next.push(self.changed(Self::list));
        }
        if self.faults < FAULTS {
            next.extend(self.faults());
        }
        next
    }

    fn faults(&self) -> Vec<Self> {
        let mut next = Vec::new();
        let mut fault = |change: &dyn Fn(&mut Self)| {
            next.push(self.changed(|world| {
                change(world);
                world.faults += 1;
            }));
        };
        for (at, binding) in self.bindings.iter().enumerate() {
            // The reply is lost, or the request is late or lost.
            match binding.way {
                Way::Sent => fault(&|world| world.bindings[at].way = Way::InDoubt(true)),
                Way::Answered(_) => fault(&|world| world.bindings[at].way = Way::InDoubt(false)),
                Way::InDoubt(_) => {}
            }
        }
        for pod in 0..PODS {
            if self.api[pod] != ApiPod::Deleted {
                fault(&|world| world.api[pod] = ApiPod::Deleted);
            }
        }
        next
    }

    /// What must hold in every state.
    fn check(&self, last: &Current) {
        for at in 0..NODES {
            let bound = (0..PODS).filter(|pod| self.api[*pod] == ApiPod::Bound(at));
            assert!(bound.map(|pod| SIZES[pod]).sum::<u32>() <= fixtures::gpu().units.0);
            let account = &self.ledger(at).read().accounts()[0];
            for pod in 0..PODS {
                let is_bound = self.api[pod] == ApiPod::Bound(at);
                let may_land = |it: &Binding| matches!(it.way, Way::Sent | Way::InDoubt(true));
                let is_there = |it: &Binding| it.pod == pod && it.node == at;
                let is_sent = self.bindings.iter().any(|it| is_there(it) && may_land(it));
                let may_be_bound = is_sent && self.api[pod] == ApiPod::Pending;
                let is_charged = account.charges.iter().any(|charge| charge.pod == *self.uid(pod));
                assert!(is_charged || !is_bound && !may_be_bound, "{}", self.shows());
            }
        }
        // A snapshot from the last one of another state has everything that has changed.
        let current = self.index.clone().publish(last);
        let snapshot = current.as_ref().map_or(&last.snapshot, |current| &current.snapshot);
        for at in 0..NODES {
            let gpus = snapshot.gpus(self.objects.nodes[at].as_str()).unwrap();
            assert_eq!(gpus.accounts(), self.ledger(at).read().accounts());
        }
    }

    /// Everything arrives, all pods are deleted, and time passes.
    fn end(mut self) {
        while let Some(binding) = self.bindings.first() {
            match binding.way {
                Way::Sent => self.carry_out(0),
                Way::Answered(is_bound) => self.learn(0, is_bound),
                Way::InDoubt(true) => self.bindings[0].way = Way::InDoubt(false),
                Way::InDoubt(false) => self.settle(0),
            }
        }
        self.api = [ApiPod::Deleted; PODS];
        self.list();
        self.index.tick(now() + SignedDuration::from_mins(11));
        for at in 0..NODES {
            assert_eq!(self.ledger(at).read().accounts()[0].charges, [], "{}", self.shows());
        }
        assert!(self.index.pods.is_empty() && self.index.departures.is_empty());
        assert!(self.index.plans.is_empty() && self.index.ending.is_empty());
    }

    fn shows(&self) -> String {
        format!("{:?} shown {:?} bindings {:?}", self.api, self.shown, self.bindings)
    }

    /// A hash of all that the next events depend on, the same where the nodes have only changed places.
    fn key(&self) -> u64 {
        let ledgers: [u64; NODES] = array::from_fn(|at| {
            let mut hasher = DefaultHasher::new();
            self.ledger(at).hash(&mut hasher);
            hasher.finish()
        });
        let [as_it_is, swapped] = [[0, 1], [1, 0]].map(|places| self.key_with(ledgers, places));
        as_it_is.min(swapped)
    }

    /// The same with each node at another place.
    fn key_with(&self, ledgers: [u64; NODES], places: [usize; NODES]) -> u64 {
        let moved = |pod: ApiPod| match pod {
            ApiPod::Bound(at) => ApiPod::Bound(places[at]),
            ApiPod::Pending | ApiPod::Deleted => pod,
        };
        let mut hasher = DefaultHasher::new();
        for at in places {
            ledgers[at].hash(&mut hasher);
        }
        for pod in 0..PODS {
            (moved(self.api[pod]), self.shown[pod].map(moved)).hash(&mut hasher);
            let Some(record) = self.index.pods.get(self.uid(pod)) else { continue };
            let holds = |at| record.nodes.contains(&self.objects.nodes[at]);
            (pod, record.unlisted, places.map(holds)).hash(&mut hasher);
        }
        let mut bindings = self.bindings.clone();
        for binding in &mut bindings {
            binding.node = places[binding.node];
        }
        bindings.sort_unstable();
        (bindings, self.faults).hash(&mut hasher);
        let mut departures = Vec::new();
        for departure in &self.index.departures {
            let is_there = |at: &usize| self.objects.nodes[*at] == departure.node;
            let at = (0..NODES).find(is_there).map(|at| places[at]);
            departures.push((&departure.pod, at, departure.most));
        }
        departures.sort_unstable();
        departures.hash(&mut hasher);
        hasher.finish()
    }
}

/// Goes through all states that can follow. Returns how many there are.
fn explore(mut first: World) -> usize {
    let last = first.index.first();
    first.index.nodes.changed.clear();
    let mut known = HashSet::from([first.key()]);
    let mut queue = VecDeque::from([first]);
    while let Some(world) = queue.pop_front() {
        world.check(&last);
        for next in world.steps() {
            if known.insert(next.key()) {
                queue.push_back(next);
            }
        }
        world.end();
    }
    known.len()
}

#[test]
fn three_pods_on_two_nodes_are_charged_where_they_are_in_every_order_of_events() {
    let mut world = World::new();
    for pod in 0..PODS {
        world.show(pod);
    }
    let states = explore(world);
    eprintln!("{states} states");
    assert!(states > 1_000);
}

/// Of two pods, so that there are not too many states.
#[test]
fn pods_may_be_bound_before_the_watch_has_shown_them() {
    let mut world = World::new();
    world.api[PODS - 1] = ApiPod::Deleted;
    let states = explore(world);
    eprintln!("{states} states");
    assert!(states > 500);
}

//! Which pods of a cluster are moved so that one finds GPUs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use placement::gpu::{ChoiceRule, NodeGpus};
use placement::load::{
    Evaluation, MetricTable, NodeLoad, PodToPlace, Readings, ResolvedPolicy, Verdict,
};
use placement::moves::{
    Cluster, Controller, Covering, Found, KeepsOut, KnownNode, PodNeeds, Proposal, ReadNode,
    Resident, Search, StayReason, Step,
};
use placement::node_rules::{NodeRules, NodeTaint, NodeTraits};
use placement::policy::LoadPolicy;
use placement::reading::Reading;
use placement::resources::{Amounts, PODS, PerResource};
use placement::selector::{Labels, Requirement, Requirements};
use placement::units::{MetricName, NodeName, PodUid, Ratio};
use proptest::prelude::*;

use crate::moves::{GPU, Layout, cpu, request};

const POLICY: &str = "
apiVersion: plimsoll.dev/v1alpha1
kind: SchedulingPolicy
spec:
  metrics: [{name: cpu_usage_avg_5m, period: 3m, limit: 0.8}]
  limits: {mode: hard, maxWait: never}
  namespaces:
  - {names: [team], nodeSelector: team=a}
";

const CORES: f64 = 4.0;

fn now() -> Timestamp {
    "2026-11-20T09:10:00Z".parse().unwrap()
}

fn controller(of: &str) -> Controller {
    Controller { namespace: "shop".to_owned(), name: format!("ReplicaSet/{of}") }
}

fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// A node with what the API server has of it.
struct Node {
    name: NodeName,
    gpus: Arc<NodeGpus>,
    load: NodeLoad,
    read: Option<ReadNode>,
}

impl Node {
    fn label(&mut self, key: &str, value: &str) {
        let read = self.read.as_mut().unwrap();
        read.traits.labels.extend(labels(&[(key, value)]));
        self.load.labels = Arc::new(read.traits.labels.clone());
    }
}

/// A cluster, and the pod that room is made for.
struct World {
    policy: ResolvedPolicy,
    table: MetricTable,
    nodes: Vec<Node>,
    priority: Option<i32>,
    moved: BTreeSet<Controller>,
    left_out: BTreeSet<PodUid>,
    wanted: PodNeeds,
}

/// How a search ended.
struct Ended {
    proposal: Option<Proposal>,
    stays: BTreeMap<StayReason, usize>,
    reads: Vec<String>,
}

impl Ended {
    fn moves(&self) -> Option<Vec<String>> {
        let moves = self.proposal.as_ref()?.moves.iter();
        Some(moves.map(|it| format!("{} to {}", it.uid, it.to)).collect())
    }
}

impl World {
    /// Nodes with 4 cores, and a pod that asks for two whole GPUs.
    fn new(layouts: &[Layout<'_>]) -> Self {
        let mut table = MetricTable::default();
        let policy = ResolvedPolicy::new(LoadPolicy::from_yaml(POLICY).unwrap(), &mut table);
        let mut nodes = Vec::new();
        for layout in layouts {
            let (node, pods) = layout.node(CORES);
            let resident = |needs: PodNeeds| Resident {
                controller: Some(controller(needs.uid.as_str())),
                needs,
                priority: 0,
                covering: Vec::new(),
                stays: None,
                consents: true,
            };
            let traits = NodeTraits { name: node.name.to_string(), ..NodeTraits::default() };
            let read = ReadNode {
                free: node.free.unwrap(),
                is_open: true,
                traits,
                keeps_out: Vec::new(),
                residents: pods.into_iter().map(resident).collect(),
            };
            let capacity = PerResource { cpu: Some(CORES), memory: None };
            let load = NodeLoad { capacity, ..NodeLoad::default() };
            let (name, gpus) = (node.name, node.gpus);
            nodes.push(Node { name, gpus, load, read: Some(read) });
        }
        let wanted = PodNeeds::new("wanted".into(), Some(request(GPU, 2)), cpu(1.0));
        let (moved, left_out) = Default::default();
        Self { policy, table, nodes, priority: Some(0), moved, left_out, wanted }
    }

    /// Two nodes of two GPUs, each with one pod: one move makes room.
    fn of_two() -> Self {
        Self::new(&[Layout("a", &[&[10], &[]]), Layout("b", &[&[10], &[]])])
    }

    fn node(&mut self, at: usize) -> &mut ReadNode {
        self.nodes[at].read.as_mut().unwrap()
    }

    fn residents(&mut self) -> impl Iterator<Item = &mut Resident> {
        self.nodes.iter_mut().flat_map(|node| &mut node.read).flat_map(|it| &mut it.residents)
    }

    fn set_load(&mut self, at: usize, load: f64) {
        let metric = MetricName::parse("cpu_usage_avg_5m").unwrap();
        let reading = Reading::new(Ratio::new(load).unwrap(), now());
        self.nodes[at].load.readings =
            Arc::new(Readings::new(&mut self.table, [(metric, reading)]));
    }

    fn run(&self) -> Ended {
        let mut nodes = Vec::new();
        for Node { name, gpus, load, .. } in &self.nodes {
            nodes.push(KnownNode { name, gpus, load, back_off: None });
        }
        let cluster = Cluster {
            policy: &self.policy,
            rule: ChoiceRule::default(),
            now: now(),
            nodes,
            moved: self.moved.clone(),
            left_out: self.left_out.clone(),
        };
        let mut search = Search::new(cluster, &self.wanted, self.priority);
        let mut reads = Vec::new();
        loop {
            match search.step() {
                Step::Next => {}
                Step::Read(nodes) => {
                    for node in nodes {
                        reads.push(search.name(node).to_string());
                        search.set_read(node, self.nodes[node.0].read.clone());
                    }
                }
                Step::End(Found { proposal, stays, .. }) => {
                    return Ended { proposal, stays, reads };
                }
            }
        }
    }

    /// That no moves make room, and why pods stay.
    fn assert_none(&self, stays: &[(StayReason, usize)], what: &str) {
        let ended = self.run();
        assert_eq!(ended.proposal, None, "{what}");
        assert_eq!(ended.stays, stays.iter().copied().collect(), "{what}");
    }
}

/// What a case changes.
type Change<'c, T> = &'c dyn Fn(&mut T);

#[test]
fn where_no_node_has_two_whole_gpus_one_move_makes_them() {
    let mut world = World::of_two();
    let ended = world.run();
    assert_eq!(ended.moves().unwrap(), ["a-0-0 to b"]);
    let proposal = ended.proposal.unwrap();
    assert_eq!((proposal.node.as_str(), proposal.choice.indices()), ("a", vec![0, 1]));
    let it = &proposal.moves[0];
    assert_eq!((it.units, &it.from, &it.to_gpus), (10, &vec![0], &vec![1]));
    assert_eq!(it.controller.as_ref().unwrap().name, "ReplicaSet/a-0-0");
    // One GPU is there already.
    world.wanted.request = Some(request(GPU, 1));
    assert_eq!(world.run().moves().unwrap(), [""; 0]);
    // No node has three.
    world.wanted.request = Some(request(1, 3));
    world.assert_none(&[], "three GPUs");
}

#[test]
fn a_pod_that_may_not_be_moved_stays_and_is_told_why() {
    use StayReason::{Budget, Moved, NoController, Priority};
    let allowed = |allowed| vec![Covering { budget: 0, allowed }];
    let several = vec![Covering { budget: 0, allowed: 1 }, Covering { budget: 1, allowed: 1 }];
    let cases: [(&str, Change<'_, Resident>, StayReason); 5] = [
        ("object", &|pod: &mut Resident| pod.stays = Some(NoController), NoController),
        ("budget", &|pod: &mut Resident| pod.set_covering(allowed(0)), Budget),
        ("budgets", &|pod: &mut Resident| pod.set_covering(several.clone()), Budget),
        ("consent", &|pod: &mut Resident| pod.consents = false, Priority),
        ("priority", &|pod: &mut Resident| pod.priority = 1, Priority),
    ];
    for (what, change, why) in cases {
        let mut world = World::of_two();
        world.residents().for_each(change);
        world.assert_none(&[(why, 2)], what);
    }
    let mut world = World::of_two();
    for pod in ["a-0-0", "b-0-0"] {
        world.moved.insert(controller(pod));
    }
    world.assert_none(&[(Moved, 2)], "moved");
    let mut world = World::of_two();
    world.left_out = ["a-0-0", "b-0-0"].map(PodUid::from).into();
    world.assert_none(&[], "left out");
    let mut world = World::of_two();
    world.residents().for_each(|pod| pod.consents = false);
    for priority in [Some(1), None] {
        world.priority = priority;
        assert_eq!(world.run().moves().unwrap().len(), 1, "{priority:?}");
    }
}

#[test]
fn a_successor_is_sent_to_no_node_that_takes_none() {
    let selector = |key: &str| Some(Requirements(vec![Requirement::is(key.into(), "web".into())]));
    let keeps_out = |key: &str| KeepsOut { namespaces: None, labels: selector(key) };
    let cases: [(&str, bool, Change<'_, ReadNode>); 6] = [
        ("closed", false, &|node: &mut ReadNode| node.is_open = false),
        ("tainted", false, &|node: &mut ReadNode| node.traits.taints.push(NodeTaint::cordon())),
        ("full", false, &|node: &mut ReadNode| node.free.extend([(PODS.to_owned(), 0.0)])),
        ("without CPU", false, &|node: &mut ReadNode| node.free.extend(cpu(0.5))),
        ("anti-affinity", false, &|node: &mut ReadNode| node.keeps_out.push(keeps_out("app"))),
        ("of others", true, &|node: &mut ReadNode| node.keeps_out.push(keeps_out("other"))),
    ];
    for (what, is_moved, change) in cases {
        let mut world = World::of_two();
        // None may come to `b`, and what goes from there cannot stay either.
        for pod in world.residents() {
            pod.needs.labelled.labels = Some(labels(&[("app", "web")]));
        }
        change(world.node(1));
        world.node(1).residents[0].stays = Some(StayReason::Ending);
        assert_eq!(world.run().proposal.is_some(), is_moved, "{what}");
    }
    let mut world = World::of_two();
    world.nodes[1].read = None;
    let ended = world.run();
    assert!(ended.proposal.is_none() && ended.reads == ["a", "b"], "{:?}", ended.reads);
}

#[test]
fn a_pods_own_rules_about_nodes_hold_for_its_successor_and_for_the_pod_that_waits() {
    let selecting = |value: &str| NodeRules {
        node_selector: labels(&[("pool", value)]),
        ..NodeRules::default()
    };
    for (value, moves) in [("x", None), ("y", Some("a-0-0 to b"))] {
        let mut world = World::of_two();
        world.nodes[1].label("pool", "y");
        world.residents().for_each(|pod| pod.needs.rules = selecting(value));
        let moved = world.run().moves();
        assert_eq!(moved.as_ref().map(|moves| moves[0].as_str()), moves, "{value}");
    }
    let mut world = World::of_two();
    world.nodes[1].label("pool", "y");
    world.wanted.rules = selecting("y");
    let ended = world.run();
    assert_eq!(ended.moves().unwrap(), ["b-0-0 to a"]);
    assert_eq!(ended.reads, ["b", "a"]);
    world.wanted.rules = selecting("x");
    world.assert_none(&[], "no node");
}

#[test]
fn a_successor_is_sent_to_nodes_of_its_namespace_alone() {
    let mut world = World::new(&[
        Layout("a", &[&[10], &[]]),
        Layout("b", &[&[10], &[]]),
        Layout("c", &[&[10], &[]]),
    ]);
    world.nodes[2].label("team", "a");
    world.residents().for_each(|pod| pod.needs.labelled.namespace = "team".to_owned());
    assert_eq!(world.run().moves().unwrap(), ["a-0-0 to c"]);
    world.wanted.labelled.namespace = "team".to_owned();
    world.assert_none(&[], "only c is open to the pod that waits");
}

#[test]
fn nobody_is_moved_to_a_node_where_its_own_use_is_too_much() {
    for (load, uses, is_moved) in [(0.3, 1.0, true), (0.75, 1.0, false), (0.3, 2.5, false)] {
        let mut world = World::of_two();
        world.set_load(0, 0.1);
        world.set_load(1, load);
        world.node(1).residents[0].stays = Some(StayReason::Volume);
        world.node(0).residents[0].needs.uses = Amounts { cpu: uses, memory: 0.0 };
        assert_eq!(world.run().proposal.is_some(), is_moved, "{load} {uses}");
    }
    let mut world = World::of_two();
    for at in 0..2 {
        world.set_load(at, 0.75);
    }
    world.wanted.uses = Amounts { cpu: 1.0, memory: 0.0 };
    world.assert_none(&[], "the waiting pod is too much itself");
}

/// A budget that allows one eviction has one pod moved; two of a workload without a budget are not moved together.
#[test]
fn no_more_pods_go_together_than_budgets_and_workloads_allow() {
    let mut world =
        World::new(&[Layout("a", &[&[10], &[10]]), Layout("b", &[&[]]), Layout("c", &[&[]])]);
    assert_eq!(world.run().moves().unwrap().len(), 2);
    world.residents().for_each(|pod| pod.controller = Some(controller("web")));
    world.assert_none(&[], "one workload");
    for (allowed, moves, stays) in [(0, None, 2), (1, None, 0), (2, Some(2), 0)] {
        let mut world =
            World::new(&[Layout("a", &[&[10], &[10]]), Layout("b", &[&[]]), Layout("c", &[&[]])]);
        for pod in world.residents() {
            pod.controller = Some(controller("web"));
            pod.set_covering(vec![Covering { budget: 3, allowed }]);
        }
        let ended = world.run();
        assert_eq!(ended.moves().map(|moves| moves.len()), moves, "{allowed}");
        assert_eq!(ended.stays.values().sum::<usize>(), stays, "{allowed}");
    }
}

/// Where the labels are more than are kept, rules about labels are taken to select the pod.
#[test]
fn a_node_whose_pods_may_keep_a_pod_out_takes_none() {
    let mut world = World::of_two();
    world.node(1).keeps_out.push(KeepsOut {
        namespaces: Some(vec!["shop".to_owned()]),
        labels: Some(Requirements(vec![Requirement::is("app".into(), "x".into())])),
    });
    world.node(1).residents[0].stays = Some(StayReason::Volume);
    assert!(world.run().proposal.is_some());
    let labelled = &mut world.node(0).residents[0].needs.labelled;
    labelled.namespace = "shop".to_owned();
    labelled.labels = None;
    world.assert_none(&[(StayReason::Volume, 1)], "its labels are not known");
    world.node(0).residents[0].needs.labelled.labels = Some(Labels::new());
    assert!(world.run().proposal.is_some());
}

fn gpus() -> impl Strategy<Value = Vec<Vec<u32>>> {
    prop::collection::vec(prop::collection::vec(1..=GPU / 2, 0..3), 1..4)
}

/// Of one node: GPUs, load in percent, whether it is open, free cores and whether pods of the namespace may go there.
type Shape = (Vec<Vec<u32>>, u32, bool, u32, bool);

fn shapes() -> impl Strategy<Value = Vec<Shape>> {
    let node = (gpus(), 0_u32..100, prop::bool::weighted(0.8), 0_u32..6, any::<bool>());
    prop::collection::vec(node, 2..6)
}

/// Of each pod in turn: cores that it uses, its priority, evictions that its budget allows, and whether its namespace
/// has nodes of its own.
fn kinds() -> impl Strategy<Value = Vec<(u32, i32, i64, bool)>> {
    prop::collection::vec((0_u32..4, -1..2, 0_i64..4, any::<bool>()), 1..8)
}

fn world(shapes: &[Shape], kinds: &[(u32, i32, i64, bool)]) -> World {
    let names = ["a", "b", "c", "d", "e", "f"];
    let gpus: Vec<Vec<&[u32]>> =
        shapes.iter().map(|shape| shape.0.iter().map(Vec::as_slice).collect()).collect();
    let layouts: Vec<Layout<'_>> =
        gpus.iter().zip(names).map(|(gpus, name)| Layout(name, gpus)).collect();
    let mut world = World::new(&layouts);
    for (at, (_, load, is_open, free, is_of_team)) in shapes.iter().enumerate() {
        world.set_load(at, f64::from(*load) / 100.0);
        world.node(at).is_open = *is_open;
        world.node(at).free.extend(cpu(f64::from(*free)));
        if *is_of_team {
            world.nodes[at].label("team", "a");
        }
    }
    for (pod, (uses, priority, allowed, is_of_team)) in world.residents().zip(kinds.iter().cycle())
    {
        pod.needs.uses = Amounts { cpu: f64::from(*uses), memory: 0.0 };
        pod.needs.labelled.namespace = if *is_of_team { "team" } else { "shop" }.to_owned();
        pod.priority = *priority;
        pod.set_covering(vec![Covering { budget: *allowed as usize, allowed: *allowed }]);
    }
    world
}

fn filter_accepts(world: &World, pod: &PodNeeds, node: &Node) -> bool {
    let pod =
        PodToPlace { namespace: &pod.labelled.namespace, uses: pod.uses, ..PodToPlace::ORDINARY };
    let evaluation = Evaluation { policy: &world.policy, node: &node.load, pod, now: now() };
    evaluation.verdict() == Verdict::Accepted
}

proptest! {
    /// A proposal moves no pod twice and none that may not go, keeps to budgets, and sends each pod to a node that was
    /// read, takes it, has room, and that Filter accepts for it.
    #[test]
    fn each_move_of_a_proposal_is_allowed(shapes in shapes(), kinds in kinds(), gpus in 1_u32..3) {
        let mut world = world(&shapes, &kinds);
        world.wanted.request = Some(request(GPU, gpus));
        let ended = world.run();
        let Some(proposal) = ended.proposal else { return Ok(()) };
        let read: BTreeSet<&str> = ended.reads.iter().map(String::as_str).collect();
        prop_assert_eq!(read.len(), ended.reads.len(), "no node is read twice");
        let named = |name: &NodeName| world.nodes.iter().find(|node| node.name == *name).unwrap();
        let source = named(&proposal.node);
        prop_assert!(filter_accepts(&world, &world.wanted, source));
        let mut free: BTreeMap<&str, f64> = BTreeMap::new();
        for node in &world.nodes {
            free.insert(node.name.as_str(), node.read.as_ref().unwrap().free["cpu"]);
        }
        *free.get_mut(source.name.as_str()).unwrap() -= 1.0;
        let mut moved = BTreeSet::new();
        let mut used: BTreeMap<usize, i64> = BTreeMap::new();
        for it in &proposal.moves {
            prop_assert!(moved.insert(&it.uid), "{} goes twice", it.uid);
            let residents = &source.read.as_ref().unwrap().residents;
            let pod = residents.iter().find(|pod| pod.needs.uid == it.uid).unwrap();
            prop_assert!(pod.stays.is_none() && pod.priority <= 0);
            let to = named(&it.to);
            prop_assert!(read.contains(it.to.as_str()) && to.read.as_ref().unwrap().is_open);
            prop_assert!(filter_accepts(&world, &pod.needs, to), "{} to {}", it.uid, it.to);
            for Covering { budget, allowed } in &pod.covering {
                let count = used.entry(*budget).or_default();
                *count += 1;
                prop_assert!(*count <= *allowed);
            }
            *free.get_mut(source.name.as_str()).unwrap() += 1.0;
            *free.get_mut(it.to.as_str()).unwrap() -= 1.0;
        }
        let touched = proposal.moves.iter().map(|it| &it.to).chain([&proposal.node]);
        for node in touched {
            prop_assert!(free[node.as_str()] >= 0.0, "{node} is overdrawn");
        }
    }
}

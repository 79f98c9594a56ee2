//! Which pods are moved so that one finds GPUs on one node.

use std::collections::BTreeSet;
use std::sync::Arc;

use placement::gpu::{
    BeyondUnits, ChoiceRule, ContainerKind, ContainerRequest, Gpu, GpuIsolation, GpuOptions,
    GpuRequest, GpuUse, NodeLedger, Topology,
};
use placement::moves::{MoveNode, MovePlan, NodeIndex, PodNeeds, fewest_moves, fewest_to_leave};
use placement::resources::{PODS, Requests};
use placement::units::{MiB, PodUid, Units};
use proptest::prelude::*;

pub(crate) const GPU: u32 = 16;

pub(crate) fn request(units: u32, gpus: u32) -> GpuRequest {
    let asks = ContainerRequest {
        name: "main".to_owned(),
        kind: ContainerKind::App,
        position: 0,
        units: Units(units * gpus),
        gpu_use: GpuUse { gpus, ..GpuUse::default() },
    };
    let request = GpuRequest::with_options([asks], GpuOptions::default()).unwrap().unwrap();
    request.with_beyond_units(BeyondUnits::ALL)
}

pub(crate) fn cpu(amount: f64) -> Requests {
    [("cpu".to_owned(), amount)].into()
}

/// A pod that takes so much CPU.
fn pod(uid: &str, request: GpuRequest, takes: f64) -> PodNeeds {
    PodNeeds::new(uid.into(), Some(request), cpu(takes))
}

/// A node by what its pods hold of each GPU.
pub(crate) struct Layout<'a>(pub(crate) &'a str, pub(crate) &'a [&'a [u32]]);

impl Layout<'_> {
    /// The node, and its pods: `a-0-1` is the second pod of the first GPU of node `a`.
    pub(crate) fn node(&self, amount: f64) -> (MoveNode, Vec<PodNeeds>) {
        let Self(name, gpus) = self;
        let mut pods = Vec::new();
        let gpu = |(index, held): (usize, &&[u32])| {
            let on_it = held.iter().enumerate().map(|(at, units)| {
                let uid = PodUid::from(format!("{name}-{index}-{at}"));
                pods.push(pod(uid.as_str(), request(*units, 1), 1.0));
                (uid, Units(*units))
            });
            Gpu {
                uuid: format!("GPU-{name}-{index}").into(),
                index: index as u32,
                model: "NVIDIA A10".into(),
                memory: MiB(24576),
                units: Units(GPU),
                topology: Topology::default(),
                healthy: true,
                closed: None,
                isolation: GpuIsolation::default(),
                outside_mps: Vec::new(),
                pods: on_it.collect(),
            }
        };
        let gpus = gpus.iter().enumerate().map(gpu).collect();
        let mut ledger = NodeLedger::default();
        ledger.set_gpus(gpus);
        let mut free = cpu(amount);
        free.insert(PODS.to_owned(), 110.0);
        (MoveNode { name: (*name).into(), gpus: Arc::clone(ledger.read()), free: Some(free) }, pods)
    }
}

fn plan(
    nodes: &[(MoveNode, Vec<PodNeeds>)],
    at: usize,
    wanted: &GpuRequest,
    may_go: impl Fn(&PodNeeds, NodeIndex) -> bool,
) -> Option<MovePlan> {
    plan_for(nodes, at, &pod("wanted", wanted.clone(), 1.0), may_go)
}

fn plan_for(
    nodes: &[(MoveNode, Vec<PodNeeds>)],
    at: usize,
    wanted: &PodNeeds,
    may_go: impl Fn(&PodNeeds, NodeIndex) -> bool,
) -> Option<MovePlan> {
    let all: Vec<MoveNode> = nodes.iter().map(|(node, _)| node.clone()).collect();
    let pods: Vec<&PodNeeds> = nodes[at].1.iter().collect();
    fewest_moves(&all, NodeIndex(at), wanted, &pods, &ChoiceRule::default(), may_go)
}

/// The moved pods with the names of their new nodes.
fn moves(plan: &MovePlan, nodes: &[(MoveNode, Vec<PodNeeds>)]) -> Vec<String> {
    let moves = plan.moves.iter();
    moves.map(|it| format!("{} to {}", it.pod.as_str(), nodes[it.to.0].0.name)).collect()
}

fn nodes(layouts: &[Layout<'_>]) -> Vec<(MoveNode, Vec<PodNeeds>)> {
    layouts.iter().map(|layout| layout.node(8.0)).collect()
}

#[test]
fn one_large_pod_goes_rather_than_two_small_ones() {
    let nodes = nodes(&[Layout("a", &[&[5, 5], &[10]]), Layout("b", &[&[4]])]);
    let plan = plan(&nodes, 0, &request(GPU, 1), |_, _| true).unwrap();
    assert_eq!(moves(&plan, &nodes), ["a-1-0 to b"]);
    assert_eq!(plan.choice.gpus[0].index, 1);
}

#[test]
fn where_the_successor_of_one_fits_nowhere_others_go() {
    // 12 units are free nowhere else, 4 and 4 are.
    let nodes = nodes(&[Layout("a", &[&[4, 4], &[12]]), Layout("b", &[&[6]])]);
    let found = plan(&nodes, 0, &request(GPU, 1), |_, _| true).unwrap();
    assert_eq!(moves(&found, &nodes), ["a-0-0 to a", "a-0-1 to b"]);
    // None may leave the node.
    let stay = |_: &PodNeeds, to: NodeIndex| to.0 == 0;
    assert_eq!(plan(&nodes, 0, &request(GPU, 1), stay), None);
    assert_eq!(plan(&nodes, 0, &request(GPU, 3), |_, _| true), None);
}

#[test]
fn no_successor_takes_the_room_of_the_pod_that_waits_or_of_another() {
    // Each of both could go to `b` alone, and together they cannot.
    let nodes = nodes(&[Layout("a", &[&[9], &[9]]), Layout("b", &[&[]])]);
    assert_eq!(plan(&nodes, 0, &request(GPU, 2), |_, _| true), None);
    let one = plan(&nodes, 0, &request(GPU, 1), |_, _| true).unwrap();
    assert_eq!(moves(&one, &nodes), ["a-0-0 to b"]);
}

#[test]
fn where_there_is_room_nothing_is_moved() {
    let nodes = nodes(&[Layout("a", &[&[9], &[]]), Layout("b", &[&[]])]);
    assert_eq!(plan(&nodes, 0, &request(GPU, 1), |_, _| true).unwrap().moves, []);
}

#[test]
fn pods_go_for_other_resources_too_and_nodes_without_them_take_none() {
    let mut nodes = nodes(&[Layout("a", &[&[1], &[2], &[]]), Layout("b", &[&[]])]);
    nodes[0].0.free.as_mut().unwrap().extend(cpu(0.0));
    nodes[0].1[1].takes.extend(cpu(3.0));
    let wanted = pod("wanted", request(GPU, 1), 2.0);
    let pods: Vec<&PodNeeds> = nodes[0].1.iter().collect();
    let leaving = fewest_to_leave(&nodes[0].0, &wanted, &pods);
    let leaving: Vec<&str> = leaving.unwrap().into_iter().map(|pod| pod.uid.as_str()).collect();
    assert_eq!(leaving, ["a-1-0"]);
    let found = |free: Option<f64>| {
        let mut nodes = nodes.clone();
        nodes[1].0.free = nodes[1].0.free.take().zip(free).map(|(mut all, free)| {
            all.extend(cpu(free));
            all
        });
        plan_for(&nodes, 0, &wanted, |_, _| true).map(|plan| plan.moves.len())
    };
    assert_eq!(found(Some(3.0)), Some(1));
    // Both smaller ones together free as little.
    assert_eq!(found(Some(2.9)), None);
    assert_eq!(found(None), Some(1), "what is not known is taken for enough");
}

#[test]
fn what_a_pod_does_not_ask_for_may_be_overdrawn() {
    let mut nodes = nodes(&[Layout("a", &[&[9], &[]]), Layout("b", &[&[]])]);
    for (node, _) in &mut nodes {
        node.free.as_mut().unwrap().insert("disk".to_owned(), -3.0);
    }
    let found = plan(&nodes, 0, &request(GPU, 2), |_, _| true).unwrap();
    assert_eq!(moves(&found, &nodes), ["a-0-0 to b"]);
    nodes[0].1[0].takes.insert("disk".to_owned(), 1.0);
    assert_eq!(plan(&nodes, 0, &request(GPU, 2), |_, _| true), None);
}

/// What pods hold of each GPU of each node, at most what the GPU has.
fn layouts() -> impl Strategy<Value = Vec<Vec<Vec<u32>>>> {
    let gpu = prop::collection::vec(1..=GPU, 0..4).prop_map(|sizes| {
        let mut left = GPU;
        let mut held = Vec::new();
        for size in sizes {
            if size <= left {
                left -= size;
                held.push(size);
            }
        }
        held
    });
    prop::collection::vec(prop::collection::vec(gpu, 1..4), 1..5)
}

fn built(layouts: &[Vec<Vec<u32>>]) -> Vec<(MoveNode, Vec<PodNeeds>)> {
    let names = ["a", "b", "c", "d"];
    let nodes = layouts.iter().zip(names).map(|(gpus, name)| {
        let gpus: Vec<&[u32]> = gpus.iter().map(Vec::as_slice).collect();
        Layout(name, &gpus).node(8.0)
    });
    nodes.collect()
}

/// The fewest pods of a node without which a GPU has `units` free, by trying all sets.
fn fewest_by_trying(gpus: &[Vec<u32>], units: u32) -> usize {
    let fewest = gpus.iter().filter_map(|held| {
        let sets = 0..1_u32 << held.len();
        let enough = sets.filter(|set| {
            let stay = held.iter().enumerate().filter(|(at, _)| set >> at & 1 == 0);
            stay.map(|(_, units)| units).sum::<u32>() + units <= GPU
        });
        enough.map(|set| set.count_ones() as usize).min()
    });
    fewest.min().unwrap()
}

proptest! {
    /// Carried out, a plan puts no more on a GPU than it has, and each of its moves is needed.
    #[test]
    fn a_plan_can_be_carried_out(layouts in layouts(), units in 1..=GPU, gpus in 1_u32..3) {
        let nodes = built(&layouts);
        let wanted = request(units, gpus);
        let Some(plan) = plan(&nodes, 0, &wanted, |_, _| true) else { return Ok(()) };
        let moved: BTreeSet<&PodUid> = plan.moves.iter().map(|it| &it.pod).collect();
        prop_assert_eq!(moved.len(), plan.moves.len());
        let mut held: Vec<Vec<u32>> = Vec::new();
        for (node, _) in &nodes {
            let stays = |account: &placement::gpu::Account| {
                let stay = account.charges.iter().filter(|charge| !moved.contains(&charge.pod));
                stay.map(|charge| charge.units.0).sum::<u32>()
            };
            held.push(node.gpus.accounts().iter().map(stays).collect());
        }
        for gpu in &plan.choice.gpus {
            held[0][gpu.index as usize] += units;
        }
        for it in &plan.moves {
            let pod = nodes[0].1.iter().find(|pod| pod.uid == it.pod).unwrap();
            let choice = it.choice.as_ref().unwrap();
            prop_assert_eq!(choice.gpus.len(), 1);
            held[it.to.0][choice.gpus[0].index as usize] += pod.request.as_ref().unwrap().peak().0;
        }
        prop_assert!(held.iter().flatten().all(|held| *held <= GPU), "{:?}", held);
        let uid = PodUid::from("wanted");
        for kept in &moved {
            let gone = |pod: &PodUid| moved.contains(pod) && pod != *kept;
            let without = nodes[0].0.gpus.without(gone);
            prop_assert!(without.check(&uid, &wanted).is_err(), "{} need not go", kept.as_str());
        }
    }

    /// With an empty node beside, as few pods go for one GPU as a search of all sets finds.
    #[test]
    fn for_one_gpu_no_fewer_moves_would_do(
        gpus in layouts().prop_map(|layouts| layouts.into_iter().next().unwrap_or_default()),
        units in 1..=GPU,
    ) {
        let nodes = built(&[gpus.clone(), vec![vec![]; 16]]);
        let plan = plan(&nodes, 0, &request(units, 1), |_, _| true).unwrap();
        prop_assert_eq!(plan.moves.len(), fewest_by_trying(&gpus, units));
    }
}

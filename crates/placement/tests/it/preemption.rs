//! Which pods go so that another finds GPUs.

use std::collections::{BTreeMap, BTreeSet};

use placement::gpu::{
    Basis, BeyondUnits, Candidates, ChoiceRule, ContainerKind, ContainerRequest, Evictable, Gpu,
    GpuIsolation, GpuRequest, GpuUse, NoFit, NodeLedger, Topology, Victims, victims,
};
use placement::units::{GpuId, MiB, PodUid, Units};
use proptest::prelude::*;

const RULE: ChoiceRule = ChoiceRule::BEST_FIT;

const UNITS: u32 = 16;

/// A node whose GPUs have these pods, by name, units and priority.
struct Node {
    ledger: NodeLedger,
    evictable: Vec<Evictable>,
}

fn node(gpus: &[&[(&str, u32, i32)]]) -> Node {
    let gpu = |(index, pods): (usize, &&[(&str, u32, i32)])| Gpu {
        uuid: GpuId::from(format!("GPU-{index}")),
        index: u32::try_from(index).unwrap(),
        model: "NVIDIA A10".into(),
        memory: MiB(16384),
        units: Units(UNITS),
        topology: Topology::default(),
        healthy: true,
        closed: None,
        isolation: GpuIsolation::default(),
        outside_mps: Vec::new(),
        pods: pods.iter().map(|(name, units, _)| ((*name).into(), Units(*units))).collect(),
    };
    let mut ledger = NodeLedger::default();
    ledger.set_gpus(gpus.iter().enumerate().map(gpu).collect());
    let pods: BTreeMap<&str, i32> =
        gpus.iter().flat_map(|pods| pods.iter()).map(|(name, _, p)| (*name, *p)).collect();
    let evictable = pods.into_iter().map(|(name, priority)| Evictable {
        uid: name.into(),
        priority,
        violates_budget: false,
        frees: vec![1.0],
    });
    Node { ledger, evictable: evictable.collect() }
}

fn request(units: u32, gpu_use: GpuUse) -> GpuRequest {
    let name = "main".to_owned();
    let kind = ContainerKind::App;
    let ask = ContainerRequest { name, kind, position: 0, units: Units(units), gpu_use };
    GpuRequest::new([ask]).unwrap().unwrap()
}

fn one_gpu(units: u32) -> GpuRequest {
    request(units, GpuUse::default())
}

impl Node {
    fn victims(&self, request: &GpuRequest, dry_run: &[&str], shortfall: f64) -> Option<Victims> {
        let dry_run: BTreeSet<PodUid> = dry_run.iter().map(|name| PodUid::from(*name)).collect();
        let candidates = Candidates {
            evictable: &self.evictable,
            of_dry_run: &dry_run,
            shortfall: &vec![shortfall],
        };
        victims(self.ledger.read(), &"new".into(), request, candidates, &RULE)
    }

    fn names(&self, request: &GpuRequest, dry_run: &[&str], shortfall: f64) -> Option<Vec<String>> {
        let victims = self.victims(request, dry_run, shortfall)?;
        Some(victims.pods.iter().map(PodUid::to_string).collect())
    }
}

fn names(names: &[&str]) -> Option<Vec<String>> {
    Some(names.iter().map(|name| (*name).to_owned()).collect())
}

#[test]
fn one_pod_goes_where_the_dry_run_takes_three_of_several_gpus() {
    let node = node(&[
        &[("a", 4, 0), ("a-high", 10, 0)],
        &[("b", 4, 0), ("b-high", 10, 0)],
        &[("c", 4, 0), ("c-high", 12, 0)],
    ]);
    // 4 units are free in all.
    assert_eq!(node.names(&one_gpu(12), &["a", "b", "c"], 0.0), names(&["a-high"]));
}

#[test]
fn the_least_important_pods_go_though_they_are_more() {
    let node = node(&[&[("a", 8, 5), ("b", 8, 5)], &[("c", 4, 1), ("d", 4, 1), ("e", 8, 9)]]);
    assert_eq!(node.names(&one_gpu(8), &["a"], 0.0), names(&["c", "d"]));
}

#[test]
fn no_pod_goes_that_others_make_needless() {
    let node = node(&[&[("a", 2, 0), ("b", 6, 0), ("c", 8, 0)]]);
    assert_eq!(node.names(&one_gpu(6), &["a", "b", "c"], 0.0), names(&["b"]));
    assert_eq!(node.names(&one_gpu(14), &["a", "b", "c"], 0.0), names(&["b", "c"]));
}

#[test]
fn what_other_resources_need_goes_too() {
    let node = node(&[&[("a", 12, 0), ("b", 4, 0)], &[("c", 16, 3)]]);
    assert_eq!(node.names(&one_gpu(12), &["b", "c"], 1.0), names(&["a"]));
    assert_eq!(node.names(&one_gpu(12), &["b", "c"], 2.0), names(&["a", "b"]));
    assert_eq!(node.names(&one_gpu(12), &["a", "b"], 9.0), names(&["a", "b"]));
}

#[test]
fn a_budget_is_violated_only_where_nothing_else_helps() {
    let mut node = node(&[&[("a", 16, 0)], &[("b", 16, 7)]]);
    node.evictable[0].violates_budget = true;
    assert_eq!(node.names(&one_gpu(8), &["a"], 0.0), names(&["b"]));
    node.evictable.pop();
    let victims = node.victims(&one_gpu(8), &["a"], 0.0).unwrap();
    assert_eq!((victims.pods.len(), victims.violations), (1, 1));
}

#[test]
fn nothing_goes_where_no_gpu_can_be_freed() {
    let mut node = node(&[&[("a", 8, 0), ("b", 8, 0)], &[("c", 8, 0), ("d", 8, 0)]]);
    node.evictable.retain(|pod| ["a", "c"].contains(&pod.uid.as_str()));
    assert_eq!(node.names(&one_gpu(9), &["a", "c"], 0.0), None);
    assert_eq!(node.names(&one_gpu(8), &["c"], 0.0), names(&["c"]));
}

#[test]
fn two_gpus_are_freed_for_a_pod_that_wants_them_for_itself() {
    let node = node(&[&[("a", 2, 0)], &[("b", 9, 4), ("c", 1, 0)], &[("d", 3, 1)]]);
    let both = GpuUse { gpus: 2, exclusive: true, ..GpuUse::default() };
    let for_units = request(2, both);
    assert_eq!(node.names(&for_units, &["b"], 0.0), None, "for 2 of 32 units it gets no GPUs");
    let allowed = for_units.with_beyond_units(BeyondUnits::ALL);
    assert_eq!(node.names(&allowed, &["b"], 0.0), names(&["a", "d"]));
    assert_eq!(node.names(&request(32, both), &["b"], 0.0), names(&["a", "d"]));
}

#[test]
fn a_gpu_that_was_freed_is_kept_for_the_pod_until_it_is_bound() {
    let mut node = node(&[&[("a", 16, 0)], &[("b", 10, 0)]]);
    let (pod, asked): (PodUid, _) = ("new".into(), one_gpu(16));
    node.ledger.nominate(&pod, &asked, &["GPU-0".into()]);
    let freed = |ledger: &mut NodeLedger| {
        let mut gpus = ledger.gpus().to_vec();
        gpus[0].pods.clear();
        ledger.set_gpus(gpus);
    };
    assert_eq!(node.ledger.read().fit(&pod, &asked, &RULE), Err(NoFit::NoRoom));
    freed(&mut node.ledger);
    let other =
        |ledger: &NodeLedger, units| ledger.read().fit(&"other".into(), &one_gpu(units), &RULE);
    assert_eq!(other(&node.ledger, 8), Err(NoFit::NoRoom));
    assert_eq!(other(&node.ledger, 6).unwrap().gpus[0].index, 1);
    assert_eq!(node.ledger.read().accounts()[0].held(), Units(0));
    assert_eq!(node.ledger.read().accounts()[0].charges[0].basis, Basis::Nominated);
    assert!(node.ledger.reserve(&pod, &asked, &RULE).is_ok());
    node.ledger.release(&pod);
    assert_eq!(other(&node.ledger, 16).unwrap().gpus[0].index, 0);
    node.ledger.nominate(&pod, &asked, &["GPU-0".into()]);
    node.ledger.end_nomination(&pod);
    assert!(other(&node.ledger, 16).is_ok());
}

#[test]
fn what_is_kept_for_a_pod_is_free_for_more_important_ones_and_never_given_twice() {
    let mut node = node(&[&[], &[("b", 16, 0)]]);
    let (kept, other): (PodUid, PodUid) = ("kept".into(), "other".into());
    let asked = one_gpu(16).with_priority(5);
    node.ledger.nominate(&kept, &asked, &["GPU-0".into()]);
    for (priority, fits) in [(i32::MIN, false), (5, false), (6, true), (i32::MAX, true)] {
        let asked = one_gpu(16).with_priority(priority);
        let gpus = node.ledger.read();
        assert_eq!(gpus.fit(&other, &asked, &RULE).is_ok(), fits, "{priority}");
        assert_eq!(gpus.check(&other, &asked).is_ok(), fits, "{priority}");
        assert_eq!(gpus.rate(&other, &asked, &RULE).is_ok(), fits, "{priority}");
        let explained = gpus.explain(&other, &asked, &RULE);
        assert_eq!(explained.gpus[0].0.free == Units(16), fits, "{priority}");
    }
    // The more important one needs no eviction.
    let important = one_gpu(16).with_priority(6);
    assert!(node.ledger.reserve(&other, &important, &RULE).is_ok());
    assert_eq!(node.ledger.read().accounts()[0].gpu.free, Units(0));
    assert_eq!(node.ledger.reserve(&kept, &asked, &RULE), Err(NoFit::NoRoom.into()));
    let third = one_gpu(16).with_priority(9);
    assert_eq!(node.ledger.reserve(&"third".into(), &third, &RULE), Err(NoFit::NoRoom.into()));
}

proptest! {
    #[test]
    fn victims_make_room_and_cost_no_more_than_those_of_the_dry_run(
        pods in prop::collection::vec((0..3_usize, 1..9_u32, 0..3_i32, any::<bool>(), any::<bool>()), 0..12),
        asked in 1..17_u32,
        shortfall in 0..3_u32,
    ) {
        let mut gpus = vec![Vec::new(); 3];
        let all: Vec<String> = (0..pods.len()).map(|number| format!("p{number:02}")).collect();
        for (name, (gpu, units, priority, ..)) in all.iter().zip(&pods) {
            let held: u32 = gpus[*gpu].iter().map(|(_, units, _)| *units).sum();
            if held + units <= UNITS {
                gpus[*gpu].push((name.as_str(), *units, *priority));
            }
        }
        let gpus: Vec<&[_]> = gpus.iter().map(Vec::as_slice).collect();
        let mut node = node(&gpus);
        let dry_run: Vec<&str> =
            all.iter().zip(&pods).filter(|(_, pod)| pod.3).map(|(name, _)| name.as_str()).collect();
        for pod in &mut node.evictable {
            let number: usize = pod.uid.as_str()[1..].parse().unwrap();
            pod.violates_budget = pods[number].4;
        }
        let request = one_gpu(asked);
        let fits = |gone: &BTreeSet<PodUid>| {
            node.ledger.read().fit_without(|pod| gone.contains(pod), &"new".into(), &request, &RULE)
        };
        let cost = |gone: &BTreeSet<PodUid>| {
            let gone = node.evictable.iter().filter(|pod| gone.contains(&pod.uid));
            let violations = gone.clone().filter(|pod| pod.violates_budget).count();
            (violations, gone.map(|pod| pod.priority).max())
        };
        let of_dry_run: BTreeSet<PodUid> = dry_run.iter().map(|name| (*name).into()).collect();
        match node.victims(&request, &dry_run, f64::from(shortfall)) {
            Some(victims) => {
                prop_assert_eq!(fits(&victims.pods), Ok(victims.choice));
                if fits(&of_dry_run).is_ok() {
                    prop_assert!(cost(&victims.pods) <= cost(&of_dry_run));
                }
            }
            None => prop_assert!(fits(&of_dry_run).is_err()),
        }
    }
}

//! Several GPUs that NVLink connects, on the machines that there are.

use std::sync::Arc;

use placement::gpu::fragmentation::{HeldParts, Measure, NodeClass, PodShape, TypicalPods};
use placement::gpu::{
    BeyondUnits, ChoiceRule, ContainerKind, ContainerRequest, FreeGpu, GpuIsolation, GpuRequest,
    GpuUse, Sharers, Strategy, Topology, choose,
};
use placement::units::{Cores, Units};
use proptest::prelude::{ProptestConfig, prop, prop_assert, prop_assert_eq, proptest};

const UNITS: u32 = 4;
/// Halves and whole GPUs, one or two of them.
const MIXED: [(u32, u32); 3] = [(2, 1), (4, 1), (4, 2)];

/// Which GPUs a machine's NVLink connects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Machine {
    /// Cards with bridges over two each.
    Bridges,
    /// Switches between all eight, as in DGX A100 and later; two NUMA nodes.
    Switches,
    /// The same, but for GPU 3, whose links are down.
    OneDown,
    /// DGX-1: each has links with four others.
    CubeMesh,
}

use Machine::{Bridges, CubeMesh, OneDown, Switches};

impl Machine {
    fn linked(self, one: u32, other: u32) -> bool {
        let quad = one / 4 == other / 4;
        one != other
            && match self {
                Bridges => one / 2 == other / 2,
                Switches => true,
                OneDown => one != 3 && other != 3,
                CubeMesh => quad || one % 4 == other % 4,
            }
    }

    fn topology(self, gpu: u32) -> Topology {
        let linked = (0..8).filter(|other| self.linked(gpu, *other)).collect();
        // The bridges of such machines may lie across NUMA nodes.
        let numa_node = Some(if self == Bridges { gpu % 2 } else { gpu / 4 });
        Topology { numa_node, linked }
    }

    fn gpus(self, free: &[u32]) -> Vec<FreeGpu> {
        let gpu = |(index, free): (u32, &u32)| FreeGpu {
            uuid: format!("GPU-{index}").into(),
            index,
            model: "NVIDIA A100".into(),
            topology: self.topology(index),
            units: Units(UNITS),
            free: Units(*free),
            free_cores: Cores::ALL,
            idle: *free == UNITS,
            healthy: true,
            closed: None,
            isolation: GpuIsolation::default(),
            sharers: Sharers::None,
            clients: 0,
        };
        (0..).zip(free).map(gpu).collect()
    }

    fn connects(self, gpus: &[u32]) -> bool {
        gpus.iter().all(|one| gpus.iter().all(|other| one == other || self.linked(*one, *other)))
    }
}

fn request(units: u32, gpus: u32) -> GpuRequest {
    let gpu_use = GpuUse { gpus, exclusive: units == UNITS, ..GpuUse::default() };
    let ask = ContainerRequest {
        name: "main".to_owned(),
        kind: ContainerKind::App,
        position: 0,
        units: Units(units * gpus),
        gpu_use,
    };
    let request = GpuRequest::new([ask]).unwrap().unwrap();
    request.with_cpu(1_000).with_beyond_units(BeyondUnits::ALL)
}

/// The measure of fragmentation where pods of these units of each of so many GPUs are usual, each as often.
fn least_fragmentation(usual: &[(u32, u32)]) -> ChoiceRule {
    let mut typical = TypicalPods::default();
    for (units, gpus) in usual.repeat(16) {
        typical.observe(&PodShape::of(&request(units, gpus)));
    }
    let model = "NVIDIA A100".to_owned();
    let class = NodeClass { count: 4, cpu: Some(64_000), model, gpus: 8, units: Units(UNITS) };
    let measure = Arc::new(Measure::new(&typical, &HeldParts::default(), &[class]));
    ChoiceRule { measure: Some(measure), ..ChoiceRule::default() }
}

fn chosen(gpus: &[FreeGpu], rule: &ChoiceRule, request: &GpuRequest) -> Vec<u32> {
    choose(gpus, Some(64_000), request, rule).unwrap().indices()
}

#[test]
fn two_gpus_are_a_pair_with_a_bridge_though_that_is_not_one_numa_node() {
    for rule in [ChoiceRule::BEST_FIT, least_fragmentation(&MIXED)] {
        // GPU 0 is in use, so that the first two that are free have no bridge.
        let mut pair = chosen(&Bridges.gpus(&[2, 4, 4, 4]), &rule, &request(4, 2));
        pair.sort_unstable();
        assert_eq!(pair, [2, 3]);
    }
}

#[test]
fn one_gpu_leaves_the_pairs_whole() {
    for rule in [ChoiceRule::BEST_FIT, least_fragmentation(&MIXED)] {
        assert_eq!(chosen(&Bridges.gpus(&[4, 4, 0, 4]), &rule, &request(4, 1)), [3]);
    }
}

#[test]
fn a_pair_costs_no_room() {
    // The fullest two have no bridge, and the pairs would leave less room elsewhere.
    let free = [2, 4, 2, 4];
    assert_eq!(chosen(&Bridges.gpus(&free), &ChoiceRule::BEST_FIT, &request(2, 2)), [0, 2]);
    let spread = ChoiceRule { strategy: Strategy::Spread, measure: None };
    assert_eq!(chosen(&Bridges.gpus(&free), &spread, &request(2, 2)), [1, 3]);
}

#[test]
fn gpus_behind_switches_are_of_one_numa_node() {
    let free = [0, 4, 4, 0, 4, 4, 4, 4];
    assert_eq!(chosen(&Switches.gpus(&free), &ChoiceRule::BEST_FIT, &request(4, 4)), [4, 5, 6, 7]);
    assert_eq!(chosen(&Switches.gpus(&free), &ChoiceRule::BEST_FIT, &request(4, 2)), [1, 2]);
}

#[test]
fn four_of_a_cube_mesh_are_a_quad_and_two_may_lie_across() {
    let rule = ChoiceRule::BEST_FIT;
    assert_eq!(chosen(&CubeMesh.gpus(&[4; 8]), &rule, &request(4, 4)), [0, 1, 2, 3]);
    let mut across = chosen(&CubeMesh.gpus(&[0, 0, 4, 0, 0, 4, 4, 0]), &rule, &request(4, 2));
    across.sort_unstable();
    assert_eq!(across, [5, 6], "on one NUMA node too");
    let mut across = chosen(&CubeMesh.gpus(&[0, 0, 4, 0, 0, 0, 4, 0]), &rule, &request(4, 2));
    across.sort_unstable();
    assert_eq!(across, [2, 6]);
}

/// The GPUs of ten pods of a quarter of a GPU, one after the other, where that is what all pods ask for: the measure of
/// fragmentation finds all GPUs equal.
fn ten_quarters(machine: Machine) -> Vec<u32> {
    let rule = least_fragmentation(&[(1, 1)]);
    let mut free = [UNITS; 8];
    let mut taken = Vec::new();
    for _ in 0..10 {
        let gpu = chosen(&machine.gpus(&free), &rule, &request(1, 1))[0];
        free[gpu as usize] -= 1;
        taken.push(gpu);
    }
    taken
}

#[test]
fn shares_of_one_gpu_fill_one_after_the_other_where_all_cost_the_same() {
    for machine in [Bridges, Switches, CubeMesh] {
        assert_eq!(ten_quarters(machine), [0, 0, 0, 0, 1, 1, 1, 1, 2, 2], "{machine:?}");
    }
}

/// All sets of so many of eight GPUs.
fn sets(count: u32) -> impl Iterator<Item = Vec<u32>> {
    (0_u32..256)
        .filter(move |set| set.count_ones() == count)
        .map(|set| (0..8).filter(|gpu| set & 1 << gpu != 0).collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn links_change_neither_whether_a_request_fits_nor_its_price_and_decide_where_both_allow(
        free in prop::collection::vec(0..=UNITS, 8),
        machine in prop::sample::select(vec![Bridges, Switches, OneDown]),
        units in 1..=UNITS,
        count in 2..=4_u32,
        spread in prop::bool::ANY,
    ) {
        let strategy = if spread { Strategy::Spread } else { Strategy::Pack };
        let rule = ChoiceRule { strategy, measure: None };
        let request = request(units, count);
        let gpus = machine.gpus(&free);
        let mut unlinked = gpus.clone();
        for gpu in &mut unlinked {
            gpu.topology.linked = [].into_iter().collect();
        }
        let price = |gpus: &[u32]| {
            let free: i64 = gpus.iter().map(|gpu| i64::from(free[*gpu as usize])).sum();
            if spread { -free } else { free }
        };
        let plain = choose(&unlinked, None, &request, &rule).map(|choice| choice.indices());
        let with_links = choose(&gpus, None, &request, &rule).map(|choice| choice.indices());
        let (Ok(plain), Ok(with_links)) = (&plain, &with_links) else {
            prop_assert_eq!(plain, with_links);
            return Ok(());
        };
        prop_assert!(price(with_links) <= price(plain), "{with_links:?}, {plain:?}");
        let fits = |gpu: &u32| free[*gpu as usize] >= units;
        let possible = sets(count).any(|set| {
            set.iter().all(fits) && machine.connects(&set) && price(&set) <= price(plain)
        });
        prop_assert_eq!(machine.connects(with_links), possible, "{:?}, {:?}", with_links, plain);
    }
}

//! Places for pods with several GPUs, and what taking one away costs.
//!
//! A pod with eight GPUs and much CPU that finds no node while most of the cluster is empty is an outage. By fragments
//! alone it comes soon: few nodes have room for it, and every small pod on one of them takes a place away. So each
//! place has a price, by Littlewood's rule (1972), by which airlines keep seats for passengers who pay more and book
//! later: what the pod takes, times the chance that its kind will need the last place before the cluster is full. While
//! places are many, and again when the cluster is nearly full, the price is 0, and pods are packed.
//!
//! How many places will be needed is a Poisson variable. Its mean follows from the recent requests and from how many
//! more pods the cluster takes: by its free GPUs, and by its free CPU at the CPU that goes with a GPU. It is
//! increased by [`CAUTION`] standard deviations: a refused pod is worse than a GPU that is given out later. It is
//! increased less where CPU runs out before the GPUs ([`Ahead::caution`]).
//!
//! Of a kind that was never requested, all that is known is that it is rare: after `n` requests without it, it is at
//! most 3 in `n` of them, with 95% confidence (Hanley and Lippman-Hand 1983). So a pod that takes all that an idle
//! node has counts as [`UNSEEN`] requests.

use std::collections::BTreeMap;

use super::GpuPart;
use super::kind::{Kind, PricedGpu, fitting};

/// How many standard deviations more than expected are provided for. On the traces of `lab/openb`, pods are refused
/// with less than 4 while the cluster has much room.
const CAUTION: f64 = 4.0;
/// Chances are rounded to multiples of this: what was computed with a price is valid until the price changes.
const STEP: f64 = 0.05;
/// As how many requests the pod counts that takes an idle node, though none was made.
const UNSEEN: f64 = 3.0;
/// The part of the free CPU of the emptiest node that this pod takes: a small pod does not take the place away.
const OF_AN_IDLE_NODE: f64 = 31.0 / 32.0;
/// While fewer GPUs than this part of all are given out, the CPU that goes with one is mostly that of the requests.
const EARLY: f64 = 0.01;
/// From when this part of the GPUs is given out, caution follows the CPU that goes with one: while few are, pods
/// without GPUs that were there before would make it too much.
const KNOWN_FROM: f64 = 0.25;
/// The CPU that goes with a GPU is rounded to powers of this, for the same reason as [`STEP`].
const CPU_STEP: f64 = 1.1;
/// From this mean on, a normal variable is near enough.
const NORMAL_FROM: f64 = 400.0;

/// The kinds of pods with several GPUs, and the prices of places for them.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct LargePlaces {
    /// The kinds for which places have a price.
    pub(super) priced: Vec<PricedKind>,
    /// All that were requested, each with its part of the requests for GPUs.
    kinds: Vec<(Kind, f64)>,
    /// What the prices depend on, of all pods and nodes.
    totals: Totals,
}

/// A kind of pod with several GPUs, and the price of a place for it, in GPUs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct PricedKind {
    pub(super) kind: Kind,
    pub(super) price: f64,
}

/// Of all requests for GPUs, and of all nodes when they are empty.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Totals {
    /// How many requests there were.
    pub(super) requests: u64,
    /// GPUs that a request takes on average.
    pub(super) gpus_by_request: f64,
    /// CPU that requests ask for with each GPU, in thousandths of a core.
    pub(super) cpu_by_gpu: f64,
    /// The nodes' GPUs.
    pub(super) gpus: f64,
    /// The nodes' CPU, in thousandths of a core; `None` where that of one is not known.
    pub(super) cpu: Option<f64>,
}

/// What is free on all nodes: GPUs, and CPU in thousandths of a core, `None` where that of a node is not known.
#[derive(Debug, Clone, Copy)]
pub(super) struct Free {
    gpus: f64,
    cpu: Option<f64>,
}

/// What a cluster takes until it is full.
#[derive(Debug, Clone, Copy)]
struct Ahead {
    /// Requests for GPUs.
    requests: f64,
    /// The part of the free GPUs that will be given out before CPU runs out, 0 to 1.
    part_of_gpus: f64,
    /// How far the CPU that goes with a GPU is known, 0 to 1.
    known: f64,
}

/// What is free on a node: CPU in thousandths of a core, `None` where it is not known, and its open GPUs.
pub(super) struct NodeRoom {
    pub(super) cpu: Option<u64>,
    pub(super) gpus: Vec<PricedGpu>,
}

impl LargePlaces {
    /// Without prices yet. `kinds` are all kinds with GPUs, each with its part of the requests for GPUs.
    pub(super) fn new(kinds: &[(Kind, f64)], totals: Totals) -> Self {
        let large = kinds.iter().filter(|(kind, _)| kind.gpus > 1).copied().collect();
        Self { priced: Vec::new(), kinds: large, totals }
    }

    /// The prices while this is free on each node and, `free`, on all.
    pub(super) fn prices(&self, nodes: &[NodeRoom], free: Free) -> Vec<PricedKind> {
        let mut kinds = self.kinds.clone();
        let unseen = UNSEEN / (self.totals.requests as f64 + UNSEEN);
        kinds.iter_mut().for_each(|(_, part)| *part *= 1.0 - unseen);
        kinds.extend(largest(nodes).into_iter().map(|kind| (kind, unseen)));
        let ahead = self.ahead(free);
        let mut priced = Vec::new();
        for (kind, _) in &kinds {
            let places: usize = nodes.iter().map(|node| node.places(kind)).sum();
            let mut each = 0.0;
            for (other, part) in kinds.iter().filter(|(other, _)| other.is_as_large_as(kind)) {
                each += part * (other.gpus as f64 / kind.gpus as f64);
            }
            let mean = each * ahead.requests;
            // Of what was never requested, no more: its part is a bound by itself.
            let caution = if kind.weight > 0.0 { ahead.caution() } else { 0.0 };
            let chance = chance_of_at_least(places, mean + caution * mean.sqrt());
            let price = kind.gpus as f64 * (chance / STEP).round() * STEP;
            if price > 0.0 {
                priced.push(PricedKind { kind: *kind, price });
            }
        }
        priced
    }

    /// The CPU that goes with a GPU, in thousandths of a core, that of pods without GPUs included: so much is in use
    /// for each GPU that is given out. `None` where the nodes' CPU is not known.
    fn cpu_with_a_gpu(&self, free: Free) -> Option<f64> {
        let Totals { cpu_by_gpu, gpus, cpu, .. } = self.totals;
        let early = EARLY * gpus;
        let used = (cpu? - free.cpu?).max(0.0) + early * cpu_by_gpu;
        let given = (gpus - free.gpus).max(0.0) + early;
        (given > 0.0).then_some(used / given)
    }

    /// The CPU that a free GPU needs, in thousandths of a core: what goes with a GPU, and at most what is free for
    /// each free GPU. Where CPU is short some GPUs stay empty wherever pods go, and then those with more CPU than
    /// others should not be among them.
    pub(super) fn cpu_for_a_free_gpu(&self, free: Free) -> f64 {
        let (Some(cpu), Some(with_a_gpu)) = (free.cpu, self.cpu_with_a_gpu(free)) else {
            return self.totals.cpu_by_gpu;
        };
        let needed = with_a_gpu.min(cpu / free.gpus.max(1.0));
        if needed < 1.0 { 0.0 } else { CPU_STEP.powf((needed.ln() / CPU_STEP.ln()).round()) }
    }

    /// What the cluster takes until it is full.
    fn ahead(&self, free: Free) -> Ahead {
        let gpus = match (free.cpu, self.cpu_with_a_gpu(free)) {
            (Some(cpu), Some(with_a_gpu)) if with_a_gpu > 0.0 => free.gpus.min(cpu / with_a_gpu),
            _ => free.gpus,
        };
        let Totals { gpus_by_request: each, gpus: all, .. } = self.totals;
        let known = (all - free.gpus) / (KNOWN_FROM * all.max(1.0));
        Ahead {
            requests: if each > 0.0 { gpus / each } else { 0.0 },
            part_of_gpus: if free.gpus > 0.0 { gpus / free.gpus } else { 1.0 },
            known: known.clamp(0.0, 1.0),
        }
    }
}

impl Ahead {
    /// How many standard deviations more than expected are provided for. Where CPU runs out first, a place that is kept
    /// for a pod with much CPU keeps CPU from more GPUs than the place has.
    fn caution(self) -> f64 {
        let left_out = self.known * (1.0 - self.part_of_gpus.powi(2));
        CAUTION * (1.0 - left_out)
    }
}

impl Free {
    pub(super) fn on(nodes: &[NodeRoom]) -> Self {
        let gpus = nodes.iter().flat_map(|node| &node.gpus).map(|gpu| gpu.part).sum();
        let sum = |sum: u64, node: &NodeRoom| Some(sum.saturating_add(node.cpu?));
        Self { gpus, cpu: nodes.iter().try_fold(0, sum).map(|cpu| cpu as f64) }
    }
}

impl NodeRoom {
    fn places(&self, kind: &Kind) -> usize {
        kind.places(fitting(self.gpus.iter(), kind), self.cpu)
    }
}

/// The largest pods that fit a node with all its GPUs idle: for each number of GPUs, with nearly all CPU of the
/// emptiest such node. One that asks for neither more GPUs nor more CPU than another is left out.
fn largest(nodes: &[NodeRoom]) -> Vec<Kind> {
    let mut most: BTreeMap<usize, u64> = BTreeMap::new();
    for node in nodes {
        let idle = node.gpus.iter().filter(|gpu| gpu.room.free == gpu.room.units).count();
        if idle > 1 && idle == node.gpus.len() {
            let cpu = most.entry(idle).or_default();
            *cpu = node.cpu.unwrap_or(0).max(*cpu);
        }
    }
    let mut kinds: Vec<Kind> = Vec::new();
    for (gpus, cpu) in most.into_iter().rev() {
        let cpu = (cpu as f64 * OF_AN_IDLE_NODE) as u64;
        if kinds.iter().all(|larger| larger.cpu < cpu) {
            kinds.push(Kind::any_model(cpu, gpus, GpuPart::Whole));
        }
    }
    kinds
}

/// The chance that a Poisson variable of this mean is at least `least`.
fn chance_of_at_least(least: usize, mean: f64) -> f64 {
    let least = least as f64;
    if mean >= NORMAL_FROM {
        // The logistic distribution that is nearest to the normal one.
        return 1.0 / (1.0 + (1.702 * (least - 0.5 - mean) / mean.sqrt()).exp());
    }
    let (mut below, mut exactly, mut count) = (0.0, (-mean).exp(), 0.0);
    while count < least && exactly > 0.0 {
        below += exactly;
        count += 1.0;
        exactly *= mean / count;
    }
    (1.0 - below).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::fragmentation::{
        Cost, HeldParts, Measure, MeasuredNode, NodeClass, PodShape, TypicalPods,
    };
    use crate::gpu::{FreeGpu, GpuIsolation, GpuShare, Patterns, Sharers, Topology};
    use crate::units::{Cores, GpuModel, Units};

    const GPU: u32 = 16;

    #[test]
    fn cpu_that_no_machine_has_does_not_make_the_sum_of_all_small() {
        let on = |cpus: &[Option<u64>]| {
            let rooms = cpus.iter().map(|cpu| NodeRoom { cpu: *cpu, gpus: Vec::new() });
            Free::on(&rooms.collect::<Vec<_>>()).cpu
        };
        assert_eq!(on(&[Some(u64::MAX), Some(8_000)]), Some(u64::MAX as f64));
        assert_eq!(on(&[Some(8_000), Some(1)]), Some(8_001.0));
        assert_eq!(on(&[Some(8_000), None]), None);
    }

    fn shape(cpu: u64, gpus: usize) -> PodShape {
        PodShape { cpu, gpus, part: GpuPart::Units(Units(GPU)), models: Patterns::default() }
    }

    /// So many nodes of eight GPUs and 96 cores.
    fn classes(count: usize) -> Vec<NodeClass> {
        let (model, units) = ("A10".to_owned(), Units(GPU));
        vec![NodeClass { count, cpu: Some(96_000), model, gpus: 8, units }]
    }

    fn measure(requests: &[(PodShape, usize)], nodes: usize) -> Measure {
        let mut typical = TypicalPods::default();
        for (shape, count) in requests {
            (0..*count).for_each(|_| typical.observe(shape));
        }
        Measure::new(&typical, &HeldParts::default(), &classes(nodes))
    }

    /// A node with so many idle GPUs of eight, the others full, and free CPU.
    fn node(idle: usize, cpu: u64) -> (Option<u64>, Vec<FreeGpu>) {
        let gpus = (0..8).map(|index| FreeGpu {
            uuid: format!("GPU-{index}").as_str().into(),
            index: index as u32,
            model: GpuModel::from("A10"),
            topology: Topology::default(),
            units: Units(GPU),
            free: if index < idle { Units(GPU) } else { Units::ZERO },
            free_cores: Cores::ALL,
            idle: index < idle,
            healthy: true,
            closed: None,
            isolation: GpuIsolation::default(),
            sharers: Sharers::None,
            clients: 0,
        });
        (Some(cpu), gpus.collect())
    }

    fn repriced(measure: &Measure, nodes: &[(Option<u64>, Vec<FreeGpu>)]) -> Measure {
        let next = measure.repriced(nodes.iter().map(|(cpu, gpus)| (*cpu, gpus)));
        next.unwrap_or_else(|| measure.clone())
    }

    fn price_for(measure: &Measure, gpus: usize) -> f64 {
        let priced = measure.large.priced.iter().filter(|priced| priced.kind.gpus == gpus);
        priced.map(|priced| priced.price).fold(0.0, f64::max)
    }

    /// What a pod with one GPU and this CPU costs on that node.
    fn cost(measure: &Measure, (cpu, gpus): &(Option<u64>, Vec<FreeGpu>), asked: u64) -> Cost {
        let gpus: Vec<&FreeGpu> = gpus.iter().collect();
        let share = GpuShare::of(Units(GPU));
        MeasuredNode::new(measure, *cpu, &gpus).cost(asked, &[(0, share)])
    }

    #[test]
    fn chances_are_those_of_poissons_distribution() {
        // By hand: 1 - e^-1, and 1 - 2 e^-1.
        assert_eq!(chance_of_at_least(0, 0.0), 1.0);
        assert_eq!(chance_of_at_least(1, 0.0), 0.0);
        assert!((chance_of_at_least(1, 1.0) - 0.632_120_6).abs() < 1e-6);
        assert!((chance_of_at_least(2, 1.0) - 0.264_241_1).abs() < 1e-6);
        // Where the two ways of computing it meet.
        for least in [360, 400, 440] {
            let [exact, normal] = [399.999, 400.0].map(|mean| chance_of_at_least(least, mean));
            assert!((exact - normal).abs() < 0.02, "{least}: {exact}, {normal}");
        }
        assert_eq!(chance_of_at_least(usize::MAX, 1e6), 0.0);
    }

    #[test]
    fn a_place_has_a_price_where_few_are_left_for_what_will_come() {
        let requests = [(shape(10_000, 1), 900), (shape(90_000, 8), 100)];
        let measure = measure(&requests, 100);
        // About 9 of the next 90 requests need a place.
        let of = |idle: usize, used: usize| {
            let mut nodes = vec![node(8, 96_000); idle];
            nodes.extend(vec![node(1, 12_000); used]);
            price_for(&repriced(&measure, &nodes), 8)
        };
        assert!(of(3, 80) > 7.0, "{}", of(3, 80));
        assert!(of(40, 0) < of(3, 80), "{}", of(40, 0));
        // With nothing else free, few more pods are expected than where the used nodes have room too.
        assert!(of(2, 0) < of(2, 80), "{} {}", of(2, 0), of(2, 80));
    }

    #[test]
    fn before_a_kind_was_seen_one_that_takes_an_idle_node_is_provided_for() {
        let few = measure(&[(shape(1_000, 1), 20)], 4);
        let nodes = vec![node(8, 96_000), node(8, 96_000), node(4, 40_000), node(4, 40_000)];
        assert!(price_for(&repriced(&few, &nodes), 8) > 0.0);
        let many = measure(&[(shape(1_000, 1), 20_000)], 4);
        let [few, many] = [few, many].map(|measure| price_for(&repriced(&measure, &nodes), 8));
        assert!(many < few, "{many} {few}");
        // Where no node is idle, there is nothing to keep.
        let used = vec![node(4, 40_000); 4];
        assert_eq!(price_for(&repriced(&measure(&[(shape(1_000, 1), 20)], 4), &used), 4), 0.0);
    }

    #[test]
    fn a_small_pod_goes_where_no_place_is_lost() {
        let requests = [(shape(4_000, 1), 900), (shape(90_000, 8), 30)];
        let measure = measure(&requests, 12);
        let (idle, used) = (node(8, 96_000), node(4, 40_000));
        let nodes = [vec![idle.clone(); 2], vec![used.clone(); 10]].concat();
        let priced = repriced(&measure, &nodes);
        let (on_idle, on_used) = (cost(&priced, &idle, 4_000), cost(&priced, &used, 4_000));
        assert!(on_idle > on_used, "{on_idle:?} {on_used:?}");
        // A pod without GPUs that leaves the CPU of the place costs nothing, one that does not costs the place.
        let plain = |cpu| priced.cost_of_cpu(idle.1.iter(), 96_000, cpu).0;
        assert_eq!(plain(1_000), 0);
        assert!(plain(7_000) >= 1_000_000, "{}", plain(7_000));
    }

    #[test]
    fn where_cpu_runs_out_before_the_gpus_fewer_places_are_kept() {
        let measure = measure(&[(shape(4_000, 1), 900), (shape(90_000, 8), 30)], 100);
        let caution = |gpus, cpu| measure.large.ahead(Free { gpus, cpu }).caution();
        // Half of the GPUs are given out, and 4,800 cores: 12 with each.
        assert_eq!(caution(400.0, Some(4_800_000.0)), CAUTION);
        // 18 cores with each: what is left suffices for a third of the GPUs.
        let short = measure.large.ahead(Free { gpus: 400.0, cpu: Some(2_400_000.0) });
        assert!((0.3..0.4).contains(&short.part_of_gpus), "{short:?}");
        assert!((short.caution() - CAUTION / 9.0).abs() < 0.1, "{short:?}");
        // While few GPUs are given out, pods without GPUs that were there before say little of what goes with one.
        let early = measure.large.ahead(Free { gpus: 790.0, cpu: Some(2_400_000.0) });
        assert!(early.part_of_gpus < 0.1 && early.caution() > 3.5, "{early:?}");
        // Where nothing is known of CPU, or nothing is free, as before.
        assert_eq!(caution(400.0, None), CAUTION);
        assert_eq!(caution(0.0, Some(0.0)), CAUTION);
    }

    #[test]
    fn a_price_that_stays_changes_nothing() {
        let measure = measure(&[(shape(4_000, 1), 900), (shape(90_000, 8), 30)], 12);
        let nodes = [vec![node(8, 96_000); 2], vec![node(4, 40_000); 10]].concat();
        let priced = repriced(&measure, &nodes);
        assert_ne!(priced, measure);
        assert_eq!(priced.repriced(nodes.iter().map(|(cpu, gpus)| (*cpu, gpus))), None);
    }

    #[test]
    fn the_cpu_that_goes_with_a_gpu_counts_pods_without_gpus() {
        let measure = measure(&[(shape(4_000, 1), 100)], 10);
        // Half of the GPUs are given out, each with 9 cores: 4 of its pod and 5 of others.
        let half = vec![node(4, 60_000); 10];
        let free = Free { gpus: 40.0, cpu: Some(600_000.0) };
        let with_a_gpu = measure.large.cpu_with_a_gpu(free).unwrap();
        assert!((with_a_gpu - 8_900.0).abs() < 100.0, "{with_a_gpu}");
        let priced = repriced(&measure, &half);
        assert!((8_000.0..10_000.0).contains(&priced.cpu_by_gpu), "{}", priced.cpu_by_gpu);
        // Where less is free, no more than that.
        let short = vec![node(4, 20_000); 10];
        let priced = repriced(&measure, &short);
        assert!((4_500.0..5_500.0).contains(&priced.cpu_by_gpu), "{}", priced.cpu_by_gpu);
        // Where a node's CPU is not known, what pods with GPUs ask for.
        let unknown = vec![(None, node(4, 0).1); 10];
        assert_eq!(repriced(&measure, &unknown).cpu_by_gpu, 4_000.0);
    }
}

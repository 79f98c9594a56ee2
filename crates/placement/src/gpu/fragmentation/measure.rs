//! The cost of a placement.

use super::held::HeldParts;
use super::kind::{Kind, PricedGpu};
use super::large::{Free, LargePlaces, NodeRoom, Totals};
use super::packing::PackingValue;
use super::room::GpuRoom;
use super::{GpuPart, PodShape, TypicalPods};
use crate::gpu::FreeGpu;
use crate::units::Units;

/// The weight of packing loss in a cost. A badly packed GPU is lost until a pod ends, while a later pod may still fit
/// a fragment. On the traces of `lab/openb`, 10 and 100 give the same.
const PACKING_LOSS_WEIGHT: f64 = 10.0;
/// The most GPU sizes for which packing loss is computed, the most frequent ones. For others it is 0.
const MAX_SIZES: usize = 8;
/// The most models that are distinguished; of further models a kind accepts all or none.
const MAX_MODELS: usize = 63;

/// What a placement costs, in millionths of a GPU. Less is better. Negative if it makes free room less fragmented.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cost(pub i64);

impl Cost {
    /// What it is more than the least one; 0 where it is less.
    #[must_use]
    pub fn beyond(self, least: Self) -> Self {
        Self(self.0.saturating_sub(least.0).max(0))
    }
}

/// Nodes that are alike when empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeClass {
    /// How many.
    pub count: usize,
    /// Allocatable CPU of one, in thousandths of a core; `None` where it is not known.
    pub cpu: Option<u64>,
    /// Its GPUs' model.
    pub model: String,
    /// Its GPUs.
    pub gpus: usize,
    /// Units of each.
    pub units: Units,
}

/// What costs are computed from: the mix of pods, and the classes of nodes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Measure {
    /// Sorted by CPU.
    pub(super) kinds: Vec<Kind>,
    /// Sorted.
    models: Vec<String>,
    /// The CPU that a free GPU needs, in thousandths of a core; 0 if none. What pods request for each GPU on average,
    /// until [`Measure::repriced`].
    pub(super) cpu_by_gpu: f64,
    packing_values: Vec<PackingValue>,
    pub(super) large: LargePlaces,
}

impl Measure {
    /// The measure for the pods of `typical` on the nodes of `classes`, while pods hold what is in `held`.
    pub fn new(typical: &TypicalPods, held: &HeldParts, classes: &[NodeClass]) -> Self {
        let mut models: Vec<String> = classes.iter().map(|class| class.model.clone()).collect();
        models.sort();
        models.dedup();
        models.truncate(MAX_MODELS);
        let (shares, requests) = placeable(typical, classes);
        let all = gpus(classes, |_| true);
        let mut requested: Vec<(Kind, f64)> = Vec::new();
        for (shape, share) in &shares {
            let able = gpus(classes, |class| takes(class, shape));
            let scarcity = if able > 0.0 { all / able } else { 0.0 };
            let weight = share * scarcity;
            if weight > 0.0 {
                let (cpu, gpus, part) = (shape.cpu, shape.gpus, shape.part);
                let models = accepted(shape, &models);
                requested.push((Kind { cpu, gpus, part, models, weight }, *share));
            }
        }
        requested.sort_by_key(|(kind, _)| kind.cpu);
        let packing_values = sizes(classes)
            .into_iter()
            .map(|size| PackingValue::new(size, &parts(&shares, held, size)))
            .collect();
        let (gpus_by_request, cpu_by_request) = means(&shares, classes);
        let cpu_by_gpu = if gpus_by_request > 0.0 { cpu_by_request / gpus_by_request } else { 0.0 };
        let totals = Totals { requests, gpus_by_request, cpu_by_gpu, gpus: all, cpu: cpu(classes) };
        let large = LargePlaces::new(&requested, totals);
        let kinds = requested.into_iter().map(|(kind, _)| kind).collect();
        Self { kinds, models, cpu_by_gpu, packing_values, large }
    }

    /// The measure by what is free now: places for pods with several GPUs have prices, and a free GPU needs the CPU
    /// that goes with one. Of each node its free CPU, in thousandths of a core, `None` where it is not known, and its
    /// GPUs. `None` where nothing changes.
    pub fn repriced<'c, C: IntoIterator<Item = &'c FreeGpu>>(
        &self,
        nodes: impl IntoIterator<Item = (Option<u64>, C)>,
    ) -> Option<Self> {
        let mut rooms = Vec::new();
        for (cpu, gpus) in nodes {
            let open = self.priced_gpus(gpus).into_iter().flatten().collect();
            rooms.push(NodeRoom { cpu, gpus: open });
        }
        let free = Free::on(&rooms);
        let priced = self.large.prices(&rooms, free);
        let cpu_by_gpu = self.large.cpu_for_a_free_gpu(free);
        if priced == self.large.priced && cpu_by_gpu == self.cpu_by_gpu {
            return None;
        }
        let mut next = self.clone();
        next.large.priced = priced;
        next.cpu_by_gpu = cpu_by_gpu;
        Some(next)
    }

    /// The GPUs, in this order; `None` for those that take no new pods.
    pub(super) fn priced_gpus<'c>(
        &self,
        gpus: impl IntoIterator<Item = &'c FreeGpu>,
    ) -> Vec<Option<PricedGpu>> {
        let mut last = None;
        let priced = |gpu: &'c FreeGpu| {
            if !gpu.is_open() {
                return None;
            }
            // Nearly all nodes have GPUs of one model.
            let model = match last {
                Some((known, model)) if known == &gpu.model => model,
                _ => self.model(gpu.model.as_str()),
            };
            last = Some((&gpu.model, model));
            let room = GpuRoom { free: gpu.free, units: gpu.units };
            Some(PricedGpu { room, part: room.part(), model })
        };
        gpus.into_iter().map(priced).collect()
    }

    /// The packing loss of a GPU's free room, in GPUs, times its weight.
    pub(super) fn packing_loss(&self, gpu: GpuRoom) -> f64 {
        let worth = self.packing_values.iter().find(|worth| worth.units() == gpu.units);
        PACKING_LOSS_WEIGHT * worth.map_or(0.0, |worth| worth.loss(gpu.free))
    }

    /// The number of a model.
    pub(super) fn model(&self, name: &str) -> usize {
        self.models.binary_search_by(|model| model.as_str().cmp(name)).unwrap_or(MAX_MODELS)
    }
}

/// The kinds that fit an empty node of some class, each with its part of these requests, and how many there were. What
/// no node takes says nothing about the room that other pods will need.
fn placeable<'t>(
    typical: &'t TypicalPods,
    classes: &[NodeClass],
) -> (Vec<(&'t PodShape, f64)>, u64) {
    let fits = |shape: &PodShape| classes.iter().any(|class| takes(class, shape));
    let mut shares = typical.shares();
    shares.retain(|(shape, _)| shape.gpus > 0 && fits(shape));
    let part: f64 = shares.iter().map(|(_, share)| share).sum();
    shares.iter_mut().for_each(|(_, share)| *share /= part);
    (shares, (typical.seen() as f64 * part).round() as u64)
}

fn gpus(classes: &[NodeClass], counts: impl Fn(&NodeClass) -> bool) -> f64 {
    let gpus = |class: &NodeClass| class.count as f64 * class.gpus as f64;
    classes.iter().filter(|class| counts(class)).map(gpus).sum()
}

/// Whether the pod fits an empty node of the class.
fn takes(class: &NodeClass, shape: &PodShape) -> bool {
    let gpu = GpuRoom { free: class.units, units: class.units };
    class.gpus >= shape.gpus
        && class.cpu.is_none_or(|cpu| cpu >= shape.cpu)
        && shape.part.fits(gpu)
        && shape.models.accept(&class.model)
}

fn accepted(shape: &PodShape, models: &[String]) -> u64 {
    let mut bits = u64::from(shape.models.accept_by_default()) << MAX_MODELS;
    for (at, model) in models.iter().enumerate() {
        bits |= u64::from(shape.models.accept(model)) << at;
    }
    bits
}

/// The most frequent sizes of GPUs.
fn sizes(classes: &[NodeClass]) -> Vec<Units> {
    let mut sizes: Vec<Units> = classes.iter().map(|class| class.units).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes.sort_by(|a, b| gpus_of_size(classes, *b).total_cmp(&gpus_of_size(classes, *a)));
    sizes.truncate(MAX_SIZES);
    sizes
}

fn gpus_of_size(classes: &[NodeClass], size: Units) -> f64 {
    gpus(classes, |class| class.units == size)
}

/// The CPU of all nodes; `None` where that of one is not known. A node with GPUs of two kinds counts twice.
fn cpu(classes: &[NodeClass]) -> Option<f64> {
    classes.iter().map(|class| Some(class.cpu? as f64 * class.count as f64)).sum()
}

/// The units that pods take of GPUs of one size, with the frequency of each: half of what is requested, and half of
/// what is held. By requests alone, what long-lived pods leave free of their GPUs would be kept for pods that come too
/// seldom to fill it; by what is held alone, nothing would be kept for pods that find no room.
fn parts(shares: &[(&PodShape, f64)], held: &HeldParts, size: Units) -> Vec<(Units, f64)> {
    let gpus: f64 = shares.iter().map(|(shape, share)| share * shape.gpus as f64).sum();
    shares
        .iter()
        .map(|(shape, share)| (shape.part.of(size), share * shape.gpus as f64 / gpus))
        .chain(held.shares(size))
        .collect()
}

/// The GPUs and the CPU that a request asks for on average.
fn means(shares: &[(&PodShape, f64)], classes: &[NodeClass]) -> (f64, f64) {
    let mut units = 0.0;
    for class in classes {
        units += class.count as f64 * class.gpus as f64 * f64::from(class.units.0);
    }
    let mean = units / gpus(classes, |_| true).max(1.0);
    let mut cpu = 0.0;
    let mut asked = 0.0;
    for (shape, share) in shares {
        let part = match shape.part {
            GpuPart::Units(units) if mean > 0.0 => (f64::from(units.0) / mean).min(1.0),
            GpuPart::Units(_) | GpuPart::Whole => 1.0,
        };
        cpu += share * shape.cpu as f64;
        asked += share * shape.gpus as f64 * part;
    }
    (asked, cpu)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::super::MeasuredNode;
    use super::*;
    use crate::gpu::{
        BeyondUnits, ChoiceRule, ContainerKind, ContainerRequest, GpuFilter, GpuIsolation,
        GpuOptions, GpuRequest, GpuUse, Sharers, Topology, choose,
    };
    use crate::units::Cores;

    const GPU: Units = Units(100);

    /// A request for `units` of the 100 units of each of `gpus` GPUs; 100 units request exclusive GPUs.
    fn request(cpu: u64, gpus: u32, units: u32, models: &str) -> GpuRequest {
        let gpu_use = GpuUse { gpus, exclusive: units == GPU.0, ..GpuUse::default() };
        let ask = ContainerRequest {
            name: "main".to_owned(),
            kind: ContainerKind::App,
            position: 0,
            units: Units(units * gpus),
            gpu_use,
        };
        let models = if models.is_empty() { Default::default() } else { models.parse().unwrap() };
        let filter = GpuFilter { models, ..GpuFilter::default() };
        let options = GpuOptions { filter, ..GpuOptions::default() };
        let request = GpuRequest::with_options([ask], options).unwrap().unwrap();
        request.with_cpu(cpu).with_beyond_units(BeyondUnits::ALL)
    }

    fn share(cpu: u64, units: u32) -> GpuRequest {
        request(cpu, 1, units, "")
    }

    fn class(count: usize, model: &str, gpus: usize, cpu: u64) -> NodeClass {
        NodeClass { count, cpu: Some(cpu), model: model.to_owned(), gpus, units: GPU }
    }

    fn rule(pods: &[(&GpuRequest, usize)], classes: &[NodeClass]) -> ChoiceRule {
        let mut typical = TypicalPods::default();
        let each = pods.iter().flat_map(|(pod, count)| std::iter::repeat_n(*pod, *count));
        each.for_each(|pod| typical.observe(&PodShape::of(pod)));
        let measure = Some(Arc::new(Measure::new(&typical, &HeldParts::default(), classes)));
        ChoiceRule { measure, ..ChoiceRule::default() }
    }

    fn gpus(model: &str, free: &[u32]) -> Vec<FreeGpu> {
        let gpu = |(index, free): (usize, &u32)| FreeGpu {
            uuid: format!("GPU-{index}").into(),
            index: index as u32,
            model: model.into(),
            topology: Topology::default(),
            units: GPU,
            free: Units(*free),
            free_cores: Cores::ALL,
            idle: *free == GPU.0,
            healthy: true,
            closed: None,
            isolation: GpuIsolation::default(),
            sharers: Sharers::None,
            clients: 0,
        };
        free.iter().enumerate().map(gpu).collect()
    }

    fn place(
        rule: &ChoiceRule,
        cpu: Option<u64>,
        gpus: &[FreeGpu],
        pod: &GpuRequest,
    ) -> Option<(Cost, Vec<u32>)> {
        let choice = choose(gpus, cpu, pod, rule).ok()?;
        Some((choice.cost?, choice.gpus.iter().map(|gpu| gpu.index).collect()))
    }

    #[test]
    fn a_share_goes_to_the_gpu_that_it_fills_well() {
        let pods = [share(1000, 65), share(1000, 32)];
        let rule = rule(&[(&pods[0], 5), (&pods[1], 5)], &[class(10, "A", 4, 64_000)]);
        let gpus = gpus("A", &[100, 53, 35, 100]);
        let chosen = place(&rule, Some(64_000), &gpus, &pods[1]).map(|(_, gpus)| gpus);
        assert_eq!(chosen, Some(vec![2]));
    }

    #[test]
    fn room_that_long_lived_pods_fill_is_not_lost() {
        // Pods of 40 come less often than those of 60, and stay so much longer that more of them are there.
        let mut typical = TypicalPods::default();
        (0..60).for_each(|_| typical.observe(&PodShape::of(&share(0, 60))));
        (0..40).for_each(|_| typical.observe(&PodShape::of(&share(0, 40))));
        let beside_a_large_one = GpuRoom { free: Units(40), units: GPU };
        let loss = |held: &HeldParts| {
            let measure = Measure::new(&typical, held, &[class(10, "A", 4, 64_000)]);
            measure.packing_loss(beside_a_large_one) / PACKING_LOSS_WEIGHT
        };
        let mut held = HeldParts::default();
        assert!((loss(&held) - 0.4).abs() < 1e-6, "{}", loss(&held));
        held.count(GPU, Units(60), 25);
        held.count(GPU, Units(40), 75);
        assert!(loss(&held) < 1e-6, "{}", loss(&held));
    }

    #[test]
    fn a_share_leaves_what_a_frequent_one_fills() {
        let small = share(0, 30);
        let large = share(0, 70);
        let rule = rule(&[(&small, 9), (&large, 1)], &[class(10, "A", 2, 64_000)]);
        // Best fit would leave 5 units of the first, which no pod requests; 30 of the second, nine pods in ten do.
        let chosen = place(&rule, None, &gpus("A", &[35, 60]), &small).map(|(_, gpus)| gpus);
        assert_eq!(chosen, Some(vec![1]));
    }

    #[test]
    fn a_pod_that_accepts_every_model_leaves_the_scarce_one_free() {
        let any = share(1000, 50);
        let few = request(1000, 1, 50, "B");
        let classes = [class(90, "A", 4, 64_000), class(10, "B", 4, 64_000)];
        let rule = rule(&[(&any, 9), (&few, 1)], &classes);
        let on = |model| {
            place(&rule, Some(64_000), &gpus(model, &[100, 100]), &any).map(|(cost, _)| cost)
        };
        assert!(on("A") < on("B"), "{:?} {:?}", on("A"), on("B"));
        // One that needs it has no choice.
        assert_eq!(place(&rule, Some(64_000), &gpus("A", &[100, 100]), &few), None);
    }

    #[test]
    fn gpus_of_a_node_with_two_models_are_judged_each_by_its_own() {
        let any = share(1000, 50);
        let few = request(1000, 1, 50, "B");
        let classes = [class(90, "A", 4, 64_000), class(10, "B", 4, 64_000)];
        let rule = rule(&[(&any, 9), (&few, 1)], &classes);
        let mut mixed = gpus("B", &[100, 100]);
        mixed[1].model = "A".into();
        let chosen = place(&rule, Some(64_000), &mixed, &any).map(|(_, gpus)| gpus);
        assert_eq!(chosen, Some(vec![1]));
    }

    #[test]
    fn a_pod_of_little_cpu_goes_where_cpu_is_short() {
        let little = share(2000, 50);
        let much = share(10_000, 50);
        let rule = rule(&[(&little, 5), (&much, 5)], &[class(10, "A", 2, 24_000)]);
        let on = |cpu, pod: &GpuRequest| {
            place(&rule, Some(cpu), &gpus("A", &[100, 100]), pod).map(|(cost, _)| cost)
        };
        assert!(on(20_000, &little) < on(90_000, &little));
        assert!(on(20_000, &much) > on(90_000, &much));
    }

    #[test]
    fn whole_gpus_leave_gpus_with_shares_for_shares() {
        let whole = request(1000, 1, 100, "");
        let part = share(1000, 50);
        let rule = rule(&[(&whole, 5), (&part, 5)], &[class(10, "A", 2, 64_000)]);
        let gpus = gpus("A", &[50, 100, 100]);
        let two = place(&rule, None, &gpus, &request(0, 2, 100, "")).map(|(_, gpus)| gpus);
        assert_eq!(two, Some(vec![1, 2]));
        assert_eq!(place(&rule, None, &gpus, &request(0, 3, 100, "")), None);
    }

    #[test]
    fn a_kind_that_no_node_takes_changes_no_cost() {
        let eight = request(8_000, 8, 100, "");
        let pods = [(&eight, 10), (&share(2_000, 50), 50)];
        let classes = [class(6, "A", 8, 96_000)];
        let costs = |others: &[(&GpuRequest, usize)]| -> Vec<Option<Cost>> {
            let mut rule = rule(&[&pods, others].concat(), &classes);
            let (idle, used) = (gpus("A", &[100; 8]), gpus("A", &[100, 100, 50, 50, 0, 0, 0, 0]));
            let measure = rule.measure.clone().unwrap();
            let nodes = [(Some(96_000), &idle), (Some(40_000), &used)];
            rule.measure = measure.repriced(nodes).map(Arc::new).or(Some(measure));
            let on = |gpus, pod| place(&rule, Some(40_000), gpus, pod).map(|(cost, _)| cost);
            vec![on(&idle, pods[1].0), on(&used, pods[1].0), on(&idle, &eight)]
        };
        let alone = costs(&[]);
        assert!(alone.iter().all(Option::is_some));
        let (endless, foreign, wide) =
            (share(u64::MAX, 1), request(1, 1, 100, "none"), request(1, 9, 100, ""));
        assert_eq!(costs(&[(&endless, 1)]), alone);
        assert_eq!(costs(&[(&endless, 20), (&foreign, 40), (&wide, 10)]), alone);
    }

    #[test]
    fn without_a_known_mix_places_still_exist() {
        let rule = rule(&[], &[]);
        let on = |free: &[u32]| place(&rule, None, &gpus("A", free), &share(0, 50));
        assert_eq!(on(&[10, 100]), Some((Cost(0), vec![1])));
        assert_eq!(on(&[]), None);
        let no_memory = [FreeGpu { units: Units(0), ..gpus("", &[0]).remove(0) }];
        assert_eq!(place(&rule, None, &no_memory, &share(0, 1)), None);
    }

    proptest! {
        #[test]
        fn chosen_gpus_have_room_and_are_the_cheapest(
            mix in proptest::collection::vec((0_u64..20_000, 1_u32..5, 1_u32..101), 0..20),
            free in proptest::collection::vec(0_u32..101, 0..9),
            cpu in proptest::option::of(0_u64..100_000),
            (asked, units) in (1_u32..5, 1_u32..101),
            is_repriced: bool,
        ) {
            let pods: Vec<GpuRequest> =
                mix.iter().map(|(cpu, gpus, units)| request(*cpu, *gpus, *units, "")).collect();
            let pods: Vec<(&GpuRequest, usize)> = pods.iter().map(|pod| (pod, 1)).collect();
            let mut rule = rule(&pods, &[class(10, "A", 8, 96_000)]);
            let pod = request(4000, asked, units, "");
            let idle = gpus("A", &[100; 8]);
            let gpus = gpus("A", &free);
            if is_repriced {
                let measure = rule.measure.clone().unwrap();
                let nodes = [(cpu, &gpus), (Some(90_000), &idle)];
                let next = measure.repriced(nodes);
                rule.measure = next.map(Arc::new).or(Some(measure));
            }
            let found = place(&rule, cpu, &gpus, &pod);
            let fitting: Vec<&FreeGpu> = gpus.iter().filter(|gpu| gpu.free.0 >= units).collect();
            prop_assert_eq!(found.is_some(), fitting.len() >= asked as usize);
            let Some((cost, chosen)) = found else { return Ok(()) };
            prop_assert_eq!(chosen.len(), asked as usize);
            if asked == 1 {
                let all = gpus.iter().collect::<Vec<_>>();
                let measure = rule.measure.clone().unwrap();
                let node = MeasuredNode::new(&measure, cpu, &all);
                let costs = fitting
                    .iter()
                    .map(|gpu| node.cost(4000, &[(gpu.index as usize, pod.largest())]));
                prop_assert_eq!(costs.min(), Some(cost));
            }
            // A pod without GPUs.
            let all = gpus.iter().collect::<Vec<_>>();
            for (asked, cpu) in [0, 700, 5_000, 90_000].into_iter().zip(std::iter::repeat(cpu)) {
                let Some(cpu) = cpu else { continue };
                let measure = rule.measure.clone().unwrap();
                let node = MeasuredNode::new(&measure, Some(cpu), &all);
                prop_assert_eq!(measure.cost_of_cpu(gpus.iter(), cpu, asked), node.cost(asked, &[]));
            }
            // The same room costs the same, in whatever order its GPUs are.
            let mut turned = gpus.clone();
            turned.reverse();
            prop_assert_eq!(place(&rule, cpu, &turned, &pod).map(|(cost, _)| cost), Some(cost));
        }
    }
}

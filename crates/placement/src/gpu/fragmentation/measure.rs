//! The cost of a placement.

use super::packing::Worth;
use super::{CardRoom, Part, Room, Shape, TypicalPods};
use crate::units::Units;

/// How many times packing loss counts: a card that is packed badly is lost until a pod ends, where fragments may still
/// find a pod. On the traces of `bench/openb`, 10 and 100 give the same.
const PACKING: f64 = 10.0;
/// Sizes of cards whose packing is looked at, the most frequent ones; others lose nothing.
const MOST_SIZES: usize = 8;
/// Models that are told apart; kinds accept all others or none.
const MOST_MODELS: usize = 63;

/// What a placement costs, in millionths of a card. Less is better. Negative where it makes room less fragmented.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cost(pub i64);

/// Nodes that are alike when empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeClass {
    /// How many.
    pub count: usize,
    /// Allocatable CPU of one, in thousandths of a core; `None` where it is not known.
    pub cpu: Option<u64>,
    /// Its cards' model.
    pub model: String,
    /// Its cards.
    pub cards: usize,
    /// Units of each.
    pub units: Units,
}

/// The best cards of a node for a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// What it costs to place the pod there.
    pub cost: Cost,
    /// Positions in [`Room::cards`].
    pub cards: Vec<usize>,
}

/// A kind of pod.
#[derive(Debug, Clone, PartialEq)]
struct Kind {
    cpu: u64,
    cards: usize,
    part: Part,
    /// By model, a bit each; the last bit is that of models that no node class has.
    models: u64,
    weight: f64,
}

/// What placements are measured by: the mix of pods, and the nodes that they come to.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Measure {
    kinds: Vec<Kind>,
    /// Sorted.
    models: Vec<String>,
    /// CPU that pods ask for by card, in thousandths of a core; 0 where they ask for none.
    cpu_by_card: f64,
    worths: Vec<Worth>,
}

impl Measure {
    /// The measure for pods as in `typical` on nodes as in `classes`.
    pub fn new(typical: &TypicalPods, classes: &[NodeClass]) -> Self {
        let mut models: Vec<String> = classes.iter().map(|class| class.model.clone()).collect();
        models.sort();
        models.dedup();
        models.truncate(MOST_MODELS);
        let shares: Vec<(&Shape, f64)> =
            typical.shares().into_iter().filter(|(shape, _)| shape.cards > 0).collect();
        let all = cards(classes, |_| true);
        let kind = |(shape, share): &(&Shape, f64)| {
            let able = cards(classes, |class| takes(class, shape));
            let scarcity = if able > 0.0 { all / able } else { 0.0 };
            Kind {
                cpu: shape.cpu,
                cards: shape.cards,
                part: shape.part,
                models: accepted(shape, &models),
                weight: share * scarcity,
            }
        };
        let kinds = shares.iter().map(kind).filter(|kind| kind.weight > 0.0).collect();
        let worths = sizes(classes).into_iter().map(|size| Worth::new(size, &parts(&shares, size)));
        let worths = worths.collect();
        let cpu_by_card = cpu_by_card(&shares, classes);
        Self { kinds, models, cpu_by_card, worths }
    }

    /// The cards of a node where `shape` costs least, the first of equals; `None` where it does not fit.
    ///
    /// Several shares are each put on the card that costs least by itself; whole cards are all alike.
    pub fn place(&self, room: &Room<'_>, shape: &Shape) -> Option<Place> {
        if room.cpu.is_some_and(|cpu| cpu < shape.cpu)
            || (shape.cards > 0 && !shape.models.accepts(room.model))
        {
            return None;
        }
        let state = State::new(self, room);
        let before = state.cost(self);
        let with = |cards: &[usize]| rounded(state.with(shape, cards).cost(self) - before);
        let fitting: Vec<usize> =
            (0..room.cards.len()).filter(|at| shape.part.fits(room.cards[*at])).collect();
        if fitting.len() < shape.cards {
            return None;
        }
        if shape.part == Part::Whole || shape.cards == 0 {
            let cards = fitting[..shape.cards].to_vec();
            return Some(Place { cost: with(&cards), cards });
        }
        let mut single: Vec<(Cost, usize)> = Vec::with_capacity(fitting.len());
        for at in fitting {
            let alike = single.iter().find(|(_, other)| room.cards[*other] == room.cards[at]);
            let cost = alike.map_or_else(|| with(&[at]), |(cost, _)| *cost);
            single.push((cost, at));
        }
        single.sort_unstable();
        let mut cards: Vec<usize> = single.iter().take(shape.cards).map(|(_, at)| *at).collect();
        cards.sort_unstable();
        let cost = if cards.len() == 1 { single[0].0 } else { with(&cards) };
        Some(Place { cost, cards })
    }

    fn model(&self, name: &str) -> usize {
        self.models.binary_search_by(|model| model.as_str().cmp(name)).unwrap_or(MOST_MODELS)
    }
}

/// In whole millionths, so that rounding noise breaks no tie.
fn rounded(cards: f64) -> Cost {
    Cost((cards * 1e6).round() as i64)
}

/// A node at one time, or as it would be.
struct State {
    model: usize,
    cpu: Option<u64>,
    cards: Vec<CardRoom>,
}

impl State {
    fn new(measure: &Measure, room: &Room<'_>) -> Self {
        Self { model: measure.model(room.model), cpu: room.cpu, cards: room.cards.to_vec() }
    }

    fn with(&self, shape: &Shape, cards: &[usize]) -> Self {
        let mut after = self.cards.clone();
        for at in cards {
            let card = &mut after[*at];
            card.free = card.free.saturating_sub(shape.part.of(card.units));
        }
        let cpu = self.cpu.map(|cpu| cpu.saturating_sub(shape.cpu));
        Self { model: self.model, cpu, cards: after }
    }

    fn cost(&self, measure: &Measure) -> f64 {
        let parts: Vec<f64> = self.cards.iter().map(|card| card.part()).collect();
        let idle: f64 = parts.iter().sum();
        let fragments: f64 =
            measure.kinds.iter().map(|kind| kind.weight * self.unusable(kind, &parts, idle)).sum();
        let stranded = match self.cpu {
            Some(cpu) if measure.cpu_by_card > 0.0 => {
                (idle - cpu as f64 / measure.cpu_by_card).max(0.0)
            }
            _ => 0.0,
        };
        let loss = |card: &CardRoom| {
            let worth = measure.worths.iter().find(|worth| worth.units() == card.units);
            worth.map_or(0.0, |worth| worth.loss(card.free))
        };
        fragments + stranded + PACKING * self.cards.iter().map(loss).sum::<f64>()
    }

    /// Free room that pods of `kind` cannot use, in cards.
    fn unusable(&self, kind: &Kind, parts: &[f64], idle: f64) -> f64 {
        if kind.models >> self.model & 1 == 0 || self.cpu.is_some_and(|cpu| cpu < kind.cpu) {
            return idle;
        }
        let (mut fitting, mut small) = (0, 0.0);
        for (card, part) in self.cards.iter().zip(parts) {
            match kind.part.fits(*card) {
                true => fitting += 1,
                false => small += part,
            }
        }
        if fitting < kind.cards { idle } else { small }
    }
}

fn cards(classes: &[NodeClass], counts: impl Fn(&NodeClass) -> bool) -> f64 {
    let counted = classes.iter().filter(|class| counts(class));
    counted.map(|class| class.count as f64 * class.cards as f64).sum()
}

/// Whether an empty node of the class takes the pod.
fn takes(class: &NodeClass, shape: &Shape) -> bool {
    let card = CardRoom { free: class.units, units: class.units };
    class.cards >= shape.cards
        && class.cpu.is_none_or(|cpu| cpu >= shape.cpu)
        && shape.part.fits(card)
        && shape.models.accepts(&class.model)
}

fn accepted(shape: &Shape, models: &[String]) -> u64 {
    let named = models.iter().enumerate().filter(|(_, model)| shape.models.accepts(model));
    let others = u64::from(shape.models.only.is_empty()) << MOST_MODELS;
    named.fold(others, |bits, (at, _)| bits | 1 << at)
}

/// The most frequent sizes of cards.
fn sizes(classes: &[NodeClass]) -> Vec<Units> {
    let mut sizes: Vec<Units> = classes.iter().map(|class| class.units).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let count = |size: &Units| cards(classes, |class| class.units == *size);
    sizes.sort_by(|a, b| count(b).total_cmp(&count(a)));
    sizes.truncate(MOST_SIZES);
    sizes
}

/// What pods ask of cards of one size.
fn parts(shares: &[(&Shape, f64)], size: Units) -> Vec<(Units, f64)> {
    let part = |(shape, share): &(&Shape, f64)| (shape.part.of(size), share * shape.cards as f64);
    shares.iter().map(part).collect()
}

fn cpu_by_card(shares: &[(&Shape, f64)], classes: &[NodeClass]) -> f64 {
    let units =
        |class: &NodeClass| class.count as f64 * class.cards as f64 * f64::from(class.units.0);
    let mean = classes.iter().map(units).sum::<f64>() / cards(classes, |_| true).max(1.0);
    let part = |part: Part| match part {
        Part::Units(units) if mean > 0.0 => (f64::from(units.0) / mean).min(1.0),
        Part::Units(_) | Part::Whole => 1.0,
    };
    let cpu: f64 = shares.iter().map(|(shape, share)| share * shape.cpu as f64).sum();
    let asked: f64 =
        shares.iter().map(|(shape, share)| share * shape.cards as f64 * part(shape.part)).sum();
    if asked > 0.0 { cpu / asked } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::gpu::fragmentation::ModelFilter;

    fn shape(cpu: u64, cards: usize, part: Part) -> Shape {
        Shape { cpu, cards, part, models: ModelFilter::default() }
    }

    fn share(cpu: u64, units: u32) -> Shape {
        shape(cpu, 1, Part::Units(Units(units)))
    }

    fn of(shape: &Shape, model: &str) -> Shape {
        Shape {
            models: ModelFilter { only: [model.into()].into(), ..ModelFilter::default() },
            ..shape.clone()
        }
    }

    fn class(count: usize, model: &str, cards: usize, cpu: u64) -> NodeClass {
        NodeClass { count, cpu: Some(cpu), model: model.to_owned(), cards, units: Units(100) }
    }

    fn measure(pods: &[(&Shape, usize)], classes: &[NodeClass]) -> Measure {
        let mut typical = TypicalPods::default();
        let each = pods.iter().flat_map(|(shape, count)| std::iter::repeat_n(*shape, *count));
        each.for_each(|shape| typical.observe(shape));
        Measure::new(&typical, classes)
    }

    fn cards(free: &[u32]) -> Vec<CardRoom> {
        free.iter().map(|free| CardRoom { free: Units(*free), units: Units(100) }).collect()
    }

    fn cost(
        measure: &Measure,
        cpu: Option<u64>,
        model: &str,
        free: &[u32],
        pod: &Shape,
    ) -> Option<Cost> {
        let cards = cards(free);
        measure.place(&Room { cpu, model, cards: &cards }, pod).map(|place| place.cost)
    }

    #[test]
    fn a_share_goes_to_the_card_that_it_fills_well() {
        let pods = [share(1000, 65), share(1000, 32)];
        let measure = measure(&[(&pods[0], 5), (&pods[1], 5)], &[class(10, "A", 4, 64_000)]);
        let cards = cards(&[100, 53, 35, 100]);
        let room = Room { cpu: Some(64_000), model: "A", cards: &cards };
        assert_eq!(measure.place(&room, &pods[1]).map(|place| place.cards), Some(vec![2]));
    }

    #[test]
    fn a_pod_that_takes_every_model_leaves_the_scarce_one_alone() {
        let any = share(1000, 50);
        let few = of(&any, "B");
        let classes = [class(90, "A", 4, 64_000), class(10, "B", 4, 64_000)];
        let measure = measure(&[(&any, 9), (&few, 1)], &classes);
        let on = |model| cost(&measure, Some(64_000), model, &[100, 100], &any);
        assert!(on("A") < on("B"), "{:?} {:?}", on("A"), on("B"));
        // One that needs it has no choice.
        assert_eq!(cost(&measure, Some(64_000), "A", &[100, 100], &few), None);
    }

    #[test]
    fn a_pod_of_little_cpu_goes_where_cpu_is_short() {
        let (little, much) = (share(2000, 50), share(10_000, 50));
        let measure = measure(&[(&little, 5), (&much, 5)], &[class(10, "A", 2, 24_000)]);
        let on = |cpu, pod| cost(&measure, Some(cpu), "A", &[100, 100], pod);
        assert!(on(20_000, &little) < on(90_000, &little));
        assert!(on(20_000, &much) > on(90_000, &much));
    }

    #[test]
    fn unknown_cpu_decides_nothing() {
        let pod = share(50_000, 50);
        let measure = measure(&[(&pod, 5)], &[class(10, "A", 2, 24_000)]);
        assert!(cost(&measure, None, "A", &[100, 100], &pod).is_some());
        assert_eq!(cost(&measure, Some(49_999), "A", &[100, 100], &pod), None);
    }

    #[test]
    fn whole_cards_leave_nodes_with_shares_for_shares() {
        let (whole, part) = (shape(1000, 1, Part::Whole), share(1000, 50));
        let measure = measure(&[(&whole, 5), (&part, 5)], &[class(10, "A", 2, 64_000)]);
        let cards = cards(&[50, 100, 100]);
        let room = Room { cpu: None, model: "A", cards: &cards };
        let place = measure.place(&room, &shape(0, 2, Part::Whole));
        assert_eq!(place.map(|place| place.cards), Some(vec![1, 2]));
        assert_eq!(measure.place(&room, &shape(0, 3, Part::Whole)), None);
    }

    #[test]
    fn without_a_known_mix_places_still_exist() {
        let measure = Measure::default();
        assert_eq!(cost(&measure, None, "A", &[10, 100], &share(0, 50)), Some(Cost(0)));
        assert_eq!(cost(&measure, None, "A", &[], &share(0, 50)), None);
        let no_memory = [CardRoom { free: Units(0), units: Units(0) }];
        let room = Room { cpu: None, model: "", cards: &no_memory };
        assert_eq!(measure.place(&room, &share(0, 1)), None);
    }

    proptest! {
        #[test]
        fn chosen_cards_have_room_and_equal_rooms_cost_the_same(
            mix in proptest::collection::vec((0_u64..20_000, 1_usize..5, 0_u32..101), 0..20),
            free in proptest::collection::vec(0_u32..101, 0..9),
            cpu in proptest::option::of(0_u64..100_000),
            (asked, units) in (0_usize..5, 0_u32..101),
        ) {
            let part = |units| if units == 100 { Part::Whole } else { Part::Units(Units(units)) };
            let pods: Vec<Shape> = mix.iter().map(|(cpu, cards, units)| shape(*cpu, *cards, part(*units))).collect();
            let pods: Vec<(&Shape, usize)> = pods.iter().map(|pod| (pod, 1)).collect();
            let measure = measure(&pods, &[class(10, "A", 8, 96_000)]);
            let (pod, cards) = (shape(4000, asked, part(units)), cards(&free));
            let room = Room { cpu, model: "A", cards: &cards };
            let place = measure.place(&room, &pod);
            let fits = cards.iter().filter(|card| pod.part.fits(**card)).count() >= asked
                && cpu.is_none_or(|cpu| cpu >= 4000);
            prop_assert_eq!(place.is_some(), fits);
            if let Some(place) = place {
                prop_assert_eq!(place.cards.len(), asked);
                prop_assert!(place.cards.windows(2).all(|pair| pair[0] < pair[1]));
                prop_assert!(place.cards.iter().all(|at| pod.part.fits(cards[*at])));
                prop_assert_eq!(measure.place(&room, &pod), Some(place));
            }
        }
    }
}

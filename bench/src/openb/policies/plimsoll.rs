//! Ours: the measure of `placement::gpu::fragmentation`, with what pods ask for learnt from those that have arrived.

use std::collections::BTreeMap;
use std::sync::Arc;

use placement::gpu::fragmentation::{
    CardRoom, Measure, ModelFilter, NodeClass, Part, Room, Shape, TypicalPods,
};
use placement::units::Units;

use super::Policy;
use super::by_state::{ByState, Place};
use crate::openb::cluster::{Cards, Node, NodeRoom};
use crate::openb::trace::{PodKind, Trace, WHOLE};

/// The measure is made anew when this much more pods have arrived.
const GROWTH: f64 = 1.25;
/// The first time, after so many pods.
const FIRST: u64 = 16;

/// The policy.
#[derive(Debug)]
pub struct Plimsoll {
    shapes: Vec<Shape>,
    models: Vec<String>,
    classes: Vec<NodeClass>,
    typical: TypicalPods,
    measure: Measure,
    /// Pods to arrive before the measure is made anew; `None` where it stays.
    due: Option<u64>,
    memory: ByState,
}

impl Plimsoll {
    /// Learns from what arrives.
    pub fn learning(trace: &Trace) -> Self {
        let (typical, classes) = (TypicalPods::default(), classes(trace));
        let measure = Measure::new(&typical, &classes);
        Self {
            shapes: trace.kinds.iter().map(|kind| shape(kind, &trace.models)).collect(),
            models: trace.models.clone(),
            classes,
            typical,
            measure,
            due: Some(FIRST),
            memory: ByState::default(),
        }
    }

    /// Knows the whole list beforehand, as published policies do.
    pub fn knowing(trace: &Trace) -> Self {
        let mut policy = Self::learning(trace);
        trace.pods.iter().for_each(|kind| policy.typical.observe(&policy.shapes[*kind]));
        policy.measure = Measure::new(&policy.typical, &policy.classes);
        policy.due = None;
        policy
    }

    fn learn(&mut self, at: usize) {
        let Some(due) = self.due else { return };
        self.typical.observe(&self.shapes[at]);
        if self.typical.seen() >= due {
            self.measure = Measure::new(&self.typical, &self.classes);
            self.memory.forget();
            self.due = Some((due as f64 * GROWTH).ceil() as u64);
        }
    }
}

impl Policy for Plimsoll {
    fn place(&mut self, nodes: &[Node], at: usize, pod: &PodKind) -> Option<(usize, Cards)> {
        self.learn(at);
        let (measure, models, shape) = (&self.measure, &self.models, &self.shapes[at]);
        self.memory.best(nodes, at, pod, |room| judge(measure, models, room, shape))
    }
}

fn judge(measure: &Measure, models: &[String], room: &NodeRoom, shape: &Shape) -> Option<Place> {
    let card = |free: &u16| CardRoom { free: Units(u32::from(*free)), units: Units(WHOLE) };
    let cards: Vec<CardRoom> = room.free().iter().map(card).collect();
    let model = models.get(usize::from(room.model)).map_or("", String::as_str);
    let room = Room { cpu: Some(u64::from(room.cpu)), model, cards: &cards };
    let place = measure.place(&room, shape)?;
    let cards = place.cards.iter().fold(0, |cards, at| cards | 1 << at);
    Some((-(place.cost.0 as f64), cards))
}

fn shape(kind: &PodKind, models: &[String]) -> Shape {
    let named = models.iter().enumerate().filter(|(at, _)| kind.models.contain(*at as u8));
    let all = named.clone().count() == models.len();
    let only =
        if all { [].into() } else { named.map(|(_, name)| Arc::from(name.as_str())).collect() };
    let part = if kind.milli == WHOLE { Part::Whole } else { Part::Units(Units(kind.milli)) };
    let models = ModelFilter { only, ..ModelFilter::default() };
    Shape { cpu: u64::from(kind.cpu), cards: kind.cards, part, models }
}

fn classes(trace: &Trace) -> Vec<NodeClass> {
    let mut counts = BTreeMap::new();
    for node in &trace.nodes {
        *counts.entry((node.model, node.cards, node.cpu)).or_insert(0) += 1;
    }
    let class = |((model, cards, cpu), count): ((u8, usize, u32), usize)| NodeClass {
        count,
        cpu: Some(u64::from(cpu)),
        model: trace.models[usize::from(model)].clone(),
        cards,
        units: Units(WHOLE),
    };
    counts.into_iter().map(class).collect()
}

//! What placements on one node cost.

use super::measure::{Cost, Kind, Measure};
use super::room::CardRoom;
use crate::gpu::{CardShare, FreeCard};
use crate::units::Units;

/// A node as it is, measured once for all placements on it that are looked at.
pub(in crate::gpu) struct MeasuredNode<'m> {
    measure: &'m Measure,
    /// CPU free, in thousandths of a core; `None` where it is not known, and then it decides nothing.
    cpu: Option<u64>,
    /// In the order in which they were given; `None` where no pod may be placed.
    cards: Vec<Option<MeasuredCard>>,
    /// What is free, in cards.
    idle: f64,
    /// For each kind of the measure.
    for_kinds: Vec<ForKind>,
    /// What it costs as it is.
    now: f64,
}

#[derive(Clone, Copy)]
struct MeasuredCard {
    room: CardRoom,
    /// In parts of the card.
    part: f64,
    /// The model's number.
    model: usize,
}

/// What the cards are for one kind of pod.
#[derive(Clone, Copy, Default)]
struct ForKind {
    /// Cards that its pods fit.
    fitting: usize,
    /// What is free of the others, in cards.
    small: f64,
}

/// A card as it is, and as it would be.
type Change = (MeasuredCard, MeasuredCard);

impl<'m> MeasuredNode<'m> {
    pub(in crate::gpu) fn new(measure: &'m Measure, cpu: Option<u64>, cards: &[&FreeCard]) -> Self {
        let mut measured: Vec<Option<MeasuredCard>> = Vec::with_capacity(cards.len());
        for (at, card) in cards.iter().enumerate() {
            // Nearly all nodes have cards of one model.
            let before = at.checked_sub(1).and_then(|at| Some((cards[at], measured[at]?)));
            let model = match before {
                Some((other, known)) if other.model == card.model => known.model,
                _ => measure.model(card.model.as_str()),
            };
            let room = CardRoom { free: card.free, units: card.units };
            let of_room = || MeasuredCard { room, part: room.part(), model };
            measured.push(card.healthy.then(of_room));
        }
        let for_kind = |kind: &Kind| {
            let mut sum = ForKind::default();
            measured.iter().flatten().for_each(|card| sum.add(kind, card));
            sum
        };
        let for_kinds = measure.kinds.iter().map(for_kind).collect();
        let idle = measured.iter().flatten().map(|card| card.part).sum();
        let mut node = Self { measure, cpu, cards: measured, idle, for_kinds, now: 0.0 };
        node.now = node.level(cpu, &[]);
        node
    }

    /// What it costs to place a pod with these shares of cards, by their positions, and so much CPU.
    pub(in crate::gpu) fn cost(&self, cpu: u64, shares: &[(usize, CardShare)]) -> Cost {
        let change = |(at, share): &(usize, CardShare)| {
            let card = self.cards.get(*at).copied().flatten()?;
            Some((card, card.with(*share)))
        };
        let changes: Vec<Change> = shares.iter().filter_map(change).collect();
        let left = self.cpu.map(|free| free.saturating_sub(cpu));
        // In whole millionths, so that rounding noise breaks no tie.
        Cost(((self.level(left, &changes) - self.now) * 1e6).round() as i64)
    }

    /// The sum of all that is useless, in cards. But for a constant, and packing loss of cards that do not change.
    fn level(&self, cpu: Option<u64>, changes: &[Change]) -> f64 {
        let gone: f64 = changes.iter().map(|(before, after)| before.part - after.part).sum();
        let idle = self.idle - gone;
        let useless = |(kind, now): (&Kind, &ForKind)| {
            let mut sum = *now;
            for (before, after) in changes {
                sum.remove(kind, before);
                sum.add(kind, after);
            }
            let is_short = cpu.is_some_and(|cpu| cpu < kind.cpu) || sum.fitting < kind.cards;
            kind.weight * if is_short { idle } else { sum.small }
        };
        let fragments: f64 = self.measure.kinds.iter().zip(&self.for_kinds).map(useless).sum();
        let stranded = cpu.map_or(0.0, |cpu| self.measure.stranded(idle, cpu));
        let loss = |card: &MeasuredCard| self.measure.packing_loss(card.room);
        let packing: f64 = changes.iter().map(|(before, after)| loss(after) - loss(before)).sum();
        fragments + stranded + packing
    }
}

impl Measure {
    /// Cards that so much CPU does not suffice for.
    fn stranded(&self, idle: f64, cpu: u64) -> f64 {
        match self.cpu_by_card > 0.0 {
            true => (idle - cpu as f64 / self.cpu_by_card).max(0.0),
            false => 0.0,
        }
    }

    /// What it costs a node with so much CPU free that a pod without cards takes some of that, all in thousandths of a core: as
    /// [`MeasuredNode::cost`]. Nearly all nodes have CPU for all kinds of pods before and after; then little is computed.
    pub fn cost_of_cpu<'c>(
        &self,
        cards: impl ExactSizeIterator<Item = &'c FreeCard>,
        cpu: u64,
        asked: u64,
    ) -> Cost {
        let left = cpu.saturating_sub(asked);
        let up_to = |cpu| self.kinds.partition_point(|kind| kind.cpu <= cpu);
        let shut_out = &self.kinds[up_to(left)..up_to(cpu)];
        if shut_out.is_empty() && left as f64 >= self.cpu_by_card * cards.len() as f64 {
            return Cost(0);
        }
        let measured = |card: &FreeCard| {
            let room = CardRoom { free: card.free, units: card.units };
            MeasuredCard { room, part: room.part(), model: self.model(card.model.as_str()) }
        };
        let cards: Vec<MeasuredCard> = cards.filter(|card| card.healthy).map(measured).collect();
        let idle: f64 = cards.iter().map(|card| card.part).sum();
        let lost = |kind: &Kind| {
            let mut now = ForKind::default();
            cards.iter().for_each(|card| now.add(kind, card));
            kind.weight * if now.fitting < kind.cards { 0.0 } else { idle - now.small }
        };
        let fragments: f64 = shut_out.iter().map(lost).sum();
        let stranded = self.stranded(idle, left) - self.stranded(idle, cpu);
        Cost(((fragments + stranded) * 1e6).round() as i64)
    }
}

impl MeasuredCard {
    fn with(self, share: CardShare) -> Self {
        let CardRoom { free, units } = self.room;
        let free = if share.exclusive { Units::ZERO } else { free.saturating_sub(share.units) };
        let room = CardRoom { free, units };
        Self { room, part: room.part(), ..self }
    }
}

impl ForKind {
    fn add(&mut self, kind: &Kind, card: &MeasuredCard) {
        match kind.fits(card.model, card.room) {
            true => self.fitting += 1,
            false => self.small += card.part,
        }
    }

    fn remove(&mut self, kind: &Kind, card: &MeasuredCard) {
        match kind.fits(card.model, card.room) {
            true => self.fitting -= 1,
            false => self.small -= card.part,
        }
    }
}

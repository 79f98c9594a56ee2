//! The highest or lowest value of every window at once.
//!
//! Time is cut into blocks. Of a block that is over only the slot of its extreme is kept, and that only while no later
//! block reaches it: a staircase. A window's answer is the best of three: the slots of a block that the window's
//! beginning cuts (asked for as one run), the first step of the staircase after it, and the block that is not over yet.
//!
//! Invariant: at most one slot of 4 bytes for each block of the span, whichever way the values go: [`Extremes::most`].

use std::collections::VecDeque;
use std::ops::RangeInclusive;

use super::interval::{Slot, first_of};

/// Which end is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Highest,
    Lowest,
}

impl End {
    /// Whether nobody will ask for `old` again once there is `new`.
    fn yields(self, old: f64, new: f64) -> bool {
        match self {
            Self::Highest => old <= new,
            Self::Lowest => old >= new,
        }
    }

    fn better(self, one: f64, other: f64) -> f64 {
        if self.yields(one, other) { other } else { one }
    }
}

/// The extremes of the blocks of a span. The values are the ring's, and asked for again.
#[derive(Debug)]
pub(super) struct Extremes {
    end: End,
    span: u32,
    block: u32,
    most: usize,
    /// Of the blocks that are over.
    steps: VecDeque<Slot>,
    /// Of the newest block with a value, and that value.
    open: Option<(Slot, f64)>,
}

impl Extremes {
    /// For windows of up to `span` slots; `block` of them, at least one, make a block.
    pub(super) fn new(end: End, span: u32, block: u32) -> Self {
        let most = Self::most(span, block);
        Self { end, span, block, most, steps: VecDeque::new(), open: None }
    }

    /// How many steps there are at most.
    pub(super) fn most(span: u32, block: u32) -> usize {
        span.div_ceil(block) as usize + 1
    }

    /// Adds the value at `slot`, which is later than all before; `value_at` tells those.
    pub(super) fn put(&mut self, slot: Slot, value: f64, value_at: impl Fn(Slot) -> Option<f64>) {
        if let Some((open, best)) = self.open {
            if open / self.block != slot / self.block {
                self.close(open, best, &value_at);
            } else if !self.end.yields(best, value) {
                return;
            }
        }
        self.open = Some((slot, value));
    }

    /// Makes the extreme of a block that is over a step.
    fn close(&mut self, slot: Slot, value: f64, value_at: &impl Fn(Slot) -> Option<f64>) {
        let end = self.end;
        let passed = |step: &mut Slot| value_at(*step).is_none_or(|old| end.yields(old, value));
        while self.steps.pop_back_if(passed).is_some() {}
        self.make_room();
        self.steps.push_back(slot);
    }

    /// Grows by half: doubling would leave up to half of it unused for ever.
    fn make_room(&mut self) {
        let held = self.steps.len();
        if held == self.steps.capacity() {
            let more = (held / 2).max(16).min(self.most.saturating_sub(held)).max(1);
            self.steps.reserve_exact(more);
        }
    }

    /// Forgets what no window that ends at `slot` can see.
    pub(super) fn expire(&mut self, slot: Slot) {
        let span = self.span;
        while self.steps.pop_front_if(|step| slot - *step >= span).is_some() {}
        self.open = self.open.filter(|(open, _)| slot - *open < span);
    }

    /// The extreme of the `window` slots that end at `newest`; `values` tells those that were put into a run of slots,
    /// and no others.
    pub(super) fn find<Values: Iterator<Item = f64>>(
        &self,
        newest: Slot,
        window: u32,
        values: impl Fn(RangeInclusive<Slot>) -> Values,
    ) -> Option<f64> {
        let first = first_of(newest, window);
        let cut = first % self.block;
        // The slots before the window's first whole block, and that block.
        let edge = (cut > 0).then(|| first..=newest.min(first - cut + (self.block - 1)));
        let whole = first.div_ceil(self.block);
        let step = self.steps.partition_point(|step| step / self.block < whole);
        let step = self.steps.get(step).map(|step| *step..=*step);
        let open = self.open.filter(|(open, _)| open / self.block >= whole).map(|(_, best)| best);
        let asked = edge.into_iter().chain(step).flat_map(values);
        asked.chain(open).reduce(|one, other| self.end.better(one, other))
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.steps.capacity() * size_of::<Slot>()
    }

    pub(super) fn clear(&mut self) {
        self.steps.clear();
        self.open = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BLOCK: u32 = 4;

    /// Every slot's value, or a gap.
    type Values = [Option<f64>];

    fn at(values: &Values) -> impl Fn(Slot) -> Option<f64> + '_ {
        |slot| values.get(slot as usize).copied().flatten()
    }

    /// The same of a run of slots.
    fn run(values: &Values) -> impl Fn(RangeInclusive<Slot>) -> std::vec::IntoIter<f64> + '_ {
        |slots| slots.filter_map(at(values)).collect::<Vec<f64>>().into_iter()
    }

    fn filled(end: End, span: u32, values: &Values) -> Extremes {
        let mut extremes = Extremes::new(end, span, BLOCK);
        for (slot, value) in (0..).zip(values) {
            extremes.expire(slot);
            value.iter().for_each(|value| extremes.put(slot, *value, at(values)));
        }
        extremes
    }

    fn find(end: End, span: u32, values: &Values, window: u32) -> Option<f64> {
        let newest = u32::try_from(values.len()).unwrap() - 1;
        filled(end, span, values).find(newest, window, run(values))
    }

    #[test]
    fn one_staircase_answers_for_every_window() {
        let values = [9.0, 5.0, 7.0, 1.0].map(Some);
        let all = |end| [1, 2, 3, 4].map(|window| find(end, 10, &values, window).unwrap());
        assert_eq!(all(End::Highest), [1.0, 7.0, 7.0, 9.0]);
        assert_eq!(all(End::Lowest), [1.0; 4]);
    }

    #[test]
    fn what_left_the_span_is_forgotten() {
        let mut values = vec![None; 11];
        values[0] = Some(9.0);
        assert_eq!(find(End::Highest, 11, &values, 11), Some(9.0));
        values.push(None);
        assert_eq!(find(End::Highest, 11, &values, 11), None);
        assert_eq!(filled(End::Highest, 11, &values).open, None);
    }

    #[test]
    fn whichever_way_values_go_a_block_costs_one_step() {
        let rising: Vec<Option<f64>> = (0..1000u16).map(|value| Some(value.into())).collect();
        assert_eq!(filled(End::Highest, 1000, &rising).steps.len(), 1);
        let minima = filled(End::Lowest, 1000, &rising);
        assert_eq!(minima.steps.len(), 249);
        assert!(minima.bytes() <= Extremes::most(1000, BLOCK) * 4, "{}", minima.bytes());
    }

    #[test]
    fn a_window_asks_for_one_run_of_slots_and_one_step() {
        let values: Vec<Option<f64>> = (0..1000u16).map(|value| Some(value.into())).collect();
        let minima = filled(End::Lowest, 1000, &values);
        for window in 1..=1000 {
            let asked = std::cell::RefCell::new(Vec::new());
            let lowest = minima.find(999, window, |slots| {
                asked.borrow_mut().push(slots.clone().count());
                run(&values)(slots)
            });
            assert_eq!(lowest, Some(f64::from(1000 - window)));
            let asked = asked.into_inner();
            assert!(asked.len() <= 2 && asked.iter().sum::<usize>() <= BLOCK as usize, "{asked:?}");
        }
    }

    /// Values that rise, fall, jump about or stay, with gaps among them.
    fn values() -> impl Strategy<Value = Vec<Option<f64>>> {
        let slope = prop_oneof![Just(-1.0), Just(0.0), Just(1.0), Just(0.1)];
        let value = prop_oneof![6 => (0u8..20).prop_map(Some), 1 => Just(None)];
        let gap = prop_oneof![4 => Just(0usize), 1 => 1usize..30];
        (slope, gap, prop::collection::vec(value, 1..120)).prop_map(|(slope, gap, mut values)| {
            let middle = values.len() / 2;
            values.splice(middle..middle, std::iter::repeat_n(None, gap));
            let tilted = |(slot, value): (u32, Option<u8>)| {
                value.map(|value| slope * 20.0 * f64::from(slot) + f64::from(value))
            };
            (0..).zip(values).map(tilted).collect()
        })
    }

    proptest! {
        #[test]
        fn every_window_of_every_slot_is_what_a_look_at_all_values_gives(values in values(), span in 1u32..80) {
            for (end, naive) in [(End::Highest, f64::max as fn(_, _) -> _), (End::Lowest, f64::min)] {
                let mut extremes = Extremes::new(end, span, BLOCK);
                for (slot, value) in (0..).zip(&values) {
                    extremes.expire(slot);
                    value.iter().for_each(|value| extremes.put(slot, *value, at(&values)));
                    prop_assert!(extremes.steps.len() <= Extremes::most(span, BLOCK));
                    for window in 1..=span {
                        let expected = (first_of(slot, window)..=slot).filter_map(at(&values)).reduce(naive);
                        prop_assert_eq!(extremes.find(slot, window, run(&values)), expected);
                    }
                }
            }
        }
    }
}

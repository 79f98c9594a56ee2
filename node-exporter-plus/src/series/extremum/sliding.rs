//! The maximum or minimum of every window that ends now.
//!
//! The usual way to keep a sliding maximum is a *monotonic queue* of the samples that no later one exceeds. On a steady
//! slope that is every sample: 34 KiB for a day at 10 s, as much as the samples themselves, for a maximum and again for
//! a minimum. So time is cut into blocks of 256 slots, and the queue holds at most one slot a block: 35 entries of 4
//! bytes for a day. It answers for windows that begin with a block; if a window begins inside one, the slots up to the
//! block's end are scanned, at most 255, which takes about a microsecond.
//!
//! Invariant: at most [`Sliding::max_entries`] slots are kept, whichever way the values go.

use std::collections::VecDeque;
use std::ops::RangeInclusive;

use crate::series::interval::{Slot, first_of};

/// How many slots make a block.
pub(in crate::series) const BLOCK: u32 = 256;

/// Which extremum is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::series) enum Extremum {
    Max,
    Min,
}

impl Extremum {
    /// Whether a window that holds `new` never needs an older `old`.
    fn supersedes(self, old: f64, new: f64) -> bool {
        match self {
            Self::Max => old <= new,
            Self::Min => old >= new,
        }
    }

    fn pick(self, one: f64, other: f64) -> f64 {
        if self.supersedes(one, other) { other } else { one }
    }
}

/// A monotonic queue of blocks. It keeps slot numbers only; their values are read again when needed.
#[derive(Debug)]
pub(in crate::series) struct Sliding {
    extremum: Extremum,
    /// The longest window, in slots.
    longest: u32,
    /// Slots in a block.
    block: u32,
    /// The slot of the extremum of each block that is over, without those that a later block supersedes.
    queue: VecDeque<Slot>,
    /// The extremum of the newest block so far: its slot and value.
    open: Option<(Slot, f64)>,
}

impl Sliding {
    /// An empty queue for windows of up to `longest` slots; a block has `block` slots, at least one.
    pub(in crate::series) fn new(extremum: Extremum, longest: u32, block: u32) -> Self {
        Self { extremum, longest, block, queue: VecDeque::new(), open: None }
    }

    /// How many slots the queue holds at most.
    pub(in crate::series) fn max_entries(longest: u32, block: u32) -> usize {
        longest.div_ceil(block) as usize + 1
    }

    /// Adds the value at `slot`, which is later than all before. `value_at` gives the value of an earlier slot.
    pub(in crate::series) fn push(
        &mut self,
        slot: Slot,
        value: f64,
        value_at: impl Fn(Slot) -> Option<f64>,
    ) {
        if let Some((open, extremum)) = self.open {
            if open / self.block != slot / self.block {
                self.close(open, extremum, &value_at);
            } else if !self.extremum.supersedes(extremum, value) {
                return;
            }
        }
        self.open = Some((slot, value));
    }

    /// Queues the extremum of a block that is over.
    fn close(&mut self, slot: Slot, value: f64, value_at: &impl Fn(Slot) -> Option<f64>) {
        let extremum = self.extremum;
        let superseded =
            |slot: &mut Slot| value_at(*slot).is_none_or(|old| extremum.supersedes(old, value));
        while self.queue.pop_back_if(superseded).is_some() {}
        self.reserve();
        self.queue.push_back(slot);
    }

    /// Grows by half, up to the bound: `VecDeque` doubles, which leaves up to half of the memory unused for good.
    fn reserve(&mut self) {
        let held = self.queue.len();
        if held == self.queue.capacity() {
            let free = Self::max_entries(self.longest, self.block).saturating_sub(held);
            self.queue.reserve_exact((held / 2).max(16).min(free).max(1));
        }
    }

    /// Drops what no window that ends at `slot` holds.
    pub(in crate::series) fn expire(&mut self, slot: Slot) {
        let longest = self.longest;
        while self.queue.pop_front_if(|queued| slot - *queued >= longest).is_some() {}
        self.open = self.open.filter(|(open, _)| slot - *open < longest);
    }

    /// The extremum of the `window` slots that end at `newest`. `values` gives the values that were pushed for a run of
    /// slots.
    pub(in crate::series) fn find<Values: Iterator<Item = f64>>(
        &self,
        newest: Slot,
        window: u32,
        values: impl Fn(RangeInclusive<Slot>) -> Values,
    ) -> Option<f64> {
        let first = first_of(newest, window);
        let offset = first % self.block;
        // The slots before the window's first whole block, and the number of that block.
        let partial = (offset > 0).then(|| first..=newest.min(first - offset + (self.block - 1)));
        let whole = first.div_ceil(self.block);
        let first_queued = self.queue.partition_point(|slot| slot / self.block < whole);
        let queued = self.queue.get(first_queued).map(|slot| *slot..=*slot);
        let open = self.open.filter(|(open, _)| open / self.block >= whole).map(|(_, value)| value);
        let pick = |one, other| self.extremum.pick(one, other);
        partial.into_iter().chain(queued).flat_map(values).chain(open).reduce(pick)
    }

    /// The bytes of the queue now.
    #[cfg(test)]
    pub(in crate::series) fn bytes(&self) -> usize {
        self.queue.capacity() * size_of::<Slot>()
    }

    pub(in crate::series) fn clear(&mut self) {
        self.queue.clear();
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

    /// The values in a run of slots.
    fn run(values: &Values) -> impl Fn(RangeInclusive<Slot>) -> std::vec::IntoIter<f64> + '_ {
        |slots| slots.filter_map(at(values)).collect::<Vec<f64>>().into_iter()
    }

    fn filled(extremum: Extremum, longest: u32, values: &Values) -> Sliding {
        let mut sliding = Sliding::new(extremum, longest, BLOCK);
        for (slot, value) in (0..).zip(values) {
            sliding.expire(slot);
            value.iter().for_each(|value| sliding.push(slot, *value, at(values)));
        }
        sliding
    }

    fn find(extremum: Extremum, longest: u32, values: &Values, window: u32) -> Option<f64> {
        let newest = u32::try_from(values.len()).unwrap() - 1;
        filled(extremum, longest, values).find(newest, window, run(values))
    }

    #[test]
    fn one_queue_answers_for_every_window() {
        let values = [9.0, 5.0, 7.0, 1.0].map(Some);
        let all =
            |extremum| [1, 2, 3, 4].map(|window| find(extremum, 10, &values, window).unwrap());
        assert_eq!(all(Extremum::Max), [1.0, 7.0, 7.0, 9.0]);
        assert_eq!(all(Extremum::Min), [1.0; 4]);
    }

    #[test]
    fn values_older_than_the_longest_window_are_dropped() {
        let mut values = vec![None; 11];
        values[0] = Some(9.0);
        assert_eq!(find(Extremum::Max, 11, &values, 11), Some(9.0));
        values.push(None);
        assert_eq!(find(Extremum::Max, 11, &values, 11), None);
        assert_eq!(filled(Extremum::Max, 11, &values).open, None);
    }

    #[test]
    fn a_block_has_one_entry_at_most_whichever_way_values_go() {
        let rising: Vec<Option<f64>> = (0..1000u16).map(|value| Some(value.into())).collect();
        assert_eq!(filled(Extremum::Max, 1000, &rising).queue.len(), 1);
        let minima = filled(Extremum::Min, 1000, &rising);
        assert_eq!(minima.queue.len(), 249);
        assert!(minima.bytes() <= Sliding::max_entries(1000, BLOCK) * 4, "{}", minima.bytes());
    }

    #[test]
    fn a_window_looks_at_one_run_of_slots_and_one_entry() {
        let values: Vec<Option<f64>> = (0..1000u16).map(|value| Some(value.into())).collect();
        let minima = filled(Extremum::Min, 1000, &values);
        for window in 1..=1000 {
            let looked_at = std::cell::RefCell::new(Vec::new());
            let lowest = minima.find(999, window, |slots| {
                looked_at.borrow_mut().push(slots.clone().count());
                run(&values)(slots)
            });
            assert_eq!(lowest, Some(f64::from(1000 - window)));
            let looked_at = looked_at.into_inner();
            assert!(
                looked_at.len() <= 2 && looked_at.iter().sum::<usize>() <= BLOCK as usize,
                "{looked_at:?}"
            );
        }
    }

    /// Values that rise, fall, jump or stay, with gaps.
    fn values() -> impl Strategy<Value = Vec<Option<f64>>> {
        let slope = prop_oneof![Just(-1.0), Just(0.0), Just(1.0), Just(0.1)];
        let value = prop_oneof![6 => (0u8..20).prop_map(Some), 1 => Just(None)];
        let gap = prop_oneof![4 => Just(0usize), 1 => 1usize..30];
        (slope, gap, prop::collection::vec(value, 1..120)).prop_map(|(slope, gap, mut values)| {
            let middle = values.len() / 2;
            values.splice(middle..middle, std::iter::repeat_n(None, gap));
            (0..)
                .zip(values)
                .map(|(slot, value)| {
                    value.map(|value| slope * 20.0 * f64::from(slot) + f64::from(value))
                })
                .collect()
        })
    }

    proptest! {
        #[test]
        fn every_window_at_every_slot_equals_its_recomputation(values in values(), longest in 1u32..80) {
            for (extremum, naive) in [(Extremum::Max, f64::max as fn(_, _) -> _), (Extremum::Min, f64::min)] {
                let mut sliding = Sliding::new(extremum, longest, BLOCK);
                for (slot, value) in (0..).zip(&values) {
                    sliding.expire(slot);
                    value.iter().for_each(|value| sliding.push(slot, *value, at(&values)));
                    prop_assert!(sliding.queue.len() <= Sliding::max_entries(longest, BLOCK));
                    for window in 1..=longest {
                        let expected = (first_of(slot, window)..=slot).filter_map(at(&values)).reduce(naive);
                        prop_assert_eq!(sliding.find(slot, window, run(&values)), expected);
                    }
                }
            }
        }
    }
}

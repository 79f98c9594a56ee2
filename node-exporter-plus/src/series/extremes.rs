//! The highest or lowest value of every window at once.

use std::collections::VecDeque;

use super::interval::Slot;

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
}

/// A staircase: the slots whose value no later one reaches. The extreme since any slot is the first step after it,
/// so one staircase serves all windows up to its span. Only slots are kept, 4 bytes each and at most one for each
/// value put in: the values are the ring's, and asked for again.
#[derive(Debug)]
pub(super) struct Extremes {
    end: End,
    span: u32,
    most: usize,
    steps: VecDeque<Slot>,
}

impl Extremes {
    /// For windows of up to `span` slots, of which every `stride`th gets a value.
    pub(super) fn new(end: End, span: u32, stride: u32) -> Self {
        let most = span.div_ceil(stride.max(1)) as usize + 1;
        Self { end, span, most, steps: VecDeque::new() }
    }

    /// Adds the value at `slot`, which is later than all before; `value_at` tells those.
    pub(super) fn put(&mut self, slot: Slot, value: f64, value_at: impl Fn(Slot) -> Option<f64>) {
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
    }

    /// The slot of the extreme of the `window` slots that end at `newest`.
    pub(super) fn find(&self, newest: Slot, window: u32) -> Option<Slot> {
        let first = self.steps.partition_point(|step| newest - *step >= window);
        self.steps.get(first).copied()
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.steps.capacity() * size_of::<Slot>()
    }

    pub(super) fn clear(&mut self) {
        self.steps.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(end: End, span: u32, values: &[f64]) -> Extremes {
        let mut extremes = Extremes::new(end, span, 1);
        let value_at = |slot: Slot| values.get(slot as usize).copied();
        for (slot, value) in (0..).zip(values) {
            extremes.put(slot, *value, value_at);
        }
        extremes
    }

    #[test]
    fn one_staircase_answers_for_every_window() {
        let values = [9.0, 5.0, 7.0, 1.0];
        let find = |end, window| values[filled(end, 10, &values).find(3, window).unwrap() as usize];
        assert_eq!([1, 2, 3, 4].map(|window| find(End::Highest, window)), [1.0, 7.0, 7.0, 9.0]);
        assert_eq!([1, 2, 3, 4].map(|window| find(End::Lowest, window)), [1.0; 4]);
    }

    #[test]
    fn what_left_the_span_is_forgotten() {
        let mut maxima = filled(End::Highest, 3, &[9.0]);
        maxima.expire(2);
        assert_eq!(maxima.find(2, 3), Some(0));
        maxima.expire(3);
        assert_eq!(maxima.find(3, 3), None);
    }

    #[test]
    fn rising_values_keep_one_step_of_the_maximum_and_all_of_the_minimum() {
        let values: Vec<f64> = (0..1000u16).map(f64::from).collect();
        assert_eq!(filled(End::Highest, 1000, &values).steps.len(), 1);
        let minima = filled(End::Lowest, 1000, &values);
        assert_eq!(minima.steps.len(), 1000);
        assert!(minima.bytes() <= 1001 * 4, "{}", minima.bytes());
    }
}

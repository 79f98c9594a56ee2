//! The maximum over every window at once.

use std::collections::VecDeque;

use super::interval::Slot;

/// A falling staircase: each value that no later one reaches. The maximum since any slot is its first step after
/// that slot, so one staircase serves all windows up to its span. At most one step for each value put in.
#[derive(Debug)]
pub(super) struct Maxima {
    span: u32,
    steps: VecDeque<(Slot, f32)>,
}

impl Maxima {
    pub(super) fn new(span: u32) -> Self {
        Self { span, steps: VecDeque::new() }
    }

    /// Adds the value at `slot`, which is later than all before.
    pub(super) fn put(&mut self, slot: Slot, value: f32) {
        while self.steps.pop_back_if(|(_, step)| *step <= value).is_some() {}
        self.steps.push_back((slot, value));
    }

    /// Forgets what no window that ends at `slot` can see.
    pub(super) fn expire(&mut self, slot: Slot) {
        let span = self.span;
        while self.steps.pop_front_if(|(step, _)| slot - *step >= span).is_some() {}
    }

    /// The maximum of the `window` slots that end at `newest`.
    pub(super) fn max(&self, newest: Slot, window: u32) -> Option<f32> {
        let first = self.steps.partition_point(|(step, _)| newest - *step >= window);
        self.steps.get(first).map(|(_, value)| *value)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.steps.len()
    }

    pub(super) fn clear(&mut self) {
        self.steps.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_staircase_answers_for_every_window() {
        let mut maxima = Maxima::new(10);
        for (slot, value) in [(1, 9.0), (2, 5.0), (3, 7.0), (4, 1.0)] {
            maxima.put(slot, value);
        }
        let answers = [1, 2, 3, 4].map(|window| maxima.max(4, window));
        assert_eq!(answers, [Some(1.0), Some(7.0), Some(7.0), Some(9.0)]);
    }

    #[test]
    fn what_left_the_span_is_forgotten() {
        let mut maxima = Maxima::new(3);
        maxima.put(1, 9.0);
        maxima.expire(3);
        assert_eq!(maxima.max(3, 3), Some(9.0));
        maxima.expire(4);
        assert_eq!((maxima.max(4, 3), maxima.len()), (None, 0));
    }

    #[test]
    fn rising_values_keep_one_step() {
        let mut maxima = Maxima::new(1000);
        (0..1000u16).for_each(|slot| maxima.put(slot.into(), slot.into()));
        assert_eq!(maxima.len(), 1);
    }
}

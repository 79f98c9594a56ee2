//! The mean of a sliding window, kept up to date sample by sample.

use super::interval::{Slot, first_of};
use super::ring::Ring;

/// Sum and count of the samples in the newest `window` slots.
#[derive(Debug)]
pub(super) struct Mean {
    window: u32,
    sum: f64,
    count: u32,
}

impl Mean {
    /// An empty window of `window` slots, which must not exceed the ring's capacity.
    pub(super) fn new(window: u32) -> Self {
        Self { window, sum: 0.0, count: 0 }
    }

    /// The mean of the `window` slots that end at `slot`, summed up from the samples.
    pub(super) fn at(ring: &Ring, slot: Slot, window: u32) -> Self {
        let samples = ring.run(first_of(slot, window)..=slot);
        let (sum, count) =
            samples.fold((0.0, 0), |(sum, count), sample| (sum + f64::from(sample), count + 1));
        Self { window, sum, count }
    }

    /// The window's length in slots.
    pub(super) fn window(&self) -> u32 {
        self.window
    }

    /// Moves the window's end to the next slot, which holds `value`. To be called before `value` is put into the ring,
    /// where it may overwrite the sample that leaves the window.
    pub(super) fn advance(&mut self, ring: &Ring, slot: Slot, value: Option<f32>) {
        let leaving = slot.checked_sub(self.window).and_then(|slot| ring.get(slot));
        if let Some(leaving) = leaving {
            self.sum -= f64::from(leaving);
            self.count -= 1;
        }
        if let Some(value) = value {
            self.sum += f64::from(value);
            self.count += 1;
        }
    }

    /// Recomputes the sum once in a window's length, so that rounding errors do not accumulate over months. Must be
    /// called after `slot` is put into the ring.
    pub(super) fn refresh(&mut self, ring: &Ring, slot: Slot) {
        if slot.is_multiple_of(self.window) {
            let first = first_of(slot, self.window);
            self.sum = ring.run(first..=slot).map(f64::from).sum();
        }
    }

    pub(super) fn clear(&mut self) {
        (self.sum, self.count) = (0.0, 0);
    }

    /// `None` without samples.
    pub(super) fn value(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / f64::from(self.count))
    }

    /// How many slots of the window hold samples.
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// The part of the window that holds samples, 0 to 1.
    pub(super) fn coverage(&self) -> f32 {
        self.count as f32 / self.window as f32
    }
}

//! What a series keeps for a set of aggregates, and how many bytes that takes.

use super::aggregate::Aggregate;
use super::extremum::{BLOCK, ExtremumKind, Sliding};
use super::interval::{Interval, Slot};
use super::mean::Mean;
use super::quantiles::Quantiles;
use super::ring::Ring;

/// The parts of a series.
pub(super) struct Layout {
    /// The windows of which a mean is kept, in slots: sorted, each once.
    pub(super) means: Vec<u32>,
    /// The longest window, in slots.
    pub(super) longest: u32,
    /// How many slots of samples are kept.
    pub(super) capacity: u32,
    /// The extrema that are kept, each once.
    pub(super) extrema: Vec<ExtremumKind>,
}

impl Layout {
    pub(super) fn of(interval: Interval, aggregates: &[Aggregate]) -> Self {
        let (mut means, mut extrema, mut longest_inner) = (Vec::new(), Vec::new(), 0_u32);
        for aggregate in aggregates {
            means.push(interval.slots(aggregate.window.duration()));
            if let Some(inner) = aggregate.inner_window() {
                let slots = interval.slots(inner.duration());
                means.push(slots);
                longest_inner = longest_inner.max(slots);
            }
            if let Some(kind) = ExtremumKind::of(*aggregate, interval)
                && !extrema.contains(&kind)
            {
                extrema.push(kind);
            }
        }
        means.sort_unstable();
        means.dedup();
        let longest = means.last().copied().unwrap_or(1);
        // The oldest mean in the longest window is computed again from samples before that window.
        let capacity = longest.saturating_add(longest_inner).max(Interval::STALE_AFTER + 1);
        Self { means, longest, capacity, extrema }
    }

    /// The bytes that the parts take at most, on the heap.
    pub(super) fn bytes(&self, aggregates: &[Aggregate]) -> usize {
        let queue = Sliding::max_entries(self.longest, BLOCK) * size_of::<Slot>();
        Ring::bytes(self.capacity)
            + self.means.len() * size_of::<Mean>()
            + self.extrema.len() * (size_of::<(ExtremumKind, Sliding)>() + queue)
            + Quantiles::bytes(aggregates)
    }
}

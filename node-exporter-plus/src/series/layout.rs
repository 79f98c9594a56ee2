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
        let inner: Vec<Slot> = aggregates
            .iter()
            .filter_map(Aggregate::inner_window)
            .map(|window| interval.slots(window.duration()))
            .collect();
        let outer = aggregates.iter().map(|aggregate| interval.slots(aggregate.window.duration()));
        let means = distinct(outer.chain(inner.iter().copied()));
        let longest = means.last().copied().unwrap_or(1);
        // The oldest mean in the longest window is computed again from samples before that window.
        let capacity = longest
            .saturating_add(inner.into_iter().max().unwrap_or(0))
            .max(Interval::STALE_AFTER + 1);
        let mut extrema: Vec<ExtremumKind> = Vec::new();
        for kind in aggregates.iter().filter_map(|aggregate| ExtremumKind::of(*aggregate, interval))
        {
            if !extrema.contains(&kind) {
                extrema.push(kind);
            }
        }
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

/// Sorted, each once.
fn distinct(windows: impl Iterator<Item = u32>) -> Vec<u32> {
    let mut windows: Vec<u32> = windows.collect();
    windows.sort_unstable();
    windows.dedup();
    windows
}

//! The quantiles that a series' rules ask for, selected once a sample.

use super::interval::{Interval, Slot, first_of};
use super::quantile::quantiles;
use super::ring::Ring;
use super::rule::{Aggregate, Rule};

/// Every window with its quantiles.
#[derive(Debug)]
pub(super) struct Quantiles {
    windows: Vec<Window>,
    selected: Option<Slot>,
}

#[derive(Debug)]
struct Window {
    slots: u32,
    /// Rising.
    percents: Vec<u8>,
    values: Vec<f64>,
}

impl Quantiles {
    pub(super) fn new(interval: Interval, rules: &[Rule]) -> Self {
        let mut windows: Vec<Window> = Vec::new();
        for rule in rules {
            if let Aggregate::Quantile(percent) = rule.aggregate {
                add(&mut windows, interval.slots(rule.window.duration()), percent);
            }
        }
        windows.shrink_to_fit();
        Self { windows, selected: None }
    }

    /// The bytes that they take at most: each in a window of its own.
    pub(super) fn bytes(rules: &[Rule]) -> usize {
        let quantiles =
            rules.iter().filter(|rule| matches!(rule.aggregate, Aggregate::Quantile(_)));
        // A list that grows takes room for a few more.
        quantiles.count() * (2 * size_of::<Window>() + 8 + 4 * size_of::<f64>())
    }

    /// Selects those of the windows that end at `end`.
    pub(super) fn select(&mut self, ring: &Ring, end: Slot, scratch: &mut Vec<f32>) {
        if self.selected.replace(end) == Some(end) {
            return;
        }
        for window in &mut self.windows {
            let first = first_of(end, window.slots);
            scratch.clear();
            scratch.reserve_exact(window.slots as usize);
            scratch.extend(ring.run(first..=end));
            window.values = quantiles(scratch, &window.percents);
        }
    }

    /// None if there are no samples, or the selection is of another slot.
    pub(super) fn get(&self, slots: u32, percent: u8, end: Slot) -> Option<f64> {
        let window = self.windows.iter().find(|window| window.slots == slots)?;
        let place = window.percents.binary_search(&percent).ok()?;
        window.values.get(place).copied().filter(|_| self.selected == Some(end))
    }
}

fn add(windows: &mut Vec<Window>, slots: u32, percent: u8) {
    let place = windows.iter().position(|window| window.slots == slots).unwrap_or_else(|| {
        windows.push(Window { slots, percents: Vec::new(), values: Vec::new() });
        windows.len() - 1
    });
    let percents = &mut windows[place].percents;
    if let Err(place) = percents.binary_search(&percent) {
        percents.insert(place, percent);
    }
}

//! How well future pods can fill the free units of a GPU.
//!
//! The cutting-stock problem is to find the fewest GPUs that hold a given mix of pods. Its prices are the part of a
//! GPU that each pod costs when the mix is packed as well as possible. If pods of 81% are frequent and pods of less
//! than 20% are rare, a pod of 81% costs a whole GPU, and one of 19% nothing. The value of free units is that of the
//! set of pods with the highest total price that fits them. Solved by column generation, with one knapsack problem for
//! each step (Gilmore and Gomory, 1961).

use crate::units::Units;

/// The most steps that a GPU is divided into.
const MAX_STEPS: u32 = 1000;
/// Column generation ends after this number of steps, with the prices found so far. The production trace takes about
/// 60.
const MAX_PIVOTS: usize = 400;
/// Smaller numbers are rounding errors.
const NOISE: f64 = 1e-9;

/// The value of free units on GPUs of one size, in GPUs.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PackingValue {
    units: Units,
    /// Units in a step.
    step: f64,
    /// The value for each number of free steps.
    worth: Vec<f64>,
}

/// Pods of one size.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Item {
    /// How many steps a pod takes.
    steps: usize,
    /// Its frequency in the mix.
    share: f64,
}

impl PackingValue {
    /// The values for GPUs of `units` units and a mix of pods, each with its units and its frequency. A whole free
    /// GPU has the value 1.
    pub(super) fn new(units: Units, pods: &[(Units, f64)]) -> Self {
        let smaller: Vec<_> =
            pods.iter().filter(|(part, _)| !part.is_zero() && *part < units).collect();
        let divisor = smaller.iter().fold(units.0.max(1), |all, (part, _)| divisor(all, part.0));
        let step = f64::from(divisor).max(f64::from(units.0) / f64::from(MAX_STEPS));
        let size = (f64::from(units.0) / step).floor() as usize;
        let mut items: Vec<Item> = Vec::new();
        for (part, share) in smaller {
            // Rounded up, so that a pod never seems to fit where it does not.
            let steps = (f64::from(part.0) / step - NOISE).ceil().max(1.0) as usize;
            match items.iter_mut().find(|item| item.steps == steps) {
                Some(item) => item.share += share,
                None => items.push(Item { steps, share: *share }),
            }
        }
        items.sort_by_key(|item| item.steps);
        let prices = prices(&items, size);
        let (mut worth, _) = knapsack(&items, &prices, size);
        // No set that fits a GPU has a total price above 1, except by rounding errors.
        worth.iter_mut().for_each(|worth| *worth = worth.min(1.0));
        if let Some(whole) = worth.last_mut() {
            *whole = 1.0;
        }
        Self { units, step, worth }
    }

    /// The size of the GPUs.
    pub(super) fn units(&self) -> Units {
        self.units
    }

    /// The part of `free` units, in GPUs, that even the best set of pods leaves unused.
    pub(super) fn loss(&self, free: Units) -> f64 {
        let steps = (f64::from(free.0) / self.step + NOISE) as usize;
        let worth = self.worth.get(steps).or(self.worth.last()).copied().unwrap_or(0.0);
        f64::from(free.0) / f64::from(self.units.0.max(1)) - worth
    }
}

fn divisor(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { divisor(b, a % b) }
}

/// The highest total price that each number of steps up to `size` can hold, and the set of items with the highest price
/// for `size`.
fn knapsack(items: &[Item], prices: &[f64], size: usize) -> (Vec<f64>, Vec<f64>) {
    let mut most = vec![0.0_f64; size + 1];
    let mut last: Vec<Option<usize>> = vec![None; size + 1];
    for room in 1..=size {
        most[room] = most[room - 1];
        for (at, (item, price)) in items.iter().zip(prices).enumerate() {
            if item.steps <= room && most[room - item.steps] + price > most[room] + NOISE {
                most[room] = most[room - item.steps] + price;
                last[room] = Some(at);
            }
        }
    }
    let mut set = vec![0.0; items.len()];
    let mut room = size;
    while room > 0 {
        match last[room] {
            Some(at) => {
                set[at] += 1.0;
                room -= items[at].steps;
            }
            None => room -= 1,
        }
    }
    (most, set)
}

/// The part of a GPU that each item costs.
fn prices(items: &[Item], size: usize) -> Vec<f64> {
    let mut basis = SimplexBasis::new(items, size);
    for _ in 0..MAX_PIVOTS {
        let prices = basis.prices();
        let positive: Vec<f64> = prices.iter().map(|price| price.max(0.0)).collect();
        let (most, set) = knapsack(items, &positive, size);
        let gain = most.last().copied().unwrap_or(0.0) - 1.0;
        let lowest = prices.iter().enumerate().min_by(|(_, a), (_, b)| a.total_cmp(b));
        let column = match lowest {
            // A surplus column removes one pod: sets may hold more pods than the mix has.
            Some((at, price)) if -price > gain.max(NOISE) => surplus_column(at, items.len()),
            _ if gain > NOISE => set,
            _ => break,
        };
        if !basis.pivot(&column) {
            break;
        }
    }
    basis.prices().into_iter().map(|price| price.max(0.0)).collect()
}

fn surplus_column(at: usize, len: usize) -> Vec<f64> {
    let mut column = vec![0.0; len];
    column[at] = -1.0;
    column
}

/// A basis of the simplex method: as many sets of pods as there are items, which together hold the mix.
struct SimplexBasis {
    inverse: Vec<Vec<f64>>,
    /// How many GPUs have each set.
    gpus: Vec<f64>,
    /// The cost of each set: 1 for a GPU, 0 for a surplus.
    costs: Vec<f64>,
}

impl SimplexBasis {
    /// The first basis: each item on GPUs of its own.
    fn new(items: &[Item], size: usize) -> Self {
        let mut inverse = Vec::with_capacity(items.len());
        let mut gpus = Vec::with_capacity(items.len());
        for (at, item) in items.iter().enumerate() {
            let fitting = (size / item.steps).max(1) as f64;
            let mut row = vec![0.0; items.len()];
            row[at] = 1.0 / fitting;
            inverse.push(row);
            gpus.push(item.share / fitting);
        }
        Self { inverse, gpus, costs: vec![1.0; items.len()] }
    }

    fn prices(&self) -> Vec<f64> {
        let price = |at: usize| {
            self.inverse.iter().zip(&self.costs).map(|(row, cost)| row[at] * cost).sum::<f64>()
        };
        (0..self.gpus.len()).map(price).collect()
    }

    /// Replaces a column of the basis by this one; `false` if none can be replaced.
    fn pivot(&mut self, column: &[f64]) -> bool {
        let rates: Vec<f64> = self
            .inverse
            .iter()
            .map(|row| row.iter().zip(column).map(|(a, b)| a * b).sum())
            .collect();
        let leaving = (0..rates.len())
            .filter(|at| rates[*at] > NOISE)
            .map(|at| (at, self.gpus[at] / rates[at]))
            .min_by(|(_, a), (_, b)| a.total_cmp(b));
        let Some((out, gpus)) = leaving else { return false };
        let entering: Vec<f64> = self.inverse[out].iter().map(|value| value / rates[out]).collect();
        for (at, rate) in rates.iter().enumerate().filter(|(at, _)| *at != out) {
            self.gpus[at] = (self.gpus[at] - gpus * rate).max(0.0);
            for (value, new) in self.inverse[at].iter_mut().zip(&entering) {
                *value -= rate * new;
            }
        }
        self.gpus[out] = gpus;
        self.inverse[out] = entering;
        // A surplus has one negative entry and no positive one.
        self.costs[out] = if column.iter().any(|value| *value > 0.0) { 1.0 } else { 0.0 };
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn worth(size: u32, pods: &[(u32, f64)]) -> PackingValue {
        let pods: Vec<_> = pods.iter().map(|(units, share)| (Units(*units), *share)).collect();
        PackingValue::new(Units(size), &pods)
    }

    #[test]
    fn what_no_frequent_pod_fills_is_lost() {
        // Three quarters of a GPU come often, a quarter hardly ever: nothing fills what they leave.
        let worth = worth(16, &[(12, 0.9), (4, 0.01)]);
        assert!((worth.loss(Units(4)) - 0.25).abs() < 1e-6);
        assert!(worth.loss(Units(16)).abs() < 1e-6);
    }

    #[test]
    fn what_frequent_pods_fill_is_not_lost() {
        let worth = worth(16, &[(12, 0.3), (4, 0.7)]);
        assert!(worth.loss(Units(4)).abs() < 1e-6 && worth.loss(Units(12)).abs() < 1e-6);
        assert!((worth.loss(Units(3)) - 3.0 / 16.0).abs() < 1e-6);
    }

    #[test]
    fn two_thirds_and_a_third_belong_together() {
        let worth = worth(100, &[(65, 0.4), (32, 0.5), (47, 0.2)]);
        assert!(worth.loss(Units(35)) < 0.06, "{}", worth.loss(Units(35)));
        // A third beside a half leaves a fifth that nothing fills.
        assert!((worth.loss(Units(21)) - 0.21).abs() < 1e-6);
    }

    #[test]
    fn a_size_without_pods_loses_all_but_whole_gpus() {
        let worth = worth(24, &[]);
        assert_eq!((worth.loss(Units(24)), worth.loss(Units(23)) > 0.9), (0.0, true));
    }

    proptest! {
        /// By duality: no set of pods on a GPU is worth more than the GPU, and the mix needs at least as many GPUs
        /// as its prices add up to, which is no less than what it fills.
        #[test]
        fn prices_are_those_of_the_fewest_gpus(
            size in 1_u32..4000,
            pods in proptest::collection::vec((1_u32..4000, 0.001_f64..1.0), 0..40),
        ) {
            let worth = worth(size, &pods);
            for free in 0..=size.min(200) {
                let value = f64::from(free) / f64::from(size) - worth.loss(Units(free));
                prop_assert!((-1e-6..=1.0 + 1e-6).contains(&value), "{free}: {value}");
            }
            let mut last = 0.0;
            for value in &worth.worth {
                prop_assert!(*value >= last - 1e-9);
                last = *value;
            }
        }
    }
}

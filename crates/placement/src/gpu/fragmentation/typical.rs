//! The kinds of pods that were requested recently.

use std::collections::HashMap;

use super::PodShape;

/// The most kinds that are kept. The production trace of 8,152 pods in `lab/openb` has 84 kinds with GPUs.
const MAX_KINDS: usize = 256;
/// After this number of requests, a request counts half.
const HALF_LIFE: f64 = 8_192.0;

/// How often each kind of pod with GPUs is requested, where recent requests count more. Holds at most 256 kinds: a new
/// one takes the place of the rarest.
///
/// # Examples
///
/// ```
/// use placement::gpu::Patterns;
/// use placement::gpu::fragmentation::{GpuPart, PodShape, TypicalPods};
/// use placement::units::Units;
///
/// let mut typical = TypicalPods::default();
/// let half = PodShape { cpu: 4000, gpus: 1, part: GpuPart::Units(Units(8)), models: Patterns::default() };
/// typical.observe(&half);
/// typical.observe(&PodShape { part: GpuPart::Whole, ..half.clone() });
/// typical.observe(&half);
/// let share = typical.shares().into_iter().find(|(shape, _)| **shape == half).map(|(_, share)| share);
/// assert!(share.is_some_and(|share| (share - 2.0 / 3.0).abs() < 1e-3));
/// ```
#[derive(Debug, Clone)]
pub struct TypicalPods {
    weights: HashMap<PodShape, f64>,
    /// The weight of the next request. It grows, and the weights of earlier requests stay as they are.
    next: f64,
    seen: u64,
}

impl Default for TypicalPods {
    fn default() -> Self {
        Self { weights: HashMap::new(), next: 1.0, seen: 0 }
    }
}

impl TypicalPods {
    /// Counts one request. The caller counts each pod once, however often it is tried.
    pub fn observe(&mut self, shape: &PodShape) {
        self.seen += 1;
        match self.weights.get_mut(shape) {
            Some(weight) => *weight += self.next,
            None => {
                self.make_room();
                self.weights.insert(shape.clone(), self.next);
            }
        }
        self.next *= 2.0_f64.powf(1.0 / HALF_LIFE);
        if self.next > 1e9 {
            self.weights.values_mut().for_each(|weight| *weight /= 1e9);
            self.next /= 1e9;
        }
    }

    /// Requests counted so far.
    pub fn seen(&self) -> u64 {
        self.seen
    }

    /// Each kind with its share of the requests, the most frequent first; equal ones in the order of [`PodShape`].
    pub fn shares(&self) -> Vec<(&PodShape, f64)> {
        let all: f64 = self.weights.values().sum();
        let mut shares: Vec<(&PodShape, f64)> =
            self.weights.iter().map(|(shape, weight)| (shape, weight / all)).collect();
        shares.sort_by(|(a, more), (b, less)| less.total_cmp(more).then_with(|| a.cmp(b)));
        shares
    }

    fn make_room(&mut self) {
        if self.weights.len() < MAX_KINDS {
            return;
        }
        let rarest = self
            .weights
            .iter()
            .min_by(|(a, less), (b, more)| less.total_cmp(more).then_with(|| a.cmp(b)));
        if let Some(rarest) = rarest.map(|(shape, _)| shape.clone()) {
            self.weights.remove(&rarest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::Patterns;
    use crate::gpu::fragmentation::GpuPart;
    use crate::units::Units;

    fn shape(units: u32) -> PodShape {
        PodShape {
            cpu: 0,
            gpus: 1,
            part: GpuPart::Units(Units(units)),
            models: Patterns::default(),
        }
    }

    #[test]
    fn a_flood_of_kinds_never_takes_more_room_and_leaves_the_frequent_ones() {
        let mut typical = TypicalPods::default();
        (0..100).for_each(|_| typical.observe(&shape(7)));
        (1000..9000).for_each(|units| typical.observe(&shape(units)));
        let shares = typical.shares();
        assert_eq!((shares.len(), shares[0].0), (MAX_KINDS, &shape(7)));
    }

    #[test]
    fn what_was_requested_long_ago_fades() {
        let mut typical = TypicalPods::default();
        (0..1000).for_each(|_| typical.observe(&shape(1)));
        (0..500_000).for_each(|_| typical.observe(&shape(2)));
        let shares = typical.shares();
        assert_eq!(shares[0].0, &shape(2));
        assert!(shares[1].1 < 1e-9 && shares.iter().all(|(_, share)| share.is_finite()));
    }
}

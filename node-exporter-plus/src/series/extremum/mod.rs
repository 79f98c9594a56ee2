//! Maxima and minima of windows: of the samples, or of means at full minutes.

mod sliding;

use std::ops::RangeInclusive;
use std::time::Duration;

use super::aggregate::{Aggregate, FIVE_MINUTES, Function};
use super::interval::{Interval, Slot};
use super::mean::Mean;
use super::ring::Ring;

pub(super) use sliding::{BLOCK, Extremum, Sliding};

/// Half of this time after the boot the first mean counts in a maximum; half of its own window, if that is shorter.
const SETTLING: Duration = FIVE_MINUTES.duration();

/// Which extremum is taken, and of which values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ExtremumKind {
    pub(super) extremum: Extremum,
    /// The length in slots of the means that it is taken of; `None` where it is taken of the samples.
    mean: Option<u32>,
}

impl ExtremumKind {
    /// The kind that an aggregate needs; `None` for those that are no extremum.
    pub(super) fn of(aggregate: Aggregate, interval: Interval) -> Option<Self> {
        match aggregate.function {
            Function::Max => Some(Self { extremum: Extremum::Max, mean: None }),
            Function::Min => Some(Self { extremum: Extremum::Min, mean: None }),
            Function::MaxOfMeans(inner) => {
                let mean = Some(interval.slots(inner.duration()));
                Some(Self { extremum: Extremum::Max, mean })
            }
            Function::Newest | Function::Mean | Function::Deviation | Function::Quantile(_) => None,
        }
    }

    /// The length in slots of the means that it is taken of. A sample is a mean of one slot.
    pub(super) fn mean_slots(self) -> u32 {
        self.mean.unwrap_or(1)
    }

    /// The value that counts at `slot`: every sample, or the mean at each full minute.
    pub(super) fn candidate(
        self,
        sample: Option<f32>,
        mean: Option<&Mean>,
        slot: Slot,
        interval: Interval,
    ) -> Option<f64> {
        if self.mean.is_none() {
            return sample.map(f64::from);
        }
        mean.filter(|mean| interval.starts_minute(slot) && counts(mean, slot, interval))?.value()
    }

    /// The values that counted in a run of slots, computed again from the samples: one mean is summed up, and moved
    /// from slot to slot.
    pub(super) fn candidates(
        self,
        ring: &Ring,
        interval: Interval,
        slots: RangeInclusive<Slot>,
    ) -> impl Iterator<Item = f64> {
        let first = *slots.start();
        let mut mean = Mean::at(ring, first, self.mean_slots());
        slots.filter_map(move |slot| {
            let sample = ring.get(slot);
            if slot > first {
                mean.advance(ring, slot, sample);
            }
            self.candidate(sample, Some(&mean), slot, interval)
        })
    }
}

/// Whether the mean at `slot` counts in a maximum: enough time has passed since the boot, and enough of it was sampled.
fn counts(mean: &Mean, slot: Slot, interval: Interval) -> bool {
    let since_boot = interval.start(slot).0;
    let window = interval.start(mean.window()).0;
    // Slots are counted from the boot, so `slot` of them have passed.
    2 * since_boot >= window.min(SETTLING) && 2 * mean.count() >= mean.window().min(slot)
}

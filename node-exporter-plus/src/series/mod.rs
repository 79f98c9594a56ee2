//! A day of one signal in bounded memory, and the aggregates of its windows. Pure: time is a parameter.
//!
//! Time is cut into slots of one sample interval, counted from the boot. A slot holds one sample or none: a missed
//! sample is a gap and stays one. Every window ends at the newest slot, full or not, and is a whole number of slots. In
//! PromQL, with the left edge of a range left out as Prometheus 3 does,
//!
//! - a *mean*, *maximum* or *minimum* is `avg_over_time`, `max_over_time`, `min_over_time` of the window;
//! - a *deviation* is `stddev_over_time`: that of the whole population, not of a sample of it;
//! - a *quantile* is `quantile_over_time`;
//! - a *maximum of means* is `max_over_time(avg_over_time(x[5m])[1h:1m])`: the highest of the means at each full minute
//!   since the boot. A mean counts once samples fill half of its own window, or half of the time since the boot where
//!   that is shorter, so that a node has a maximum three minutes after its boot. No mean counts before half of five
//!   minutes have passed since the boot (half of its window, if that is shorter): the first busy seconds of a node are
//!   not the worst five minutes of its day.
//!
//! Recording a sample costs O(1), amortised, whatever the windows; reading a value costs at most O(log n). Exceptions:
//! a maximum of means looks at the samples of its inner window again, once for every block of 256 that is recorded and
//! twice for every read; a deviation looks at every sample of its window for every read; quantiles are selected once a
//! sample, if they are read.
//!
//! # Examples
//! ```
//! use std::time::Duration;
//! use node_exporter_plus::series::{Aggregate, Interval, Moment, Series};
//!
//! let interval: Interval = "10s".parse()?;
//! let mean: Aggregate = "avg_5m".parse()?;
//! let mut series = Series::new(interval, &[mean]);
//! for second in (3_600..3_900).step_by(10) {
//!     series.record(Moment(Duration::from_secs(second)), if second < 3_750 { 20.0 } else { 40.0 });
//! }
//! let now = Moment(Duration::from_secs(3_890));
//! let value = series.read(mean, now).unwrap();
//! assert_eq!((value.value, value.coverage), (30.0, 1.0));
//!
//! // Three sample intervals later there is no value any more.
//! assert_eq!(series.read(mean, Moment(Duration::from_secs(3_921))), None);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod aggregate;
mod deviation;
mod extremum;
mod interval;
mod layout;
mod mean;
mod quantiles;
mod ring;
mod signal;
#[cfg(test)]
mod tests;
mod value;
mod window;

pub use aggregate::{ACTIVE, Aggregate, AggregateError, CRANE, FIVE_MINUTES, Function, VARIATION};
pub use interval::{Clock, Interval, IntervalError, Moment, Now};
pub use signal::{Kind, Signal};
pub use value::{AggregateValue, Reading};
pub use window::{Window, WindowError};

pub(crate) use interval::Slot;

use deviation::deviation;
use extremum::{BLOCK, ExtremumKind, Sliding};
use interval::first_of;
use layout::Layout;
use mean::Mean;
use quantiles::Quantiles;
use ring::Ring;

/// The samples of one signal, and what a set of aggregates needs to be known of them.
#[derive(Debug)]
pub struct Series {
    interval: Interval,
    ring: Ring,
    /// One for each window that an aggregate names, as its own or as the inner one of a maximum of means.
    means: Vec<Mean>,
    /// One of each kind serves every window.
    extrema: Vec<(ExtremumKind, Sliding)>,
    quantiles: Quantiles,
    /// The newest slot, at which every window ends; it may be a gap.
    end: Option<Slot>,
    /// The time of the newest sample.
    newest: Option<Moment>,
}

impl Series {
    /// An empty series, as long as the longest window of `aggregates`.
    #[must_use]
    pub fn new(interval: Interval, aggregates: &[Aggregate]) -> Self {
        let Layout { means, longest, capacity, extrema } = Layout::of(interval, aggregates);
        Self {
            interval,
            ring: Ring::new(capacity),
            means: means.into_iter().map(Mean::new).collect(),
            extrema: extrema
                .into_iter()
                .map(|kind| (kind, Sliding::new(kind.extremum, longest, BLOCK)))
                .collect(),
            quantiles: Quantiles::new(interval, aggregates),
            end: None,
            newest: None,
        }
    }

    /// The bytes that a series for these aggregates takes at most: its samples, and what is kept of their windows.
    #[must_use]
    pub fn bytes(interval: Interval, aggregates: &[Aggregate]) -> usize {
        size_of::<Self>() + Layout::of(interval, aggregates).bytes(aggregates)
    }

    /// How many slots a series for these aggregates has.
    pub(crate) fn slots(interval: Interval, aggregates: &[Aggregate]) -> usize {
        Layout::of(interval, aggregates).capacity as usize
    }

    /// The bytes of the samples alone, which are what a file keeps.
    #[must_use]
    pub fn sample_bytes(interval: Interval, aggregates: &[Aggregate]) -> usize {
        Self::slots(interval, aggregates) * size_of::<f32>()
    }

    /// Records a sample. One that is not finite, or whose slot is past, changes nothing.
    pub fn record(&mut self, at: Moment, value: f64) {
        let slot = self.interval.slot(at);
        let value = value as f32;
        if !value.is_finite() || self.end.is_some_and(|end| slot <= end) {
            return;
        }
        self.skip_to(slot);
        self.step(slot, Some(value));
        self.newest = Some(at);
    }

    /// Moves every window's end to `at`: slots without a sample by then are gaps.
    pub fn advance(&mut self, at: Moment) {
        let slot = self.interval.slot(at);
        if self.end.is_some_and(|end| end < slot) {
            self.skip_to(slot);
            self.step(slot, None);
        }
    }

    /// Whether nothing is known at `now`: there is no sample, or the newest one is stale.
    #[must_use]
    pub fn is_stale(&self, now: Moment) -> bool {
        self.newest.is_none_or(|newest| self.interval.is_stale(newest, now))
    }

    /// The value of one of the aggregates that the series was made for. `None` without samples, and once the newest one
    /// is stale.
    #[must_use]
    pub fn read(&self, aggregate: Aggregate, now: Moment) -> Option<AggregateValue> {
        let time = self.newest?;
        let end = self.end?;
        if self.is_stale(now) {
            return None;
        }
        let (value, coverage) = self.aggregate(aggregate, end)?;
        Some(AggregateValue { value, coverage, time })
    }

    /// Selects the quantiles of the windows that end now, unless that was done. Without it they read `None`. `scratch`
    /// is reused memory for the samples of a window.
    pub fn select_quantiles(&mut self, scratch: &mut Vec<f32>) {
        if let Some(end) = self.end {
            self.quantiles.select(&self.ring, end, scratch);
        }
    }

    /// Value and coverage.
    fn aggregate(&self, aggregate: Aggregate, end: Slot) -> Option<(f64, f32)> {
        if aggregate.function == Function::Newest {
            let newest = self.interval.slot(self.newest?);
            return Some((self.ring.get(newest)?.into(), 1.0));
        }
        let window = self.interval.slots(aggregate.window.duration());
        let mean = mean(&self.means, window)?;
        let value = match aggregate.function {
            Function::Mean => mean.value(),
            Function::Deviation => deviation(self.ring.run(first_of(end, window)..=end)),
            Function::Quantile(percent) => self.quantiles.get(window, percent, end),
            _ => self.extremum(aggregate, end, window),
        };
        Some((value?, mean.coverage()))
    }

    fn extremum(&self, aggregate: Aggregate, end: Slot, window: u32) -> Option<f64> {
        let kind = ExtremumKind::of(aggregate, self.interval)?;
        let (_, sliding) = self.extrema.iter().find(|(known, _)| *known == kind)?;
        sliding.find(end, window, |slots| kind.candidates(&self.ring, self.interval, slots))
    }

    /// Fills the slots between the newest one and `slot` with gaps.
    fn skip_to(&mut self, slot: Slot) {
        let Some(end) = self.end else { return };
        if slot - end > self.ring.capacity() {
            return self.clear();
        }
        for gap in end + 1..slot {
            self.step(gap, None);
        }
    }

    /// Moves every window's end to the next slot, which holds `value`.
    fn step(&mut self, slot: Slot, value: Option<f32>) {
        for mean in &mut self.means {
            mean.advance(&self.ring, slot, value);
        }
        self.ring.put(slot, value);
        self.end = Some(slot);
        for mean in &mut self.means {
            mean.refresh(&self.ring, slot);
        }
        for (kind, sliding) in &mut self.extrema {
            sliding.expire(slot);
            let mean = mean(&self.means, kind.mean_slots());
            if let Some(value) = kind.candidate(value, mean, slot, self.interval) {
                let value_at =
                    |slot| kind.candidates(&self.ring, self.interval, slot..=slot).next();
                sliding.push(slot, value, value_at);
            }
        }
    }

    fn clear(&mut self) {
        self.ring.clear();
        self.means.iter_mut().for_each(Mean::clear);
        self.extrema.iter_mut().for_each(|(_, sliding)| sliding.clear());
        self.end = None;
        self.newest = None;
    }

    /// The newest slot, and the samples up to it, oldest first; gaps are NaN.
    pub(crate) fn samples(&self) -> Option<(Slot, impl Iterator<Item = f32>)> {
        let end = self.end?;
        let first = first_of(end, self.ring.capacity());
        Some((end, (first..=end).map(|slot| self.ring.get(slot).unwrap_or(f32::NAN))))
    }

    /// The time of the newest sample.
    #[must_use]
    pub fn newest(&self) -> Option<Moment> {
        self.newest
    }
}

fn mean(means: &[Mean], window: u32) -> Option<&Mean> {
    means.iter().find(|mean| mean.window() == window)
}

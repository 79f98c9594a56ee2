//! A day of one signal in fixed memory, and true windows over it. Pure: time is a parameter.
//!
//! Time is cut into slots of one sample interval, counted from the boot. A slot holds one sample or none: a
//! missed sample is a gap and stays one. Every window ends at the newest slot, full or not, and is a whole number
//! of slots. What each aggregate is in PromQL, with the left edge of a range left out as Prometheus 3 does:
//!
//! - a *mean*, *maximum* or *minimum* is `avg_over_time`, `max_over_time`, `min_over_time` of the window;
//! - a *quantile* is `quantile_over_time`;
//! - a *maximum of means* is `max_over_time(avg_over_time(x[5m])[1h:1m])`: the highest of the means at each full
//!   minute since the boot. A mean counts once samples fill half of its own window, or half of the time since the boot
//!   where that is shorter, so that a node has a maximum three minutes after its boot. No mean counts before half of
//!   five minutes have passed since the boot (half of its window, if that is shorter): the first busy seconds of a
//!   node are not the worst five minutes of its day.
//!
//! Recording a sample costs O(1), amortised, whatever the windows; reading a value costs at most O(log n). But a
//! maximum of means looks at the samples of its inner window again, once for every block of 256 that is recorded and
//! twice for every time that it is read; and quantiles are selected once a sample, if somebody asks.

mod extremes;
mod interval;
mod mean;
mod quantile;
mod quantiles;
mod reading;
mod ring;
mod rule;
mod signal;
mod span;
#[cfg(test)]
mod tests;

pub use interval::{Clock, Interval, IntervalError, Moment, Now};
pub use reading::Reading;
pub use rule::{ACTIVE, Aggregate, CRANE, FIVE_MINUTES, Rule, RuleError};
pub use signal::{Kind, Signal};
pub use span::{Span, SpanError};

pub(crate) use interval::Slot;

use std::ops::RangeInclusive;
use std::time::Duration;

use extremes::{End, Extremes};
use interval::first_of;
use mean::Mean;
use quantiles::Quantiles;
use ring::Ring;

/// The means of a node that boots count in maxima from half of this time on, or of their own window if that is shorter.
const YOUNG: Duration = FIVE_MINUTES.duration();
/// How many slots share one step of an extreme's staircase: 35 steps for a day at 10 s, where a step for each sample
/// were 34 KiB of them on a steady slope. So many slots, at most, are looked at when a window's beginning cuts them,
/// which takes a microsecond.
const BLOCK: u32 = 256;

/// The samples of one signal, and the windows that a set of rules asks for.
#[derive(Debug)]
pub struct Series {
    interval: Interval,
    ring: Ring,
    /// One for each window that some rule names, as its own or as the inner one of a maximum.
    means: Vec<Mean>,
    /// One for each kind of extreme; each serves every window.
    extremes: Vec<(Extreme, Extremes)>,
    quantiles: Quantiles,
    /// Where every window ends.
    end: Option<Slot>,
    newest: Option<Moment>,
}

/// Of what an extreme is taken: of the samples themselves, or of their means over so many slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Extreme {
    end: End,
    inner: Option<u32>,
}

/// The answer to a rule.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Answer {
    /// The value, in the signal's unit.
    pub value: f64,
    /// How much of the window holds samples, from 0 to 1.
    pub coverage: f32,
    /// The newest sample in it.
    pub time: Moment,
}

impl Series {
    /// An empty series, as long as the longest window of `rules`.
    #[must_use]
    pub fn new(interval: Interval, rules: &[Rule]) -> Self {
        let Shape { windows, span, capacity, kinds } = Shape::of(interval, rules);
        let staircase = |kind: Extreme| (kind, Extremes::new(kind.end, span, BLOCK));
        Self {
            interval,
            ring: Ring::new(capacity),
            means: windows.into_iter().map(Mean::new).collect(),
            extremes: kinds.into_iter().map(staircase).collect(),
            quantiles: Quantiles::new(interval, rules),
            end: None,
            newest: None,
        }
    }

    /// The bytes that a series of these rules takes at most, its samples and all that is kept of their windows.
    #[must_use]
    pub fn bytes(interval: Interval, rules: &[Rule]) -> usize {
        let Shape { windows, span, capacity, kinds } = Shape::of(interval, rules);
        let steps = Extremes::most(span, BLOCK) * size_of::<Slot>();
        size_of::<Self>()
            + Ring::bytes(capacity)
            + windows.len() * size_of::<Mean>()
            + kinds.len() * (size_of::<(Extreme, Extremes)>() + steps)
            + Quantiles::bytes(rules)
    }

    /// How many slots a series of these rules has.
    pub(crate) fn slots(interval: Interval, rules: &[Rule]) -> usize {
        Shape::of(interval, rules).capacity as usize
    }

    /// The bytes of these rules' samples alone, which are what a file keeps.
    #[must_use]
    pub fn sample_bytes(interval: Interval, rules: &[Rule]) -> usize {
        Self::slots(interval, rules) * size_of::<f32>()
    }

    /// Records a sample. One that is not finite, or whose slot is past, changes nothing.
    pub fn record(&mut self, at: Moment, value: f64) {
        let (slot, value) = (self.interval.slot(at), value as f32);
        if !value.is_finite() || self.end.is_some_and(|end| slot <= end) {
            return;
        }
        self.skip_to(slot);
        self.step(slot, Some(value));
        self.newest = Some(at);
    }

    /// Lets every window end at `at`: what was not recorded by now is a gap.
    pub fn advance(&mut self, at: Moment) {
        let slot = self.interval.slot(at);
        if self.end.is_some_and(|end| end < slot) {
            self.skip_to(slot);
            self.step(slot, None);
        }
    }

    /// Whether nothing will be said at `now`.
    #[must_use]
    pub fn is_stale(&self, now: Moment) -> bool {
        self.newest.is_none_or(|newest| self.interval.is_stale(newest, now))
    }

    /// The answer to one of the rules that the series was made for. None without samples, and once the newest
    /// one is stale.
    #[must_use]
    pub fn read(&self, rule: Rule, now: Moment) -> Option<Answer> {
        let (time, end) = (self.newest?, self.end?);
        if self.is_stale(now) {
            return None;
        }
        let (value, coverage) = self.aggregate(rule, end)?;
        Some(Answer { value, coverage, time })
    }

    /// Selects the quantiles of the newest slot, if that has not been done; `scratch` is room for the samples.
    pub fn select_quantiles(&mut self, scratch: &mut Vec<f32>) {
        if let Some(end) = self.end {
            self.quantiles.select(&self.ring, end, scratch);
        }
    }

    fn aggregate(&self, rule: Rule, end: Slot) -> Option<(f64, f32)> {
        if rule.aggregate == Aggregate::Last {
            let newest = self.interval.slot(self.newest?);
            return Some((self.ring.get(newest)?.into(), 1.0));
        }
        let window = self.interval.slots(rule.window.duration());
        let mean = mean(&self.means, window)?;
        let value = match rule.aggregate {
            Aggregate::Mean => mean.value(),
            Aggregate::Quantile(percent) => self.quantiles.get(window, percent, end),
            _ => self.extreme(rule, end, window),
        };
        Some((value?, mean.coverage()))
    }

    fn extreme(&self, rule: Rule, end: Slot, window: u32) -> Option<f64> {
        let kind = Extreme::of(rule, self.interval)?;
        let (_, extremes) = self.extremes.iter().find(|(known, _)| *known == kind)?;
        extremes.find(end, window, |slots| kind.values(&self.ring, self.interval, slots))
    }

    /// Fills the slots since the newest one with gaps.
    fn skip_to(&mut self, slot: Slot) {
        let Some(end) = self.end else { return };
        if slot - end > self.ring.capacity() {
            return self.clear();
        }
        for gap in end + 1..slot {
            self.step(gap, None);
        }
    }

    /// Moves every window's end to the next slot.
    fn step(&mut self, slot: Slot, value: Option<f32>) {
        for mean in &mut self.means {
            mean.advance(&self.ring, slot, value);
        }
        self.ring.put(slot, value);
        self.end = Some(slot);
        for mean in &mut self.means {
            mean.refresh(&self.ring, slot);
        }
        for (kind, extremes) in &mut self.extremes {
            extremes.expire(slot);
            let mean = mean(&self.means, kind.slots());
            if let Some(value) = kind.enters(value, mean, slot, self.interval) {
                let value_at = |slot| kind.values(&self.ring, self.interval, slot..=slot).next();
                extremes.put(slot, value, value_at);
            }
        }
    }

    fn clear(&mut self) {
        self.ring.clear();
        self.means.iter_mut().for_each(Mean::clear);
        self.extremes.iter_mut().for_each(|(_, extremes)| extremes.clear());
        self.end = None;
        self.newest = None;
    }

    /// The slot of the newest window end, and the samples up to it, the oldest first; gaps are NaN.
    pub(crate) fn samples(&self) -> Option<(Slot, impl Iterator<Item = f32>)> {
        let end = self.end?;
        let first = first_of(end, self.ring.capacity());
        Some((end, (first..=end).map(|slot| self.ring.get(slot).unwrap_or(f32::NAN))))
    }

    /// The newest sample's time.
    #[must_use]
    pub fn newest(&self) -> Option<Moment> {
        self.newest
    }
}

/// How long a series is, and what is kept beside its samples.
struct Shape {
    /// Of which there are means: sorted, each once.
    windows: Vec<u32>,
    span: u32,
    capacity: u32,
    kinds: Vec<Extreme>,
}

impl Shape {
    fn of(interval: Interval, rules: &[Rule]) -> Self {
        let slots = |span: Span| interval.slots(span.duration());
        let inner = || rules.iter().filter_map(Rule::inner_window).map(slots);
        let windows = distinct(rules.iter().map(|rule| slots(rule.window)).chain(inner()));
        let span = windows.last().copied().unwrap_or(1);
        // The means of the whole span are asked for again: the oldest looks back further by its own window.
        let capacity =
            span.saturating_add(inner().max().unwrap_or(0)).max(Interval::STALE_AFTER + 1);
        let mut kinds: Vec<Extreme> = Vec::new();
        for kind in rules.iter().filter_map(|rule| Extreme::of(*rule, interval)) {
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        Self { windows, span, capacity, kinds }
    }
}

impl Extreme {
    fn of(rule: Rule, interval: Interval) -> Option<Self> {
        match rule.aggregate {
            Aggregate::Max => Some(Self { end: End::Highest, inner: None }),
            Aggregate::Min => Some(Self { end: End::Lowest, inner: None }),
            Aggregate::MaxOfMeans(inner) => {
                let inner = Some(interval.slots(inner.duration()));
                Some(Self { end: End::Highest, inner })
            }
            Aggregate::Last | Aggregate::Mean | Aggregate::Quantile(_) => None,
        }
    }

    /// A sample is its own mean.
    fn slots(self) -> u32 {
        self.inner.unwrap_or(1)
    }

    /// The value that takes part: every sample, or the mean at a full minute.
    fn enters(
        self,
        sample: Option<f32>,
        mean: Option<&Mean>,
        slot: Slot,
        interval: Interval,
    ) -> Option<f64> {
        if self.inner.is_none() {
            return sample.map(f64::from);
        }
        mean.filter(|mean| interval.starts_minute(slot) && counts(mean, slot, interval))?.value()
    }

    /// The values that took part in a run of slots, from the samples: each mean is the one before moved on.
    fn values(
        self,
        ring: &Ring,
        interval: Interval,
        slots: RangeInclusive<Slot>,
    ) -> impl Iterator<Item = f64> {
        let first = *slots.start();
        let mut mean = Mean::at(ring, first, self.slots());
        slots.filter_map(move |slot| {
            let sample = ring.get(slot);
            if slot > first {
                mean.advance(ring, slot, sample);
            }
            self.enters(sample, Some(&mean), slot, interval)
        })
    }
}

/// Whether the mean at `slot` counts in a maximum: enough time has passed since the boot, and enough of it was sampled.
fn counts(mean: &Mean, slot: Slot, interval: Interval) -> bool {
    let since_boot = interval.start(slot).0;
    let window = interval.start(mean.window()).0;
    // Slots are counted from the boot, so `slot` of them have passed.
    2 * since_boot >= window.min(YOUNG) && 2 * mean.count() >= mean.window().min(slot)
}

fn mean(means: &[Mean], window: u32) -> Option<&Mean> {
    means.iter().find(|mean| mean.window() == window)
}

/// Sorted, each once.
fn distinct(windows: impl Iterator<Item = u32>) -> Vec<u32> {
    let mut windows: Vec<u32> = windows.collect();
    windows.sort_unstable();
    windows.dedup();
    windows
}

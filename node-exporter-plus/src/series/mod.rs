//! A day of one signal in fixed memory, and true windows over it. Pure: time is a parameter.
//!
//! Time is cut into slots of one sample interval, counted from the boot. A slot holds one sample or none: a
//! missed sample is a gap and stays one. Every window ends at the newest sample and is a whole number of slots:
//!
//! - a *mean* is that of the samples in the window, gaps left out, like Prometheus's `avg_over_time`;
//! - a *maximum of means* is the highest of the means at each full minute in the window, like
//!   `max_over_time(avg_over_time(x[5m])[1h:1m])`. A mean enters once its own window is half full, so that the
//!   first busy seconds after a start do not count as the worst five minutes of a day.
//!
//! Recording a sample costs O(1), amortised, whatever the windows; reading a value costs at most O(log n).

mod interval;
mod maxima;
mod mean;
mod reading;
mod ring;
#[cfg(test)]
mod tests;

pub use interval::{Clock, Interval, IntervalError, Moment};
pub use reading::{Aggregate, FIVE_MINUTES, RULES, Reading, Rule, Signal, Span};

use interval::Slot;
use maxima::Maxima;
use mean::Mean;
use ring::Ring;

/// A mean enters a maximum once its window is this full.
const ENOUGH: f32 = 0.5;

/// The samples of one signal, and the windows that a set of rules asks for.
#[derive(Debug)]
pub struct Series {
    interval: Interval,
    ring: Ring,
    /// One for each window that some rule names, as its own or as the inner one of a maximum.
    means: Vec<Mean>,
    /// One for each inner window; each serves every outer window.
    maxima: Vec<(u32, Maxima)>,
    newest: Option<Newest>,
}

#[derive(Debug, Clone, Copy)]
struct Newest {
    slot: Slot,
    at: Moment,
}

impl Series {
    /// An empty series, as long as the longest window of `rules`.
    #[must_use]
    pub fn new(interval: Interval, rules: &[Rule]) -> Self {
        let slots = |span: Span| interval.slots(span.duration());
        let inner = distinct(rules.iter().filter_map(Rule::inner_window).map(slots));
        let windows = distinct(rules.iter().map(|rule| slots(rule.window)).chain(inner.clone()));
        let span = windows.last().copied().unwrap_or(1);
        Self {
            interval,
            ring: Ring::new(span),
            means: windows.into_iter().map(Mean::new).collect(),
            maxima: inner.into_iter().map(|window| (window, Maxima::new(span))).collect(),
            newest: None,
        }
    }

    /// Records a sample. One that is not finite, or whose slot has one already, changes nothing.
    pub fn record(&mut self, at: Moment, value: f64) {
        let (slot, value) = (self.interval.slot(at), value as f32);
        if !value.is_finite() || self.newest.is_some_and(|newest| slot <= newest.slot) {
            return;
        }
        self.skip_to(slot);
        self.step(slot, Some(value));
        self.newest = Some(Newest { slot, at });
    }

    /// The answer to one of the rules that the series was made for. None without samples, and once the newest
    /// one is stale.
    #[must_use]
    pub fn read(&self, signal: Signal, rule: Rule, now: Moment) -> Option<Reading> {
        let newest = self.newest.filter(|newest| !self.interval.is_stale(newest.at, now))?;
        let (value, coverage) = self.aggregate(rule, newest.slot)?;
        Some(Reading { signal, rule, value, coverage, time: newest.at })
    }

    fn aggregate(&self, rule: Rule, newest: Slot) -> Option<(f64, f32)> {
        let window = self.interval.slots(rule.window.duration());
        let mean = mean(&self.means, window)?;
        match rule.aggregate {
            Aggregate::Last => Some((self.ring.get(newest)?.into(), 1.0)),
            Aggregate::Mean => Some((mean.value()?, mean.coverage())),
            Aggregate::MaxOfMeans(inner) => {
                let maximum = self.maxima_of(inner)?.max(newest, window)?;
                Some((maximum.into(), mean.coverage()))
            }
        }
    }

    fn maxima_of(&self, inner: Span) -> Option<&Maxima> {
        let inner = self.interval.slots(inner.duration());
        let found = self.maxima.iter().find(|(window, _)| *window == inner);
        found.map(|(_, maxima)| maxima)
    }

    /// Fills the slots since the newest sample with gaps.
    fn skip_to(&mut self, slot: Slot) {
        let Some(newest) = self.newest else { return };
        if slot - newest.slot > self.ring.capacity() {
            return self.clear();
        }
        for gap in newest.slot + 1..slot {
            self.step(gap, None);
        }
    }

    /// Moves every window's end to the next slot.
    fn step(&mut self, slot: Slot, value: Option<f32>) {
        for mean in &mut self.means {
            mean.advance(&self.ring, slot, value);
        }
        self.ring.put(slot, value);
        for mean in &mut self.means {
            mean.refresh(&self.ring, slot);
        }
        let full_minute = self.interval.starts_minute(slot);
        for (window, maxima) in &mut self.maxima {
            maxima.expire(slot);
            let mean =
                mean(&self.means, *window).filter(|mean| full_minute && mean.coverage() >= ENOUGH);
            if let Some(value) = mean.and_then(Mean::value) {
                maxima.put(slot, value as f32);
            }
        }
    }

    fn clear(&mut self) {
        self.ring.clear();
        self.means.iter_mut().for_each(Mean::clear);
        self.maxima.iter_mut().for_each(|(_, maxima)| maxima.clear());
    }
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

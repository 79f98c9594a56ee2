//! One signal with its series.

use crate::series::{ACTIVE, Aggregate, Interval, Moment, Reading, Series, Signal};

/// The bytes of one value on the four pages that are kept for scrapes.
const ON_PAGES: usize = 1 << 10;
/// The number of rounds without a sample after which a device counts as gone.
pub(super) const GONE_AFTER: u64 = 3;

/// A signal, its series, and the aggregates that are read from it.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) signal: Signal,
    pub(crate) series: Series,
    aggregates: Box<[Aggregate]>,
    /// Its part of the budget, in bytes.
    pub(super) bytes: usize,
    /// The last round with a sample of it.
    pub(super) last_seen: u64,
    /// Whether it keeps only its newest sample, for lack of memory.
    pub(super) reduced: bool,
}

impl Entry {
    /// An empty entry for these aggregates.
    pub(super) fn new(
        signal: &Signal,
        aggregates: Vec<Aggregate>,
        interval: Interval,
        last_seen: u64,
    ) -> Self {
        Self {
            signal: signal.clone(),
            series: Series::new(interval, &aggregates),
            bytes: bytes(signal, &aggregates, interval),
            aggregates: aggregates.into(),
            last_seen,
            reduced: false,
        }
    }

    /// An entry that keeps only its newest sample.
    pub(super) fn reduced(signal: &Signal, interval: Interval, last_seen: u64) -> Self {
        Self { reduced: true, ..Self::new(signal, vec![ACTIVE], interval, last_seen) }
    }

    /// Whether it keeps only its newest sample, for lack of memory or by the configuration.
    pub(super) fn is_newest_only(&self) -> bool {
        *self.aggregates == [ACTIVE]
    }

    pub(super) fn is_gone(&self, round: u64) -> bool {
        round.saturating_sub(self.last_seen) > GONE_AFTER
    }

    /// Copies the newest sample of another entry of the signal.
    pub(super) fn copy_newest(&mut self, other: &Self) {
        let newest = other.series.newest().zip(other.newest_value());
        newest.into_iter().for_each(|(at, value)| self.series.record(at, value));
    }

    fn newest_value(&self) -> Option<f64> {
        Some(self.series.read(ACTIVE, self.series.newest()?)?.value)
    }

    /// The aggregates that are known at `now`.
    pub(super) fn readings(&self, now: Moment) -> impl Iterator<Item = Reading> {
        self.aggregates.iter().filter_map(move |aggregate| {
            let read = self.series.read(*aggregate, now)?;
            Some(Reading {
                signal: self.signal.clone(),
                aggregate: *aggregate,
                value: read.value,
                coverage: read.coverage,
                time: read.time,
            })
        })
    }

    /// The bytes of its samples, in memory and in both files.
    #[cfg(test)]
    pub(super) fn sample_bytes(&self, interval: Interval) -> usize {
        let samples = Series::sample_bytes(interval, &self.aggregates);
        Series::bytes(interval, &self.aggregates) + 2 * samples
    }
}

/// What a signal takes of the budget: here, in the file of samples and its replacement, and on the pages for scrapes.
/// Signals with their newest sample alone are budgeted together.
fn bytes(signal: &Signal, aggregates: &[Aggregate], interval: Interval) -> usize {
    if *aggregates == [ACTIVE] {
        return 0;
    }
    // The signal's name and device, which are kept twice: by the collector and here, or here and in the file.
    let names = 2 * (signal.name().len() + signal.device().map_or(0, str::len));
    let here = Series::bytes(interval, aggregates) + size_of::<Entry>() + names;
    let file = Series::sample_bytes(interval, aggregates) + names;
    here + 2 * file + aggregates.len() * (size_of::<Aggregate>() + ON_PAGES)
}

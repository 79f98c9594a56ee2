//! The series of all signals, shared by the sampler that writes them and the HTTP server that reads them.
//!
//! Invariant: memory is bounded by [`MAX_SIGNALS`] and the configuration's memory limit, whatever devices the node has
//! and whatever the configuration asks for. [`entries`] has the rules.

mod entries;
mod entry;
mod shortage;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::config::Config;
use crate::series::{ACTIVE, Interval, Moment, Reading, Series, Signal};

use entries::Entries;
pub(crate) use entries::MAX_SIGNALS;
pub(crate) use entry::Entry;
use shortage::Shortage;

/// A signal without a sample for so long is forgotten: no window reaches back further.
const FORGET: Duration = Duration::from_secs(86_400);
/// By this round every collector has found the devices that there are.
const ALL_SEEN: u64 = 6;

/// The series of every signal, in the order of their names.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use node_exporter_plus::Store;
/// use node_exporter_plus::collectors::disk;
/// use node_exporter_plus::config::Config;
/// use node_exporter_plus::series::{Interval, Moment, Signal};
///
/// let interval: Interval = "10s".parse()?;
/// let config = Config::parse("metrics: [{name: disk_sda_usage_avg_5m}]", interval)?;
/// let mut store = Store::new(interval, config);
/// let sda = Signal::of_device(&disk::DEVICE_USAGE, "sda");
/// for (seconds, value) in [(3_600, 10.0), (3_610, 20.0)] {
///     let now = Moment(Duration::from_secs(seconds));
///     store.record(&sda, now, value);
///     store.finish(now);
/// }
/// let readings = store.readings(Moment(Duration::from_secs(3_615)));
/// let values: Vec<_> = readings.map(|reading| (reading.aggregate.to_string(), reading.value)).collect();
/// assert_eq!(values, [("active".to_owned(), 20.0), ("avg_5m".to_owned(), 15.0)]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Store {
    interval: Interval,
    config: Config,
    entries: Entries,
    /// Reused memory for the samples of which quantiles are selected.
    scratch: Vec<f32>,
    shortage: Shortage,
}

impl Store {
    /// An empty store for the aggregates of `config`.
    #[must_use]
    pub fn new(interval: Interval, config: Config) -> Self {
        Self {
            interval,
            entries: Entries::new(interval, &config),
            config,
            scratch: Vec::new(),
            shortage: Shortage::default(),
        }
    }

    /// The time between two samples.
    #[must_use]
    pub fn interval(&self) -> Interval {
        self.interval
    }

    /// How many rounds of samples have been finished. Readings change with each.
    #[must_use]
    pub fn round(&self) -> u64 {
        self.entries.round()
    }

    /// Records a sample of a signal. Without room for another signal, it is dropped.
    pub fn record(&mut self, signal: &Signal, at: Moment, value: f64) {
        match self.entries.get_or_insert(signal, &self.config) {
            Some(entry) => entry.series.record(at, value),
            None => self.shortage.signal_dropped(),
        }
    }

    /// Ends a round of samples: signals without a sample in it have a gap.
    pub fn finish(&mut self, now: Moment) {
        self.entries.retain(|entry| {
            entry.series.newest().is_some_and(|newest| now.since(newest) <= FORGET)
        });
        self.entries.iter_mut().for_each(|entry| entry.series.advance(now));
        self.entries.restore_windows(&self.config);
        self.shortage.log(self.entries.as_slice(), self.config.memory_limit());
        if self.entries.round() == ALL_SEEN {
            self.log_unmatched();
        }
        self.entries.end_round();
    }

    /// Everything that is known at `now`. No two signals have one name.
    pub fn readings(&mut self, now: Moment) -> impl Iterator<Item = Reading> {
        self.entries
            .chunk_by_mut(|one: &Entry, other: &Entry| one.signal.plain() == other.signal.plain())
            .for_each(|entries| name_apart(entries, now));
        for entry in self.entries.iter_mut() {
            entry.series.select_quantiles(&mut self.scratch);
        }
        self.entries.as_slice().iter().flat_map(move |entry| entry.readings(now))
    }

    /// Until when [`Store::readings`] of `now` stay as they are, if no round is finished: until the first value becomes
    /// stale. `None` without values.
    #[must_use]
    pub fn valid_until(&self, now: Moment) -> Option<Moment> {
        let is_known = |entry: &&Entry| !entry.series.is_stale(now);
        let expiry = |entry: &Entry| Some(self.interval.expiry(entry.series.newest()?));
        self.entries.as_slice().iter().filter(is_known).filter_map(expiry).min()
    }

    /// The series that takes a signal's samples from a file, which holds `slots` of them; `None` without room for it. A
    /// signal of which the file holds no more than the newest sample had no windows: it gets some after all those that
    /// had.
    pub(crate) fn series_to_load(&mut self, signal: &Signal, slots: usize) -> Option<&mut Series> {
        let newest_only = slots <= Series::slots(self.interval, &[ACTIVE]);
        let entry = if newest_only
            && slots < Series::slots(self.interval, &self.config.aggregates(signal))
        {
            self.entries.get_or_insert_reduced(signal)
        } else {
            self.entries.get_or_insert(signal, &self.config)
        };
        entry.map(|entry| &mut entry.series)
    }

    pub(crate) fn entries(&self) -> &[Entry] {
        self.entries.as_slice()
    }

    fn log_unmatched(&self) {
        let signals: Vec<&Signal> = self.entries().iter().map(|entry| &entry.signal).collect();
        let names = self.config.unmatched(&signals);
        if !names.is_empty() {
            tracing::info!(?names, "--config.file asks for signals that this node does not have");
        }
    }
}

/// Decides on the names of signals that have one plain name. Those that are stale are not served and take no name.
fn name_apart(entries: &mut [Entry], now: Moment) {
    let shared = entries.iter().filter(|entry| !entry.series.is_stale(now)).count() > 1;
    entries.iter_mut().for_each(|entry| entry.signal.set_shared(shared));
}

/// A store that several tasks hold. No task awaits while it has it locked.
#[derive(Debug, Clone)]
pub struct SharedStore(Arc<Mutex<Store>>);

impl SharedStore {
    /// Shares `store`.
    #[must_use]
    pub fn new(store: Store) -> Self {
        Self(Arc::new(Mutex::new(store)))
    }

    /// Locks the store. A panic while it was locked is ignored: at worst one sample is missing in a window, where an
    /// error would stop all answers.
    pub fn lock(&self) -> MutexGuard<'_, Store> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

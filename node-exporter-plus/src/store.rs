//! All signals' series, shared by the sampler that writes and the server that reads.
//!
//! Invariant: memory is bounded by [`MOST_SIGNALS`] and [`MOST_BYTES`], whatever the node shows and the plan asks.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::plan::Plan;
use crate::series::{ACTIVE, Interval, Moment, Reading, Rule, Series, Signal};

/// How many signals are kept at most; a node with more devices than that shows the first ones.
pub(crate) const MOST_SIGNALS: usize = 1_024;
/// How many bytes of samples are kept at most: 240 signals for a day at 10 s. Signals past that keep their newest
/// sample only.
pub(crate) const MOST_BYTES: usize = 8 << 20;
/// A signal that nobody has seen for so long is gone: no window reaches back further.
const FORGET: Duration = Duration::from_secs(86_400);

/// Every signal seen so far, in the order of their names.
#[derive(Debug)]
pub struct Store {
    interval: Interval,
    plan: Plan,
    entries: Vec<Entry>,
    bytes: usize,
    round: u64,
    scratch: Vec<f32>,
}

/// One signal with its samples and what is asked of them.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) signal: Signal,
    pub(crate) series: Series,
    rules: Box<[Rule]>,
}

impl Store {
    /// An empty store that answers the rules of `plan`.
    #[must_use]
    pub fn new(interval: Interval, plan: Plan) -> Self {
        Self { interval, plan, entries: Vec::new(), bytes: 0, round: 0, scratch: Vec::new() }
    }

    /// The time between two samples.
    #[must_use]
    pub fn interval(&self) -> Interval {
        self.interval
    }

    /// How many rounds of samples have been taken; what was read in one round holds until the next.
    #[must_use]
    pub fn round(&self) -> u64 {
        self.round
    }

    /// Records a sample of a signal.
    pub fn record(&mut self, signal: &Signal, at: Moment, value: f64) {
        if let Some(series) = self.series(signal) {
            series.record(at, value);
        }
    }

    /// Ends a round of samples: what was not recorded by now is a gap.
    pub fn finish(&mut self, now: Moment) {
        let kept =
            |entry: &Entry| entry.series.newest().is_some_and(|newest| now.since(newest) <= FORGET);
        self.entries.retain(kept);
        self.bytes =
            self.entries.iter().map(|entry| Series::bytes(self.interval, &entry.rules)).sum();
        self.entries.iter_mut().for_each(|entry| entry.series.advance(now));
        self.round += 1;
    }

    /// Everything that is known at `now`.
    pub fn readings(&mut self, now: Moment) -> impl Iterator<Item = Reading> {
        for entry in &mut self.entries {
            entry.series.select_quantiles(&mut self.scratch);
        }
        self.entries.iter().flat_map(move |entry| entry.readings(now))
    }

    /// Until when [`Store::readings`] of now are right, if no round comes: a value that grows stale disappears.
    #[must_use]
    pub fn right_until(&self, now: Moment) -> Option<Moment> {
        let known = self.entries.iter().filter(|entry| !entry.series.is_stale(now));
        known.filter_map(|entry| Some(self.interval.expiry(entry.series.newest()?))).min()
    }

    /// The series of a signal, made if there is room for it.
    pub(crate) fn series(&mut self, signal: &Signal) -> Option<&mut Series> {
        let place = self.entries.binary_search_by_key(&signal.name(), |entry| entry.signal.name());
        let place = match place {
            Ok(place) => place,
            Err(_) if self.entries.len() >= MOST_SIGNALS => return None,
            Err(place) => {
                let entry = self.entry(signal);
                self.entries.insert(place, entry);
                place
            }
        };
        Some(&mut self.entries[place].series)
    }

    fn entry(&mut self, signal: &Signal) -> Entry {
        let mut rules = self.plan.rules(signal);
        if self.bytes + Series::bytes(self.interval, &rules) > MOST_BYTES {
            tracing::warn!(
                signal = signal.name(),
                most_bytes = MOST_BYTES,
                "no room for its windows: only its newest sample is kept; ask for fewer rules, or a longer \
                 --sample-interval"
            );
            rules = vec![ACTIVE];
        }
        self.bytes += Series::bytes(self.interval, &rules);
        let series = Series::new(self.interval, &rules);
        Entry { signal: signal.clone(), series, rules: rules.into() }
    }

    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }
}

impl Entry {
    fn readings(&self, now: Moment) -> impl Iterator<Item = Reading> {
        self.rules.iter().filter_map(move |rule| {
            let answer = self.series.read(*rule, now)?;
            Some(Reading {
                signal: self.signal.clone(),
                rule: *rule,
                value: answer.value,
                coverage: answer.coverage,
                time: answer.time,
            })
        })
    }
}

/// A store that several tasks hold. Nothing awaits while it is locked.
#[derive(Debug, Clone)]
pub struct SharedStore(Arc<Mutex<Store>>);

impl SharedStore {
    /// Shares `store`.
    #[must_use]
    pub fn new(store: Store) -> Self {
        Self(Arc::new(Mutex::new(store)))
    }

    /// The store, for as long as the guard lives.
    pub fn lock(&self) -> MutexGuard<'_, Store> {
        // A sample half recorded skews one window; a process that no longer answers is worse.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::series::Kind;

    static DISK: Kind = Kind { name: "disk_device_usage", help: "", label: Some("device") };

    fn at(seconds: u64) -> Moment {
        Moment(Duration::from_secs(seconds))
    }

    fn store(interval: &str, rules: &str) -> Store {
        let interval = interval.parse().unwrap();
        Store::new(interval, Plan::parse(rules, interval).unwrap())
    }

    #[test]
    fn a_node_with_thousands_of_devices_shows_the_first_ones() {
        let mut store = store("10s", "");
        for disk in 0..2 * MOST_SIGNALS {
            store.record(&Signal::of(&DISK, &disk.to_string()), at(10), 1.0);
        }
        assert_eq!(store.readings(at(10)).count(), MOST_SIGNALS);
    }

    #[test]
    fn past_the_room_for_samples_a_signal_keeps_its_newest_only() {
        let mut store = store("1s", "rules: [{signals: ['*'], values: [avg_1d]}]");
        for disk in 0..100 {
            store.record(&Signal::of(&DISK, &disk.to_string()), at(1), 1.0);
        }
        let fit = MOST_BYTES / (86_400 * 4);
        assert_eq!(store.readings(at(1)).count(), 100 + fit);
    }

    #[test]
    fn a_device_unseen_for_a_day_is_forgotten() {
        let mut store = store("10s", "");
        store.record(&Signal::of(&DISK, "sda"), at(10), 1.0);
        store.finish(at(86_410));
        assert_eq!(store.entries().len(), 1);
        store.finish(at(86_420));
        assert_eq!(store.entries().len(), 0);
    }
}

//! All signals' series, shared by the sampler that writes and the server that reads.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::series::{Interval, Moment, RULES, Reading, Rule, Series, Signal};

/// Every signal seen so far, in the order of their names.
#[derive(Debug)]
pub struct Store {
    interval: Interval,
    rules: &'static [Rule],
    series: Vec<(Signal, Series)>,
}

impl Store {
    /// An empty store that answers crane's rules.
    #[must_use]
    pub fn new(interval: Interval) -> Self {
        Self { interval, rules: &RULES, series: Vec::new() }
    }

    /// Records a sample of a signal.
    pub fn record(&mut self, signal: Signal, at: Moment, value: f64) {
        let place = self.series.binary_search_by_key(&signal.name, |(known, _)| known.name);
        let place = place.unwrap_or_else(|place| {
            self.series.insert(place, (signal, Series::new(self.interval, self.rules)));
            place
        });
        self.series[place].1.record(at, value);
    }

    /// Everything that is known at `now`.
    pub fn readings(&self, now: Moment) -> impl Iterator<Item = Reading> {
        let rules = self.rules;
        self.series.iter().flat_map(move |(signal, series)| {
            let read = move |rule: &Rule| series.read(*signal, *rule, now);
            rules.iter().filter_map(read)
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

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

    /// Everything that is known at `now`, no two signals under one name.
    pub fn readings(&mut self, now: Moment) -> impl Iterator<Item = Reading> {
        let namesakes = |one: &Entry, other: &Entry| one.signal.plain() == other.signal.plain();
        self.entries.chunk_by_mut(namesakes).for_each(|entries| tell_apart(entries, now));
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
        let place = match self.place(signal) {
            Ok(place) => place,
            Err(_) => {
                // A card that has got another number has other rules, and one place at a time.
                self.entries.retain(|entry| !entry.signal.is_of_the_same(signal));
                if self.entries.len() >= MOST_SIGNALS {
                    return None;
                }
                let entry = self.entry(signal);
                let place = self.place(signal).unwrap_or_else(|place| place);
                self.entries.insert(place, entry);
                place
            }
        };
        Some(&mut self.entries[place].series)
    }

    fn place(&self, signal: &Signal) -> Result<usize, usize> {
        self.entries.binary_search_by(|entry| entry.signal.cmp(signal))
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

/// Names entries of one plain name. What is not shown keeps it from nobody.
fn tell_apart(namesakes: &mut [Entry], now: Moment) {
    let shared = namesakes.iter().filter(|entry| !entry.series.is_stale(now)).count() > 1;
    namesakes.iter_mut().for_each(|entry| entry.signal.tell_apart(shared));
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

    static MOUNT: Kind = Kind { name: "fs_mountpoint_usage", help: "", label: Some("mountpoint") };

    /// The names under which these are told, with their labels.
    fn told(store: &mut Store, now: Moment) -> Vec<(String, String)> {
        let both = |reading: Reading| {
            let Reading { signal, .. } = reading;
            (signal.name().to_owned(), signal.instance().unwrap_or_default().to_owned())
        };
        store.readings(now).map(both).collect()
    }

    fn pair(name: &str, instance: &str) -> (String, String) {
        (name.to_owned(), instance.to_owned())
    }

    #[test]
    fn mounts_of_one_plain_name_are_told_apart_whoever_came_first() {
        let mounts = ["/", "/root", "/a/b", "/a-b", "/a_b", "/c-d"];
        let expected = [
            pair("fs_a_b_CRC_usage", "/a-b"),
            pair("fs_a_b_usage", "/a/b"),
            pair("fs_a_b_CRC_usage", "/a_b"),
            pair("fs_c_d_usage", "/c-d"),
            pair("fs_root_usage", "/"),
            pair("fs_root_CRC_usage", "/root"),
        ];
        let crc = |(name, mount): (String, String)| {
            let sum = format!("{:08x}", crc32fast::hash(mount.as_bytes()));
            (name.replace("CRC", &sum), mount)
        };
        let expected = expected.map(crc);
        for turn in 0..mounts.len() {
            let mut store = store("10s", "");
            let mut turned = mounts;
            turned.rotate_left(turn);
            for (value, mount) in turned.iter().enumerate() {
                store.record(&Signal::of(&MOUNT, mount), at(10), value as f64);
            }
            assert_eq!(told(&mut store, at(10)), expected);
            let value = |mount: &str| turned.iter().position(|other| *other == mount).unwrap();
            assert!(store.readings(at(10)).all(|reading| {
                reading.value == value(reading.signal.instance().unwrap()) as f64
            }));
        }
    }

    #[test]
    fn a_plain_name_is_free_again_once_the_others_are_gone() {
        let mut store = store("10s", "");
        store.record(&Signal::of(&MOUNT, "/a-b"), at(10), 1.0);
        assert_eq!(told(&mut store, at(10)), [pair("fs_a_b_usage", "/a-b")]);
        store.record(&Signal::of(&MOUNT, "/a_b"), at(20), 2.0);
        let names = told(&mut store, at(20));
        assert!(names.len() == 2 && names.iter().all(|(name, _)| name != "fs_a_b_usage"));
        assert_eq!(told(&mut store, at(41)), [pair("fs_a_b_usage", "/a_b")]);
    }

    #[test]
    fn what_is_asked_of_either_name_is_kept() {
        let apart = format!("fs_a_b_{:08x}_usage", crc32fast::hash(b"/a-b"));
        let mut store = store("10s", &format!("metrics: [{{name: {apart}_avg_5m}}]"));
        store.record(&Signal::of(&MOUNT, "/a-b"), at(10), 1.0);
        store.record(&Signal::of(&MOUNT, "/a_b"), at(10), 2.0);
        let rules = |reading: Reading| format!("{}_{}", reading.signal.name(), reading.rule);
        let told: Vec<String> = store.readings(at(10)).map(rules).collect();
        assert!(told.contains(&format!("{apart}_avg_5m")), "{told:?}");
    }

    #[test]
    fn cards_that_swap_their_numbers_do_not_take_over_each_others_samples() {
        static CARD: Kind = Kind { name: "gpu_card_usage", help: "", label: Some("card") };
        let mut store = store("10s", "rules: [{signals: ['*'], values: [avg_5m]}]");
        let mut told = |seconds, numbers: [&str; 2]| -> Vec<(String, f64)> {
            store.record(&Signal::known_as(&CARD, "GPU-a", numbers[0]), at(seconds), 10.0);
            store.record(&Signal::known_as(&CARD, "GPU-b", numbers[1]), at(seconds), 90.0);
            let both = |reading: Reading| {
                (format!("{}_{}", reading.signal.name(), reading.rule), reading.value)
            };
            store.readings(at(seconds)).map(both).collect()
        };
        let expected = |values: [f64; 2]| {
            let of = |name: &str, value| (name.to_owned(), value);
            let [one, other] = values;
            [
                of("gpu_0_usage_active", one),
                of("gpu_0_usage_avg_5m", one),
                of("gpu_1_usage_active", other),
                of("gpu_1_usage_avg_5m", other),
            ]
        };
        assert_eq!(told(10, ["0", "1"]), expected([10.0, 90.0]));
        assert_eq!(told(20, ["1", "0"]), expected([90.0, 10.0]));
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

//! All signals' series, shared by the sampler that writes and the server that reads.
//!
//! Invariant: memory is bounded by [`MOST_SIGNALS`] and the plan's memory limit, whatever the node shows and the plan
//! asks. A signal's samples are counted three times: here, in the file of `--storage.file`, and in the file that is
//! to replace it. The shipped one lies in memory (/run), and what lies there counts as the container's. Signals past
//! that keep their newest sample only. The first to make room are those of devices that are gone; what is told of the
//! node as a whole, a few dozen signals, goes before what is told of its devices.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::plan::Plan;
use crate::series::{ACTIVE, Interval, Moment, Reading, Rule, Series, Signal, Span};

/// How many signals are kept at most; a node with more devices than that shows the first ones.
pub(crate) const MOST_SIGNALS: usize = 1_024;
/// What the process takes beside its signals' windows: 2.6 MiB without any signal, 0.4 MiB more with TLS in use, and up
/// to 1 MiB for signals of which there is no more than the newest sample.
const PROGRAM: usize = 4 << 20;
/// What a value takes on the pages that are kept for scrapes.
const ON_PAGES: usize = 1 << 10;
/// A signal that nobody has seen for so long is forgotten: no window reaches back further.
const FORGET: Duration = Duration::from_secs(86_400);
/// A device that so many rounds have not seen is gone, and its windows are the first to make room.
const GONE_AFTER: u64 = 3;
/// By this round every collector has seen what there is.
const ALL_SEEN: u64 = 6;

/// Every signal seen so far, in the order of their names.
#[derive(Debug)]
pub struct Store {
    interval: Interval,
    plan: Plan,
    entries: Vec<Entry>,
    /// What the entries take, and what they may take.
    bytes: usize,
    room: usize,
    round: u64,
    /// The round in which every device was found to be there.
    none_gone_in: Option<u64>,
    scratch: Vec<f32>,
    lack: Lack,
}

/// What there was no room for. Each is told once, until there is room again.
#[derive(Debug, Default)]
struct Lack {
    unshown: bool,
    told_of_unshown: bool,
    told_of_cut: bool,
}

/// One signal with its samples and what is asked of them.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) signal: Signal,
    pub(crate) series: Series,
    rules: Box<[Rule]>,
    /// What it takes beyond its newest sample.
    bytes: usize,
    /// The last round that saw it.
    seen: u64,
    /// Whether it has its newest sample only, for want of room.
    cut: bool,
}

impl Store {
    /// An empty store that answers the rules of `plan`.
    #[must_use]
    pub fn new(interval: Interval, plan: Plan) -> Self {
        // One window of a day is copied where quantiles are selected.
        let copy = Series::sample_bytes(interval, &[Rule { window: Span::DAY, ..ACTIVE }]);
        let room = plan.memory_limit().saturating_sub(PROGRAM + copy);
        Self {
            interval,
            plan,
            entries: Vec::new(),
            bytes: 0,
            room,
            round: 0,
            none_gone_in: None,
            scratch: Vec::new(),
            lack: Lack::default(),
        }
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
        if let Some(place) = self.place(signal, |store| store.admit(signal)) {
            let entry = &mut self.entries[place];
            entry.seen = self.round;
            entry.series.record(at, value);
        }
    }

    /// Ends a round of samples: what was not recorded by now is a gap.
    pub fn finish(&mut self, now: Moment) {
        let kept =
            |entry: &Entry| entry.series.newest().is_some_and(|newest| now.since(newest) <= FORGET);
        self.entries.retain(kept);
        self.bytes = self.entries.iter().map(|entry| entry.bytes).sum();
        self.entries.iter_mut().for_each(|entry| entry.series.advance(now));
        while self.restore(Signal::is_of_node) {}
        while self.restore(|signal| !signal.is_of_node()) {}
        self.tell();
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

    /// The series of a signal of which a file holds `slots`, made if there is room for it. One of which it holds no
    /// more than the newest sample had no windows: it gets none before all are there that had some.
    pub(crate) fn loaded(&mut self, signal: &Signal, slots: usize) -> Option<&mut Series> {
        let bare = slots <= Series::slots(self.interval, &[ACTIVE]);
        let asked = |store: &Self| Series::slots(store.interval, &store.plan.rules(signal));
        let place = if bare && slots < asked(self) {
            self.place(signal, |store| Entry::cut(signal, store.interval, store.round))
        } else {
            self.place(signal, |store| store.admit(signal))
        };
        place.map(|place| &mut self.entries[place].series)
    }

    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Where a signal's entry is, made by `make` if there is room for it.
    fn place(&mut self, signal: &Signal, make: impl FnOnce(&mut Self) -> Entry) -> Option<usize> {
        if let Ok(place) = self.find(signal) {
            return Some(place);
        }
        let full = self.entries.len() >= MOST_SIGNALS && !self.evict();
        if full && !signal.is_of_node() {
            self.lack.unshown = true;
            return None;
        }
        // A card that has got another number has other rules, and one place at a time.
        let same = self.entries.iter().position(|entry| entry.signal.is_of_the_same(signal));
        same.into_iter().for_each(|place| self.forget(place));
        let entry = make(self);
        self.bytes += entry.bytes;
        let place = self.find(signal).unwrap_or_else(|place| place);
        self.entries.insert(place, entry);
        Some(place)
    }

    fn find(&self, signal: &Signal) -> Result<usize, usize> {
        self.entries.binary_search_by(|entry| entry.signal.cmp(signal))
    }

    /// An entry with all that is asked of the signal, or with its newest sample where there is no room for more.
    fn admit(&mut self, signal: &Signal) -> Entry {
        let entry = Entry::new(signal, self.plan.rules(signal), self.interval, self.round);
        if entry.is_bare() || self.make_room_for(&entry) {
            return entry;
        }
        Entry::cut(signal, self.interval, self.round)
    }

    /// Whether an entry fits; then what is to go for it is gone.
    fn make_room_for(&mut self, entry: &Entry) -> bool {
        self.make_room(entry.bytes) || entry.signal.is_of_node() && self.cut_devices(entry.bytes)
    }

    /// Whether so many bytes more fit without windows of devices; then the last ones lose theirs.
    fn cut_devices(&mut self, bytes: usize) -> bool {
        let (room, interval) = (self.room, self.interval);
        let of_devices = self.entries.iter_mut().filter(|entry| !entry.signal.is_of_node());
        let mut of_devices: Vec<&mut Entry> = of_devices.collect();
        let most: usize = of_devices.iter().map(|entry| entry.bytes).sum();
        let fits = self.bytes + bytes <= room + most;
        while fits && self.bytes + bytes > room {
            let Some(entry) = of_devices.pop() else { break };
            if entry.is_bare() {
                continue;
            }
            let mut cut = Entry::cut(&entry.signal, interval, entry.seen);
            entry.newest().into_iter().for_each(|(at, value)| cut.series.record(at, value));
            self.bytes -= entry.bytes;
            *entry = cut;
        }
        fits
    }

    /// Gives the first signal that was cut its windows, of those that `may` have them, if there is room by now.
    fn restore(&mut self, may: fn(&Signal) -> bool) -> bool {
        let cut = |entry: &&Entry| entry.cut && !entry.is_gone(self.round) && may(&entry.signal);
        let Some(old) = self.entries.iter().find(cut) else { return false };
        let newest = old.newest();
        let mut new =
            Entry::new(&old.signal, self.plan.rules(&old.signal), self.interval, old.seen);
        if !self.make_room_for(&new) {
            return false;
        }
        newest.into_iter().for_each(|(at, value)| new.series.record(at, value));
        if let Ok(place) = self.find(&new.signal) {
            self.bytes += new.bytes;
            self.entries[place] = new;
        }
        true
    }

    /// Whether so many bytes more fit, once devices that are gone are forgotten; then they are.
    fn make_room(&mut self, bytes: usize) -> bool {
        let gone = self.entries.iter().filter(|entry| entry.is_gone(self.round));
        let gone: usize = gone.map(|entry| entry.bytes).sum();
        let fits = self.bytes + bytes <= self.room + gone;
        while fits && self.bytes + bytes > self.room && self.evict() {}
        fits
    }

    /// Forgets the device that has been gone for longest, if any is.
    fn evict(&mut self) -> bool {
        // Nobody goes in the midst of a round, and a full store is asked for each device that it does not show.
        if self.none_gone_in == Some(self.round) {
            return false;
        }
        let gone = self.entries.iter().enumerate().filter(|(_, entry)| entry.is_gone(self.round));
        let oldest = gone.min_by_key(|(_, entry)| entry.series.newest()).map(|(place, _)| place);
        match oldest {
            Some(place) => self.forget(place),
            None => self.none_gone_in = Some(self.round),
        }
        oldest.is_some()
    }

    fn forget(&mut self, place: usize) {
        self.bytes -= self.entries.remove(place).bytes;
    }

    fn tell(&mut self) {
        let cut: Vec<&Signal> =
            self.entries.iter().filter(|entry| entry.cut).map(|entry| &entry.signal).collect();
        if let (Some(first), false) = (cut.first(), self.lack.told_of_cut) {
            tracing::warn!(
                signals = cut.len(),
                first = first.name(),
                memory_limit_mib = self.plan.memory_limit() >> 20,
                "no room for their windows: only their newest samples are kept; ask for fewer values, or a longer \
                 --sample-interval, or raise the container's memory limit and memoryLimit in --config.file"
            );
        }
        if self.lack.unshown && !self.lack.told_of_unshown {
            tracing::warn!(
                most = MOST_SIGNALS,
                "no room for more signals: some devices are not shown"
            );
        }
        let unshown = std::mem::take(&mut self.lack.unshown);
        self.lack = Lack { told_of_unshown: unshown, told_of_cut: !cut.is_empty(), ..self.lack };
        if self.round == ALL_SEEN {
            let known: Vec<&Signal> = self.entries.iter().map(|entry| &entry.signal).collect();
            let names = self.plan.unmet(&known);
            if !names.is_empty() {
                tracing::info!(?names, "--config.file asks for signals that this node has not");
            }
        }
    }
}

/// Names entries of one plain name. What is not shown keeps it from nobody.
fn tell_apart(namesakes: &mut [Entry], now: Moment) {
    let shared = namesakes.iter().filter(|entry| !entry.series.is_stale(now)).count() > 1;
    namesakes.iter_mut().for_each(|entry| entry.signal.tell_apart(shared));
}

impl Entry {
    fn new(signal: &Signal, rules: Vec<Rule>, interval: Interval, seen: u64) -> Self {
        let bytes = Self::bytes(signal, &rules, interval);
        let series = Series::new(interval, &rules);
        Self { signal: signal.clone(), series, rules: rules.into(), bytes, seen, cut: false }
    }

    /// One that keeps its newest sample only, for want of room.
    fn cut(signal: &Signal, interval: Interval, seen: u64) -> Self {
        Self { cut: true, ..Self::new(signal, vec![ACTIVE], interval, seen) }
    }

    /// What a signal takes here, in two files, and on the pages for scrapes. One with no more than its newest sample
    /// is counted as the program's.
    fn bytes(signal: &Signal, rules: &[Rule], interval: Interval) -> usize {
        if *rules == [ACTIVE] {
            return 0;
        }
        // A name and an instance, which are known twice: by the collector and here, or here and in the file.
        let names = 2 * (signal.name().len() + signal.instance().map_or(0, str::len));
        let here = Series::bytes(interval, rules) + size_of::<Self>() + names;
        let file = Series::sample_bytes(interval, rules) + names;
        here + 2 * file + rules.len() * (size_of::<Rule>() + ON_PAGES)
    }

    /// Whether nothing is asked of it but its newest sample.
    fn is_bare(&self) -> bool {
        *self.rules == [ACTIVE]
    }

    fn is_gone(&self, round: u64) -> bool {
        round.saturating_sub(self.seen) > GONE_AFTER
    }

    fn newest(&self) -> Option<(Moment, f64)> {
        let at = self.series.newest()?;
        Some((at, self.series.read(ACTIVE, at)?.value))
    }

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

    const DAY_OF_ALL: &str = "rules: [{signals: ['*'], values: [p95_1d, max_1d, min_1d]}]";

    fn disk(number: usize) -> Signal {
        Signal::of(&DISK, &format!("{number:04}"))
    }

    /// A round that sees these disks.
    fn round(store: &mut Store, disks: std::ops::Range<usize>) {
        let now = at(10 * (store.round() + 1));
        disks.for_each(|number| store.record(&disk(number), now, 1.0));
        store.finish(now);
    }

    fn whole(store: &Store) -> usize {
        store.entries().iter().filter(|entry| !entry.is_bare()).count()
    }

    #[test]
    fn what_fits_the_shipped_limit_is_what_the_documentation_says() {
        let fit = |interval: &str, rules: &str| {
            let mut store = store(interval, rules);
            round(&mut store, 0..200);
            assert!(store.bytes <= store.room);
            (whole(&store), store.entries().len())
        };
        assert_eq!(fit("10s", DAY_OF_ALL), (76, 200));
        assert_eq!(fit("1s", DAY_OF_ALL), (7, 200));
        assert_eq!(fit("10s", &format!("{DAY_OF_ALL}\nmemoryLimit: 24Mi")), (192, 200));
    }

    #[test]
    fn samples_and_both_files_of_them_fit_beside_the_program() {
        for interval in ["1s", "10s", "60s"] {
            let mut store = store(interval, DAY_OF_ALL);
            round(&mut store, 0..MOST_SIGNALS);
            let bytes = |entry: &Entry| {
                let samples = Series::sample_bytes(store.interval, &entry.rules);
                Series::bytes(store.interval, &entry.rules) + 2 * samples
            };
            let bytes: usize = store.entries().iter().map(bytes).sum();
            assert!(bytes <= 8 << 20, "{interval}: {bytes}");
            assert_eq!(store.entries().len(), MOST_SIGNALS);
        }
    }

    #[test]
    fn devices_that_are_gone_make_room_for_those_that_are_there() {
        let mut store = store("10s", DAY_OF_ALL);
        round(&mut store, 0..100);
        let fit = whole(&store);
        assert!(fit < 100);
        (0..=GONE_AFTER).for_each(|_| round(&mut store, 50..100));
        // The fifty that are there have their windows, the ones that had none at first included.
        assert_eq!(store.entries().iter().filter(|entry| entry.cut && entry.seen > 0).count(), 0);
        assert_eq!(store.readings(at(50)).count(), 50 * 4);
        round(&mut store, 100..110);
        assert!(store.entries().iter().filter(|entry| entry.seen == 5).all(|entry| !entry.cut));
        assert!(store.bytes <= store.room, "{} {}", store.bytes, store.room);
    }

    #[test]
    fn what_is_told_of_the_node_goes_before_its_devices() {
        static NODE: Kind = Kind { name: "network_usage", help: "", label: None };
        let mut store = store("10s", DAY_OF_ALL);
        let now = at(10);
        (0..MOST_SIGNALS).for_each(|number| store.record(&disk(number), now, 1.0));
        let fit = whole(&store);
        store.record(&Signal::of_node(&NODE), now, 2.0);
        store.finish(now);
        let of_node = store.entries().iter().find(|entry| entry.signal.instance().is_none());
        assert!(of_node.is_some_and(|entry| !entry.cut));
        assert_eq!(whole(&store), fit, "one device has lost its windows");
        assert!(store.bytes <= store.room);
        // Nobody loses the newest sample.
        let active = store.readings(now).filter(|reading| reading.rule == ACTIVE).count();
        assert_eq!(active, MOST_SIGNALS + 1);
        let summed: usize = store.entries().iter().map(|entry| entry.bytes).sum();
        assert_eq!(store.bytes, summed);
    }

    #[test]
    fn a_signal_that_gets_its_windows_late_keeps_its_newest_sample() {
        let mut store = store("10s", DAY_OF_ALL);
        round(&mut store, 0..100);
        (0..=GONE_AFTER).for_each(|_| round(&mut store, 99..100));
        let readings: Vec<Reading> = store.readings(at(50)).collect();
        assert_eq!(readings.iter().map(|reading| reading.value).collect::<Vec<_>>(), [1.0; 4]);
    }

    #[test]
    fn a_node_that_changes_all_its_devices_shows_the_new_ones() {
        let mut store = store("10s", "");
        round(&mut store, 0..MOST_SIGNALS);
        (0..=GONE_AFTER).for_each(|_| round(&mut store, 0..0));
        round(&mut store, MOST_SIGNALS..MOST_SIGNALS + 100);
        assert_eq!(store.readings(at(60)).count(), 100);
        assert_eq!(store.entries().len(), MOST_SIGNALS);
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
    fn a_card_that_gets_another_number_is_counted_once() {
        static CARD: Kind = Kind { name: "gpu_card_usage", help: "", label: Some("card") };
        let mut store = store("10s", DAY_OF_ALL);
        round(&mut store, 0..75);
        let mut told = |number| {
            let now = at(10 * (store.round() + 1));
            store.record(&Signal::known_as(&CARD, "GPU-a", number), now, 1.0);
            let summed: usize = store.entries().iter().map(|entry| entry.bytes).sum();
            let whole = whole(&store);
            let bytes = store.bytes;
            store.finish(now);
            (bytes == summed, whole)
        };
        assert_eq!(["0", "1", "2"].map(&mut told), [(true, 76); 3]);
    }

    #[test]
    fn a_full_store_looks_for_gone_devices_once_a_round() {
        let mut store = store("10s", "");
        round(&mut store, 0..MOST_SIGNALS);
        (0..=GONE_AFTER).for_each(|_| round(&mut store, 1..MOST_SIGNALS));
        let mut shown = |number| {
            store.record(&disk(number), at(10 * (store.round() + 1)), 1.0);
            let before = store.none_gone_in;
            (store.find(&disk(number)).is_ok(), before == Some(store.round()))
        };
        assert_eq!(shown(MOST_SIGNALS), (true, false), "disk 0 made room");
        assert_eq!(shown(MOST_SIGNALS + 1), (false, true));
        assert_eq!(shown(MOST_SIGNALS + 2), (false, true));
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

//! The entries of all signals, sorted, within the memory budget.
//!
//! The budget is the container's memory limit without the program. A signal's samples count three times: here, in the
//! file of `--storage.file`, and in the one that is to replace it, since the shipped file lies in memory (/run), which
//! counts as the container's.
//!
//! A signal for whose windows there is no room is *reduced*: it keeps its newest sample alone. Room is made by
//! forgetting devices that are gone, the one that has been gone longest first. A signal of the whole node, of which
//! there are a few dozen, also makes room by reducing signals of devices, the last in the order of their names first.

use crate::config::Config;
use crate::series::{ACTIVE, Aggregate, Interval, Series, Signal, Window};

use super::Entry;

/// The largest number of signals. On a node with more, signals of further devices are dropped.
pub(crate) const MAX_SIGNALS: usize = 1_024;
/// The memory of the process without its signals' windows, in bytes: 2.6 MiB without any signal, 0.4 MiB more while TLS
/// is used, and up to 1 MiB for signals with their newest sample alone.
const PROGRAM: usize = 4 << 20;

/// The entries, in the order of their signals' names.
#[derive(Debug)]
pub(super) struct Entries {
    interval: Interval,
    entries: Vec<Entry>,
    /// The bytes that the entries use, and the budget.
    pub(super) bytes: usize,
    pub(super) budget: usize,
    /// How many rounds have ended.
    round: u64,
    /// The round in which no device was found gone. Devices are not gone before a round ends, so within it the search
    /// is not repeated: a full store would search for each device that it drops.
    pub(super) none_gone_in: Option<u64>,
}

impl Entries {
    pub(super) fn new(interval: Interval, config: &Config) -> Self {
        // A copy of one window of a day, of which quantiles are selected.
        let day = Aggregate { window: Window::DAY, ..ACTIVE };
        let scratch = Series::sample_bytes(interval, &[day]);
        let budget = config.memory_limit().saturating_sub(PROGRAM + scratch);
        Self { interval, entries: Vec::new(), bytes: 0, budget, round: 0, none_gone_in: None }
    }

    pub(super) fn as_slice(&self) -> &[Entry] {
        &self.entries
    }

    pub(super) fn iter_mut(&mut self) -> std::slice::IterMut<'_, Entry> {
        self.entries.iter_mut()
    }

    pub(super) fn chunk_by_mut(
        &mut self,
        same: impl FnMut(&Entry, &Entry) -> bool,
    ) -> impl Iterator<Item = &mut [Entry]> {
        self.entries.chunk_by_mut(same)
    }

    pub(super) fn round(&self) -> u64 {
        self.round
    }

    pub(super) fn end_round(&mut self) {
        self.round += 1;
    }

    pub(super) fn retain(&mut self, keep: impl FnMut(&Entry) -> bool) {
        self.entries.retain(keep);
        self.bytes = self.entries.iter().map(|entry| entry.bytes).sum();
    }

    /// The entry of a signal that was sampled in this round. A new one has all aggregates of `config`, or is reduced.
    /// `None` if it is new and there are too many.
    pub(super) fn get_or_insert(&mut self, signal: &Signal, config: &Config) -> Option<&mut Entry> {
        let index = self.index_or_insert(signal, |entries: &mut Self| {
            let entry =
                Entry::new(signal, config.aggregates(signal), entries.interval, entries.round);
            if entry.is_newest_only() || entries.make_room_for(&entry) {
                return entry;
            }
            Entry::reduced(signal, entries.interval, entries.round)
        })?;
        self.entries[index].last_seen = self.round;
        Some(&mut self.entries[index])
    }

    /// The same, but a new entry is reduced even if there is room.
    pub(super) fn get_or_insert_reduced(&mut self, signal: &Signal) -> Option<&mut Entry> {
        let index = self.index_or_insert(signal, |entries: &mut Self| {
            Entry::reduced(signal, entries.interval, entries.round)
        })?;
        Some(&mut self.entries[index])
    }

    fn index_or_insert(
        &mut self,
        signal: &Signal,
        make: impl FnOnce(&mut Self) -> Entry,
    ) -> Option<usize> {
        if let Ok(index) = self.find(signal) {
            return Some(index);
        }
        let full = self.entries.len() >= MAX_SIGNALS && !self.forget_gone();
        if full && !signal.is_of_node() {
            return None;
        }
        // A GPU that is numbered anew has another name, other aggregates and one entry.
        let renamed = self.entries.iter().position(|entry| entry.signal.has_device_of(signal));
        renamed.into_iter().for_each(|index| self.remove(index));
        let entry = make(self);
        self.bytes += entry.bytes;
        let index = self.find(signal).unwrap_or_else(|index| index);
        self.entries.insert(index, entry);
        Some(index)
    }

    /// The index of the signal's entry, or where it would be.
    pub(super) fn find(&self, signal: &Signal) -> Result<usize, usize> {
        self.entries.binary_search_by(|entry| entry.signal.cmp(signal))
    }

    /// Gives reduced signals their windows as far as there is room, those of the node first.
    pub(super) fn restore_windows(&mut self, config: &Config) {
        while self.restore_first(Signal::is_of_node, config) {}
        while self.restore_first(|signal| !signal.is_of_node(), config) {}
    }

    /// Gives the first reduced signal of these its windows. False if there is none, or no room.
    fn restore_first(&mut self, of: fn(&Signal) -> bool, config: &Config) -> bool {
        let reduced =
            |entry: &&Entry| entry.reduced && !entry.is_gone(self.round) && of(&entry.signal);
        let Some(old) = self.entries.iter().find(reduced) else { return false };
        let aggregates = config.aggregates(&old.signal);
        let mut new = Entry::new(&old.signal, aggregates, self.interval, old.last_seen);
        new.copy_newest(old);
        if !self.make_room_for(&new) {
            return false;
        }
        if let Ok(index) = self.find(&new.signal) {
            self.bytes += new.bytes;
            self.entries[index] = new;
        }
        true
    }

    /// Makes room for an entry, if that is possible.
    fn make_room_for(&mut self, entry: &Entry) -> bool {
        self.forget_gone_for(entry.bytes)
            || entry.signal.is_of_node() && self.reduce_devices_for(entry.bytes)
    }

    /// Makes room for so many bytes by forgetting devices that are gone, if that is enough.
    fn forget_gone_for(&mut self, bytes: usize) -> bool {
        let is_gone = |entry: &&Entry| entry.is_gone(self.round);
        let gone: usize = self.entries.iter().filter(is_gone).map(|entry| entry.bytes).sum();
        let fits = self.bytes + bytes <= self.budget + gone;
        while fits && self.bytes + bytes > self.budget && self.forget_gone() {}
        fits
    }

    /// Makes room for so many bytes by reducing signals of devices, if that is enough.
    fn reduce_devices_for(&mut self, bytes: usize) -> bool {
        let budget = self.budget;
        let interval = self.interval;
        let mut of_devices: Vec<&mut Entry> =
            self.entries.iter_mut().filter(|entry| !entry.signal.is_of_node()).collect();
        let reducible: usize = of_devices.iter().map(|entry| entry.bytes).sum();
        let fits = self.bytes + bytes <= budget + reducible;
        while fits && self.bytes + bytes > budget {
            let Some(entry) = of_devices.pop() else { break };
            if entry.is_newest_only() {
                continue;
            }
            let mut reduced = Entry::reduced(&entry.signal, interval, entry.last_seen);
            reduced.copy_newest(entry);
            self.bytes -= entry.bytes;
            *entry = reduced;
        }
        fits
    }

    /// Forgets the device that has been gone longest, if any is.
    fn forget_gone(&mut self) -> bool {
        if self.none_gone_in == Some(self.round) {
            return false;
        }
        let gone = self.entries.iter().enumerate().filter(|(_, entry)| entry.is_gone(self.round));
        let oldest = gone.min_by_key(|(_, entry)| entry.series.newest()).map(|(index, _)| index);
        match oldest {
            Some(index) => self.remove(index),
            None => self.none_gone_in = Some(self.round),
        }
        oldest.is_some()
    }

    fn remove(&mut self, index: usize) {
        self.bytes -= self.entries.remove(index).bytes;
    }
}

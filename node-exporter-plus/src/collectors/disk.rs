//! Disks, from `/proc/diskstats`: `disk_device_*` of each disk, and for the node `disk_usage`, that of the busiest disk, and
//! `disk_read_bytes` and `disk_written_bytes`, the sums.
//!
//! A disk is a block device with hardware (`/sys/block/NAME/device`): partitions, loop devices, device mapper and software
//! RAID would count the same IO again. At 100% a disk had requests all the time; one that serves requests in parallel (NVMe,
//! a RAID controller) can have capacity left.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::file::{exists, lines};
use super::rate::Counter;
use super::{CollectError, Collector, ParseError, ProcFile, Record, Roots};
use crate::series::{Interval, Kind, Moment, Signal};

/// `disk_device_usage`, in percent.
pub static DEVICE_USAGE: Kind =
    Kind::of_device("disk_device_usage", "device", "time in which the disk was busy, percent");
/// `disk_device_read_bytes`, in bytes per second.
pub static DEVICE_READ: Kind =
    Kind::of_device("disk_device_read_bytes", "device", "read from the disk, bytes a second");
/// `disk_device_written_bytes`, in bytes per second.
pub static DEVICE_WRITTEN: Kind =
    Kind::of_device("disk_device_written_bytes", "device", "written to the disk, bytes a second");
/// `disk_usage`, in percent.
pub static USAGE: Kind =
    Kind::of_node("disk_usage", "time in which the busiest disk was busy, percent");
/// `disk_read_bytes`, in bytes per second.
pub static READ: Kind = Kind::of_node("disk_read_bytes", "read from all disks, bytes a second");
/// `disk_written_bytes`, in bytes per second.
pub static WRITTEN: Kind =
    Kind::of_node("disk_written_bytes", "written to all disks, bytes a second");

/// A line has about 100 bytes, so 2,000 devices fit.
const LIMIT: u64 = 256 << 10;
/// The unit of sectors in this file, in bytes, whatever the disk's own sectors are.
const SECTOR: f64 = 512.0;

/// Samples `/proc/diskstats`.
#[derive(Debug)]
pub struct Disks {
    file: ProcFile,
    /// `/sys/block`.
    blocks: PathBuf,
    interval: Interval,
    disks: BTreeMap<String, Disk>,
}

/// A block device and its counters.
#[derive(Debug)]
struct Disk {
    /// `None` for one without hardware.
    signals: Option<[Signal; 3]>,
    counters: [Counter; 3],
}

impl Disks {
    /// A collector over these roots.
    #[must_use]
    pub fn new(roots: &Roots, interval: Interval) -> Self {
        let file = ProcFile::new(&roots.procfs.join("diskstats"), LIMIT);
        Self { file, blocks: roots.sysfs.join("block"), interval, disks: BTreeMap::new() }
    }
}

impl Disk {
    fn new(name: &str, hardware: bool) -> Self {
        let signals = [&DEVICE_USAGE, &DEVICE_READ, &DEVICE_WRITTEN];
        let signals = hardware.then(|| signals.map(|kind| Signal::of_device(kind, name)));
        Self { signals, counters: Default::default() }
    }
}

impl Collector for Disks {
    fn name(&self) -> &'static str {
        "disk"
    }

    fn collect(&mut self, now: Moment, record: &mut Record<'_>) -> Result<(), CollectError> {
        let Some(devices) = self.file.parse_if_there(parse)? else { return Ok(()) };
        // A disk that appears later with the name of a removed disk is another disk.
        self.disks.retain(|name, _| devices.iter().any(|stats| stats.name == *name));
        let mut node: Option<[f64; 3]> = None;
        for stats in devices {
            let hardware = || exists(&self.blocks.join(&stats.name).join("device"));
            let disk = self
                .disks
                .entry(stats.name.clone())
                .or_insert_with(|| Disk::new(&stats.name, hardware()));
            let Some(signals) = &disk.signals else { continue };
            let Some(values) = rates(&mut disk.counters, &stats, self.interval, now) else {
                continue;
            };
            signals.iter().zip(values).for_each(|(signal, value)| record(signal, value));
            let [usage, read, written] = node.unwrap_or_default();
            node = Some([usage.max(values[0]), read + values[1], written + values[2]]);
        }
        for (kind, value) in [&USAGE, &READ, &WRITTEN].into_iter().zip(node.into_iter().flatten()) {
            record(&Signal::of_node(kind), value);
        }
        Ok(())
    }
}

/// Usage in percent, bytes read and bytes written per second.
fn rates(
    counters: &mut [Counter; 3],
    stats: &Stats,
    interval: Interval,
    now: Moment,
) -> Option<[f64; 3]> {
    let [busy, read, written] = counters;
    let busy = busy.rate(interval, now, stats.busy_millis);
    let read = read.rate(interval, now, stats.sectors_read);
    let written = written.rate(interval, now, stats.sectors_written);
    // From milliseconds per second to percent.
    Some([(busy? / 10.0).min(100.0), read? * SECTOR, written? * SECTOR])
}

/// The columns of a line that are used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stats {
    /// The device's name, `sda`.
    pub name: String,
    /// In units of 512 bytes.
    pub sectors_read: u64,
    /// In units of 512 bytes.
    pub sectors_written: u64,
    /// Time with at least one request in flight.
    pub busy_millis: u64,
}

/// Reads the lines of devices (the kernel's iostats.rst). Lines with fewer columns, which partitions had before Linux
/// 2.6.25, are left out.
///
/// # Errors
/// When a column that is used is no number.
pub fn parse(diskstats: &[u8]) -> Result<Vec<Stats>, ParseError> {
    let devices = lines(diskstats).filter(|(_, text)| text.split_ascii_whitespace().count() >= 14);
    let device = |(line, text)| {
        stats(text).ok_or(ParseError::Line { line, problem: "a counter is not a whole number" })
    };
    devices.map(device).collect()
}

fn stats(line: &str) -> Option<Stats> {
    let columns: Vec<&str> = line.split_ascii_whitespace().collect();
    let number = |column: usize| columns.get(column)?.parse().ok();
    Some(Stats {
        name: (*columns.get(2)?).to_owned(),
        sectors_read: number(5)?,
        sectors_written: number(9)?,
        busy_millis: number(12)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LINE: &str = " 253 0 vda 100 5 2048 30 200 6 4096 70 0 1500 100 0 0 0 0 0 0\n";

    #[test]
    fn a_line_is_read() {
        let stats = Stats {
            name: "vda".to_owned(),
            sectors_read: 2_048,
            sectors_written: 4_096,
            busy_millis: 1_500,
        };
        assert_eq!(parse(LINE.as_bytes()), Ok(vec![stats]));
        assert_eq!(parse(b"   8 1 sda1 1 2 3 4\n"), Ok(Vec::new()));
        let error = parse(b"8 0 sda 1 2 x 4 5 6 7 8 9 10 11\n").unwrap_err().to_string();
        assert_eq!(error, "line 1: a counter is not a whole number");
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse(&bytes);
        }
    }
}

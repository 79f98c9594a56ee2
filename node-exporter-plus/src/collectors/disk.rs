//! Disks, from `/proc/diskstats`: `disk_device_*` of each disk, and for the node `disk_usage`, that of the busiest
//! disk, and `disk_read_bytes` and `disk_written_bytes`, the sums.
//!
//! A disk is a block device with hardware (`/sys/block/NAME/device`): partitions, loop devices, device mapper, software
//! RAID and volumes of ZFS would count the same IO again. Of an NVMe disk with several paths either the disk
//! (`nvme0n1`) or its paths (`nvme0c1n1`) count, whichever the kernel counts: before Linux 6.4 the disk itself has no
//! counts. The boot and RPMB areas of an eMMC are no disks. At 100% a disk had requests all the time; one that serves
//! requests in parallel (NVMe, a RAID controller) can have capacity left.
//!
//! A disk is not busy for longer than its requests took together. The kernel's busy time can be more: up to Linux 4.20
//! that of an NVMe disk may run with the clock, and since 5.0 a short request counts as a whole tick of 1 to 10 ms.
//!
//! A counter that is reset costs the values that need it in this sample: its own, and the node's of the same kind.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::file::{exists, lines};
use super::rate::{Counter, all_known, sum_of_all};
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

/// A line has about 100 bytes, so 10,000 devices fit.
const LIMIT: u64 = 1 << 20;
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
    counters: [Counter; 4],
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
        let kinds = [&DEVICE_USAGE, &DEVICE_READ, &DEVICE_WRITTEN];
        let signals = hardware.then(|| kinds.map(|kind| Signal::of_device(kind, name)));
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
        let mut found: Vec<[Option<f64>; 3]> = Vec::new();
        for stats in &devices {
            let disk = self
                .disks
                .entry(stats.name.clone())
                .or_insert_with(|| Disk::new(&stats.name, has_hardware(&self.blocks, &stats.name)));
            let Some(signals) = &disk.signals else { continue };
            let values = rates(&mut disk.counters, stats, self.interval, now);
            if is_counted_elsewhere(stats, &devices) {
                continue;
            }
            for (signal, value) in signals.iter().zip(values) {
                value.into_iter().for_each(|value| record(signal, value));
            }
            found.push(values);
        }
        let usages = all_known(found.iter().map(|[usage, ..]| *usage));
        let busiest = usages.into_iter().flatten().reduce(f64::max);
        let read = sum_of_all(found.iter().map(|[_, read, _]| *read));
        let written = sum_of_all(found.iter().map(|[.., written]| *written));
        for (kind, value) in [(&USAGE, busiest), (&READ, read), (&WRITTEN, written)] {
            value.into_iter().for_each(|value| record(&Signal::of_node(kind), value));
        }
        Ok(())
    }
}

/// Usage in percent, bytes read and bytes written per second.
fn rates(
    counters: &mut [Counter; 4],
    stats: &Stats,
    interval: Interval,
    now: Moment,
) -> [Option<f64>; 3] {
    let [of_busy, of_requests, of_read, of_written] = counters;
    let mut busy = of_busy.rate(interval, now, stats.busy_millis);
    // The time of a request counts when it ends. One that has not ended may have kept the disk busy all the time. Some
    // drivers count no times.
    let requests = of_requests.rate(interval, now, stats.request_millis);
    if stats.in_flight == 0 && stats.request_millis > 0 {
        busy = busy.zip(requests).map(|(busy, requests)| busy.min(requests));
    }
    let read = of_read.rate(interval, now, stats.sectors_read);
    let written = of_written.rate(interval, now, stats.sectors_written);
    // From milliseconds per second to percent.
    let usage = busy.map(|busy| (busy / 10.0).min(100.0));
    [usage, read.map(|read| read * SECTOR), written.map(|written| written * SECTOR)]
}

/// Whether the device is a disk of its own with hardware.
fn has_hardware(blocks: &Path, name: &str) -> bool {
    let is_area = name.starts_with("mmcblk") && (name.contains("boot") || name.contains("rpmb"));
    // A slash in a name, as in cciss/c0d0, is an exclamation mark in sysfs.
    !is_area && exists(&blocks.join(name.replace('/', "!")).join("device"))
}

/// Whether the IO of this device is in the counts of another one: that of an NVMe path in its disk's, or that of the
/// disk in its paths' where the kernel counts those alone.
fn is_counted_elsewhere(stats: &Stats, devices: &[Stats]) -> bool {
    match disk_of_path(&stats.name) {
        Some(disk) => devices.iter().any(|other| other.name == disk && other.has_counts()),
        None => {
            !stats.has_counts()
                && stats.name.starts_with("nvme")
                && devices
                    .iter()
                    .any(|other| disk_of_path(&other.name).as_ref() == Some(&stats.name))
        }
    }
}

/// `nvme0n1` for the path `nvme0c1n1`; `None` for a name of another form.
fn disk_of_path(name: &str) -> Option<String> {
    let (subsystem, path) = name.strip_prefix("nvme")?.split_once('c')?;
    let (controller, namespace) = path.split_once('n')?;
    [subsystem, controller, namespace]
        .into_iter()
        .all(|text| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()))
        .then(|| format!("nvme{subsystem}n{namespace}"))
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
    /// The time of all requests that have ended.
    pub request_millis: u64,
    /// Requests that have not ended.
    pub in_flight: u64,
}

impl Stats {
    fn has_counts(&self) -> bool {
        self.sectors_read > 0 || self.sectors_written > 0 || self.busy_millis > 0
    }
}

/// Reads the lines of devices (the kernel's iostats.rst). Lines with fewer columns, which partitions had before Linux
/// 2.6.25, are left out.
///
/// # Errors
/// When a column that is used is no number.
pub fn parse(diskstats: &[u8]) -> Result<Vec<Stats>, ParseError> {
    lines(diskstats)
        .filter(|(_, text)| text.split_ascii_whitespace().count() >= 14)
        .map(|(line, text)| {
            stats(text).ok_or(ParseError::Line { line, problem: "a counter is not a whole number" })
        })
        .collect()
}

fn stats(line: &str) -> Option<Stats> {
    let columns: Vec<&str> = line.split_ascii_whitespace().collect();
    let number = |column: usize| columns.get(column)?.parse::<u64>().ok();
    // Reads and writes; discards since Linux 4.18, flushes since 5.5.
    let later = [17, 19].map(|column| number(column).unwrap_or(0));
    let of_requests = [number(6)?, number(10)?, later[0], later[1]];
    Some(Stats {
        name: (*columns.get(2)?).to_owned(),
        sectors_read: number(5)?,
        sectors_written: number(9)?,
        busy_millis: number(12)?,
        request_millis: of_requests.into_iter().fold(0, u64::saturating_add),
        // Negative where the kernel has miscounted.
        in_flight: number(11).unwrap_or(u64::MAX),
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
            request_millis: 100,
            in_flight: 0,
        };
        assert_eq!(parse(LINE.as_bytes()), Ok(vec![stats]));
        assert_eq!(parse(b"   8 1 sda1 1 2 3 4\n"), Ok(Vec::new()));
        let error = parse(b"8 0 sda 1 2 x 4 5 6 7 8 9 10 11\n").unwrap_err().to_string();
        assert_eq!(error, "line 1: a counter is not a whole number");
    }

    /// The signals of a machine with these disks after two samples of a second: name, and what was read and written at
    /// each in sectors, where the disk was busy for as many milliseconds as it has read sectors.
    fn signals(disks: &[(&str, [(u64, u64); 2])]) -> BTreeMap<String, f64> {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for (name, _) in disks {
            let in_sysfs = name.replace('/', "!");
            std::fs::create_dir_all(path("sys/block").join(in_sysfs).join("device")).unwrap();
        }
        let roots = Roots::in_folder(folder.path(), "");
        let mut collector = Disks::new(&roots, "1s".parse().unwrap());
        let mut signals = BTreeMap::new();
        for sample in [0, 1] {
            let mut diskstats = String::new();
            for (name, counts) in disks {
                let (read, written) = counts[sample];
                diskstats += &format!("8 0 {name} 1 0 {read} {read} 1 0 {written} 0 0 {read} 0\n");
            }
            std::fs::write(path("diskstats"), diskstats).unwrap();
            let now = Moment(std::time::Duration::from_secs(1 + sample as u64));
            collector
                .collect(now, &mut |signal: &Signal, value| {
                    signals.insert(signal.name().to_owned(), value);
                })
                .unwrap();
        }
        signals
    }

    /// Two samples between which 100 sectors were read and 200 written.
    const BUSY: [(u64, u64); 2] = [(1_000, 1_000), (1_100, 1_200)];
    const SILENT: [(u64, u64); 2] = [(0, 0); 2];

    #[test]
    fn an_nvme_disk_of_several_paths_counts_once_whichever_of_both_the_kernel_counts() {
        // Linux 6.4 and later count both.
        let both = signals(&[("nvme0n1", BUSY), ("nvme0c0n1", BUSY), ("nvme0c1n1", SILENT)]);
        assert_eq!(both["disk_read_bytes"], 100.0 * 512.0);
        let names: Vec<_> = both.keys().filter(|name| name.contains("nvme")).collect();
        assert!(names.iter().all(|name| name.contains("nvme0n1")), "{names:?}");
        let paths = signals(&[("nvme0n1", SILENT), ("nvme0c0n1", BUSY), ("nvme0c1n1", BUSY)]);
        assert_eq!(paths["disk_written_bytes"], 2.0 * 200.0 * 512.0);
        assert_eq!(paths["disk_usage"], 10.0);
        assert!(!paths.contains_key("disk_nvme0n1_usage"), "{paths:?}");
        // Neither has done anything yet, and another namespace is another disk.
        let idle = signals(&[("nvme0n1", SILENT), ("nvme0c0n1", SILENT), ("nvme0n2", BUSY)]);
        assert_eq!(idle["disk_read_bytes"], 100.0 * 512.0);
    }

    #[test]
    fn a_disk_is_found_under_every_drivers_name_and_the_boot_areas_of_an_emmc_are_none() {
        let names = ["vda", "xvda", "sda", "dasda", "cciss/c0d0", "mmcblk0", "rbd0", "nvme1n1"];
        let mut disks = names.map(|name| (name, BUSY)).to_vec();
        disks.extend(["mmcblk0boot0", "mmcblk0boot1", "mmcblk0rpmb"].map(|name| (name, BUSY)));
        let signals = signals(&disks);
        assert_eq!(signals["disk_read_bytes"], names.len() as f64 * 100.0 * 512.0);
        assert!(signals.contains_key("disk_cciss_c0d0_usage"), "{signals:?}");
        assert!(!signals.contains_key("disk_mmcblk0boot0_usage"), "{signals:?}");
    }

    #[test]
    fn a_counter_that_is_reset_costs_the_values_that_need_it_alone() {
        let reset = [(1_000, 1_000), (1_100, 7)];
        let signals = signals(&[("sda", BUSY), ("sdb", reset)]);
        assert_eq!(signals["disk_sdb_read_bytes"], 100.0 * 512.0);
        assert_eq!((signals["disk_sdb_usage"], signals["disk_usage"]), (10.0, 10.0));
        assert_eq!(signals["disk_sda_written_bytes"], 200.0 * 512.0);
        assert_eq!(signals["disk_read_bytes"], 200.0 * 512.0);
        for lost in ["disk_sdb_written_bytes", "disk_written_bytes"] {
            assert!(!signals.contains_key(lost), "{lost}: {signals:?}");
        }
    }

    /// The usage of a disk between two lines of a second's distance, each with 17 columns behind the name.
    fn usage(before: &str, after: &str) -> Option<f64> {
        let mut counters = Default::default();
        let [_, usage] = [(before, 1), (after, 2)].map(|(columns, seconds)| {
            let stats = parse(format!("259 0 nvme0n1 {columns}\n").as_bytes()).unwrap().remove(0);
            let now = Moment(std::time::Duration::from_secs(seconds));
            rates(&mut counters, &stats, "1s".parse().unwrap(), now)[0]
        });
        usage
    }

    #[test]
    fn a_disk_is_not_busy_for_longer_than_its_requests_took() {
        // One write of 5 ms, and a busy time that runs with the clock.
        let before = "100 0 800 50 10 0 80 50 0 9000 9000";
        assert_eq!(usage(before, "100 0 800 50 11 0 88 55 0 10000 10000"), Some(0.5));
        // A write that has not ended may take all the time.
        assert_eq!(usage(before, "100 0 800 50 11 0 88 55 1 10000 10000"), Some(100.0));
        assert_eq!(usage(before, "100 0 800 50 11 0 88 55 -1 10000 10000"), Some(100.0));
        assert_eq!(usage("1 0 8 0 1 0 8 0 0 90 9", "2 0 16 0 1 0 8 0 0 390 9"), Some(30.0));
        // Ten at once, that took longer together than the disk was busy.
        assert_eq!(usage(before, "110 0 880 2050 10 0 80 50 0 9300 11000"), Some(30.0));
        // Discards and flushes are requests too; their columns may be missing.
        let new = "100 0 800 50 10 0 80 50 0 9000 9000 5 0 50 500 7 700";
        assert_eq!(usage(new, "100 0 800 50 10 0 80 50 0 9800 9300 6 0 51 800 8 800"), Some(40.0));
        // Requests' times have 32 bits: there is none in the sample in which they begin anew.
        assert_eq!(usage(before, "100 0 800 20 11 0 88 55 0 10000 10000"), None);
    }

    #[test]
    fn a_path_names_its_disk() {
        assert_eq!(disk_of_path("nvme10c2n3").as_deref(), Some("nvme10n3"));
        for other in ["nvme0n1", "nvme0c1", "nvme0cn1", "nvmec0n1", "nvme0c1n1p2", "sda"] {
            assert_eq!(disk_of_path(other), None, "{other}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse(&bytes);
        }
    }
}

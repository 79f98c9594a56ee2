//! Memory from `/proc/meminfo`: `mem_usage`, the share that is not available to new processes, and `swap_usage`.
//!
//! The whole is MemTotal without the pool of huge pages: these are set aside for pods that request `hugepages-*`, and
//! the kubelet takes them off the `memory` that pods can request. Available is the kernel's estimate, MemAvailable, in
//! which caches that can be dropped are free, and in addition what the ZFS cache (ARC) gives back under pressure, which
//! the kernel does not count. Memory of devices ([`devices`]) is in neither. A node without swap has no `swap_usage`.
//!
//! Swapped memory is used: what wants it back finds it nowhere else, and pods do not get smaller by it. It counts by
//! its own size, and the compressed copies that zram and zswap have in memory do not ([`swapped`]). Pages of the swap
//! cache are in memory and on swap, and count once.
//!
//! In a container with lxcfs the file's total is the container's, while huge pages, the ARC and what else other files
//! tell are the host's: they are left out.

mod devices;
mod swapped;

use std::fs;
use std::path::{Path, PathBuf};

use crate::collectors::file::{is_of_container, lines};
use crate::collectors::{CollectError, Collector, ParseError, ProcFile, Record, Roots};
use crate::series::{Kind, Moment, Signal};

pub use devices::{DeviceMemory, parse_node};
pub use swapped::{parse_mm_stat, zram_disks};

/// `mem_usage`, in percent.
pub static USAGE: Kind =
    Kind::of_node("mem_usage", "memory that is not available to new work, or swapped, percent");
/// `swap_usage`, in percent.
pub static SWAP: Kind = Kind::of_node("swap_usage", "swap in use, percent");

/// Linux 6.18 writes 1.6 KiB.
const LIMIT: u64 = 16 << 10;
/// OpenZFS 2.3 writes 8 KiB.
const ARC_LIMIT: u64 = 64 << 10;
/// A swap area has a line of some 60 bytes, and there are 32 at most.
const SWAPS_LIMIT: u64 = 16 << 10;

/// Samples `/proc/meminfo`.
#[derive(Debug)]
pub struct Memory {
    path: PathBuf,
    file: ProcFile,
    /// ZFS's counters; only a node with ZFS has them.
    arc: ProcFile,
    swaps: ProcFile,
    /// `/sys/kernel/mm/hugepages`, for kernels before Linux 4.16, whose meminfo has the default size alone.
    huge_pages: PathBuf,
    sysfs: PathBuf,
}

impl Memory {
    /// A collector over these roots.
    #[must_use]
    pub fn new(roots: &Roots) -> Self {
        let path = roots.procfs.join("meminfo");
        let arc = roots.procfs.join("spl/kstat/zfs/arcstats");
        Self {
            file: ProcFile::new(&path, LIMIT),
            arc: ProcFile::new(&arc, ARC_LIMIT),
            swaps: ProcFile::new(&roots.procfs.join("swaps"), SWAPS_LIMIT),
            huge_pages: roots.sysfs.join("kernel/mm/hugepages"),
            sysfs: roots.sysfs.clone(),
            path,
        }
    }

    /// Adds what other files tell.
    fn complete(&mut self, mut info: MemInfo) -> MemInfo {
        if is_of_container(&self.path) {
            return MemInfo { huge: None, compressed: 0, ..info };
        }
        if !info.huge.is_some_and(|huge| huge.of_all_sizes) {
            let all = huge_pages(&self.huge_pages);
            info.huge = all.map(|kib| HugePages { kib, of_all_sizes: true }).or(info.huge);
        }
        // What cannot be read or parsed makes nothing available.
        let arc = self.arc.parse_if_there(|arcstats| Ok(parse_arc(arcstats)));
        info.arc = arc.ok().flatten().flatten();
        let blocks = self.sysfs.join("block");
        let zram = self.swaps.parse_if_there(|swaps| Ok(swapped::zram(swaps, &blocks)));
        info.compressed = info.compressed.saturating_add(zram.ok().flatten().unwrap_or(0));
        info.devices = devices::device_memory(&self.sysfs);
        info
    }
}

impl Collector for Memory {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn is_essential(&self) -> bool {
        true
    }

    fn collect(&mut self, _: Moment, record: &mut Record<'_>) -> Result<(), CollectError> {
        let parsed = self.file.parse(parse)?;
        let info = self.complete(parsed);
        record(&Signal::of_node(&USAGE), info.usage());
        if let Some(swap) = info.swap_usage() {
            record(&Signal::of_node(&SWAP), swap);
        }
        Ok(())
    }
}

/// The fields that are used, in KiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemInfo {
    total: u64,
    available: u64,
    huge: Option<HugePages>,
    /// Of ZFS; not in `/proc/meminfo`.
    pub arc: Option<ZfsCache>,
    swap: Option<Swap>,
    /// Copies of swapped pages in memory.
    pub compressed: u64,
    /// Not in `/proc/meminfo`.
    pub devices: DeviceMemory,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Swap {
    total: u64,
    free: u64,
    /// Pages that are in memory too.
    cached: u64,
}

/// The pool of huge pages, used or free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct HugePages {
    kib: u64,
    /// False for those of the default size alone.
    of_all_sizes: bool,
}

/// The ZFS cache, in KiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZfsCache {
    size: u64,
    /// The size below which it does not shrink, `c_min`.
    least: u64,
}

impl MemInfo {
    /// The share that is not available, or swapped, in percent.
    #[must_use]
    pub fn usage(self) -> f64 {
        let devices = Some(self.devices).filter(|all| all.total < self.total).unwrap_or_default();
        let total = self.total - devices.total;
        // In a container with lxcfs, more may be available than there is.
        let available = self.available.saturating_sub(devices.available).min(total);
        // The memory that is not available contains the huge pages. More of them, or an ARC that is larger than the
        // total, are those of a host whose lxcfs shows the total of a container: they are left out.
        let huge =
            self.huge.map(|all| all.kib).filter(|kib| *kib <= total - available).unwrap_or(0);
        let mut used = total - available - huge;
        let arc = self.arc.filter(|arc| arc.size <= total);
        // A part of the ARC is in slabs that the kernel counts as available already.
        used = used.saturating_sub(arc.map_or(0, |arc| arc.size.saturating_sub(arc.least)));
        used = used.saturating_sub(self.compressed).saturating_add(self.swapped());
        // All memory may be in huge pages: nothing is available.
        let all = total - huge;
        if all == 0 { 100.0 } else { 100.0 * (used.min(all) as f64 / all as f64) }
    }

    /// What is on swap and not in memory.
    fn swapped(self) -> u64 {
        self.swap.map_or(0, |swap| swap.total.saturating_sub(swap.free).saturating_sub(swap.cached))
    }

    /// The share of swap in use, in percent. `None` without swap.
    #[must_use]
    pub fn swap_usage(self) -> Option<f64> {
        let Swap { total, free, .. } = self.swap.filter(|swap| swap.total > 0)?;
        Some(100.0 * (1.0 - free.min(total) as f64 / total as f64))
    }
}

/// Reads `/proc/meminfo`.
///
/// # Errors
/// When MemTotal or MemAvailable is missing, a number is malformed, or MemTotal is 0.
pub fn parse(meminfo: &[u8]) -> Result<MemInfo, ParseError> {
    let total = field(meminfo, "MemTotal:").ok_or(ParseError::File("has no line \"MemTotal\""))?;
    let available = field(meminfo, "MemAvailable:")
        .ok_or(ParseError::File("has no line \"MemAvailable\": Linux 3.14 or later has"))?;
    match (total.kib()?, available.kib()?) {
        (0, _) => Err(total.problem("the total is 0")),
        (total, available) => {
            let huge = huge(meminfo)?;
            let swap = swap(meminfo)?;
            let (compressed, devices) = (swapped::zswap(meminfo), DeviceMemory::default());
            Ok(MemInfo { total, available, huge, arc: None, swap, compressed, devices })
        }
    }
}

/// The huge pages: Hugetlb has those of all sizes, since Linux 4.16; before, the number and size of those of the
/// default size.
fn huge(meminfo: &[u8]) -> Result<Option<HugePages>, ParseError> {
    if let Some(all) = field(meminfo, "Hugetlb:") {
        return Ok(Some(HugePages { kib: all.kib()?, of_all_sizes: true }));
    }
    let number = field(meminfo, "HugePages_Total:");
    let size = field(meminfo, "Hugepagesize:");
    let Some((number, size)) = number.zip(size) else { return Ok(None) };
    let pages: u64 = number.text.trim().parse().map_err(|_| number.problem("is not a number"))?;
    Ok(Some(HugePages { kib: pages.saturating_mul(size.kib()?), of_all_sizes: false }))
}

/// The huge pages of all sizes, in KiB, from folders like `hugepages-2048kB/nr_hugepages`. `None` where there are none,
/// or one cannot be read.
fn huge_pages(folder: &Path) -> Option<u64> {
    let mut all = None;
    for entry in fs::read_dir(folder).ok()? {
        let size = entry.ok()?;
        let name = size.file_name();
        let kib: u64 =
            name.to_str()?.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        let number = fs::read_to_string(size.path().join("nr_hugepages")).ok()?;
        let pages: u64 = number.trim().parse().ok()?;
        all = Some(all.unwrap_or(0_u64).saturating_add(pages.saturating_mul(kib)));
    }
    all
}

/// Reads the lines `size 4 1073741824` and `c_min 4 33554432` of ZFS's `arcstats`, in bytes. `None` where one is
/// missing or no number.
#[must_use]
pub fn parse_arc(arcstats: &[u8]) -> Option<ZfsCache> {
    let size = arc_kib(arcstats, "size")?;
    let least = arc_kib(arcstats, "c_min")?;
    Some(ZfsCache { size, least })
}

fn arc_kib(arcstats: &[u8], key: &str) -> Option<u64> {
    let mut values = lines(arcstats).filter_map(|(_, text)| {
        let mut words = text.split_ascii_whitespace();
        (words.next()? == key).then(|| words.nth(1))?
    });
    Some(values.next()?.parse::<u64>().ok()? / 1_024)
}

/// A kernel without swap support has no such lines.
fn swap(meminfo: &[u8]) -> Result<Option<Swap>, ParseError> {
    let (total, free) = (field(meminfo, "SwapTotal:"), field(meminfo, "SwapFree:"));
    let Some((total, free)) = total.zip(free) else { return Ok(None) };
    let cached = field(meminfo, "SwapCached:").map_or(Ok(0), Field::kib)?;
    Ok(Some(Swap { total: total.kib()?, free: free.kib()?, cached }))
}

/// A line's number, and its text after the key.
#[derive(Clone, Copy)]
struct Field<'a> {
    line: usize,
    text: &'a str,
}

fn field<'a>(meminfo: &'a [u8], key: &str) -> Option<Field<'a>> {
    lines(meminfo).find_map(|(line, text)| Some(Field { line, text: text.strip_prefix(key)? }))
}

impl Field<'_> {
    fn kib(self) -> Result<u64, ParseError> {
        let number = self.text.trim().strip_suffix("kB").and_then(|text| text.trim().parse().ok());
        number.ok_or_else(|| self.problem("is not a number of kB"))
    }

    fn problem(self, problem: &'static str) -> ParseError {
        ParseError::Line { line: self.line, problem }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn usage_is_what_is_not_available() {
        let info = parse(b"MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable:  250 kB\n").unwrap();
        assert_eq!(info.usage(), 75.0);
    }

    fn usage(meminfo: &str) -> f64 {
        parse(meminfo.as_bytes()).unwrap().usage()
    }

    /// MemTotal 100 GiB and MemAvailable 8 GiB, in KiB, with 88 GiB of huge pages of two sizes, none of them in use.
    const HUGE: &str = "MemTotal: 104857600 kB\nMemAvailable: 8388608 kB\nHugePages_Total: 43008\n\
                        HugePages_Free: 43008\nHugepagesize: 2048 kB\nHugetlb: 92274688 kB\n";

    #[test]
    fn huge_pages_of_all_sizes_are_no_memory_in_use_and_none_to_be_had() {
        assert!((usage(HUGE) - 100.0 / 3.0).abs() < 0.01, "{}", usage(HUGE));
        let all = "MemTotal: 100 kB\nMemAvailable: 0 kB\nHugetlb: 100 kB\n";
        assert_eq!(usage(all), 100.0);
    }

    /// The values of the signals of a node with these files, below `/proc` or `/sys`.
    fn collected(files: &[(&str, &str)]) -> f64 {
        let node = tempfile::tempdir().unwrap();
        for (file, content) in files {
            let path = node.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        let roots = Roots::in_folder(node.path(), "proc");
        let mut usage = None;
        let now = Moment(std::time::Duration::ZERO);
        Memory::new(&roots)
            .collect(now, &mut |signal: &Signal, value| {
                if signal.name() == "mem_usage" {
                    usage = Some(value);
                }
            })
            .unwrap();
        usage.unwrap()
    }

    fn huge_pages_file(size: &str) -> String {
        format!("sys/kernel/mm/hugepages/hugepages-{size}kB/nr_hugepages")
    }

    #[test]
    fn a_kernel_whose_meminfo_has_no_sum_of_huge_pages_has_each_size_in_sysfs() {
        let old = HUGE.replace("Hugetlb: 92274688 kB\n", "");
        let small = huge_pages_file("2048");
        let large = huge_pages_file("1048576");
        let meminfo = ("proc/meminfo", old.as_str());
        let both = [meminfo, (&*small, "43008\n"), (&*large, "4\n")];
        assert!((collected(&both) - 100.0 / 3.0).abs() < 0.01);
        // The default size alone is 84 GiB.
        for without in [&[meminfo][..], &[meminfo, (&*small, "some\n")]] {
            assert!((collected(without) - 50.0).abs() < 0.01);
        }
    }

    /// As `arcstats` has them, in bytes: 40 GiB, of which 2 stay.
    const ARC: &str = "13 1 0x01 147 39984 11637316577 1163731657\nname                            type data\n\
                       hits                            4    9\nc_min                           4    2147483648\n\
                       c_max                           4    64424509440\nsize                            4    42949672960\n";
    /// MemTotal 64 GiB, MemAvailable 5 GiB.
    const ZFS: &str = "MemTotal: 67108864 kB\nMemAvailable: 5242880 kB\n";
    const ARCSTATS: &str = "proc/spl/kstat/zfs/arcstats";

    #[test]
    fn what_the_zfs_cache_gives_back_is_available() {
        let usage = collected(&[("proc/meminfo", ZFS), (ARCSTATS, ARC)]);
        assert!((usage - 100.0 * 21.0 / 64.0).abs() < 0.01, "{usage}");
        let small =
            ARC.replace("c_min                           4    2147483648", "c_min 4 99999999999");
        let usage = collected(&[("proc/meminfo", ZFS), (ARCSTATS, &small)]);
        assert!((usage - 100.0 * 59.0 / 64.0).abs() < 0.01, "{usage}");
    }

    #[test]
    fn a_zfs_cache_that_cannot_be_read_makes_nothing_available() {
        for wrong in ["", "size 4 42949672960\n", "size 4 -1\nc_min 4 0\n", "size\nc_min\n"] {
            let usage = collected(&[("proc/meminfo", ZFS), (ARCSTATS, wrong)]);
            assert!((usage - 100.0 * 59.0 / 64.0).abs() < 0.01, "{wrong:?} {usage}");
        }
    }

    /// lxcfs gives a container its own total, and the host's lines of huge pages.
    #[test]
    fn huge_pages_and_a_cache_that_do_not_fit_into_the_total_are_another_machines() {
        let container = "MemTotal: 8388608 kB\nMemAvailable: 6291456 kB\n";
        assert_eq!(usage(&format!("{container}Hugetlb: 92274688 kB\n")), 25.0);
        assert_eq!(collected(&[("proc/meminfo", container), (ARCSTATS, ARC)]), 25.0);
    }

    /// MemTotal 64 GiB, MemAvailable 12 GiB, and of 32 GiB of swap 20 in use, 1 of it in memory too.
    const SWAPPED: &str = "MemTotal: 67108864 kB\nMemAvailable: 12582912 kB\nSwapCached: 1048576 kB\n\
                           SwapTotal: 33554432 kB\nSwapFree: 12582912 kB\n";

    /// Parts of 64 GiB in percent.
    fn of_64(gib: f64) -> f64 {
        100.0 * gib / 64.0
    }

    #[test]
    fn swapped_memory_is_used_and_what_is_in_memory_too_counts_once() {
        let ten = SWAPPED.replace("SwapFree: 12582912", "SwapFree: 23068672");
        assert_eq!(usage(&ten), of_64(52.0 + 9.0));
        assert_eq!(usage(SWAPPED), 100.0);
        let none = "MemTotal: 64 kB\nMemAvailable: 12 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n";
        assert_eq!(usage(none), of_64(52.0));
    }

    #[test]
    fn what_is_swapped_to_memory_counts_by_its_own_size_and_once() {
        // Of 50 GiB in use 6 are compressed copies of the 19 that were swapped.
        let idle = SWAPPED.replace("MemAvailable: 12582912", "MemAvailable: 31457280");
        assert_eq!(
            usage(&format!("{idle}Zswap: 6291456 kB\nZswapped: 19922944 kB\n")),
            of_64(34.0 - 6.0 + 19.0)
        );
        let swaps = "Filename\tType\tSize\tUsed\tPriority\n/dev/zram0 partition\t33554432\t20971520\t100\n\
                     /dev/sda2 partition\t1\t1\t-2\n";
        let files = [("proc/meminfo", &*idle), ("proc/swaps", swaps)];
        let mm_stat =
            ("sys/block/zram0/mm_stat", "21474836480 6000000000 6442450944 0 6442450944 0 0 0\n");
        // A file system in a second one.
        let other = ("sys/block/zram1/mm_stat", "99999999999 99999999999 99999999999 0 0 0 0 0\n");
        let all = [&files[..], &[mm_stat, other]].concat();
        assert_eq!(collected(&all), of_64(34.0 - 6.0 + 19.0));
        // The disk does not tell: its pages count by what they take in memory.
        assert_eq!(collected(&files), of_64(34.0 - 1.0));
    }

    /// 480 GiB beside the CPUs, of which 8 are free, and 96 of a GPU, of which 95 are free.
    const GPU_MEMORY: [(&str, &str); 4] = [
        ("proc/meminfo", "MemTotal: 603979776 kB\nMemAvailable: 108003328 kB\n"),
        ("sys/devices/system/node/node0/cpulist", "0-71\n"),
        ("sys/devices/system/node/node1/cpulist", "\n"),
        (
            "sys/devices/system/node/node1/meminfo",
            "Node 1 MemTotal: 100663296 kB\nNode 1 MemFree: 98566144 kB\nNode 1 Active(file): 524288 kB\n\
             Node 1 Inactive(file): 524288 kB\n",
        ),
    ];

    #[test]
    fn the_memory_of_a_gpu_is_not_the_nodes_own() {
        let usage = collected(&GPU_MEMORY);
        assert!((usage - 100.0 * 472.0 / 480.0).abs() < 0.01, "{usage}");
        let normal = ("sys/devices/system/node/has_normal_memory", "0\n");
        assert_eq!(collected(&[&GPU_MEMORY[..], &[normal]].concat()), usage);
        // It has CPUs, or they cannot be read, or the node is a container with less memory.
        let whole = 100.0 * 473.0 / 576.0;
        for (file, text) in [("cpulist", "72-143\n"), ("meminfo", "Node 1 MemTotal: 9 kB\n")] {
            let path = format!("sys/devices/system/node/node1/{file}");
            let usage = collected(&[&GPU_MEMORY[..], &[(&*path, text)]].concat());
            assert!((usage - whole).abs() < 0.01, "{file} {usage}");
        }
    }

    #[test]
    fn other_memory_without_cpus_is_the_nodes_own() {
        let whole = 100.0 * 473.0 / 576.0;
        for own in [
            ("sys/devices/system/node/has_normal_memory", "0-1\n"),
            ("sys/bus/dax/devices/dax0.0/target_node", "1\n"),
        ] {
            let usage = collected(&[&GPU_MEMORY[..], &[own]].concat());
            assert!((usage - whole).abs() < 0.01, "{own:?} {usage}");
        }
    }

    #[test]
    fn more_available_than_total_is_no_usage() {
        let info = parse(b"MemTotal: 10 kB\nMemAvailable: 12 kB\n").unwrap();
        assert_eq!(info.usage(), 0.0);
    }

    fn swap_usage(lines: &str) -> Option<f64> {
        let text = format!("MemTotal: 10 kB\nMemAvailable: 2 kB\n{lines}");
        parse(text.as_bytes()).unwrap().swap_usage()
    }

    #[test]
    fn swap_has_a_usage_where_there_is_some() {
        assert_eq!(swap_usage("SwapTotal: 400 kB\nSwapFree: 300 kB\n"), Some(25.0));
        assert_eq!(swap_usage("SwapTotal: 0 kB\nSwapFree: 0 kB\n"), None);
        assert_eq!(swap_usage(""), None);
    }

    fn error(text: &[u8]) -> String {
        parse(text).unwrap_err().to_string()
    }

    #[test]
    fn errors_name_what_is_missing_and_where() {
        assert_eq!(error(b""), "has no line \"MemTotal\"");
        assert_eq!(
            error(b"MemTotal: 5 kB\n"),
            "has no line \"MemAvailable\": Linux 3.14 or later has"
        );
        assert_eq!(
            error(b"MemTotal: 5 kB\nMemAvailable: -1 kB\n"),
            "line 2: is not a number of kB"
        );
        assert_eq!(error(b"MemTotal: 5\nMemAvailable: 1 kB\n"), "line 1: is not a number of kB");
        assert_eq!(error(b"\nMemTotal: 0 kB\nMemAvailable: 0 kB\n"), "line 2: the total is 0");
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = (parse(&bytes), parse_arc(&bytes), zram_disks(&bytes));
            let text = String::from_utf8_lossy(&bytes);
            let _ = (parse_mm_stat(&text), parse_node(1, &text));
        }

        #[test]
        fn any_two_numbers_give_a_percentage(total in 1u64.., available: u64) {
            let text = format!("MemTotal: {total} kB\nMemAvailable: {available} kB\n");
            prop_assert!((0.0..=100.0).contains(&parse(text.as_bytes()).unwrap().usage()));
        }

        #[test]
        fn what_other_files_tell_keeps_it_a_percentage(
            total in 1u64..,
            available: u64,
            huge: u64,
            size: u64,
            least: u64,
            swap: (u64, u64, u64),
            compressed: u64,
            devices: (u64, u64),
        ) {
            let text = format!(
                "MemTotal: {total} kB\nMemAvailable: {available} kB\nHugetlb: {huge} kB\nSwapTotal: {} kB\n\
                 SwapFree: {} kB\nSwapCached: {} kB\n", swap.0, swap.1, swap.2
            );
            let mut info = parse(text.as_bytes()).unwrap();
            info.arc = parse_arc(format!("size 4 {size}\nc_min 4 {least}\n").as_bytes());
            info.compressed = compressed;
            info.devices = DeviceMemory { total: devices.0, available: devices.1 };
            prop_assert!((0.0..=100.0).contains(&info.usage()), "{}", info.usage());
        }
    }
}

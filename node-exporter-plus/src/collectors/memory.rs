//! Memory from `/proc/meminfo`: `mem_usage`, the share that is not available to new processes, and `swap_usage`.
//!
//! The whole is MemTotal without the pool of huge pages: these are set aside for pods that request `hugepages-*`, and
//! the kubelet takes them off the `memory` that pods can request. Available is the kernel's estimate, MemAvailable, in
//! which caches that can be dropped are free, and in addition what the ZFS cache (ARC) gives back under pressure, which
//! the kernel does not count. A node without swap has no `swap_usage`.
//!
//! In a container with lxcfs the file's total is the container's, while huge pages and the ARC are the host's: they are
//! left out.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::{FsWord, statfs};

use super::file::lines;
use super::{CollectError, Collector, ParseError, ProcFile, Record, Roots};
use crate::series::{Kind, Moment, Signal};

/// `mem_usage`, in percent.
pub static USAGE: Kind =
    Kind::of_node("mem_usage", "memory that is not available to new work, percent");
/// `swap_usage`, in percent.
pub static SWAP: Kind = Kind::of_node("swap_usage", "swap in use, percent");

/// Linux 6.18 writes 1.6 KiB.
const LIMIT: u64 = 16 << 10;
/// OpenZFS 2.3 writes 8 KiB.
const ARC_LIMIT: u64 = 64 << 10;
/// statfs(2): the type of file systems that a process serves, as lxcfs does.
const FUSE: FsWord = 0x6573_5546;

/// Samples `/proc/meminfo`.
#[derive(Debug)]
pub struct Memory {
    path: PathBuf,
    file: ProcFile,
    /// ZFS's counters; only a node with ZFS has them.
    arc: ProcFile,
    /// `/sys/kernel/mm/hugepages`, for kernels before Linux 4.16, whose meminfo has the default size alone.
    huge_pages: PathBuf,
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
            huge_pages: roots.sysfs.join("kernel/mm/hugepages"),
            path,
        }
    }

    /// Adds what other files tell.
    fn complete(&mut self, mut info: MemInfo) -> MemInfo {
        if statfs(&self.path).is_ok_and(|found| found.f_type == FUSE) {
            return MemInfo { huge: None, ..info };
        }
        if !info.huge.is_some_and(|huge| huge.of_all_sizes) {
            let all = huge_pages(&self.huge_pages);
            info.huge = all.map(|kib| HugePages { kib, of_all_sizes: true }).or(info.huge);
        }
        // What cannot be read or parsed makes nothing available.
        let arc = self.arc.parse_if_there(|arcstats| Ok(parse_arc(arcstats)));
        info.arc = arc.ok().flatten().flatten();
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
        let info = self.file.parse(parse)?;
        let info = self.complete(info);
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
    /// Total and free.
    swap: Option<(u64, u64)>,
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
    /// The share that is not available, in percent.
    #[must_use]
    pub fn usage(self) -> f64 {
        let Self { total, available, .. } = self;
        // In a container with lxcfs, more may be available than there is.
        let available = available.min(total);
        // The memory that is not available contains the huge pages. More of them, or an ARC that is larger than the
        // total, are those of a host whose lxcfs shows the total of a container: they are left out.
        let huge = self.huge.map_or(0, |huge| huge.kib);
        let huge = Some(huge).filter(|huge| *huge <= total - available).unwrap_or(0);
        let used = total - available - huge;
        let arc = self.arc.filter(|arc| arc.size <= total);
        // A part of the ARC is in slabs that the kernel counts as available already.
        let used = used.saturating_sub(arc.map_or(0, |arc| arc.size.saturating_sub(arc.least)));
        // All memory may be in huge pages: nothing is available.
        if total == huge { 100.0 } else { 100.0 * (used as f64 / (total - huge) as f64) }
    }

    /// The share of swap in use, in percent. `None` without swap.
    #[must_use]
    pub fn swap_usage(self) -> Option<f64> {
        let (total, free) = self.swap.filter(|(total, _)| *total > 0)?;
        Some(100.0 * (1.0 - free.min(total) as f64 / total as f64))
    }
}

/// Reads `/proc/meminfo`.
///
/// # Errors
/// When MemTotal or MemAvailable is missing, a number is malformed, or MemTotal is 0.
pub fn parse(meminfo: &[u8]) -> Result<MemInfo, ParseError> {
    let total = field(meminfo, "MemTotal:").ok_or(ParseError::File("has no line \"MemTotal\""))?;
    let available = field(meminfo, "MemAvailable:");
    let available = available
        .ok_or(ParseError::File("has no line \"MemAvailable\": Linux 3.14 or later has"))?;
    match (total.kib()?, available.kib()?) {
        (0, _) => Err(total.problem("the total is 0")),
        (total, available) => {
            let huge = huge(meminfo)?;
            let swap = swap(meminfo)?;
            Ok(MemInfo { total, available, huge, arc: None, swap })
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
    for size in fs::read_dir(folder).ok()? {
        let size = size.ok()?;
        let name = size.file_name();
        let kib: u64 =
            name.to_str()?.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        let pages = fs::read_to_string(size.path().join("nr_hugepages")).ok()?;
        let pages: u64 = pages.trim().parse().ok()?;
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

/// Total and free swap. A kernel without swap support has no such lines.
fn swap(meminfo: &[u8]) -> Result<Option<(u64, u64)>, ParseError> {
    let total = field(meminfo, "SwapTotal:");
    let free = field(meminfo, "SwapFree:");
    let pair = total.zip(free).map(|(total, free)| Ok((total.kib()?, free.kib()?)));
    pair.transpose()
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
        let number = self.text.trim().strip_suffix("kB").map(str::trim);
        let number = number.and_then(|number| number.parse().ok());
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
        let root = |name: &str| node.path().join(name);
        let rootfs = root("root");
        let kubelet = root("kubelet");
        let roots = Roots { procfs: root("proc"), sysfs: root("sys"), rootfs, kubelet };
        let mut usage = None;
        let now = Moment(std::time::Duration::ZERO);
        Memory::new(&roots)
            .collect(now, &mut |signal: &Signal, value| {
                usage = (signal.name() == "mem_usage").then_some(value);
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
            let _ = (parse(&bytes), parse_arc(&bytes));
        }

        #[test]
        fn any_two_numbers_give_a_percentage(total in 1u64.., available: u64) {
            let text = format!("MemTotal: {total} kB\nMemAvailable: {available} kB\n");
            prop_assert!((0.0..=100.0).contains(&parse(text.as_bytes()).unwrap().usage()));
        }

        #[test]
        fn huge_pages_and_zfs_keep_it_a_percentage(
            total in 1u64..,
            available: u64,
            huge: u64,
            size: u64,
            least: u64,
        ) {
            let text = format!(
                "MemTotal: {total} kB\nMemAvailable: {available} kB\nHugetlb: {huge} kB\n"
            );
            let mut info = parse(text.as_bytes()).unwrap();
            info.arc = parse_arc(format!("size 4 {size}\nc_min 4 {least}\n").as_bytes());
            prop_assert!((0.0..=100.0).contains(&info.usage()), "{}", info.usage());
        }
    }
}

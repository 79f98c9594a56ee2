//! The files of a control group: reading them in bounded memory, and parsing them.

use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use rustix::fs::OFlags;

/// `memory.stat` is the longest: Linux 6.18 writes 1.8 KiB.
const LIMIT: u64 = 16 << 10;

/// The version of control groups, which decides on the files' form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// A hierarchy for each controller.
    V1,
    /// One hierarchy.
    V2,
}

impl Version {
    /// The file with the CPU time.
    pub(super) fn cpu_file(self) -> &'static str {
        match self {
            Self::V1 => "cpuacct.usage",
            Self::V2 => "cpu.stat",
        }
    }

    /// The file with the memory in use.
    pub(super) fn memory_file(self) -> &'static str {
        match self {
            Self::V1 => "memory.usage_in_bytes",
            Self::V2 => "memory.current",
        }
    }

    /// The file with what is swapped; of version 1 the memory in use is in it. Groups have none where the kernel does
    /// not count swap.
    pub(super) fn swap_file(self) -> &'static str {
        match self {
            Self::V1 => "memory.memsw.usage_in_bytes",
            Self::V2 => "memory.swap.current",
        }
    }

    /// The lines of `memory.stat` that the kernel can reclaim, child groups' included: file pages, which do not contain
    /// tmpfs and shared memory, and caches of file names and inodes. Version 1 does not tell the latter.
    fn reclaimable(self) -> &'static [&'static str] {
        match self {
            Self::V1 => &["total_active_file", "total_inactive_file"],
            Self::V2 => &["active_file", "inactive_file", "slab_reclaimable"],
        }
    }
}

/// Reads the CPU time since the group's creation: nanoseconds of `cpuacct.usage`, or the line `usage_usec` of
/// `cpu.stat`. `None` where it is not there.
#[must_use]
pub fn cpu(version: Version, content: &[u8]) -> Option<Duration> {
    match version {
        Version::V1 => number(content).map(Duration::from_nanos),
        Version::V2 => field(content, "usage_usec").map(Duration::from_micros),
    }
}

/// The memory in use or swapped, in bytes, less what `memory.stat` has of it that is available to others as
/// MemAvailable of `/proc/meminfo` counts: file pages and reclaimable slab. What is in memory of swapped pages,
/// compressed or in the swap cache, counts once. Huge pages, which some mount options count in, are left out too.
/// `None` where the file lacks one of the lines, or nothing is left: a process always has some memory, so it was not
/// charged to this group.
#[must_use]
pub fn memory_used(version: Version, usage: u64, stat: &[u8]) -> Option<u64> {
    let mut used = usage;
    if version == Version::V2 {
        // Lines that not every kernel has. Linux 6.12 has `hugetlb`, and only with the mount option
        // memory_hugetlb_accounting.
        for key in ["hugetlb", "zswap", "swapcached"] {
            used = used.saturating_sub(field(stat, key).unwrap_or(0));
        }
    }
    for key in version.reclaimable() {
        // The files are read one after the other, so what is reclaimable can be more.
        used = used.saturating_sub(field(stat, key)?);
    }
    (used > 0).then_some(used)
}

/// Reads a file of one number, as `memory.current` is.
#[must_use]
pub fn number(content: &[u8]) -> Option<u64> {
    lines(content).next()?.parse().ok()
}

/// The number after the key, as in `inactive_file 4096`.
pub(super) fn field(content: &[u8], key: &str) -> Option<u64> {
    let number = lines(content).find_map(|line| line.strip_prefix(key)?.strip_prefix(' '))?;
    number.parse().ok()
}

/// The whole lines: one that is cut off by the limit would be another number.
fn lines(content: &[u8]) -> impl Iterator<Item = &str> {
    let lines = content.split_inclusive(|byte| *byte == b'\n');
    lines.filter_map(|line| str::from_utf8(line.strip_suffix(b"\n")?).ok())
}

/// Reads the first 16 KiB of a file into `buffer`. `None` where it cannot be opened or read, or is a link.
pub(super) fn read<'a>(path: &Path, buffer: &'a mut Vec<u8>) -> Option<&'a [u8]> {
    // A control group has neither links nor pipes; a folder that is named by mistake may have.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().try_into().ok()?;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    buffer.clear();
    file.take(LIMIT).read_to_end(buffer).ok()?;
    Some(buffer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn cpu_time_is_nanoseconds_or_the_line_of_microseconds() {
        assert_eq!(cpu(Version::V1, b"123456789\n"), Some(Duration::from_nanos(123_456_789)));
        let stat = b"nr_periods 0\nusage_usec 1500000\nuser_usec 9\n";
        assert_eq!(cpu(Version::V2, stat), Some(Duration::from_millis(1_500)));
    }

    #[test]
    fn the_page_cache_is_not_used_memory_whether_it_was_read_lately_or_not() {
        let v1 = b"inactive_file 7\ntotal_inactive_file 300\ntotal_active_file 200\n";
        assert_eq!(memory_used(Version::V1, 1_000, v1), Some(500));
        let v2 = b"anon 400\nshmem 90\ninactive_file 300\nactive_file 200\nslab_reclaimable 10\n";
        assert_eq!(memory_used(Version::V2, 1_000, v2), Some(490));
        let huge = [v2, &b"hugetlb 90\n"[..]].concat();
        assert_eq!(memory_used(Version::V2, 1_000, &huge), Some(400));
        // Of 1,000 bytes in memory and on swap, 40 are compressed and 50 are in both.
        let swapped = [v2, &b"zswap 40\nzswapped 120\nswapcached 50\n"[..]].concat();
        assert_eq!(memory_used(Version::V2, 1_000, &swapped), Some(400));
    }

    #[test]
    fn a_group_to_which_no_memory_is_charged_is_unknown_and_not_0() {
        let stat = b"inactive_file 0\nactive_file 0\nslab_reclaimable 0\n";
        assert_eq!(memory_used(Version::V2, 0, stat), None);
        let stat = b"total_inactive_file 300\ntotal_active_file 0\n";
        assert_eq!(memory_used(Version::V1, 200, stat), None);
    }

    #[test]
    fn what_is_missing_or_malformed_is_unknown_and_not_0() {
        for wrong in ["", "\n", "-1\n", "1.5\n", "max\n", "18446744073709551616\n", "12 34\n", "12"]
        {
            assert_eq!(number(wrong.as_bytes()), None, "{wrong:?}");
            assert_eq!(cpu(Version::V1, wrong.as_bytes()), None, "{wrong:?}");
            let fields = format!("active_file 1\nslab_reclaimable 1\ninactive_file {wrong}");
            assert_eq!(memory_used(Version::V2, 9, fields.as_bytes()), None, "{fields:?}");
        }
        assert_eq!(memory_used(Version::V1, 9, b"total_inactive_file 1\n"), None);
        assert_eq!(cpu(Version::V2, b"usage_usecs 5\nusage_usec\t5\n"), None);
    }

    #[test]
    fn a_line_that_is_cut_off_is_not_read() {
        assert_eq!(cpu(Version::V2, b"nr_periods 0\nusage_usec 15"), None);
        assert_eq!(cpu(Version::V1, b"15"), None);
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), usage: u64) {
            for version in [Version::V1, Version::V2] {
                let _ = (cpu(version, &bytes), number(&bytes), memory_used(version, usage, &bytes));
            }
        }

        #[test]
        fn any_numbers_give_memory_of_at_most_the_usage(usage: u64, active: u64, inactive: u64) {
            prop_assert_eq!(number(format!("{usage}\n").as_bytes()), Some(usage));
            let stat = format!("total_inactive_file {inactive}\ntotal_active_file {active}\n");
            let read = memory_used(Version::V1, usage, stat.as_bytes());
            prop_assert!(read.is_none_or(|read| (1..=usage).contains(&read)), "{read:?}");
        }
    }
}

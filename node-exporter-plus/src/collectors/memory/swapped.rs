//! What memory holds of swapped pages: compressed copies, in zram and zswap.
//!
//! Swapped memory counts as used by its own size, so its compressed copy must not count as well.

use std::path::Path;

use super::field;
use crate::collectors::file::{lines, text};

/// What zswap has in memory, in KiB: the line `Zswap` of `/proc/meminfo`, since Linux 5.19.
pub(super) fn zswap(meminfo: &[u8]) -> u64 {
    field(meminfo, "Zswap:").and_then(|line| line.kib().ok()).unwrap_or(0)
}

/// What the compressed disks among `/proc/swaps` have in memory, in KiB. Where a disk does not tell, all that was
/// swapped to it: then its pages count by their compressed size.
pub(super) fn zram(swaps: &[u8], blocks: &Path) -> u64 {
    let mut sum = 0_u64;
    for (name, used) in zram_disks(swaps) {
        let held = text(&blocks.join(name).join("mm_stat")).and_then(|text| parse_mm_stat(&text));
        sum = sum.saturating_add(held.unwrap_or(used));
    }
    sum
}

/// The names of compressed disks, and what was swapped to them in KiB: lines like `/dev/zram0 partition 100 40 100`.
#[must_use]
pub fn zram_disks(swaps: &[u8]) -> Vec<(&str, u64)> {
    let disks = lines(swaps).filter_map(|(_, text)| {
        let mut columns = text.split_ascii_whitespace();
        let name = columns.next()?.strip_prefix("/dev/").filter(|name| name.starts_with("zram"))?;
        Some((name, columns.nth(2)?.parse().ok()?))
    });
    // A name is that of a folder in `/sys/block`.
    disks.filter(|(name, _)| !name.contains('/')).collect()
}

/// The third number, the bytes that a compressed disk takes of memory, in KiB.
#[must_use]
pub fn parse_mm_stat(text: &str) -> Option<u64> {
    Some(text.split_ascii_whitespace().nth(2)?.parse::<u64>().ok()? / 1_024)
}

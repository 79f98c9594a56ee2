//! Memory from `/proc/meminfo`: `mem_usage`, the share that is not available to new processes, and `swap_usage`.
//!
//! Available is the kernel's estimate, MemAvailable, in which caches that can be dropped are free. A node without swap has
//! no `swap_usage`.

use std::path::Path;

use super::file::lines;
use super::{CollectError, Collector, ParseError, ProcFile, Record};
use crate::series::{Kind, Moment, Signal};

/// `mem_usage`, in percent.
pub static USAGE: Kind =
    Kind::of_node("mem_usage", "memory that is not available to new work, percent");
/// `swap_usage`, in percent.
pub static SWAP: Kind = Kind::of_node("swap_usage", "swap in use, percent");

/// Linux 6.18 writes 1.6 KiB.
const LIMIT: u64 = 16 << 10;

/// Samples `/proc/meminfo`.
#[derive(Debug)]
pub struct Memory {
    file: ProcFile,
}

impl Memory {
    /// A collector over the procfs at `procfs`.
    #[must_use]
    pub fn new(procfs: &Path) -> Self {
        Self { file: ProcFile::new(&procfs.join("meminfo"), LIMIT) }
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
        record(&Signal::of_node(&USAGE), info.usage());
        if let Some(swap) = info.swap_usage() {
            record(&Signal::of_node(&SWAP), swap);
        }
        Ok(())
    }
}

/// The fields of `/proc/meminfo` that are used, in KiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemInfo {
    total: u64,
    available: u64,
    /// Total and free.
    swap: Option<(u64, u64)>,
}

impl MemInfo {
    /// The share that is not available, in percent.
    #[must_use]
    pub fn usage(self) -> f64 {
        // In a container with lxcfs, more may be available than there is.
        let available = self.available.min(self.total);
        100.0 * (1.0 - available as f64 / self.total as f64)
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
        (total, available) => Ok(MemInfo { total, available, swap: swap(meminfo)? }),
    }
}

/// Total and free swap. A kernel without swap support has no such lines.
fn swap(meminfo: &[u8]) -> Result<Option<(u64, u64)>, ParseError> {
    let (total, free) = (field(meminfo, "SwapTotal:"), field(meminfo, "SwapFree:"));
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

    #[test]
    fn more_available_than_total_is_no_usage() {
        let info = parse(b"MemTotal: 10 kB\nMemAvailable: 12 kB\n").unwrap();
        assert_eq!(info.usage(), 0.0);
    }

    #[test]
    fn swap_has_a_usage_where_there_is_some() {
        let swap = |lines: &str| {
            let text = format!("MemTotal: 10 kB\nMemAvailable: 2 kB\n{lines}");
            parse(text.as_bytes()).unwrap().swap_usage()
        };
        assert_eq!(swap("SwapTotal: 400 kB\nSwapFree: 300 kB\n"), Some(25.0));
        assert_eq!(swap("SwapTotal: 0 kB\nSwapFree: 0 kB\n"), None);
        assert_eq!(swap(""), None);
    }

    #[test]
    fn errors_name_what_is_missing_and_where() {
        let error = |text: &[u8]| parse(text).unwrap_err().to_string();
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
            let _ = parse(&bytes);
        }

        #[test]
        fn any_two_numbers_give_a_percentage(total in 1u64.., available: u64) {
            let text = format!("MemTotal: {total} kB\nMemAvailable: {available} kB\n");
            prop_assert!((0.0..=100.0).contains(&parse(text.as_bytes()).unwrap().usage()));
        }
    }
}

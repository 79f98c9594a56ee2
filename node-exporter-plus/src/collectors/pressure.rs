//! Pressure stall information, from `/proc/pressure`: `psi_*`, the share of time in which tasks waited for CPU, memory
//! or IO.
//!
//! `some` means that at least one task waited, `full` that all of them did at once. The shares are of the sample
//! interval, from the kernel's totals; its averages have windows of their own. `psi_cpu_some` also counts tasks that
//! are throttled by their CPU limit, so it suits scores and not limits. Kernels without PSI have no such signals.

use std::path::Path;

use super::file::lines;
use super::rate::Counter;
use super::{CollectError, Collector, ParseError, ProcFile, Record, Roots};
use crate::series::{Interval, Kind, Moment, Signal};

/// `psi_cpu_some`, in percent.
pub static CPU_SOME: Kind =
    Kind::of_node("psi_cpu_some", "time in which a task waited for a CPU, percent");
/// `psi_memory_some`, in percent.
pub static MEMORY_SOME: Kind =
    Kind::of_node("psi_memory_some", "time in which a task waited for memory, percent");
/// `psi_memory_full`, in percent.
pub static MEMORY_FULL: Kind =
    Kind::of_node("psi_memory_full", "time in which all tasks waited for memory, percent");
/// `psi_io_some`, in percent.
pub static IO_SOME: Kind =
    Kind::of_node("psi_io_some", "time in which a task waited for IO, percent");
/// `psi_io_full`, in percent.
pub static IO_FULL: Kind =
    Kind::of_node("psi_io_full", "time in which all tasks waited for IO, percent");

const LIMIT: u64 = 1 << 10;

/// Samples `/proc/pressure`.
#[derive(Debug)]
pub struct Pressure {
    interval: Interval,
    resources: [Resource; 3],
}

/// One file, with a counter for each of its lines. `full` makes no sense for the CPUs of a whole system.
#[derive(Debug)]
struct Resource {
    file: ProcFile,
    some: (&'static Kind, Counter),
    full: Option<(&'static Kind, Counter)>,
}

impl Pressure {
    /// A collector over these roots.
    #[must_use]
    pub fn new(roots: &Roots, interval: Interval) -> Self {
        let folder = roots.procfs.join("pressure");
        let cpu = Resource::new(&folder.join("cpu"), &CPU_SOME, None);
        let memory = Resource::new(&folder.join("memory"), &MEMORY_SOME, Some(&MEMORY_FULL));
        let io = Resource::new(&folder.join("io"), &IO_SOME, Some(&IO_FULL));
        Self { interval, resources: [cpu, memory, io] }
    }
}

impl Resource {
    fn new(file: &Path, some: &'static Kind, full: Option<&'static Kind>) -> Self {
        Self {
            file: ProcFile::new(file, LIMIT),
            some: (some, Counter::default()),
            full: full.map(|kind| (kind, Counter::default())),
        }
    }
}

impl Collector for Pressure {
    fn name(&self) -> &'static str {
        "pressure"
    }

    fn collect(&mut self, now: Moment, record: &mut Record<'_>) -> Result<(), CollectError> {
        for resource in &mut self.resources {
            let Some(stalled) = resource.file.parse_if_there(parse)? else { continue };
            let full = resource.full.as_mut().zip(stalled.full);
            for ((kind, counter), total) in
                full.into_iter().chain([(&mut resource.some, stalled.some)])
            {
                // From microseconds per second to percent. The kernel's clock and this one differ a little.
                if let Some(rate) = counter.rate(self.interval, now, total) {
                    record(&Signal::of_node(kind), (rate / 10_000.0).min(100.0));
                }
            }
        }
        Ok(())
    }
}

/// The time since the boot in which tasks waited, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stalled {
    /// At least one task.
    pub some: u64,
    /// All tasks at once, if the file has it.
    pub full: Option<u64>,
}

/// Reads the totals of lines like `some avg10=0.00 avg60=0.00 avg300=0.00 total=4711`.
///
/// # Errors
/// When there is no line `some`, or a line without a total.
pub fn parse(pressure: &[u8]) -> Result<Stalled, ParseError> {
    let mut some = None;
    let mut full = None;
    for (line, text) in lines(pressure) {
        let counted = match text.split(' ').next() {
            Some("some") => &mut some,
            Some("full") => &mut full,
            _ => continue,
        };
        let total = total(text).ok_or(ParseError::Line { line, problem: "has no total=" })?;
        *counted = Some(total);
    }
    some.map(|some| Stalled { some, full }).ok_or(ParseError::File("has no line \"some\""))
}

fn total(line: &str) -> Option<u64> {
    line.split(' ').find_map(|word| word.strip_prefix("total="))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn totals_are_read_with_and_without_full() {
        let text = b"some avg10=0.00 avg60=0.10 avg300=0.01 total=12\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n";
        assert_eq!(parse(text), Ok(Stalled { some: 12, full: Some(7) }));
        assert_eq!(parse(b"some total=3\n"), Ok(Stalled { some: 3, full: None }));
        assert_eq!(parse(b"full total=3\n").unwrap_err().to_string(), "has no line \"some\"");
        let error = parse(b"some avg10=0\n").unwrap_err().to_string();
        assert_eq!(error, "line 1: has no total=");
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
        }
    }
}

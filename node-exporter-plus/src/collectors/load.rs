//! Load averages from `/proc/loadavg`: `load1`, `load5`, `load15`, and `load_usage`, which is `load1` in percent of the
//! number of CPUs that are online.

use super::file::lines;
use super::{CollectError, Collector, ParseError, ProcFile, Record, Roots};
use crate::list::parse_list;
use crate::series::{Kind, Moment, Signal};

/// `load1`, in tasks.
pub static LOAD1: Kind = Kind::of_node("load1", "load average of one minute");
/// `load5`, in tasks.
pub static LOAD5: Kind = Kind::of_node("load5", "load average of five minutes");
/// `load15`, in tasks.
pub static LOAD15: Kind = Kind::of_node("load15", "load average of fifteen minutes");
/// `load_usage`, in percent.
pub static USAGE: Kind = Kind::of_node(
    "load_usage",
    "load average of one minute in percent of the CPUs that are online",
);

const LIMIT: u64 = 1 << 10;
/// A list of 8,192 CPUs of which every other one is offline has 20 KiB.
const LIST_LIMIT: u64 = 64 << 10;

/// Samples `/proc/loadavg`.
#[derive(Debug)]
pub struct Load {
    averages: ProcFile,
    online: ProcFile,
}

impl Load {
    /// A collector over these roots.
    #[must_use]
    pub fn new(roots: &Roots) -> Self {
        let online = roots.sysfs.join("devices/system/cpu/online");
        let averages = roots.procfs.join("loadavg");
        Self {
            averages: ProcFile::new(&averages, LIMIT),
            online: ProcFile::new(&online, LIST_LIMIT),
        }
    }
}

impl Collector for Load {
    fn name(&self) -> &'static str {
        "load"
    }

    fn collect(&mut self, _: Moment, record: &mut Record<'_>) -> Result<(), CollectError> {
        let Some(averages) = self.averages.parse_if_there(parse)? else { return Ok(()) };
        for (kind, value) in [&LOAD1, &LOAD5, &LOAD15].into_iter().zip(averages) {
            record(&Signal::of_node(kind), value);
        }
        // Read each time: CPUs can be plugged and unplugged.
        if let Some(cpus) = self.online.parse_if_there(parse_online)? {
            record(&Signal::of_node(&USAGE), 100.0 * averages[0] / f64::from(cpus));
        }
        Ok(())
    }
}

/// Reads `0.52 0.58 0.59 2/1023 4711`.
///
/// # Errors
/// When one of the three averages is missing, negative or no number.
pub fn parse(loadavg: &[u8]) -> Result<[f64; 3], ParseError> {
    let problem = ParseError::Line { line: 1, problem: "is not three load averages" };
    let (_, text) = lines(loadavg).next().ok_or(problem)?;
    let mut words = text.split_ascii_whitespace().map(str::parse::<f64>);
    let mut averages = [0.0; 3];
    for average in &mut averages {
        let load = words.next().and_then(Result::ok);
        *average = load.filter(|load| load.is_finite() && *load >= 0.0).ok_or(problem)?;
    }
    Ok(averages)
}

/// Counts the CPUs of a list like `0-3,8`.
///
/// # Errors
/// When it is no such list, or empty.
pub fn parse_online(list: &[u8]) -> Result<u32, ParseError> {
    let listed = str::from_utf8(list).ok().and_then(parse_list).map(|cpus| cpus.len());
    let cpus = listed.filter(|cpus| *cpus > 0).and_then(|cpus| cpus.try_into().ok());
    cpus.ok_or(ParseError::Line { line: 1, problem: "is not a list of CPUs like 0-3,8" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_three_averages_are_read() {
        assert_eq!(parse(b"0.52 1.5 20.00 2/1023 4711\n"), Ok([0.52, 1.5, 20.0]));
        for bad in ["", "\n", "0.5 0.5", "a b c", "0.1 -1 0.2 1/1 1", "inf 1 1"] {
            assert!(parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn online_cpus_are_counted_also_with_holes() {
        assert_eq!(parse_online(b"0-3,8\n"), Ok(5));
        assert_eq!(parse_online(b"0\n"), Ok(1));
        for bad in ["", "3-0", "0-4294967295", "a", "0,,1", "-1"] {
            assert!(parse_online(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = (parse(&bytes), parse_online(&bytes));
        }
    }
}

//! `cpu_usage`: the share of CPU time that was not idle since the last sample, from `/proc/stat`.
//!
//! Waiting for IO counts as busy, as in crane's recording rule (100 minus the idle rate); so does time stolen by
//! the hypervisor. Guest time is part of user and nice in the kernel's own count, and is not added again.

use std::path::Path;

use super::file::lines;
use super::{CollectError, Collector, ParseError, ProcFile};
use crate::series::{Interval, Moment, Signal};

/// The share of CPU time that was not idle.
pub const CPU_USAGE: Signal = Signal {
    name: "cpu_usage",
    help: "CPU time that was not idle (waiting for IO is not idle), percent",
};

/// The first line is the one that counts. A kernel with 4,096 CPUs writes a megabyte after it.
const LIMIT: u64 = 4 << 10;

/// Samples `/proc/stat`; the first sample has nothing to compare with and gives nothing.
#[derive(Debug)]
pub struct Cpu {
    file: ProcFile,
    interval: Interval,
    before: Option<(Moment, Ticks)>,
}

impl Cpu {
    /// A collector over the procfs at `procfs`.
    #[must_use]
    pub fn new(procfs: &Path, interval: Interval) -> Self {
        Self { file: ProcFile::new(&procfs.join("stat"), LIMIT), interval, before: None }
    }
}

impl Collector for Cpu {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn collect(
        &mut self,
        now: Moment,
        record: &mut dyn FnMut(Signal, f64),
    ) -> Result<(), CollectError> {
        let ticks = self.file.parse(parse)?;
        let before = self.before.replace((now, ticks));
        // Over a long pause the mean says nothing about the slot that it would be put into.
        let recent = before.filter(|(at, _)| !self.interval.is_stale(*at, now));
        if let Some(usage) = recent.and_then(|(_, before)| usage(before, ticks)) {
            record(CPU_USAGE, usage);
        }
        Ok(())
    }
}

/// The kinds of time in the `cpu` line that together make up all of it: user, nice, system, idle, iowait, irq,
/// softirq, steal.
const KINDS: usize = 8;
const IDLE: usize = 3;

/// CPU time since the boot, by kind, in ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticks([u64; KINDS]);

impl Ticks {
    fn total(&self) -> u128 {
        self.0.iter().map(|ticks| u128::from(*ticks)).sum()
    }
}

/// Reads the `cpu` line of `/proc/stat`.
///
/// # Errors
/// When there is none, or one of its numbers is none.
pub fn parse(stat: &[u8]) -> Result<Ticks, ParseError> {
    let of_all_cpus =
        |(line, text): (usize, &'_ str)| Some((line, text.strip_prefix("cpu ")?.to_owned()));
    let (line, numbers) =
        lines(stat).find_map(of_all_cpus).ok_or(ParseError::File("has no line \"cpu\""))?;
    let problem = |problem| ParseError::Line { line, problem };
    let mut ticks = [0; KINDS];
    let mut found = 0;
    // Kernels before 2.6.11 have fewer kinds; those after 2.6.24 add guest times, which are counted already.
    for (kind, number) in ticks.iter_mut().zip(numbers.split_ascii_whitespace()) {
        *kind = number.parse().map_err(|_| problem("a CPU time is not a whole number"))?;
        found += 1;
    }
    if found > IDLE { Ok(Ticks(ticks)) } else { Err(problem("the idle time is missing")) }
}

/// The share of busy time between two samples, in percent. None when no time has passed, or the counters began
/// anew.
#[must_use]
pub fn usage(before: Ticks, after: Ticks) -> Option<f64> {
    if after.total() < before.total() {
        return None;
    }
    // Idle and iowait can step back by a few ticks (proc(5)): such a kind has not advanced.
    let advanced = |kind: usize| after.0[kind].saturating_sub(before.0[kind]) as f64;
    let total: f64 = (0..KINDS).map(advanced).sum();
    (total > 0.0).then(|| 100.0 * (1.0 - advanced(IDLE) / total))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fs;
    use std::time::Duration;

    fn ticks(line: &str) -> Ticks {
        parse(line.as_bytes()).unwrap()
    }

    #[test]
    fn busy_is_all_that_is_not_idle_and_waiting_is_busy() {
        let before = ticks("cpu  0 0 0 0 0 0 0 0 0 0\n");
        assert_eq!(usage(before, ticks("cpu  10 5 5 60 10 2 3 5 0 0\n")), Some(40.0));
        assert_eq!(usage(before, ticks("cpu  0 0 0 75 25 0 0 0 0 0\n")), Some(25.0));
    }

    #[test]
    fn guest_time_is_not_counted_twice() {
        let before = ticks("cpu  0 0 0 0 0 0 0 0 0 0\n");
        assert_eq!(usage(before, ticks("cpu  50 0 0 50 0 0 0 0 50 0\n")), Some(50.0));
    }

    #[test]
    fn a_saturated_node_reads_a_hundred() {
        assert_eq!(
            usage(ticks("cpu  1 1 1 9 0 0 0 0\n"), ticks("cpu  301 1 1 9 0 0 0 0\n")),
            Some(100.0)
        );
    }

    #[test]
    fn counters_that_began_anew_give_nothing() {
        assert_eq!(usage(ticks("cpu 100 0 0 900\n"), ticks("cpu 1 0 0 9\n")), None);
    }

    #[test]
    fn no_time_passed_is_no_value() {
        assert_eq!(usage(ticks("cpu 1 0 0 9\n"), ticks("cpu 1 0 0 9\n")), None);
    }

    #[test]
    fn waiting_time_that_steps_back_counts_as_none() {
        let usage = usage(ticks("cpu 100 0 0 900 50 0 0 0\n"), ticks("cpu 150 0 0 950 45 0 0 0\n"));
        assert_eq!(usage, Some(50.0));
    }

    #[test]
    fn errors_name_the_line() {
        assert_eq!(parse(b"").unwrap_err().to_string(), "has no line \"cpu\"");
        assert_eq!(parse(b"cpu0 1 2 3 4\n").unwrap_err().to_string(), "has no line \"cpu\"");
        let error = parse(b"btime 7\ncpu  1 2 x 4\n").unwrap_err().to_string();
        assert_eq!(error, "line 2: a CPU time is not a whole number");
        assert_eq!(
            parse(b"cpu  1 2 3\n").unwrap_err().to_string(),
            "line 1: the idle time is missing"
        );
    }

    fn collect(cpu: &mut Cpu, seconds: u64) -> Option<f64> {
        let mut value = None;
        let now = Moment(Duration::from_secs(seconds));
        cpu.collect(now, &mut |_, sample| value = Some(sample)).unwrap();
        value
    }

    #[test]
    fn two_samples_make_a_value_and_a_long_pause_breaks_the_pair() {
        let proc = tempfile::tempdir().unwrap();
        let stat = proc.path().join("stat");
        let mut cpu = Cpu::new(proc.path(), "10s".parse().unwrap());
        fs::write(&stat, "cpu 0 0 0 0\n").unwrap();
        assert_eq!(collect(&mut cpu, 10), None);
        fs::write(&stat, "cpu 25 0 0 75\n").unwrap();
        assert_eq!(collect(&mut cpu, 20), Some(25.0));
        fs::write(&stat, "cpu 125 0 0 75\n").unwrap();
        assert_eq!(collect(&mut cpu, 51), None);
    }

    #[test]
    fn a_missing_file_is_named() {
        let mut cpu = Cpu::new(Path::new("/nonexistent"), "10s".parse().unwrap());
        let error = cpu.collect(Moment(Duration::ZERO), &mut |_, _| {}).unwrap_err().to_string();
        assert!(error.starts_with("/nonexistent/stat: "), "{error}");
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse(&bytes);
        }

        #[test]
        fn any_two_samples_give_a_percentage_or_nothing(
            before in prop::array::uniform8(any::<u64>()),
            after in prop::array::uniform8(any::<u64>()),
        ) {
            let usage = usage(Ticks(before), Ticks(after));
            prop_assert!(usage.is_none_or(|usage| (0.0..=100.0).contains(&usage)));
        }
    }
}

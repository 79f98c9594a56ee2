//! Where the CPUs' time went since the last sample, from `/proc/stat`.
//!
//! `cpu_usage` is crane's recording rule (100 minus the idle rate): waiting for IO is busy, and so is time stolen
//! by the hypervisor. `cpu_busy`, `cpu_iowait` and `cpu_steal` tell these apart and add up to it. Guest time is
//! part of user and nice in the kernel's own count, and is not added again.

use std::path::Path;

use super::file::lines;
use super::{CollectError, Collector, ParseError, ProcFile, Record};
use crate::series::{Interval, Kind, Moment, Signal};

/// Everything but idle.
pub static USAGE: Kind = Kind {
    name: "cpu_usage",
    help: "CPU time that was not idle (waiting for IO is not idle), percent",
    label: None,
};
/// Time in which a CPU worked for this node.
pub static BUSY: Kind = Kind {
    name: "cpu_busy",
    help: "CPU time spent working, without waiting for IO and time stolen by the hypervisor, percent",
    label: None,
};
/// Time in which a CPU was idle but for a disk.
pub static IOWAIT: Kind =
    Kind { name: "cpu_iowait", help: "CPU time spent waiting for IO, percent", label: None };
/// Time that the hypervisor gave to others.
pub static STEAL: Kind = Kind {
    name: "cpu_steal",
    help: "CPU time that the hypervisor gave to others, percent",
    label: None,
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

    fn is_essential(&self) -> bool {
        true
    }

    fn collect(&mut self, now: Moment, record: &mut Record<'_>) -> Result<(), CollectError> {
        let ticks = self.file.parse(parse)?;
        let before = self.before.replace((now, ticks));
        // Over a long pause the mean says nothing about the slot that it would be put into.
        let recent = before.filter(|(at, _)| !self.interval.is_stale(*at, now));
        if let Some(shares) = recent.and_then(|(_, before)| shares(before, ticks)) {
            let Shares { usage, busy, iowait, steal } = shares;
            for (kind, share) in
                [(&USAGE, usage), (&BUSY, busy), (&IOWAIT, iowait), (&STEAL, steal)]
            {
                record(&Signal::of_node(kind), share);
            }
        }
        Ok(())
    }
}

/// The kinds of time in the `cpu` line that together make up all of it: user, nice, system, idle, iowait, irq,
/// softirq, steal.
const KINDS: usize = 8;
const IDLE: usize = 3;
const IOWAIT_TICKS: usize = 4;
const STEAL_TICKS: usize = 7;

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

/// What became of the time between two samples, in percent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shares {
    /// Everything but idle.
    pub usage: f64,
    /// Everything but idle, waiting and stolen.
    pub busy: f64,
    /// Waiting for IO.
    pub iowait: f64,
    /// Stolen by the hypervisor.
    pub steal: f64,
}

/// The farthest that the kernel corrects idle and iowait backwards (proc(5)), in ticks: 3 s, as node_exporter holds.
/// A time that steps back farther lost what a CPU had counted that went or came (hot-plug): what was left of the
/// others' idle time would make a quiet node look busy.
const CORRECTION: u64 = 300;

/// The shares between two samples. None when no time has passed, or a counter began anew.
#[must_use]
pub fn shares(before: Ticks, after: Ticks) -> Option<Shares> {
    let began_anew = |kind: usize| before.0[kind].saturating_sub(after.0[kind]) > CORRECTION;
    if after.total() < before.total() || (0..KINDS).any(began_anew) {
        return None;
    }
    // A kind that was corrected backwards has not advanced.
    let advanced = |kind: usize| after.0[kind].saturating_sub(before.0[kind]) as f64;
    let total: f64 = (0..KINDS).map(advanced).sum();
    let share = |kind: usize| 100.0 * advanced(kind) / total;
    let usage = 100.0 * (1.0 - advanced(IDLE) / total);
    let (iowait, steal) = (share(IOWAIT_TICKS), share(STEAL_TICKS));
    let busy = (usage - iowait - steal).max(0.0);
    (total > 0.0).then_some(Shares { usage, busy, iowait, steal })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fs;
    use std::time::Duration;

    fn usage(before: Ticks, after: Ticks) -> Option<f64> {
        shares(before, after).map(|shares| shares.usage)
    }

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
    fn waiting_and_stolen_time_are_told_apart() {
        let before = ticks("cpu  0 0 0 0 0 0 0 0 0 0\n");
        let shares = shares(before, ticks("cpu  20 5 5 50 10 2 3 5 0 0\n")).unwrap();
        let rounded = [shares.usage, shares.busy, shares.iowait, shares.steal].map(f64::round);
        assert_eq!(rounded, [50.0, 35.0, 10.0, 5.0]);
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
    fn a_cpu_that_is_unplugged_does_not_make_the_others_look_busy() {
        // Four CPUs, 10 s, a quarter busy.
        let before = ticks("cpu 2000 0 0 90000\ncpu0 500 0 0 22500\ncpu1 500 0 0 22500\n");
        // The idle time that one of them had counted is gone, though less of it than all CPUs did since.
        assert_eq!(usage(before, ticks("cpu 3000 0 0 89500\ncpu0 750 0 0 22375\n")), None);
        // Only its line is gone: Linux goes on counting its time in the sum.
        assert_eq!(usage(before, ticks("cpu 3000 0 0 93000\ncpu0 750 0 0 23250\n")), Some(25.0));
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
        let mut record = |signal: &Signal, sample| {
            if signal.name() == "cpu_usage" {
                value = Some(sample);
            }
        };
        cpu.collect(now, &mut record).unwrap();
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
            if let Some(shares) = shares(Ticks(before), Ticks(after)) {
                let all = [shares.usage, shares.busy, shares.iowait, shares.steal];
                prop_assert!(all.iter().all(|share| (0.0..=100.0).contains(share)), "{:?}", shares);
            }
        }
    }
}

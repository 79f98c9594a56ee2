//! Where the CPUs' time went since the last sample, from `/proc/stat`.
//!
//! `cpu_usage` is crane's recording rule (100 minus the idle rate): waiting for IO is busy, and so is time stolen
//! by the hypervisor. `cpu_busy`, `cpu_iowait` and `cpu_steal` tell these apart and add up to it. Guest time is
//! part of user and nice in the kernel's own count, and is not added again.

use std::path::Path;
use std::time::Duration;

use super::file::lines;
use super::{CollectError, Collector, ParseError, ProcFile, Record, UptimeFile};
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

/// The sum of all CPUs and a line of 100 bytes or so for each: 600 CPUs are counted. Of more the sum is taken as it is.
const LIMIT: u64 = 64 << 10;

/// Samples `/proc/stat`; the first sample has nothing to compare with and gives nothing.
#[derive(Debug)]
pub struct Cpu {
    file: ProcFile,
    uptime: UptimeFile,
    interval: Interval,
    before: Option<Seen>,
}

/// A sample, taken `at` this moment or a little later.
#[derive(Debug, Clone, Copy)]
struct Seen {
    at: Moment,
    ticks: Ticks,
    /// How many are online, where that is known.
    cpus: Option<u32>,
}

impl Cpu {
    /// A collector over the procfs at `procfs`.
    #[must_use]
    pub fn new(procfs: &Path, interval: Interval) -> Self {
        let file = ProcFile::new(&procfs.join("stat"), LIMIT);
        Self { file, uptime: UptimeFile::new(procfs), interval, before: None }
    }

    /// The longest time that can have passed since the sample before. On a busy node we may be held up between
    /// looking at the clock and reading the counters, so the clock is looked at once more.
    fn longest_since(&mut self, before: Moment, now: Moment) -> Duration {
        self.uptime.read().map_or(now, |uptime| now.max(uptime)).since(before)
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
        let (ticks, cpus) = self.file.parse(|stat| Ok((parse(stat)?, count(stat))))?;
        let before = self.before.replace(Seen { at: now, ticks, cpus });
        // Over a long pause the mean says nothing about the slot that it would be put into.
        let Some(before) = before.filter(|before| !self.interval.is_stale(before.at, now)) else {
            return Ok(());
        };
        let passed = self.longest_since(before.at, now);
        let most = before.cpus.max(cpus);
        let possible = most.is_none_or(|cpus| can_have_advanced(before.ticks, ticks, passed, cpus));
        if let Some(shares) = shares(before.ticks, ticks).filter(|_| possible) {
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

    /// By how much each kind has grown. A kind that was corrected backwards has not advanced.
    fn advanced(&self, before: &Self) -> [f64; KINDS] {
        std::array::from_fn(|kind| self.0[kind].saturating_sub(before.0[kind]) as f64)
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

/// How many CPUs have a line: those that are online. None if they are not told, or not all of them fit.
#[must_use]
pub fn count(stat: &[u8]) -> Option<u32> {
    let mut others = lines(stat).map(|(_, text)| text).skip_while(|text| !text.starts_with("cpu "));
    let is_cpu = |text: &&str| text.starts_with("cpu");
    let cpus = others.by_ref().skip(1).take_while(is_cpu).count();
    let whole =
        (stat.len() as u64) < LIMIT || lines(stat).any(|(_, text)| text.starts_with("intr"));
    u32::try_from(cpus).ok().filter(|cpus| *cpus > 0 && whole)
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
    let advanced = after.advanced(&before);
    let total: f64 = advanced.iter().sum();
    let share = |kind: usize| 100.0 * advanced[kind] / total;
    let usage = 100.0 * (1.0 - advanced[IDLE] / total);
    let (iowait, steal) = (share(IOWAIT_TICKS), share(STEAL_TICKS));
    let busy = (usage - iowait - steal).max(0.0);
    (total > 0.0).then_some(Shares { usage, busy, iowait, steal })
}

/// USER_HZ: what a CPU counts in a second, whatever the kernel's own HZ is.
const TICKS_A_SECOND: f64 = 100.0;
/// What the kernel counts too much, as a share of the time that has passed: busy time is sampled, idle time measured.
const TOO_MUCH: f64 = 0.2;
/// The same in ticks, for short intervals: each kind is rounded by itself.
const ROUNDED: f64 = 20.0;

/// Whether so many CPUs can have counted this in the time that has `passed`. A CPU that comes online again may bring
/// hours of idle time along (tickless kernels count it in two places), which would make a busy node look idle.
fn can_have_advanced(before: Ticks, after: Ticks, passed: Duration, cpus: u32) -> bool {
    let most = passed.as_secs_f64() * f64::from(cpus) * TICKS_A_SECOND;
    after.advanced(&before).iter().sum::<f64>() <= most * (1.0 + TOO_MUCH) + ROUNDED
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fs;

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

    fn usage_at(cpu: &mut Cpu, seconds: u64) -> Option<f64> {
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

    /// The usage at each of these moments, where so many CPUs are online and the line of all of them says this.
    fn usages<const N: usize>(
        procfs: &Path,
        interval: &str,
        samples: [(u64, u32, &str); N],
    ) -> [Option<f64>; N] {
        let mut cpu = Cpu::new(procfs, interval.parse().unwrap());
        samples.map(|(seconds, cpus, all)| {
            let each: String = (0..cpus).map(|cpu| format!("cpu{cpu} 1 2 3 4\n")).collect();
            fs::write(procfs.join("stat"), format!("cpu {all}\n{each}intr 1 2\n")).unwrap();
            usage_at(&mut cpu, seconds)
        })
    }

    #[test]
    fn two_samples_make_a_value_and_a_long_pause_breaks_the_pair() {
        let proc = tempfile::tempdir().unwrap();
        let samples = [(10, 0, "0 0 0 0"), (20, 0, "25 0 0 75"), (51, 0, "125 0 0 75")];
        assert_eq!(usages(proc.path(), "10s", samples), [None, Some(25.0), None]);
    }

    #[test]
    fn idle_time_that_jumps_ahead_does_not_make_a_busy_node_look_idle() {
        let proc = tempfile::tempdir().unwrap();
        let samples = [
            (10, 1, "1000 0 0 5000"),
            (11, 1, "1100 0 0 5000"),
            (12, 1, "1200 0 0 85000"),
            (13, 1, "1300 0 0 85000"),
            (14, 1, "1400 0 0 5000"),
            (15, 1, "1500 0 0 5000"),
        ];
        let full = Some(100.0);
        assert_eq!(usages(proc.path(), "1s", samples), [None, full, None, full, None, full]);
    }

    #[test]
    fn a_late_sample_may_count_for_all_the_time_that_has_passed() {
        let proc = tempfile::tempdir().unwrap();
        let samples = [(10, 4, "0 0 0 0"), (30, 4, "2000 0 0 6000")];
        assert_eq!(usages(proc.path(), "10s", samples), [None, Some(25.0)]);
        // Held up for a second and a half between the clock and the counters, and then no more.
        fs::write(proc.path().join("uptime"), "12.50 40.00\n").unwrap();
        let samples = [
            (10, 4, "0 0 0 0"),
            (11, 4, "250 0 0 750"),
            (12, 4, "250 0 0 750"),
            (13, 4, "250 0 0 850"),
        ];
        assert_eq!(usages(proc.path(), "1s", samples), [None, Some(25.0), None, Some(0.0)]);
    }

    #[test]
    fn cpus_that_come_and_go_count_for_as_long_as_they_may_have_been_there() {
        let proc = tempfile::tempdir().unwrap();
        let samples = [(10, 4, "0 0 0 0"), (20, 1, "1000 0 0 3000"), (30, 4, "2000 0 0 6000")];
        assert_eq!(usages(proc.path(), "10s", samples), [None, Some(25.0), Some(25.0)]);
    }

    #[test]
    fn cpus_are_counted_where_all_of_them_are_told() {
        assert_eq!(count(b"cpu  1 2 3 4\ncpu0 1 2 3 4\ncpu2 1 2 3 4\nintr 7\n"), Some(2));
        assert_eq!(count(b"cpu  1 2 3 4\nintr 7\n"), None);
        let many: String = (0..4_096).map(|cpu| format!("cpu{cpu} 1 2 3 4 5 6 7\n")).collect();
        let cut = &format!("cpu  1 2 3 4\n{many}")[..LIMIT as usize];
        assert_eq!(count(cut.as_bytes()), None);
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
            let _ = (parse(&bytes), count(&bytes));
        }

        #[test]
        fn counters_that_advance_truly_give_a_value(
            cpus in 1_u32..4_096,
            millis in 900_u64..180_000,
            before in prop::array::uniform8(0_u64..1 << 40),
            weights in prop::array::uniform8(1_u64..1_000),
        ) {
            // All of the time that has passed, in kinds rounded up.
            let all: u64 = weights.iter().sum();
            let ticks = u64::from(cpus) * millis / 10;
            let after = std::array::from_fn(|kind| before[kind] + (ticks * weights[kind]).div_ceil(all));
            let (before, after, passed) = (Ticks(before), Ticks(after), Duration::from_millis(millis));
            prop_assert!(can_have_advanced(before, after, passed, cpus));
            let idle = 100.0 * weights[IDLE] as f64 / all as f64;
            // Eight kinds are rounded, of 90 ticks at least.
            prop_assert!((shares(before, after).unwrap().usage - (100.0 - idle)).abs() < 9.0);
        }

        #[test]
        fn a_kind_that_jumps_ahead_gives_none(
            cpus in 1_u32..4_096,
            millis in 900_u64..180_000,
            kind in 0..KINDS,
            jump in 0.25_f64..1e6,
        ) {
            let ticks = u64::from(cpus) * millis / 10;
            let mut after = [ticks / 8; KINDS];
            after[kind] += 30 + (ticks as f64 * jump) as u64;
            let passed = Duration::from_millis(millis);
            prop_assert!(!can_have_advanced(Ticks([0; KINDS]), Ticks(after), passed, cpus));
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

//! CPU time since the last sample, from `/proc/stat`: `cpu_usage` and its parts `cpu_busy`, `cpu_iowait`, `cpu_steal`.
//!
//! `cpu_usage` is crane's recording rule, 100 minus the idle rate: waiting for IO counts as busy, and so does time stolen by
//! the hypervisor. The kernel counts guest time in user and nice already, so it is not added.

use std::path::Path;
use std::time::Duration;

use crate::collectors::file::lines;
use crate::collectors::{CollectError, Collector, ParseError, ProcFile, Record, UptimeFile};
use crate::series::{Interval, Kind, Moment, Signal};

/// `cpu_usage`, in percent.
pub static USAGE: Kind =
    Kind::of_node("cpu_usage", "CPU time that was not idle (waiting for IO is not idle), percent");
/// `cpu_busy`, in percent.
pub static BUSY: Kind = Kind::of_node(
    "cpu_busy",
    "CPU time spent working, without waiting for IO and time stolen by the hypervisor, percent",
);
/// `cpu_iowait`, in percent.
pub static IOWAIT: Kind = Kind::of_node("cpu_iowait", "CPU time spent waiting for IO, percent");
/// `cpu_steal`, in percent.
pub static STEAL: Kind =
    Kind::of_node("cpu_steal", "CPU time that the hypervisor gave to others, percent");

/// Each CPU has a line of about 100 bytes, so 600 CPUs fit. Of a node with more, the number of CPUs is unknown.
const LIMIT: u64 = 64 << 10;

/// Samples `/proc/stat`. The first sample has no values, since there is none before to compare with.
#[derive(Debug)]
pub struct Cpu {
    file: ProcFile,
    uptime: UptimeFile,
    interval: Interval,
    before: Option<Sample>,
}

/// What was read from `/proc/stat`.
#[derive(Debug, Clone, Copy)]
struct Sample {
    /// When the clock was read; the counters were read a little later.
    at: Moment,
    ticks: Ticks,
    /// The number of CPUs that are online, if it is known.
    cpus: Option<u32>,
}

impl Cpu {
    /// A collector over the procfs at `procfs`.
    #[must_use]
    pub fn new(procfs: &Path, interval: Interval) -> Self {
        let file = ProcFile::new(&procfs.join("stat"), LIMIT);
        Self { file, uptime: UptimeFile::new(procfs), interval, before: None }
    }

    /// The longest time that can have passed since the sample before. On a busy node this thread may be preempted between
    /// reading the clock and reading the counters, so the clock is read again.
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
        let before = self.before.replace(Sample { at: now, ticks, cpus });
        // The mean over a long pause says nothing about the slot of this sample.
        let Some(before) = before.filter(|before| !self.interval.is_stale(before.at, now)) else {
            return Ok(());
        };
        let passed = self.longest_since(before.at, now);
        let most = before.cpus.max(cpus);
        let possible = most.is_none_or(|cpus| can_have_grown(before.ticks, ticks, passed, cpus));
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

/// The columns of a `cpu` line that add up to all time: user, nice, system, idle, iowait, irq, softirq, steal.
const COLUMNS: usize = 8;
const IDLE: usize = 3;
const IOWAIT_TICKS: usize = 4;
const STEAL_TICKS: usize = 7;

/// CPU time since the boot by column, in ticks of 1/100 s.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticks([u64; COLUMNS]);

impl Ticks {
    fn total(&self) -> u128 {
        self.0.iter().map(|ticks| u128::from(*ticks)).sum()
    }

    /// The growth of each column; 0 for one that the kernel corrected backwards.
    fn growth(&self, before: &Self) -> [f64; COLUMNS] {
        std::array::from_fn(|column| self.0[column].saturating_sub(before.0[column]) as f64)
    }
}

/// Reads the `cpu` line of `/proc/stat`.
///
/// # Errors
/// When there is no such line, one of its columns is no number, or the idle time is missing.
pub fn parse(stat: &[u8]) -> Result<Ticks, ParseError> {
    let of_all_cpus = |(line, text): (usize, &'_ str)| {
        text.strip_prefix("cpu ").map(|numbers| (line, numbers.to_owned()))
    };
    let (line, numbers) =
        lines(stat).find_map(of_all_cpus).ok_or(ParseError::File("has no line \"cpu\""))?;
    let problem = |problem| ParseError::Line { line, problem };
    let mut ticks = [0; COLUMNS];
    let mut found = 0;
    // Kernels before 2.6.11 have fewer columns; those after 2.6.24 add guest times.
    for (column, number) in ticks.iter_mut().zip(numbers.split_ascii_whitespace()) {
        *column = number.parse().map_err(|_| problem("a CPU time is not a whole number"))?;
        found += 1;
    }
    if found > IDLE { Ok(Ticks(ticks)) } else { Err(problem("the idle time is missing")) }
}

/// The number of CPUs that have a line, which are those that are online. `None` if there are no such lines, or not all
/// fit into the part of the file that is read.
#[must_use]
pub fn count(stat: &[u8]) -> Option<u32> {
    let mut others = lines(stat).map(|(_, text)| text).skip_while(|text| !text.starts_with("cpu "));
    let is_cpu = |text: &&str| text.starts_with("cpu");
    let cpus = others.by_ref().skip(1).take_while(is_cpu).count();
    let whole =
        (stat.len() as u64) < LIMIT || lines(stat).any(|(_, text)| text.starts_with("intr"));
    u32::try_from(cpus).ok().filter(|cpus| *cpus > 0 && whole)
}

/// The shares of the time between two samples, in percent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shares {
    /// All but idle.
    pub usage: f64,
    /// All but idle, waiting and stolen.
    pub busy: f64,
    /// Waiting for IO.
    pub iowait: f64,
    /// Stolen by the hypervisor.
    pub steal: f64,
}

/// The most that the kernel corrects idle and iowait backwards (proc(5)), in ticks: 3 s, the bound of node_exporter. A
/// column that steps back further lost the time of a CPU that was plugged or unplugged; without that CPU's idle time, a
/// quiet node would look busy.
const CORRECTION: u64 = 300;

/// The shares between two samples. `None` when no time has passed, or a counter was reset.
#[must_use]
pub fn shares(before: Ticks, after: Ticks) -> Option<Shares> {
    let was_reset = |column: usize| before.0[column].saturating_sub(after.0[column]) > CORRECTION;
    if after.total() < before.total() || (0..COLUMNS).any(was_reset) {
        return None;
    }
    let growth = after.growth(&before);
    let total: f64 = growth.iter().sum();
    let share = |column: usize| 100.0 * growth[column] / total;
    let usage = 100.0 * (1.0 - growth[IDLE] / total);
    let (iowait, steal) = (share(IOWAIT_TICKS), share(STEAL_TICKS));
    let busy = (usage - iowait - steal).max(0.0);
    (total > 0.0).then_some(Shares { usage, busy, iowait, steal })
}

/// USER_HZ: the ticks of one CPU in a second, whatever the kernel's HZ is.
const TICKS_PER_SECOND: f64 = 100.0;
/// The kernel may count more than the time that has passed, since busy time is sampled and idle time measured: so much more,
/// as a share.
const EXCESS: f64 = 0.2;
/// The same in ticks, for short intervals: each column is rounded by itself.
const ROUNDING: f64 = 20.0;

/// Whether so many CPUs can have counted this in the time that has `passed`. A CPU that comes online again may add hours of
/// idle time at once (tickless kernels count it in two places), which would make a busy node look idle.
fn can_have_grown(before: Ticks, after: Ticks, passed: Duration, cpus: u32) -> bool {
    let most = passed.as_secs_f64() * f64::from(cpus) * TICKS_PER_SECOND;
    after.growth(&before).iter().sum::<f64>() <= most * (1.0 + EXCESS) + ROUNDING
}

#[cfg(test)]
mod tests;

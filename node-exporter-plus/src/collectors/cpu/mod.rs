//! CPU time since the last sample, from `/proc/stat`: `cpu_usage` and its parts `cpu_busy`, `cpu_iowait`, `cpu_steal`.
//!
//! `cpu_usage` is crane's recording rule, 100 minus the idle rate: waiting for IO counts as used. A CPU that waits is
//! idle all the same: a program that only waits in io_uring shows as waiting all the time. `cpu_busy` leaves waiting
//! out. Both count time stolen by the hypervisor, in which tasks wanted to run and no other pod could have. The kernel
//! counts guest time in user and nice already, so it is not added.
//!
//! Invariant: a column that runs backwards, jumps ahead or stands still costs the values that need it, and no other; no
//! value is below 0 or above 100.

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
    "CPU time in which tasks ran or the hypervisor kept them from it, without waiting for IO, percent",
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

    /// The longest time that can have passed since the sample before. On a busy node this thread may be preempted
    /// between reading the clock and reading the counters, so the clock is read again.
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
        let longest = self.longest_since(before.at, now);
        let Shares { usage, busy, iowait, steal } = shares(
            before.ticks,
            ticks,
            before.cpus.max(cpus).map(|cpus| Elapsed::new(now.since(before.at), longest, cpus)),
        );
        for (kind, share) in [(&USAGE, usage), (&BUSY, busy), (&IOWAIT, iowait), (&STEAL, steal)] {
            if let Some(share) = share {
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

/// Reads the `cpu` line of `/proc/stat`.
///
/// # Errors
/// When there is no such line, one of its columns is no number, or the idle time is missing.
pub fn parse(stat: &[u8]) -> Result<Ticks, ParseError> {
    let (line, numbers) = lines(stat)
        .find_map(|(line, text)| {
            text.strip_prefix("cpu ").map(|numbers| (line, numbers.to_owned()))
        })
        .ok_or(ParseError::File("has no line \"cpu\""))?;
    let mut ticks = [0; COLUMNS];
    let mut found = 0;
    // Kernels before 2.6.11 have fewer columns; those after 2.6.24 add guest times.
    for (column, number) in ticks.iter_mut().zip(numbers.split_ascii_whitespace()) {
        let problem = "a CPU time is not a whole number";
        *column = number.parse().map_err(|_| ParseError::Line { line, problem })?;
        found += 1;
    }
    if found <= IDLE {
        return Err(ParseError::Line { line, problem: "the idle time is missing" });
    }
    Ok(Ticks(ticks))
}

/// The number of CPUs that have a line, which are those that are online. `None` if there are no such lines, or not all
/// fit into the part of the file that is read.
#[must_use]
pub fn count(stat: &[u8]) -> Option<u32> {
    let mut others = lines(stat).map(|(_, text)| text).skip_while(|text| !text.starts_with("cpu "));
    let cpus = others.by_ref().skip(1).take_while(|text| text.starts_with("cpu")).count();
    let whole =
        (stat.len() as u64) < LIMIT || lines(stat).any(|(_, text)| text.starts_with("intr"));
    u32::try_from(cpus).ok().filter(|cpus| *cpus > 0 && whole)
}

/// The shares of the time between two samples, in percent. `None` is not known.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Shares {
    /// All but idle.
    pub usage: Option<f64>,
    /// All but idle and waiting for IO.
    pub busy: Option<f64>,
    /// Waiting for IO.
    pub iowait: Option<f64>,
    /// Stolen by the hypervisor, a part of busy.
    pub steal: Option<f64>,
}

/// The time between two samples by the clock, in ticks of all CPUs together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Elapsed {
    ticks: f64,
    /// The largest number of ticks that the kernel can have counted.
    most: f64,
}

/// USER_HZ: the ticks of one CPU in a second, whatever the kernel's HZ is.
const TICKS_PER_SECOND: f64 = 100.0;
/// How much more than the time that has passed the kernel may count, as a share of that time: the kernel samples busy
/// time and measures idle time.
const EXCESS: f64 = 0.2;
/// How much more it may count for short intervals, in ticks: it rounds each column by itself.
const ROUNDING: f64 = 20.0;

impl Elapsed {
    /// The time `passed` on `cpus` CPUs, of which `longest` may have passed between the readings of the counters.
    #[must_use]
    pub fn new(passed: Duration, longest: Duration, cpus: u32) -> Self {
        let ticks_per_second = f64::from(cpus) * TICKS_PER_SECOND;
        Self {
            ticks: passed.as_secs_f64() * ticks_per_second,
            most: longest.as_secs_f64() * ticks_per_second * (1.0 + EXCESS) + ROUNDING,
        }
    }
}

/// The shares between two samples. `elapsed` is `None` if the number of CPUs is not known: then only counters that
/// agree with each other give values.
///
/// The kernel moves time from waiting to idle and back (an idle period counts as waiting while a task of that CPU
/// waits, and is counted anew at each reading), so the two are first taken together. Their sum loses or gains hours
/// when a CPU goes offline or comes online; what tasks used is then compared with the clock. Time stolen can jump at a
/// live migration; then the clock stands in for the sum of all columns. No value if both disagree, as after a reset.
#[must_use]
pub fn shares(before: Ticks, after: Ticks, elapsed: Option<Elapsed>) -> Shares {
    let grown: [i128; COLUMNS] =
        std::array::from_fn(|column| i128::from(after.0[column]) - i128::from(before.0[column]));
    let most = elapsed.map_or(f64::INFINITY, |elapsed| elapsed.most);
    let columns: Vec<Option<f64>> = (0..COLUMNS)
        .filter(|column| *column != IDLE && *column != IOWAIT_TICKS)
        .map(|column| possible(grown[column], most))
        .collect();
    let lost = columns.iter().filter(|column| column.is_none()).count();
    let work = columns.into_iter().sum::<Option<f64>>().filter(|work| *work <= most);
    let mut unused = possible(grown[IDLE] + grown[IOWAIT_TICKS], most);
    // Where work accounts for less than half of the time, CPUs were idle: idle time that does not grow is wrong then.
    if let (Some(work), Some(elapsed)) = (work, elapsed)
        && work > 0.0
        && work < elapsed.ticks / 2.0
    {
        unused = unused.filter(|unused| *unused > 0.0);
    }

    let clock = elapsed.map(|elapsed| elapsed.ticks).filter(|ticks| *ticks > 0.0);
    let total = match (work, unused) {
        (Some(work), Some(unused)) => Some(work + unused).filter(|sum| *sum > 0.0 && *sum <= most),
        (Some(work), None) => clock.map(|clock| clock.max(work)),
        (None, Some(unused)) if lost == 1 => clock.map(|clock| clock.max(unused)),
        (None, _) => None,
    };
    let Some(total) = total else { return Shares::default() };
    let busy = match (work, unused) {
        (Some(work), _) => Some(percent(work, total)),
        (None, Some(unused)) => Some(percent_without(unused, total)),
        (None, None) => None,
    };
    let parts = if unused.is_some() {
        possible(grown[IDLE], most).zip(possible(grown[IOWAIT_TICKS], most))
    } else {
        None
    };
    let usage = match parts {
        Some((idle, _)) => Some(percent_without(idle, total)),
        // The kernel has moved time from waiting to idle, so nothing is known of waiting.
        None if grown[IDLE] >= 0 && unused.is_some() => busy,
        None => None,
    };
    let iowait = parts.map(|(_, waited)| percent(waited, total));
    // By the clock, the kernel may have counted a little more than has passed.
    let steal = possible(grown[STEAL_TICKS], most).map(|stolen| percent(stolen, total).min(100.0));
    Shares { usage, busy, iowait, steal }
}

/// The ticks by which a column has grown, if it can have grown so.
fn possible(ticks: i128, most: f64) -> Option<f64> {
    Some(ticks as f64).filter(|ticks| (0.0..=most).contains(ticks))
}

fn percent(ticks: f64, total: f64) -> f64 {
    100.0 * ticks / total
}

/// What is left of the total without these ticks, in percent.
fn percent_without(ticks: f64, total: f64) -> f64 {
    (100.0 * (1.0 - ticks / total)).clamp(0.0, 100.0)
}

#[cfg(test)]
mod tests;

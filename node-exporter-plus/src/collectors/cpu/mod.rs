//! CPU time since the last sample, from `/proc/stat`: `cpu_usage` and its parts `cpu_busy`, `cpu_iowait`, `cpu_steal`;
//! and what of it pods compete for, `cpu_shared_busy` and `cpu_foreground_busy`.
//!
//! `cpu_usage` is crane's recording rule, 100 minus the idle rate: waiting for IO counts as used. A CPU that waits is
//! idle all the same: a program that only waits in io_uring shows as waiting all the time. `cpu_busy` leaves waiting
//! out. Both count time stolen by the hypervisor, in which tasks wanted to run and no other pod could have. The kernel
//! counts guest time in user and nice already, so it is not added.
//!
//! Invariant: a column that runs backwards, jumps ahead or stands still costs the values that need it, and no other; no
//! value is below 0 or above 100. The clock decides what is possible.

mod shared;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::collectors::file::lines;
use crate::collectors::{CollectError, Collector, ParseError, ProcFile, Record, Roots, UptimeFile};
use crate::pods::PodCpus;
use crate::series::{Interval, Kind, Moment, Signal};

use shared::{SharedCpus, counted, foreground};

/// `cpu_usage`, in percent.
pub static USAGE: Kind =
    Kind::of_node("cpu_usage", "CPU time that was not idle (waiting for IO is not idle), percent");
/// `cpu_busy`, in percent.
pub static BUSY: Kind = Kind::of_node(
    "cpu_busy",
    "CPU time in which tasks ran or the hypervisor kept them from it, without waiting for IO, percent",
);
/// `cpu_shared_busy`, in percent.
pub static SHARED: Kind = Kind::of_node(
    "cpu_shared_busy",
    "cpu_busy of the CPUs that pods share: not isolated, and not of one pod or service alone, percent",
);
/// `cpu_foreground_busy`, in percent.
pub static FOREGROUND: Kind = Kind::of_node(
    "cpu_foreground_busy",
    "cpu_shared_busy without what best-effort pods use, percent",
);
/// `cpu_iowait`, in percent.
pub static IOWAIT: Kind = Kind::of_node("cpu_iowait", "CPU time spent waiting for IO, percent");
/// `cpu_steal`, in percent.
pub static STEAL: Kind =
    Kind::of_node("cpu_steal", "CPU time that the hypervisor gave to others, percent");

/// Each CPU has a line of about 100 bytes. Linux can be built for 8,192 CPUs.
const LIMIT: u64 = 1 << 20;

/// Samples `/proc/stat`. The first sample has no values, since there is none before to compare with.
#[derive(Debug)]
pub struct Cpu {
    file: ProcFile,
    uptime: UptimeFile,
    shared: SharedCpus,
    interval: Interval,
    before: Option<Sample>,
    /// Whether idle time has grown since the start.
    idle_has_moved: bool,
}

/// What was read from `/proc/stat`.
#[derive(Debug)]
struct Sample {
    /// When the clock was read; the counters were read a little later.
    at: Moment,
    /// When they had been read. On a busy node this thread may be preempted between the two.
    read_by: Moment,
    stat: Stat,
    /// The number of CPUs that are online, if it is known.
    cpus: Option<u32>,
    pods: PodCpus,
}

impl Cpu {
    /// A collector over these roots.
    #[must_use]
    pub fn new(roots: &Roots, interval: Interval) -> Self {
        Self {
            file: ProcFile::new(&roots.procfs.join("stat"), LIMIT),
            uptime: UptimeFile::new(&roots.procfs),
            shared: SharedCpus::new(roots),
            interval,
            before: None,
            idle_has_moved: false,
        }
    }

    fn sample(&mut self, now: Moment) -> Result<Sample, CollectError> {
        let stat = self.file.parse(parse)?;
        let pods = self.shared.read(&stat);
        let read_by = self.uptime.read().map_or(now, |uptime| now.max(uptime));
        let cpus = u32::try_from(stat.each.len()).ok().filter(|cpus| *cpus > 0);
        Ok(Sample { at: now, read_by, stat, cpus, pods })
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
        let after = self.sample(now)?;
        let before = self.before.take();
        // The mean over a long pause says nothing about the slot of this sample.
        if let Some(before) = before.filter(|before| !self.interval.is_stale(before.at, now)) {
            let cpus = before.cpus.zip(after.cpus);
            let elapsed = cpus.map(|cpus| Elapsed::between(&before, &after, cpus));
            let Shares { usage, busy, iowait, steal } =
                shares(before.stat.all, after.stat.all, elapsed, self.idle_has_moved);
            let shared = counted(&before, &after).and_then(|(earlier, later, elapsed)| {
                let shares = shares(earlier, later, Some(elapsed), self.idle_has_moved);
                Some((shares.busy?, elapsed))
            });
            let foreground =
                shared.and_then(|(busy, elapsed)| foreground(busy, &before, &after, elapsed));
            for (kind, share) in [
                (&USAGE, usage),
                (&BUSY, busy),
                (&SHARED, shared.map(|(busy, _)| busy)),
                (&FOREGROUND, foreground),
                (&IOWAIT, iowait),
                (&STEAL, steal),
            ] {
                if let Some(share) = share {
                    record(&Signal::of_node(kind), share);
                }
            }
            let idle = after.stat.all.unused() - before.stat.all.unused();
            let most = elapsed.map_or(f64::INFINITY, |elapsed| elapsed.most);
            self.idle_has_moved |= possible(idle, most).is_some_and(|idle| idle > 0.0);
        }
        self.before = Some(after);
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
    /// Idle, and waiting for IO.
    fn unused(self) -> i128 {
        i128::from(self.0[IDLE]) + i128::from(self.0[IOWAIT_TICKS])
    }
}

/// CPU time since the boot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stat {
    /// Of all CPUs. Linux goes on counting those that go offline.
    pub all: Ticks,
    /// Of each CPU that is online.
    pub each: BTreeMap<u32, Ticks>,
}

/// Reads the lines `cpu` and `cpu0`, `cpu1`, … of `/proc/stat`.
///
/// # Errors
/// When there is no line `cpu`, one of the columns is no number, or the idle time is missing.
pub fn parse(stat: &[u8]) -> Result<Stat, ParseError> {
    let mut all = None;
    let mut each = BTreeMap::new();
    for (line, text) in lines(stat) {
        let Some((cpu, numbers)) = text.strip_prefix("cpu").and_then(|text| text.split_once(' '))
        else {
            continue;
        };
        if cpu.is_empty() {
            all = Some(ticks(line, numbers)?);
        } else if let Ok(cpu) = cpu.parse() {
            each.insert(cpu, ticks(line, numbers)?);
        }
    }
    Ok(Stat { all: all.ok_or(ParseError::File("has no line \"cpu\""))?, each })
}

fn ticks(line: usize, numbers: &str) -> Result<Ticks, ParseError> {
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
    /// The smallest number of ticks that can have passed between the readings of the counters.
    least: f64,
    /// The largest number that the kernel can have counted.
    most: f64,
}

/// USER_HZ: the ticks of one CPU in a second, whatever the kernel's HZ is.
const TICKS_PER_SECOND: f64 = 100.0;
/// How far the kernel's count may be from the time that has passed, as a share of that time: the kernel samples busy
/// time and measures idle time.
const EXCESS: f64 = 0.2;
/// How much farther it may be for short intervals, in ticks: it rounds each column by itself.
const ROUNDING: f64 = 20.0;

impl Elapsed {
    /// The time `passed` on `cpus` CPUs.
    #[must_use]
    pub fn new(passed: Duration, cpus: u32) -> Self {
        let ticks = passed.as_secs_f64() * f64::from(cpus) * TICKS_PER_SECOND;
        Self { ticks, least: ticks, most: ticks * (1.0 + EXCESS) + ROUNDING }
    }

    /// The time between two samples with so many CPUs.
    fn between(before: &Sample, after: &Sample, cpus: (u32, u32)) -> Self {
        let (fewest, most) = (cpus.0.min(cpus.1), cpus.0.max(cpus.1));
        Self {
            least: Self::new(after.at.since(before.read_by), fewest).ticks,
            most: Self::new(after.read_by.since(before.at), most).most,
            ..Self::new(after.at.since(before.at), most)
        }
    }

    /// CPU time as a share of this, in percent.
    fn percent(self, used: Duration) -> f64 {
        if self.ticks > 0.0 {
            percent(used.as_secs_f64() * TICKS_PER_SECOND, self.ticks)
        } else {
            0.0
        }
    }
}

/// The shares between two samples. `elapsed` is `None` if the number of CPUs is not known: then only counters that
/// agree with each other give values. `idle_has_moved` is whether idle time has ever grown on this node.
///
/// The kernel moves time from waiting to idle and back (an idle period counts as waiting while a task of that CPU
/// waits, and is counted anew at each reading), so the two are first taken together. Their sum loses or gains hours
/// when a CPU goes offline or comes online; what tasks used is then compared with the clock. Time stolen can jump at a
/// live migration; then the clock stands in for the sum of all columns. No value if both disagree, as after a reset, or
/// if much less was counted than has passed: either idle time or work was lost.
#[must_use]
pub fn shares(
    before: Ticks,
    after: Ticks,
    elapsed: Option<Elapsed>,
    idle_has_moved: bool,
) -> Shares {
    let grown: [i128; COLUMNS] =
        std::array::from_fn(|column| i128::from(after.0[column]) - i128::from(before.0[column]));
    let most = elapsed.map_or(f64::INFINITY, |elapsed| elapsed.most);
    let least = elapsed.map_or(0.0, |elapsed| elapsed.least * (1.0 - EXCESS) - ROUNDING);
    let columns: Vec<Option<f64>> = (0..COLUMNS)
        .filter(|column| *column != IDLE && *column != IOWAIT_TICKS)
        .map(|column| possible(grown[column], most))
        .collect();
    let lost = columns.iter().filter(|column| column.is_none()).count();
    let work = columns.into_iter().sum::<Option<f64>>().filter(|work| *work <= most);
    let mut unused = possible(after.unused() - before.unused(), most);
    // Where work accounts for a part of the time, CPUs were idle: idle time that does not grow is wrong then. lxcfs can
    // show one that never grows. One that has grown is believed from half of the time on: a hypervisor that takes CPUs
    // away and does not tell makes the kernel miss ticks of a full node.
    if let (Some(work), Some(elapsed)) = (work, elapsed) {
        let full = if idle_has_moved { elapsed.ticks / 2.0 } else { elapsed.least - ROUNDING };
        if work > 0.0 && work < full {
            unused = unused.filter(|unused| *unused > 0.0);
        }
    }

    let clock = elapsed.map(|elapsed| elapsed.ticks).filter(|ticks| *ticks > 0.0);
    let total = match (work, unused) {
        (Some(work), Some(unused)) => Some(work + unused)
            .filter(|sum| *sum > 0.0 && *sum <= most && (unused == 0.0 || *sum >= least)),
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

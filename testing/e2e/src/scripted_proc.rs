//! Owns the `/proc/stat`, `/proc/meminfo` and `/proc/loadavg` that a machine shows: counters that advance with the
//! wall clock so as to express a wanted load.
//!
//! The files are bound over the real ones inside the machine's mount namespace, as lxcfs does for containers, so
//! whoever mounts the host's `/proc` sees them. A bind mount pins the inode: files are rewritten in place.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::thread::available_parallelism;
use std::time::Duration;

use anyhow::{Context, Result};

/// The files that stand in for the kernel's.
pub const FILES: [&str; 3] = ["stat", "meminfo", "loadavg"];

/// The memory that a machine claims to have.
const MEMORY_KIB: u64 = 32 * 1024 * 1024;
/// The kernel counts processor time in hundredths of a second.
const TICKS_PER_SECOND: f64 = 100.0;
/// Busy time is shared out in this way, so that no reader can get away with one column.
const USER_SHARE: f64 = 0.7;

/// What a machine should look like: fractions of its processors and of its memory.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Load {
    /// Busy fraction of all processors, 0 to 1.
    pub cpu: f64,
    /// Fraction of the memory that is in use, 0 to 1.
    pub memory: f64,
}

impl Load {
    /// What a machine shows until it is told otherwise.
    pub const IDLE: Self = Self { cpu: 0.05, memory: 0.10 };

    /// Writes the wanted load where the machine's first process reads it.
    pub fn write(self, file: &Path) -> Result<()> {
        let scratch = file.with_extension("new");
        fs::write(&scratch, format!("{} {}\n", self.cpu, self.memory))?;
        fs::rename(&scratch, file).with_context(|| format!("cannot write {}", file.display()))
    }

    /// Reads what [`Load::write`] wrote; `None` where nothing readable lies there.
    pub fn read(file: &Path) -> Option<Self> {
        let text = fs::read_to_string(file).ok()?;
        let mut fields = text.split_whitespace().map(|field| field.parse::<f64>().ok());
        Some(Self { cpu: fields.next()??, memory: fields.next()?? })
    }
}

/// The counters of one machine since it was made.
#[derive(Debug)]
pub struct Counters {
    processors: usize,
    busy: f64,
    idle: f64,
    boot: u64,
}

impl Counters {
    /// Counters of a machine that was started at `boot` (seconds since the epoch) and was idle so far.
    pub fn new(boot: u64) -> Self {
        let processors = available_parallelism().map_or(1, usize::from);
        Self { processors, busy: 1000.0, idle: 100_000.0, boot }
    }

    /// Lets `elapsed` pass at a load and rewrites the files in `folder`.
    pub fn advance(&mut self, elapsed: Duration, load: Load, folder: &Path) -> Result<()> {
        let ticks = elapsed.as_secs_f64() * TICKS_PER_SECOND;
        self.busy += ticks * load.cpu;
        self.idle += ticks * (1.0 - load.cpu);
        overwrite(&folder.join("stat"), &self.stat())?;
        overwrite(&folder.join("meminfo"), &meminfo(load.memory))?;
        overwrite(&folder.join("loadavg"), &self.loadavg(load))
    }

    fn stat(&self) -> String {
        let mut text = format!("cpu  {}\n", self.times(self.processors));
        for processor in 0..self.processors {
            let _ = writeln!(text, "cpu{processor} {}", self.times(1));
        }
        let boot = self.boot;
        let _ = write!(
            text,
            "intr 0\nctxt 1000\nbtime {boot}\nprocesses 1000\nprocs_running 1\nprocs_blocked 0\n"
        );
        text
    }

    /// user nice system idle iowait irq softirq steal guest guest_nice
    fn times(&self, processors: usize) -> String {
        let whole = |one: f64| (one * processors as f64) as u64;
        let (user, system) = (self.busy * USER_SHARE, self.busy * (1.0 - USER_SHARE));
        format!("{} 0 {} {} 0 0 0 0 0 0", whole(user), whole(system), whole(self.idle))
    }

    fn loadavg(&self, load: Load) -> String {
        let running = load.cpu * self.processors as f64;
        format!("{running:.2} {running:.2} {running:.2} 1/100 1000\n")
    }
}

fn meminfo(used: f64) -> String {
    let available = (MEMORY_KIB as f64 * (1.0 - used)) as u64;
    let lines = [
        ("MemTotal", MEMORY_KIB),
        ("MemFree", available / 2),
        ("MemAvailable", available),
        ("Buffers", 0),
        ("Cached", available - available / 2),
        ("SwapCached", 0),
        ("SwapTotal", 0),
        ("SwapFree", 0),
        ("SReclaimable", 0),
    ];
    lines.iter().fold(String::new(), |mut text, (name, kib)| {
        let _ = writeln!(text, "{:<16}{kib:>8} kB", format!("{name}:"));
        text
    })
}

fn overwrite(path: &Path, text: &str) -> Result<()> {
    let mut file = OpenOptions::new().create(true).write(true).truncate(false).open(path)?;
    file.write_all(text.as_bytes())?;
    file.set_len(text.len() as u64).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn busy_and_total(folder: &Path) -> (u64, u64) {
        let text = fs::read_to_string(folder.join("stat")).unwrap();
        let first = text.lines().next().unwrap();
        let fields: Vec<u64> =
            first.split_whitespace().skip(1).map(|field| field.parse().unwrap()).collect();
        (fields[0] + fields[2], fields.iter().sum())
    }

    #[test]
    fn ten_seconds_at_a_quarter_load_read_as_a_quarter() {
        let folder = tempfile::tempdir().unwrap();
        let mut counters = Counters::new(10_000);
        counters.advance(Duration::ZERO, Load::IDLE, folder.path()).unwrap();
        let before = busy_and_total(folder.path());
        let load = Load { cpu: 0.25, memory: 0.5 };
        counters.advance(Duration::from_secs(10), load, folder.path()).unwrap();
        let after = busy_and_total(folder.path());
        let share = (after.0 - before.0) as f64 / (after.1 - before.1) as f64;
        assert!((share - 0.25).abs() < 0.01, "{share}");
    }

    #[test]
    fn a_wanted_load_survives_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("load");
        assert_eq!(Load::read(&file), None);
        let load = Load { cpu: 0.75, memory: 0.3 };
        load.write(&file).unwrap();
        assert_eq!(Load::read(&file), Some(load));
    }
}

//! Owns the `/proc/stat`, `/proc/meminfo`, `/proc/loadavg` and `/proc/uptime` of a node: counters that advance with the
//! wall clock at the rate of a wanted load, since a wanted boot.
//!
//! The files are mounted over the real ones inside the node, as lxcfs does for containers, so a pod that mounts the
//! host's `/proc` reads them. A bind mount keeps the inode, so the files are rewritten in place.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::thread::available_parallelism;
use std::time::Duration;

use anyhow::{Context, Result};

/// The files below `/proc` that are replaced.
pub const FILES: [&str; 4] = ["stat", "meminfo", "loadavg", "uptime"];

/// `MemTotal` of a node.
const MEMORY_KIB: u64 = 32 * 1024 * 1024;
/// The kernel counts processor time in hundredths of a second.
const TICKS_PER_SECOND: f64 = 100.0;
/// The part of the busy time that counts as `user`; the rest is `system`. So a reader must add both.
const USER_SHARE: f64 = 0.7;

/// The load that a node shows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Load {
    /// Busy fraction of all processors, 0 to 1.
    pub cpu: f64,
    /// Used fraction of the memory, 0 to 1.
    pub memory: f64,
}

impl Load {
    /// The load of a node at the start of each test.
    pub const IDLE: Self = Self { cpu: 0.05, memory: 0.10 };

    /// Writes the wanted load to the control file of the node.
    pub fn write(self, file: &Path) -> Result<()> {
        let scratch = file.with_extension("new");
        fs::write(&scratch, format!("{} {}\n", self.cpu, self.memory))?;
        fs::rename(&scratch, file).with_context(|| format!("cannot write {}", file.display()))
    }

    /// Reads what [`Load::write`] wrote; `None` if the file is missing or unreadable.
    pub fn read(file: &Path) -> Option<Self> {
        let text = fs::read_to_string(file).ok()?;
        let mut fields = text.split_whitespace().map(|field| field.parse::<f64>().ok());
        Some(Self { cpu: fields.next()??, memory: fields.next()?? })
    }
}

/// The processor time of one node in ticks, for each of its processors.
#[derive(Debug)]
pub struct Counters {
    processors: usize,
    busy: f64,
    idle: f64,
    boot: u64,
}

impl Counters {
    /// The counters of a node that booted at `boot`, in seconds since the epoch, and was mostly idle since.
    pub fn new(boot: u64) -> Self {
        let processors = available_parallelism().map_or(1, usize::from);
        Self { processors, busy: 1000.0, idle: 100_000.0, boot }
    }

    /// Sets the boot time, in seconds since the epoch.
    pub fn set_boot(&mut self, boot: u64) {
        self.boot = boot;
    }

    /// Adds `elapsed` at a load and rewrites the files in `folder`. `now` is in seconds since the epoch.
    pub fn advance(
        &mut self,
        elapsed: Duration,
        load: Load,
        now: u64,
        folder: &Path,
    ) -> Result<()> {
        let ticks = elapsed.as_secs_f64() * TICKS_PER_SECOND;
        self.busy += ticks * load.cpu;
        self.idle += ticks * (1.0 - load.cpu);
        overwrite(&folder.join("stat"), &self.stat())?;
        overwrite(&folder.join("meminfo"), &meminfo(load.memory))?;
        overwrite(&folder.join("loadavg"), &self.loadavg(load))?;
        let up = now.saturating_sub(self.boot);
        overwrite(&folder.join("uptime"), &format!("{up}.00 {up}.00\n"))
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

    /// The columns user, nice, system, idle, iowait, irq, softirq, steal, guest, guest_nice.
    fn times(&self, processors: usize) -> String {
        let user = self.busy * USER_SHARE;
        let system = self.busy * (1.0 - USER_SHARE);
        let [user, system, idle] =
            [user, system, self.idle].map(|of_one| (of_one * processors as f64) as u64);
        format!("{user} 0 {system} {idle} 0 0 0 0 0 0")
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

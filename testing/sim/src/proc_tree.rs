//! A scripted `/proc`: files that `node-exporter-plus` reads, whose counters advance so that they show a wanted load.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Ticks of CPU time in a second of one CPU.
const TICKS: f64 = 100.0;
const CPUS: u32 = 32;
const MEMORY_KIB: f64 = 64.0 * 1024.0 * 1024.0;

/// A node's load, as fractions from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Load {
    /// CPU time that is busy.
    pub cpu: f64,
    /// Memory that is in use.
    pub memory: f64,
}

/// The `/proc` of one node.
#[derive(Debug)]
pub struct ProcTree {
    root: PathBuf,
    /// Ticks since the boot.
    busy: f64,
    idle: f64,
}

impl ProcTree {
    /// Makes the files in `root`, of a machine that has been up for an hour.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn new(root: &Path, load: Load) -> io::Result<Self> {
        fs::create_dir_all(root)?;
        let mut tree = Self { root: root.to_owned(), busy: 0.0, idle: 0.0 };
        tree.advance(Duration::from_secs(3600), load)?;
        Ok(tree)
    }

    /// The directory.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Advances the counters by a time under this load.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn advance(&mut self, time: Duration, load: Load) -> io::Result<()> {
        let ticks = time.as_secs_f64() * TICKS * f64::from(CPUS);
        self.busy += ticks * load.cpu;
        self.idle += ticks * (1.0 - load.cpu);
        let mut stat = format!("cpu  {:.0} 0 0 {:.0} 0 0 0 0 0 0\n", self.busy, self.idle);
        let (busy, idle) = (self.busy / f64::from(CPUS), self.idle / f64::from(CPUS));
        for cpu in 0..CPUS {
            let _ = writeln!(stat, "cpu{cpu} {busy:.0} 0 0 {idle:.0} 0 0 0 0 0 0");
        }
        self.replace("stat", &stat)?;
        let available = MEMORY_KIB * (1.0 - load.memory);
        let memory = format!("MemTotal: {MEMORY_KIB:.0} kB\nMemAvailable: {available:.0} kB\n");
        self.replace("meminfo", &memory)
    }

    /// Replaces a file in one step, so that no reader sees half of it.
    fn replace(&self, name: &str, text: &str) -> io::Result<()> {
        let fresh = self.root.join(format!(".{name}"));
        fs::write(&fresh, text)?;
        fs::rename(fresh, self.root.join(name))
    }
}

//! Owns what the kernel says about the memory of a container: its limit, the most that was ever charged to it (page
//! cache included), and how often it reached the limit.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::processes::{Pid, cgroup};

const MOUNTED_AT: &str = "/sys/fs/cgroup";

/// The counters of one control group since it was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// The limit in bytes.
    pub limit: u64,
    /// The most bytes that were charged at one time, page cache included.
    pub peak: u64,
    /// How often a charge would have exceeded the limit.
    pub limit_hits: u64,
    /// How many processes the OOM killer ended.
    pub oom_kills: u64,
}

impl Memory {
    /// The counters of the container that the process runs in. A container without a limit is an error.
    pub fn of(pid: Pid) -> Result<Self> {
        match cgroup(pid, "memory")? {
            Some(path) => Self::version_1(&at(&format!("{MOUNTED_AT}/memory"), &path)),
            None => {
                let path = cgroup(pid, "")?.context("the process is in no control group")?;
                Self::version_2(&at(MOUNTED_AT, &path))
            }
        }
    }

    fn version_1(folder: &Path) -> Result<Self> {
        Ok(Self {
            limit: number(folder, "memory.limit_in_bytes")?,
            peak: number(folder, "memory.max_usage_in_bytes")?,
            limit_hits: number(folder, "memory.failcnt")?,
            oom_kills: field(folder, "memory.oom_control", "oom_kill")?,
        })
    }

    fn version_2(folder: &Path) -> Result<Self> {
        Ok(Self {
            limit: number(folder, "memory.max")?,
            peak: number(folder, "memory.peak")?,
            limit_hits: field(folder, "memory.events", "max")?,
            oom_kills: field(folder, "memory.events", "oom_kill")?,
        })
    }
}

fn at(mount: &str, path: &str) -> PathBuf {
    Path::new(mount).join(path.trim_start_matches('/'))
}

fn read(folder: &Path, file: &str) -> Result<String> {
    let path = folder.join(file);
    fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
}

fn number(folder: &Path, file: &str) -> Result<u64> {
    let text = read(folder, file)?;
    text.trim().parse().with_context(|| format!("{file} says {text:?}, which is no number"))
}

fn field(folder: &Path, file: &str, name: &str) -> Result<u64> {
    let text = read(folder, file)?;
    let found = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    found.with_context(|| format!("{file} has no line {name}"))?.parse().context("no number")
}

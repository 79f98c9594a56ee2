//! The mounted hierarchies of control groups, and the values of one group in them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::files::{Version, cpu, field, memory_used, number, read};

/// Where version 1 counts CPU time: the controller's own name, which can be a link, or that of a joint hierarchy.
const CPU: [&str; 2] = ["cpuacct", "cpu,cpuacct"];

/// The hierarchies with CPU time and memory. A pod has the same path in both.
#[derive(Debug)]
pub(super) struct Hierarchies {
    version: Version,
    cpu: Option<PathBuf>,
    memory: Option<PathBuf>,
    /// Where processes are counted.
    pids: Option<PathBuf>,
    /// Where groups have CPUs.
    cpusets: Option<PathBuf>,
    listed: PathBuf,
}

/// The path of this folder in `root`; `None` if it is not there.
fn folder(root: &Path, name: &str) -> Option<PathBuf> {
    let path = root.join(name);
    path.is_dir().then_some(path)
}

impl Hierarchies {
    /// The hierarchies that are mounted at `root`; `None` if there are none. Version 2 has one for both, at `root`
    /// itself.
    pub(super) fn below(root: &Path) -> Option<Self> {
        if root.join("cgroup.controllers").is_file() {
            return Some(Self {
                version: Version::V2,
                cpu: Some(root.to_owned()),
                memory: Some(root.to_owned()),
                pids: Some(root.to_owned()),
                cpusets: Some(root.to_owned()),
                listed: root.to_owned(),
            });
        }
        let cpu = CPU.into_iter().find_map(|name| folder(root, name));
        let memory = folder(root, "memory");
        let pids = folder(root, "pids");
        let cpusets = folder(root, "cpuset");
        let listed = cpu.clone().or_else(|| memory.clone())?;
        Some(Self { version: Version::V1, cpu, memory, pids, cpusets, listed })
    }

    /// The hierarchy in which pods are searched.
    pub(super) fn listed(&self) -> &Path {
        &self.listed
    }

    /// The processes and threads in the group at `path` and below it. `None` where they are not counted. `buffer` is
    /// reused memory for files.
    pub(super) fn tasks(&self, path: &Path, buffer: &mut Vec<u8>) -> Option<u64> {
        let folder = self.pids.as_ref()?.join(path);
        if let Some(tasks) = read(&folder.join("pids.current"), buffer).and_then(number) {
            return Some(tasks);
        }
        // Version 2 without the controller `pids` tells only whether there are some.
        let events = read(&folder.join("cgroup.events"), buffer)?;
        (field(events, "populated")? == 0).then_some(0)
    }

    /// The CPU time of the group at `path`.
    pub(super) fn cpu_time(&self, path: &Path, buffer: &mut Vec<u8>) -> Option<Duration> {
        let file = self.cpu.as_ref()?.join(path).join(self.version.cpu_file());
        cpu(self.version, read(&file, buffer)?)
    }

    /// The hierarchy with CPUs.
    pub(super) fn cpusets(&self) -> Option<&Path> {
        self.cpusets.as_deref()
    }

    /// The files with the CPUs that a group has in effect, the first that is there.
    pub(super) fn effective_cpus(&self) -> &'static [&'static str] {
        match self.version {
            Version::V1 => &["cpuset.effective_cpus", "cpuset.cpus"],
            Version::V2 => &["cpuset.cpus.effective"],
        }
    }

    /// The memory that the group at `path` uses, in bytes, with what is swapped, without caches that can be reclaimed.
    pub(super) fn memory_used(&self, path: &Path, buffer: &mut Vec<u8>) -> Option<u64> {
        let folder = self.memory.as_ref()?.join(path);
        let usage = number(read(&folder.join(self.version.memory_file()), buffer)?)?;
        let swap = read(&folder.join(self.version.swap_file()), buffer).and_then(number);
        let usage = match self.version {
            // The two are read one after the other.
            Version::V1 => swap.map_or(usage, |both| both.max(usage)),
            Version::V2 => usage.saturating_add(swap.unwrap_or(0)),
        };
        memory_used(self.version, usage, read(&folder.join("memory.stat"), buffer)?)
    }
}

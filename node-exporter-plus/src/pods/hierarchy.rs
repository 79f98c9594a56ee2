//! The mounted hierarchies of control groups, and the values of one group in them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::files::{Version, cpu, number, read, working_set};

/// Where version 1 counts CPU time: the controller's own name, which can be a link, or that of a joint hierarchy.
const CPU: [&str; 2] = ["cpuacct", "cpu,cpuacct"];

/// The hierarchies with CPU time and memory. A pod has the same path in both.
#[derive(Debug)]
pub(super) struct Hierarchies {
    version: Version,
    cpu: Option<PathBuf>,
    memory: Option<PathBuf>,
    listed: PathBuf,
}

impl Hierarchies {
    /// The hierarchies that are mounted at `root`; `None` if there are none. Version 2 has one for both, at `root` itself.
    pub(super) fn below(root: &Path) -> Option<Self> {
        let whole = || Some(root.to_owned());
        if root.join("cgroup.controllers").is_file() {
            let listed = root.to_owned();
            return Some(Self { version: Version::V2, cpu: whole(), memory: whole(), listed });
        }
        let mounted = |name: &str| Some(root.join(name)).filter(|path| path.is_dir());
        let (cpu, memory) = (CPU.into_iter().find_map(mounted), mounted("memory"));
        let listed = cpu.clone().or_else(|| memory.clone())?;
        Some(Self { version: Version::V1, cpu, memory, listed })
    }

    /// The hierarchy in which pods are searched.
    pub(super) fn listed(&self) -> &Path {
        &self.listed
    }

    /// The CPU time of the group at `path`. `buffer` is reused memory for files.
    pub(super) fn cpu(&self, path: &Path, buffer: &mut Vec<u8>) -> Option<Duration> {
        let file = self.cpu.as_ref()?.join(path).join(self.version.cpu_file());
        cpu(self.version, read(&file, buffer)?)
    }

    /// The working set of the group at `path`, in bytes.
    pub(super) fn working_set(&self, path: &Path, buffer: &mut Vec<u8>) -> Option<u64> {
        let folder = self.memory.as_ref()?.join(path);
        let usage = number(read(&folder.join(self.version.memory_file()), buffer)?)?;
        working_set(self.version, usage, read(&folder.join("memory.stat"), buffer)?)
    }
}

//! The host's processes, as `/proc` shows them.
//!
//! Invariant: a process whose control group cannot be read has an unknown membership; it is never assumed to be outside
//! of pods.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use super::group::PodGroup;

/// The largest part of a file that is read, in bytes. A process is in some dozen hierarchies at most, each with a path
/// of 4 KiB.
const MAX_FILE: u64 = 64 << 10;

/// The pod that a process belongs to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Membership {
    /// A pod.
    Pod(PodGroup),
    /// No pod.
    NoPod,
    /// Its control group cannot be read, mostly because the process has ended.
    Unknown,
}

/// Processes by their ids in the PID namespace of this program.
#[derive(Debug, Clone)]
pub(crate) struct HostProcesses {
    /// The mount point of `/proc`.
    pub proc: PathBuf,
}

impl HostProcesses {
    /// Whether this program is in the host's PID namespace, so that NVML lists the processes of all pods. In a pod
    /// without `hostPID`, process 1 belongs to the pod itself.
    ///
    /// # Errors
    /// If the control groups of process 1 or of this process cannot be read.
    pub(crate) fn are_hosts(&self) -> io::Result<bool> {
        let first = read(&self.proc.join("1/cgroup"))?;
        let own = read(&self.proc.join("self/cgroup"))?;
        Ok(first != own && PodGroup::of_file(&first).is_none())
    }

    /// The pod that a process belongs to.
    pub(crate) fn membership(&self, pid: u32) -> Membership {
        match read(&self.proc.join(pid.to_string()).join("cgroup")) {
            Ok(text) => PodGroup::of_file(&text).map_or(Membership::NoPod, Membership::Pod),
            Err(_) => Membership::Unknown,
        }
    }
}

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(MAX_FILE).read_to_string(&mut text)?;
    // The kernel writes a line for each hierarchy. An empty file belongs to a process that is ending.
    if text.is_empty() { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(text) }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const GROUP: &str = "/kubepods/pod04dbdd5b3b5b2a3a8c3fd1f3ad5f4a4e";

    fn host(files: &[(&str, &str)]) -> (tempfile::TempDir, HostProcesses) {
        let dir = tempfile::tempdir().unwrap();
        for (process, group) in files {
            fs::create_dir_all(dir.path().join(process)).unwrap();
            let line = if group.is_empty() { String::new() } else { format!("0::{group}\n") };
            fs::write(dir.path().join(process).join("cgroup"), line).unwrap();
        }
        let proc = dir.path().to_owned();
        (dir, HostProcesses { proc })
    }

    #[test]
    fn a_process_is_of_a_pod_or_of_none_or_unknown() {
        let (_dir, host) = host(&[("7", GROUP), ("8", "/system.slice/sshd.service"), ("9", "")]);
        assert!(matches!(host.membership(7), Membership::Pod(_)));
        assert_eq!(host.membership(8), Membership::NoPod);
        assert_eq!(host.membership(9), Membership::Unknown, "it is ending");
        assert_eq!(host.membership(10), Membership::Unknown, "it has ended");
    }

    #[test]
    fn a_pods_own_pid_namespace_is_not_the_hosts() {
        let shared = format!("{GROUP}/x");
        for (first, own, are_hosts, why) in [
            ("/init.scope", GROUP, Some(true), "process 1 is the host's"),
            ("/../../../init.scope", "/", Some(true), "in a control group namespace"),
            ("/", "/", Some(false), "process 1 is this program"),
            (GROUP, GROUP, Some(false), "process 1 is this container's"),
            (&shared, GROUP, Some(false), "the pod shares its namespace"),
            ("", "/", None, "process 1 is ending"),
        ] {
            let (_dir, host) = host(&[("1", first), ("self", own)]);
            assert_eq!(host.are_hosts().ok(), are_hosts, "{why}");
        }
    }
}

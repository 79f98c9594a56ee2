//! What is measured, one module for each subject. Reading a file and parsing it are apart.
//!
//! Invariant: a collector records a value or nothing, never a substitute; its errors name file and line.

pub mod cpu;
pub mod disk;
mod file;
pub mod filesystem;
pub mod gpu;
pub mod load;
pub mod memory;
pub mod network;
pub mod pressure;
mod rate;
pub mod uptime;

use std::path::{Path, PathBuf};

use crate::series::{Interval, Kind, Moment, Signal};

pub use file::ProcFile;
pub use uptime::UptimeFile;

/// Takes the values that a collector finds, in the signals' units.
pub type Record<'a> = dyn FnMut(&Signal, f64) + 'a;

/// Samples one or more signals of the node.
pub trait Collector: Send {
    /// Its name in logs, metrics and conditions of readiness.
    fn name(&self) -> &'static str;

    /// Whether every node has what it reads. Without it the process is not ready.
    fn is_essential(&self) -> bool {
        false
    }

    /// Takes a sample at `now` and calls `record` with each value.
    ///
    /// # Errors
    /// When a file cannot be read or parsed. Values that were recorded before stay.
    fn collect(&mut self, now: Moment, record: &mut Record<'_>) -> Result<(), CollectError>;
}

/// Why a collector has no values.
#[derive(Debug, thiserror::Error)]
pub enum CollectError {
    /// The file cannot be read.
    #[error("{path}: {cause}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        cause: std::io::Error,
    },
    /// The file is not as the kernel documents it.
    #[error("{path}: {cause}", path = path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// The line and what is wrong with it.
        cause: ParseError,
    },
}

/// What is not as proc(5) documents it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// A line of the file.
    #[error("line {line}: {problem}")]
    Line {
        /// Counted from 1.
        line: usize,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The whole file.
    #[error("{0}")]
    File(&'static str),
}

/// Where this process sees the node's files.
#[derive(Debug, Clone)]
pub struct Roots {
    /// The node's `/proc`.
    pub procfs: PathBuf,
    /// The node's `/sys`.
    pub sysfs: PathBuf,
    /// The node's `/sys/fs/cgroup`.
    pub cgroupfs: PathBuf,
    /// `--host-root`: the node's `/`.
    pub rootfs: PathBuf,
    /// `--kubelet-root`: the kubelet's folder as the node names it, without `rootfs` before it.
    pub kubelet: PathBuf,
}

impl Roots {
    /// Those of a node whose root, or what is needed of it, is at `host`.
    pub(crate) fn below(host: &Path, kubelet: &Path) -> Self {
        Self {
            procfs: host.join("proc"),
            sysfs: host.join("sys"),
            cgroupfs: host.join("sys/fs/cgroup"),
            rootfs: host.to_owned(),
            kubelet: kubelet.to_owned(),
        }
    }
}

#[cfg(test)]
impl Roots {
    /// A node of a test, all in one folder.
    pub(crate) fn in_folder(folder: &Path, procfs: &str) -> Self {
        Self {
            procfs: folder.join(procfs),
            sysfs: folder.join("sys"),
            cgroupfs: folder.join("cgroup"),
            rootfs: folder.join("root"),
            kubelet: folder.join("kubelet"),
        }
    }
}

/// All kinds of signals.
pub static KINDS: &[&Kind] = &[
    &cpu::USAGE,
    &cpu::BUSY,
    &cpu::SHARED,
    &cpu::FOREGROUND,
    &cpu::IOWAIT,
    &cpu::STEAL,
    &memory::USAGE,
    &memory::SWAP,
    &load::LOAD1,
    &load::LOAD5,
    &load::LOAD15,
    &load::USAGE,
    &pressure::CPU_SOME,
    &pressure::MEMORY_SOME,
    &pressure::MEMORY_FULL,
    &pressure::IO_SOME,
    &pressure::IO_FULL,
    &disk::USAGE,
    &disk::READ,
    &disk::WRITTEN,
    &disk::DEVICE_USAGE,
    &disk::DEVICE_READ,
    &disk::DEVICE_WRITTEN,
    &network::USAGE,
    &network::RECEIVED,
    &network::SENT,
    &network::SPEED,
    &network::DEVICE_USAGE,
    &network::DEVICE_RECEIVED,
    &network::DEVICE_SENT,
    &filesystem::USAGE,
    &filesystem::MOUNT_USAGE,
    &filesystem::INODES,
    &filesystem::MOUNT_INODES,
    &gpu::USAGE,
    &gpu::MEM_USAGE,
    &gpu::GPU_USAGE,
    &gpu::GPU_MEM_USAGE,
    &gpu::GPU_MEM_BYTES,
    &gpu::GPU_TEMPERATURE,
    &gpu::GPU_POWER,
    &gpu::GPU_HEALTHY,
];

/// All collectors but the GPUs', which needs the probe's reports.
#[must_use]
pub fn all(roots: &Roots, interval: Interval) -> Vec<Box<dyn Collector>> {
    vec![
        Box::new(cpu::Cpu::new(roots, interval)),
        Box::new(memory::Memory::new(roots)),
        Box::new(load::Load::new(roots)),
        Box::new(pressure::Pressure::new(roots, interval)),
        Box::new(disk::Disks::new(roots, interval)),
        Box::new(network::Network::new(roots, interval)),
        Box::new(filesystem::Filesystems::new(roots)),
    ]
}

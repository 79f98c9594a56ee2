//! What is measured: one file a collector, its reading apart from its parsing.
//!
//! A collector owns its signals. It gives a value or nothing, never a stand-in; its errors name file and line.

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

use std::path::PathBuf;

use crate::series::{Interval, Kind, Moment, Signal};

pub use file::ProcFile;
pub use uptime::UptimeFile;

/// Takes each value that a collector finds.
pub type Record<'a> = dyn FnMut(&Signal, f64) + 'a;

/// Takes one or more signals from the node.
pub trait Collector: Send {
    /// Its name in logs, metrics and conditions.
    fn name(&self) -> &'static str;

    /// Whether a node must have what it reads: then the process is not ready without.
    fn is_essential(&self) -> bool {
        false
    }

    /// Reads the node and hands each value to `record`.
    ///
    /// # Errors
    /// When a file cannot be read or understood; values handed over before stand.
    fn collect(&mut self, now: Moment, record: &mut Record<'_>) -> Result<(), CollectError>;
}

/// Why a collector has nothing to say.
#[derive(Debug, thiserror::Error)]
pub enum CollectError {
    /// The file cannot be read.
    #[error("{path}: {cause}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the kernel says.
        cause: std::io::Error,
    },
    /// The file is not what the kernel documents.
    #[error("{path}: {cause}", path = path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// Where and what.
        cause: ParseError,
    },
}

/// Something in a file that is not as documented in proc(5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// A line lacks something.
    #[error("line {line}: {problem}")]
    Line {
        /// Counted from 1.
        line: usize,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The whole file lacks something.
    #[error("{0}")]
    File(&'static str),
}

/// Where the node's own files are.
#[derive(Debug, Clone)]
pub struct Roots {
    /// `/proc`.
    pub procfs: PathBuf,
    /// `/sys`.
    pub sysfs: PathBuf,
    /// `/`.
    pub rootfs: PathBuf,
    /// The kubelet's folder as the node names it, not below `rootfs`: `/var/lib/kubelet` unless it was told otherwise.
    pub kubelet: PathBuf,
}

/// Every kind of signal that there is.
pub static KINDS: &[&Kind] = &[
    &cpu::USAGE,
    &cpu::BUSY,
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
    &network::DEVICE_USAGE,
    &network::DEVICE_RECEIVED,
    &network::DEVICE_SENT,
    &filesystem::USAGE,
    &filesystem::MOUNT_USAGE,
    &gpu::USAGE,
    &gpu::MEM_USAGE,
    &gpu::CARD_USAGE,
    &gpu::CARD_MEM_USAGE,
    &gpu::CARD_MEM_BYTES,
    &gpu::CARD_TEMPERATURE,
    &gpu::CARD_POWER,
    &gpu::CARD_HEALTHY,
];

/// Every collector but that of the cards, which needs a probe.
#[must_use]
pub fn all(roots: &Roots, interval: Interval) -> Vec<Box<dyn Collector>> {
    vec![
        Box::new(cpu::Cpu::new(&roots.procfs, interval)),
        Box::new(memory::Memory::new(&roots.procfs)),
        Box::new(load::Load::new(roots)),
        Box::new(pressure::Pressure::new(roots, interval)),
        Box::new(disk::Disks::new(roots, interval)),
        Box::new(network::Network::new(roots, interval)),
        Box::new(filesystem::Filesystems::new(roots)),
    ]
}

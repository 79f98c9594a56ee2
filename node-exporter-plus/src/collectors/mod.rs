//! What is measured: one file a collector, its reading apart from its parsing.
//!
//! A collector owns its signals. It gives a value or nothing, never a stand-in; its errors name file and line.

pub mod cpu;
mod file;
pub mod memory;

use std::path::{Path, PathBuf};

use crate::series::{Interval, Kind, Moment, Signal};

pub use file::ProcFile;

/// Takes each value that a collector finds.
pub type Record<'a> = dyn FnMut(&Signal, f64) + 'a;

/// Takes one or more signals from the node.
pub trait Collector: Send {
    /// Its name in logs, metrics and conditions.
    fn name(&self) -> &'static str;

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
    #[error("{path}: {source}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the kernel says.
        source: std::io::Error,
    },
    /// The file is not what the kernel documents.
    #[error("{path}: {source}", path = path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// Where and what.
        source: ParseError,
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

/// Every kind of signal that there is.
pub static KINDS: &[&Kind] =
    &[&cpu::USAGE, &cpu::BUSY, &cpu::IOWAIT, &cpu::STEAL, &memory::USAGE, &memory::SWAP];

/// Every collector, over the procfs at `procfs`.
#[must_use]
pub fn all(procfs: &Path, interval: Interval) -> Vec<Box<dyn Collector>> {
    vec![Box::new(cpu::Cpu::new(procfs, interval)), Box::new(memory::Memory::new(procfs))]
}

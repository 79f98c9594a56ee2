//! GPU probing behind one small trait: [`Probe`] enumerates the GPUs, reads the status of each, and
//! watches for errors. [`Library`] is the real one (libnvidia-ml through `nvml-wrapper`), [`Scripted`] one
//! for unit tests. [`cuda`] opens a context on a GPU, which NVML's good health does not promise.
//!
//! Invariant: a value that NVML does not have is `None` or an error, never 0.
#![deny(missing_docs)]

pub mod cuda;
mod library;
mod memory_limit;
mod process;
mod scripted;

use std::fmt;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use nvml_wrapper::error::NvmlError;

pub use library::Library;
pub use memory_limit::MemoryLimit;
pub use process::Process;
pub use scripted::Scripted;

/// The soname under which NVIDIA's driver installs NVML.
pub const DEFAULT_LIBRARY: &str = "libnvidia-ml.so.1";

/// The properties of a GPU, which do not change while the driver runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Gpu {
    /// `GPU-…`: the one name that survives reboots and re-cabling.
    pub uuid: String,
    /// NVML's enumeration index, from 0 in PCI order.
    pub index: u32,
    /// Product name, such as `NVIDIA A10`.
    pub model: Option<String>,
    /// N of `/dev/nvidiaN`.
    pub minor: Option<u32>,
    /// Total memory in MiB.
    pub memory_mib: Option<u64>,
    /// Memory of it that the driver keeps for itself, in MiB; no program gets it.
    pub reserved_mib: Option<u64>,
    /// Whether it has no memory of its own (unified memory, as in GB10): NVML answers that it does not support the
    /// question.
    pub has_no_own_memory: bool,
    /// NUMA node of the host memory nearest to the GPU.
    pub numa_node: Option<u32>,
    /// Indexes of the GPUs that it reaches over NVLink, directly or by switches; none where the driver does not tell.
    pub linked: Vec<u32>,
    /// Its place on the PCI bus, as the kernel writes it: `0000:07:00.0`.
    pub pci_bus: Option<String>,
    /// Major number of its CUDA compute capability: 6 is Pascal, 7 Volta and Turing, 9 Hopper.
    pub cuda_major: Option<u32>,
}

/// The current status of a GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    /// Memory in use, in MiB.
    pub used_mib: Option<u64>,
    /// Percent of the last sample period in which a kernel ran.
    pub utilisation: Option<u32>,
    /// Temperature of the GPU, in degrees Celsius.
    pub temperature: Option<u32>,
    /// Power draw in milliwatt.
    pub power_milliwatt: Option<u32>,
    /// Whether MIG mode is on; `None` where the GPU has no MIG.
    pub mig: Option<bool>,
    /// The action required before the GPU can be used again; `None` if the driver does not report it
    /// (before r570).
    pub recovery: Option<Recovery>,
    /// How many processes may use the GPU for computing.
    pub compute_mode: Option<ComputeMode>,
}

/// How many processes may have a CUDA context on a GPU: `nvmlComputeMode_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ComputeMode {
    /// Any number.
    Default,
    /// One, which may be MPS's server. The older mode of one thread counts as this one too.
    ExclusiveProcess,
    /// None.
    Prohibited,
}

impl fmt::Display for ComputeMode {
    /// As `nvidia-smi -c` takes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Default => "DEFAULT",
            Self::ExclusiveProcess => "EXCLUSIVE_PROCESS",
            Self::Prohibited => "PROHIBITED",
        })
    }
}

/// The recovery action that the driver requires for a GPU: `nvmlDeviceGpuRecoveryAction_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recovery {
    /// Nothing: the GPU can be used.
    Unneeded,
    /// Reset the GPU.
    GpuReset,
    /// Reboot the node.
    NodeReboot,
    /// End peer-to-peer traffic.
    DrainP2p,
    /// End peer-to-peer traffic, then reset the GPU.
    DrainAndReset,
    /// The number of an action that is not in this list.
    Other(u32),
}

impl Recovery {
    /// The action of NVML's number.
    pub(crate) fn from_nvml(action: u32) -> Self {
        match action {
            0 => Self::Unneeded,
            1 => Self::GpuReset,
            2 => Self::NodeReboot,
            3 => Self::DrainP2p,
            4 => Self::DrainAndReset,
            other => Self::Other(other),
        }
    }
}

impl fmt::Display for Recovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unneeded => f.write_str("no action"),
            Self::GpuReset => f.write_str("a GPU reset"),
            Self::NodeReboot => f.write_str("a reboot of the node"),
            Self::DrainP2p => f.write_str("an end of peer-to-peer traffic"),
            Self::DrainAndReset => f.write_str("an end of peer-to-peer traffic and a GPU reset"),
            Self::Other(action) => write!(f, "recovery action {action}"),
        }
    }
}

/// A critical error that a GPU raised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Xid {
    /// NVIDIA's error number, if the driver knew it.
    pub number: Option<u64>,
}

/// XIDs that an application causes by itself and that say nothing about the GPU: the list that
/// NVIDIA's own device plugin ignores (13 engine exception, 31 page fault, 43 stopped processing,
/// 45 preemptive cleanup, 68 video processor exception, 109 context switch timeout).
const APPLICATION_XIDS: [u64; 6] = [13, 31, 43, 45, 68, 109];

impl Xid {
    /// Whether the GPU itself may be at fault, by [`APPLICATION_XIDS`] and further numbers to ignore. An error without
    /// a number counts.
    pub fn is_fatal(self, ignored: &[u64]) -> bool {
        !self
            .number
            .is_some_and(|number| APPLICATION_XIDS.contains(&number) || ignored.contains(&number))
    }
}

impl fmt::Display for Xid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.number {
            Some(number) => write!(f, "XID {number}"),
            None => f.write_str("an XID without a number"),
        }
    }
}

/// A source of data about GPUs.
///
/// # Examples
///
/// ```
/// use nvml::{Gpu, Error, Probe, Scripted, Status};
///
/// // On a node: nvml::Library::open(nvml::DEFAULT_LIBRARY.as_ref())?
/// let probe = Scripted::new(vec![Gpu {
///     uuid: "GPU-a".to_owned(),
///     memory_mib: Some(16 * 1024),
///     ..Gpu::default()
/// }]);
/// probe.set_status("GPU-a", Status { used_mib: Some(512), ..Status::default() });
///
/// for gpu in probe.gpus()? {
///     let status = probe.status(&gpu.uuid)?;
///     assert_eq!((gpu.memory_mib, status.used_mib), (Some(16384), Some(512)));
///     assert_eq!(status.temperature, None, "unknown, not 0");
/// }
/// probe.set_lost("GPU-a", true);
/// assert!(matches!(probe.status("GPU-a"), Err(Error::Lost { .. })));
/// # Ok::<(), Error>(())
/// ```
pub trait Probe: Send + Sync {
    /// The GPUs, in enumeration order. A GPU without a readable UUID is left out.
    ///
    /// # Errors
    /// When the driver cannot enumerate.
    fn gpus(&self) -> Result<Vec<Gpu>, Error>;

    /// The driver's version as `nvidia-smi` shows it, such as `580.95.05`; `None` where it cannot be read.
    fn driver(&self) -> Option<String>;

    /// The current status of one GPU. A value that the GPU does not support is `None`.
    ///
    /// # Errors
    /// [`Error::Lost`] when the GPU does not answer.
    fn status(&self, uuid: &str) -> Result<Status, Error>;

    /// The processes that have memory of one GPU or run on it, in the order of their ids, at most
    /// [`process::MAX_PROCESSES`]. `None` if they are unknown: the driver has no such call or refuses it, MIG mode is
    /// on, or there are more. Samples of the use of SMs from before `since` are ignored.
    ///
    /// Ids are those of the caller's PID namespace. NVML leaves out processes that are not in it.
    ///
    /// # Errors
    /// [`Error::Lost`] when the GPU does not answer.
    fn processes(&self, uuid: &str, since: SystemTime) -> Result<Option<Vec<Process>>, Error>;

    /// What the driver lets the processes of a control group use of one GPU. `group` is the group's folder, as this
    /// process sees it.
    ///
    /// # Errors
    /// [`Error::Lost`] when the GPU does not answer.
    fn memory_limit(&self, uuid: &str, group: &Path) -> Result<MemoryLimit, Error>;

    /// Watches one GPU for critical errors. Blocks, and calls `observe` with each error that is raised
    /// from now on, and with `None` after every `tick` without one, until it returns `Break`.
    ///
    /// # Errors
    /// [`Error::Lost`] when the GPU does not answer, or no longer; [`Error::Nvml`] when it does not
    /// report errors.
    fn watch(&self, uuid: &str, tick: Duration, observe: &mut Observer<'_>) -> Result<(), Error>;
}

/// The callback of [`Probe::watch`].
pub type Observer<'a> = dyn FnMut(Option<Xid>) -> ControlFlow<()> + 'a;

/// Why a call of a probe failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no NVML here. Most machines without it have no NVIDIA GPU.
    #[error(
        "no NVML library at {library:?}: install the NVIDIA driver, or name the library's path"
    )]
    LibraryAbsent {
        /// The path or soname that was asked for.
        library: PathBuf,
    },
    /// A library is there but cannot be used.
    #[error("NVML library {library:?} cannot be used: {reason}")]
    Unusable {
        /// The path or soname that was asked for.
        library: PathBuf,
        /// NVML's or the loader's error.
        reason: NvmlError,
    },
    /// The GPU fell off the bus, needs a reset, or is unknown to the driver.
    #[error("GPU {uuid} does not answer: {reason}")]
    Lost {
        /// UUID of the GPU.
        uuid: String,
        /// NVML's error as text.
        reason: String,
    },
    /// Any other error of NVML.
    #[error("NVML: {0}")]
    Nvml(NvmlError),
}

// Not `#[from]`, which would also make it the error's source: the text has it already.
impl From<NvmlError> for Error {
    fn from(error: NvmlError) -> Self {
        Self::Nvml(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_an_application_is_not_fatal_for_the_gpu() {
        let xid = |number| Xid { number };
        assert!(APPLICATION_XIDS.iter().all(|number| !xid(Some(*number)).is_fatal(&[])));
        assert!(xid(Some(79)).is_fatal(&[63]));
        assert!(!xid(Some(63)).is_fatal(&[63]));
        assert!(xid(None).is_fatal(&[63]));
    }
}

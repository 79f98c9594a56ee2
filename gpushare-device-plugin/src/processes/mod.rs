//! The processes on this node's GPUs, with the pod and container of each.
//!
//! NVML lists the processes on a GPU ([`watch`]), the kernel has the pod's UID and the container id of each ([`host`],
//! [`group`]), and the pods' status in the API server has their names ([`rows`]). [`metrics`] exports them.
//!
//! Invariant: a GPU with unknown processes has no rows, only the reason. An unknown amount of one process makes its
//! sum unknown, never too small.

pub mod group;
pub(crate) mod host;
pub(crate) mod metrics;
pub(crate) mod rows;
pub(crate) mod watch;

use host::Membership;
use placement::units::GpuId;

/// Why the processes on a GPU are unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Unknown {
    /// NVML lists only processes in the PID namespace of its caller.
    #[error(
        "the device plugin's pod is not in the host's PID namespace: set the value devicePlugin.processes"
    )]
    PidNamespace,
    /// NVML does not list processes of MIG instances at the GPU.
    #[error("MIG mode is on")]
    Mig,
    /// The driver has no such call, refuses it, or there are too many processes.
    #[error("the driver does not tell")]
    Driver,
    /// The GPU or NVML does not answer.
    #[error("it does not answer")]
    Lost,
}

impl Unknown {
    /// All reasons.
    pub const ALL: [Self; 4] = [Self::PidNamespace, Self::Mig, Self::Driver, Self::Lost];

    /// One word, for labels of metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::PidNamespace => "pid_namespace",
            Self::Mig => "mig",
            Self::Driver => "driver",
            Self::Lost => "lost",
        }
    }
}

/// A process on a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuProcess {
    /// NVML's data about it.
    pub process: nvml::Process,
    /// The pod that it belongs to.
    pub of: Membership,
}

/// A GPU and its processes at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuProcesses {
    /// The GPU.
    pub gpu: nvml::Gpu,
    /// Its processes, or why they are unknown.
    pub processes: Result<Vec<GpuProcess>, Unknown>,
}

impl GpuProcesses {
    /// The GPU's UUID.
    pub fn id(&self) -> GpuId {
        GpuId::from(self.gpu.uuid.as_str())
    }
}

/// All GPUs at one moment, in NVML's order.
pub type Snapshot = Vec<GpuProcesses>;

//! The processes on this node's cards, with the pod and container of each.
//!
//! NVML lists the processes on a card ([`watch`]), the kernel has the pod's UID and the container id of each ([`host`],
//! [`group`]), and the pods' status in the API server has their names ([`rows`]). [`metrics`] exports them.
//!
//! Invariant: a card with unknown processes has no rows, only the reason. An unknown amount of one process makes its
//! sum unknown, never too small.

pub mod group;
pub(crate) mod host;
pub(crate) mod metrics;
pub(crate) mod rows;
pub(crate) mod watch;

use host::Membership;
use placement::units::CardId;

/// Why the processes on a card are unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Unknown {
    /// NVML lists only processes in the PID namespace of its caller.
    #[error(
        "the device plugin's pod is not in the host's PID namespace: set the value devicePlugin.processes"
    )]
    PidNamespace,
    /// NVML does not list processes of MIG instances at the card.
    #[error("MIG mode is on")]
    Mig,
    /// The driver has no such call, refuses it, or there are too many processes.
    #[error("the driver does not tell")]
    Driver,
    /// The card or NVML does not answer.
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

/// A process on a card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CardProcess {
    /// NVML's data about it.
    pub process: nvml::Process,
    /// The pod that it belongs to.
    pub of: Membership,
}

/// A card and its processes at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CardProcesses {
    /// The card.
    pub card: nvml::Card,
    /// Its processes, or why they are unknown.
    pub processes: Result<Vec<CardProcess>, Unknown>,
}

impl CardProcesses {
    /// The card's UUID.
    pub fn id(&self) -> CardId {
        CardId::from(self.card.uuid.as_str())
    }
}

/// All cards at one moment, in NVML's order.
pub type Snapshot = Vec<CardProcesses>;

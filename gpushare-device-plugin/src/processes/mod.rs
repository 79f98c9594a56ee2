//! The processes on this node's cards, and of which pods and containers they are.
//!
//! NVML tells which processes are on a card ([`watch`] asks it), the kernel of which pod and container each is ([`host`], [`group`]), and the
//! kubelet's reports to the API server the names of these ([`rows`]). [`metrics`] shows it.
//!
//! Invariant: of a card whose processes cannot be told nothing is shown, and why. What is unknown of one process makes the sum it belongs
//! to unknown, never too small.

pub mod group;
pub mod host;
pub mod metrics;
pub mod rows;
pub mod watch;

use host::Membership;
use placement::units::CardId;

/// Why the processes on a card are unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Unknown {
    /// NVML tells a program of the processes in its own PID namespace alone.
    #[error(
        "the device plugin's pod is not in the host's PID namespace: use the component gpu-processes"
    )]
    PidNamespace,
    /// Processes of MIG instances are not told of at the card.
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
    /// All of them.
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
    /// What NVML tells of it.
    pub process: nvml::Process,
    /// To what it belongs.
    pub of: Membership,
}

/// A card and its processes at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CardProcesses {
    /// The card.
    pub card: nvml::Card,
    /// Its processes, by their ids.
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

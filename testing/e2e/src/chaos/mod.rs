//! Owns what a run of chaos does and in which order: pods that come and go, claims that are forged, programs that are
//! killed.
//!
//! Invariant: a [`Schedule`] is a pure function of its seed and its number of pods, so that a run can be repeated. When
//! exactly kubelets and schedulers do their part is theirs.

mod random;
mod schedule;
mod spans;

use std::time::Duration;

pub use spans::{Span, overbooked};

/// The number of the cluster's nodes.
pub const NODES: usize = crate::node::spec::NODES.len();
/// The number of GPUs of all nodes.
pub const GPUS: usize = NODES * crate::node::gpus::GPUS as usize;
/// The units of a GPU; a unit is 1 GiB.
pub const GPU_UNITS: u64 = crate::node::gpus::GPU_MIB / 1024;

/// The steps of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    /// In order. The last one is [`Step::Settle`].
    pub steps: Vec<Step>,
}

/// One step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Creates pods concurrently.
    Create(Vec<Plan>),
    /// Deletes the pods of these numbers.
    Delete {
        /// The numbers of their plans.
        pods: Vec<usize>,
        /// Without a grace period, so that the object is gone before the containers are.
        forced: bool,
    },
    /// Rewrites a pod's claim, bound or not, for this GPU of all.
    Edit {
        /// The number of its plan.
        pod: usize,
        /// The place of the GPU among all nodes' GPUs.
        gpu: usize,
    },
    /// Kills a program with SIGKILL.
    Kill(Victim),
    /// Waits.
    Pause(Duration),
    /// Deletes the pods of forged claims, waits until every other pod runs or has no room, and compares all GPUs.
    Settle,
}

/// A program to kill. A node is its place among the nodes; a replica that among the running ones, modulo their number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Victim {
    /// A replica of the extender.
    Extender(usize),
    /// A replica of the annotator.
    Annotator(usize),
    /// A node's exporter.
    Exporter(usize),
    /// A node's device plugin.
    Plugin(usize),
    /// A node's kubelet.
    Kubelet(usize),
    /// A node's containerd.
    Containerd(usize),
    /// kube-scheduler.
    Scheduler,
    /// The API server.
    ApiServer,
}

impl Victim {
    /// The program's name.
    pub fn program(self) -> &'static str {
        match self {
            Self::Extender(_) => "scheduler-extender",
            Self::Annotator(_) => "annotator",
            Self::Exporter(_) => "node-exporter-plus",
            Self::Plugin(_) => "gpushare-device-plugin",
            Self::Kubelet(_) => "kubelet",
            Self::Containerd(_) => "containerd",
            Self::Scheduler => "kube-scheduler",
            Self::ApiServer => "kube-apiserver",
        }
    }

    /// The place of the node that it is killed on; `None` for a program that runs on any.
    pub fn node(self) -> Option<usize> {
        match self {
            Self::Exporter(node)
            | Self::Plugin(node)
            | Self::Kubelet(node)
            | Self::Containerd(node) => Some(node),
            Self::Extender(_) | Self::Annotator(_) | Self::Scheduler | Self::ApiServer => None,
        }
    }
}

/// A pod to create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Tells it from all others of the schedule.
    pub number: usize,
    /// The units of each container, on all its GPUs together; 0 for a container without GPU.
    pub containers: Vec<u64>,
    /// The number of GPUs, of which each container has an equal part.
    pub gpus: u64,
    /// Whether no other pod is on its GPUs.
    pub exclusive: bool,
    /// Its priority class.
    pub priority: Priority,
    /// Whether its processes end by SIGKILL alone, at the end of their grace period.
    pub stubborn: bool,
    /// What its author writes that is not the author's to write.
    pub forgery: Option<Forgery>,
}

impl Plan {
    /// The units that its GPUs are charged.
    pub fn charge(&self) -> u64 {
        if self.exclusive { self.gpus * GPU_UNITS } else { self.containers.iter().sum() }
    }

    /// The units that each of its GPUs is charged.
    pub fn charge_of_each_gpu(&self) -> u64 {
        self.charge() / self.gpus
    }
}

/// Whose pods may evict whose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// No class.
    Default,
    /// May evict those without a class.
    Middle,
    /// May evict all others.
    High,
}

/// What a pod is created with. GPUs are places among all nodes' GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forgery {
    /// A claim on a GPU, for kube-scheduler to place.
    Claim(usize),
    /// A claim on a GPU, and the name of that GPU's node, so that nothing places it.
    Placed(usize),
    /// The name of a GPU's node without a claim. The device plugin refuses it.
    Unclaimed(usize),
    /// A claim that cannot be read.
    Nonsense,
}

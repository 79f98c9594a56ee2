//! What limits do.

use std::sync::Arc;

use jiff::SignedDuration;

/// What limits do, and for which pods.
#[derive(Debug, Clone, PartialEq)]
pub struct Overload {
    /// What is done where every node that is asked about is over a limit.
    pub when_all: WhenAllOverloaded,
    /// Priority classes whose pods no limit applies to. DaemonSets' pods are exempt in any case.
    pub exempt_priority_classes: Vec<Arc<str>>,
}

/// What is done where every node that is asked about is over a limit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum WhenAllOverloaded {
    /// The least loaded of them pass: soft limits.
    PassLeastLoaded,
    /// None passes, and the pod waits: hard limits.
    Wait {
        /// A pod that has waited so long may go to the least loaded nodes; `None`: it waits on.
        max_wait: Option<SignedDuration>,
    },
}

impl Overload {
    /// As crane-scheduler's: pods wait.
    pub fn crane() -> Self {
        Self {
            when_all: WhenAllOverloaded::Wait { max_wait: None },
            exempt_priority_classes: Vec::new(),
        }
    }
}

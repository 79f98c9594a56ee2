//! What happens when all nodes are over limits, and which pods are exempt.

use std::sync::Arc;

use jiff::SignedDuration;

/// What happens when all nodes are over limits, and which pods are exempt.
#[derive(Debug, Clone, PartialEq)]
pub struct Overload {
    /// What happens if every node of a request is over a limit.
    pub when_all: WhenAllOverloaded,
    /// Priority classes whose pods are exempt from limits. Pods of DaemonSets are always exempt.
    pub exempt_priority_classes: Vec<Arc<str>>,
}

/// What happens if every node of a request is over a limit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum WhenAllOverloaded {
    /// The least loaded of them pass: soft limits.
    PassLeastLoaded,
    /// None passes, and the pod waits: hard limits.
    Wait {
        /// After this time a waiting pod may go to the least loaded nodes; `None`: never.
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

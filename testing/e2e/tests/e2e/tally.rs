//! Owns what all tests together counted, and the one line in which it ends.

use std::collections::BTreeSet;

/// Counts over all tests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// GPU pods whose processes were compared with their claims, by UID.
    pub(crate) gpu_pods: BTreeSet<String>,
    /// Processes that saw another card than the claimed one.
    pub(crate) mismatches: usize,
    /// Units that a card had to carry beyond its memory.
    pub(crate) overbooked_units: u64,
    /// Pods that a restarted kubelet refused since no plugin had registered yet.
    pub(crate) refused_too_early: usize,
}

impl Tally {
    /// Whether nothing was found that must never be.
    pub(crate) fn clean(&self) -> bool {
        self.mismatches == 0 && self.overbooked_units == 0
    }

    /// The line for machines.
    pub(crate) fn line(&self, kubernetes: &str, tests: u64) -> String {
        let Self { gpu_pods, mismatches, overbooked_units, .. } = self;
        let gpu_pods = gpu_pods.len();
        format!(
            "{{\"kubernetes\":\"{kubernetes}\",\"tests\":{tests},\"gpu_pods\":{gpu_pods},\
             \"mismatches\":{mismatches},\"overbooked_units\":{overbooked_units}}}"
        )
    }
}

//! Owns what all tests of a run count together, and the line of JSON that reports it.

use std::collections::BTreeSet;

/// Counts over all tests of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// UIDs of the GPU pods whose processes were compared with their claims.
    pub(crate) gpu_pods: BTreeSet<String>,
    /// Differences between a claim and what a process or the kubelet's records show.
    pub(crate) mismatches: usize,
    /// Units that GPUs carried beyond their memory.
    pub(crate) overbooked_units: u64,
    /// Pods that a restarted kubelet refused because the device plugin had not registered yet.
    pub(crate) refused_too_early: usize,
}

impl Counts {
    /// Whether there was no mismatch and no overbooked unit.
    pub(crate) fn are_clean(&self) -> bool {
        self.mismatches == 0 && self.overbooked_units == 0
    }

    /// The last line of a run, for other programs.
    pub(crate) fn json_line(&self, kubernetes: &str, tests: u64) -> String {
        let Self { gpu_pods, mismatches, overbooked_units, .. } = self;
        let gpu_pods = gpu_pods.len();
        format!(
            "{{\"kubernetes\":\"{kubernetes}\",\"tests\":{tests},\"gpu_pods\":{gpu_pods},\
             \"mismatches\":{mismatches},\"overbooked_units\":{overbooked_units}}}"
        )
    }
}

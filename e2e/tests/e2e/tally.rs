//! Owns what all tests together counted, and the one line in which it ends.

use e2e::settings::KUBERNETES;

/// Counts over all tests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// GPU pods whose processes were compared with their claims.
    pub(crate) gpu_pods: u64,
    /// Processes that saw another card than the claimed one.
    pub(crate) mismatches: u64,
    /// Units that a card had to carry beyond its memory, by the kubelet's records.
    pub(crate) overbooked_units: u64,
}

impl Tally {
    /// Whether nothing was found that must never be.
    pub(crate) fn clean(self) -> bool {
        self.mismatches == 0 && self.overbooked_units == 0
    }

    /// The line for machines.
    pub(crate) fn line(self, tests: u64) -> String {
        let Self { gpu_pods, mismatches, overbooked_units } = self;
        format!(
            "{{\"kubernetes\":\"{KUBERNETES}\",\"tests\":{tests},\"gpu_pods\":{gpu_pods},\
             \"mismatches\":{mismatches},\"overbooked_units\":{overbooked_units}}}"
        )
    }
}

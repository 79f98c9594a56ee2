//! Sums over the GPUs of all nodes.

use super::Snapshot;

/// Sums over the whole cluster.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Nodes with GPUs.
    pub nodes: u64,
    /// GPUs.
    pub gpus: u64,
    /// GPUs that are reported unhealthy.
    pub unhealthy: u64,
    /// Units of all GPUs.
    pub units: u64,
    /// Units that pods and ResourceClaims hold. A pod of unknown place counts on each GPU of its node, one that is not
    /// on a GPU yet once.
    pub used: u64,
    /// Units that pods and ResourceClaims of known place hold beyond what their GPU has; above 0 after a binding by
    /// another scheduler or an edited claim.
    pub overbooked: u64,
    /// Reservations that the API server has not confirmed.
    pub reserved: u64,
}

impl Snapshot {
    /// Sums over all nodes.
    #[must_use]
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for (_, gpus) in self.nodes_with_gpus() {
            totals.nodes += u64::from(!gpus.accounts().is_empty());
            totals.reserved += gpus.reserved() as u64;
            totals.used += gpus.unplaced().iter().map(|(_, units)| u64::from(units.0)).sum::<u64>();
            for account in gpus.accounts() {
                let units = u64::from(account.gpu.units.0);
                totals.gpus += 1;
                totals.unhealthy += u64::from(!account.gpu.healthy);
                totals.units += units;
                totals.used += u64::from(account.held().0);
                totals.overbooked += u64::from(account.overbooked().0);
            }
        }
        totals
    }
}

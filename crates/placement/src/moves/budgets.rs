//! How many pods PodDisruptionBudgets let go together.

use std::collections::BTreeMap;

/// A budget that covers a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Covering {
    /// Its place among the budgets.
    pub budget: usize,
    /// How many evictions it allows now.
    pub allowed: i64,
}

/// Whether each pod's eviction is more than a budget allows, after those before it, by the budgets that cover each.
pub fn beyond_budgets<'c>(pods: impl Iterator<Item = &'c [Covering]>) -> Vec<bool> {
    let mut used: BTreeMap<usize, i64> = BTreeMap::new();
    let mut beyond = Vec::new();
    for covering in pods {
        let mut is_beyond = false;
        // Each budget counts every pod that it covers, also where another allows none.
        for Covering { budget, allowed } in covering {
            let count = used.entry(*budget).or_default();
            *count += 1;
            is_beyond |= *count > *allowed;
        }
        beyond.push(is_beyond);
    }
    beyond
}

//! Numbers for metric names, so that a decision looks nothing up by name.

use std::collections::HashMap;

use crate::units::MetricName;

/// Names that nodes' annotations may bring into a table. A policy's names always have room.
const MAX_NAMES_OF_NODES: usize = 1024;

/// A metric's number in one [`MetricTable`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MetricId(u32);

impl MetricId {
    pub(super) fn of_index(index: usize) -> Self {
        Self(u32::try_from(index).unwrap_or(u32::MAX))
    }

    pub(super) fn index(self) -> usize {
        self.0 as usize
    }
}

/// The metric names of the policy and of all nodes, each with a number. Names are only ever added, so a number stays
/// valid for as long as its table.
///
/// # Examples
///
/// ```
/// use placement::load::MetricTable;
/// use placement::units::MetricName;
///
/// let mut table = MetricTable::default();
/// let cpu = MetricName::from("cpu_usage_avg_5m");
/// let id = table.of_policy(&cpu);
/// assert_eq!(table.of_node(&cpu), Some(id));
/// assert_ne!(table.of_node(&MetricName::from("mem_usage_avg_5m")), Some(id));
/// ```
#[derive(Debug, Clone, Default)]
pub struct MetricTable {
    ids: HashMap<MetricName, MetricId>,
}

impl MetricTable {
    /// The number of a metric that a policy names.
    pub fn of_policy(&mut self, metric: &MetricName) -> MetricId {
        let next = MetricId(u32::try_from(self.ids.len()).unwrap_or(u32::MAX));
        *self.ids.entry(metric.clone()).or_insert(next)
    }

    /// The number of a metric that a node has a reading of; `None` where the table is full. Node
    /// annotations are untrusted, so their names are bounded: 1,024, of all nodes together.
    pub fn of_node(&mut self, metric: &MetricName) -> Option<MetricId> {
        let known = self.ids.get(metric).copied();
        known.or_else(|| (self.ids.len() < MAX_NAMES_OF_NODES).then(|| self.of_policy(metric)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_nodes_are_bounded_and_a_policys_names_always_have_room() {
        let mut table = MetricTable::default();
        let name = |n: usize| MetricName::from(format!("metric_{n}"));
        for n in 0..MAX_NAMES_OF_NODES {
            assert!(table.of_node(&name(n)).is_some());
        }
        assert_eq!(table.of_node(&name(9999)), None);
        let of_policy = table.of_policy(&name(9999));
        assert_eq!(table.of_node(&name(9999)), Some(of_policy));
        assert_ne!(table.of_node(&name(0)), Some(of_policy));
    }
}

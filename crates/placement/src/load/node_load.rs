//! What is known of one node's load, whatever the policy.

use std::sync::Arc;

use jiff::Timestamp;

use super::{DeclaredPods, MetricId, MetricTable, RecentPods};
use crate::demand::PerDemand;
use crate::policy::NOT_MEASURED_YET;
use crate::reading::{HotValueNote, Reading, is_fresh};
use crate::resources::PerResource;
use crate::selector::Labels;
use crate::units::MetricName;

/// A node's readings, by the metrics' numbers.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Readings(Box<[Option<Reading>]>);

impl Readings {
    /// Takes over readings; `table` numbers their metrics. Where it has no room for a name, the reading
    /// is left out.
    pub fn new(
        table: &mut MetricTable,
        readings: impl IntoIterator<Item = (MetricName, Reading)>,
    ) -> Self {
        let mut slots: Vec<Option<Reading>> = Vec::new();
        for (metric, reading) in readings {
            let Some(id) = table.of_node(&metric) else { continue };
            if slots.len() <= id.index() {
                slots.resize(id.index() + 1, None);
            }
            slots[id.index()] = Some(reading);
        }
        Self(slots.into())
    }

    /// For each metric the reading that `choose` returns for what `self` and `other` have of it.
    #[must_use]
    pub fn merged(
        &self,
        other: &Self,
        choose: impl Fn(MetricId, Option<Reading>, Option<Reading>) -> Option<Reading>,
    ) -> Self {
        let chosen = |metric| choose(metric, self.get(metric), other.get(metric));
        Self((0..self.0.len().max(other.0.len())).map(MetricId::of_index).map(chosen).collect())
    }

    /// The metric's reading, fresh or not.
    pub fn get(&self, metric: MetricId) -> Option<Reading> {
        *self.0.get(metric.index())?
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(Option::is_none)
    }
}

/// What is known of one node's load. Cheap to clone: its parts are shared.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeLoad {
    /// Its readings.
    pub readings: Arc<Readings>,
    /// Pods that were bound to it recently, and in-flight pods that count on it.
    pub recent: Arc<RecentPods>,
    /// crane's own count of recent bindings, with `--crane-hot-value`.
    pub crane_hot_value: Option<HotValueNote>,
    /// Its cores and bytes of memory, of which readings are fractions; `None` where the Node does not report them.
    pub capacity: PerResource<Option<f64>>,
    /// Cores that its pods request; `None` where that is not known.
    pub requested_cpu: Option<f64>,
    /// What its annotations say that it can do, in bytes a second; `None` where they do not say it.
    pub speeds: PerDemand<Option<u64>>,
    /// The pods bound to it that declare something of network and disk; `None` where that is not known.
    pub declared: Option<Arc<DeclaredPods>>,
    /// The Node's labels, which select its pool.
    pub labels: Arc<Labels>,
    /// Whether Cluster Autoscaler means to remove it. Its load is then no measure for others.
    pub is_to_be_removed: bool,
    /// Whether it takes no pod without a toleration.
    pub repels_pods: bool,
    /// When the Node was created; `None` where it does not say.
    pub created_at: Option<Timestamp>,
}

impl NodeLoad {
    /// When the node joined, if that was so recently that its first readings are still to come.
    pub(super) fn joined_at(&self, now: Timestamp) -> Option<Timestamp> {
        if !self.readings.is_empty() {
            return None;
        }
        self.created_at.filter(|at| is_fresh(*at, now, NOT_MEASURED_YET))
    }
}

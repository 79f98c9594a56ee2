//! How what pods declare of network and disk counts.

use jiff::SignedDuration;

use super::metric::{parse_aggregate, visible_after};
use super::{Limit, Unknown, Weight};
use crate::demand::{Demand, PerDemand};
use crate::units::MetricName;

/// The metric by which a node's network demands are judged where the Node has no annotation: the speed of its links,
/// in bytes a second.
pub const LINK_SPEED: &str = "network_speed_bytes_active";

/// How what pods declare of network and disk counts. By default nothing of it does.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DemandRules {
    /// The rule of each demand; `None` of one that does not count.
    pub rules: PerDemand<Option<DemandRule>>,
    /// The readings of [`LINK_SPEED`]; `None` where the policy does not fetch them, or has no rule for the network.
    pub link_speed: Option<FetchedMetric>,
}

/// How one demand counts for the pods that declare it.
#[derive(Debug, Clone, PartialEq)]
pub struct DemandRule {
    /// The largest part of a node's speed that its pods may declare or use; `None` for no limit. May be above 1.
    pub limit: Option<f64>,
    /// As [`Weight::weight`]; 0 where it does not count in scores.
    pub weight: f64,
    /// What is measured of it; `None` where only what pods declare counts.
    pub measured: Option<FetchedMetric>,
}

/// A metric that the policy fetches.
#[derive(Debug, Clone, PartialEq)]
pub struct FetchedMetric {
    /// Its name.
    pub metric: MetricName,
    /// How long its readings count.
    pub max_age: SignedDuration,
}

impl DemandRules {
    /// Whether any demand counts.
    #[must_use]
    pub fn are_on(&self) -> bool {
        self.all().next().is_some()
    }

    /// The demands that count, with their rules.
    pub fn all(&self) -> impl Iterator<Item = (Demand, &DemandRule)> {
        Demand::ALL
            .into_iter()
            .filter_map(|demand| Some((demand, self.rules.get(demand).as_ref()?)))
    }

    /// The metrics that are read for demands.
    pub(crate) fn read(&self) -> impl Iterator<Item = &FetchedMetric> {
        self.all().filter_map(|(_, rule)| rule.measured.as_ref()).chain(&self.link_speed)
    }

    /// The limits of the demands, for nodes of any pool.
    pub(crate) fn limits(&self) -> impl Iterator<Item = (Demand, Limit)> {
        self.all().filter_map(|(demand, rule)| {
            let limit = Limit {
                metric: demand.metric(),
                max: rule.limit?,
                max_age: None,
                when_stale: Unknown::Ignore,
                when_missing: Unknown::Ignore,
            };
            Some((demand, limit))
        })
    }

    /// The weights of the demands, for nodes of any pool.
    pub(crate) fn weights(&self) -> impl Iterator<Item = (Demand, Weight)> {
        self.all().filter(|(_, rule)| rule.weight > 0.0).map(|(demand, rule)| {
            let weight = Weight {
                metric: demand.metric(),
                weight: rule.weight,
                max_age: None,
                when_stale: Unknown::Ignore,
                when_missing: Unknown::Ignore,
            };
            (demand, weight)
        })
    }
}

/// How long after the start of a pod's containers a metric shows all of the pod's use of `demand`; `None` for a metric
/// that does not measure it, or by no statistic of what is used.
pub(crate) fn shows_demand_after(demand: Demand, metric: &MetricName) -> Option<SignedDuration> {
    let aggregate = metric.as_str().strip_prefix(demand.signal())?.strip_prefix('_')?;
    let (statistic, window) = parse_aggregate(aggregate);
    visible_after(statistic, window)
}

//! A policy made ready for decisions: metrics as numbers, shares of weights, reasons as texts.

use std::sync::Arc;

use jiff::SignedDuration;

use super::{MetricId, MetricTable, PodKind, PodToPlace};
use crate::demand::Demand;
use crate::policy::metric::split;
use crate::policy::{
    DemandRules, FetchedMetric, HotRule, Limit, LoadPolicy, MetricMeaning, NamespaceRule, Unknown,
    Weight, WindowStatistic, shows_demand_after,
};
use crate::selector::{LabelSelector, Labels};
use crate::units::MetricName;

/// A policy whose metrics are resolved against one [`MetricTable`].
#[derive(Debug, Clone, PartialEq)]
pub struct ResolvedPolicy {
    /// The policy as it was parsed.
    pub policy: LoadPolicy,
    /// For nodes of no pool.
    common: ResolvedRules,
    /// In the policy's order.
    pools: Vec<(LabelSelector, ResolvedRules)>,
    /// The names of the groups of weights, of all pools.
    groups: Vec<String>,
}

/// The limits and weights of one node pool.
#[derive(Debug, Clone, PartialEq)]
pub struct ResolvedRules {
    /// The limits, in the policy's order.
    pub limits: Vec<ResolvedLimit>,
    /// The weights, in the policy's order.
    pub weights: Vec<ResolvedWeight>,
}

/// A metric as one rule reads it.
#[derive(Debug, Clone, PartialEq)]
pub struct ResolvedMetric {
    /// Its name.
    pub name: MetricName,
    /// Its number.
    pub id: MetricId,
    /// For how long a reading counts; `None` where nothing fetches the metric.
    pub max_age: Option<SignedDuration>,
    /// What its name says.
    pub meaning: MetricMeaning,
    /// What is done where the reading is too old.
    pub when_stale: Unknown,
    /// What is done where there is none.
    pub when_missing: Unknown,
    /// The demand that it is the load of; `None` for a metric that is measured.
    pub demand: Option<ResolvedDemand>,
}

/// A demand, with the readings that it is judged by.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ResolvedDemand {
    /// The demand.
    pub demand: Demand,
    /// The speed of the node's links, and how long a reading of it counts; `None` for disks, and where none is fetched.
    pub(super) speed: Option<(MetricId, SignedDuration)>,
    /// What is measured of the demand; `None` where only what pods declare counts.
    pub(super) measured: Option<MeasuredDemand>,
}

/// What is measured of a demand.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct MeasuredDemand {
    pub(super) id: MetricId,
    pub(super) max_age: SignedDuration,
    /// How long after the start of a pod's containers it shows all of the pod's use.
    pub(super) visible_after: SignedDuration,
}

/// A limit, ready to be checked.
#[derive(Debug, Clone, PartialEq)]
pub struct ResolvedLimit {
    /// The metric.
    pub metric: ResolvedMetric,
    /// The largest fraction that is still accepted.
    pub max: f64,
    /// Why a node over this limit takes no pod. The same for every node and every value, since
    /// kube-scheduler groups nodes by it; without `%`, since kube-scheduler uses it as a format.
    pub reason: Arc<str>,
    /// Why a node without a reading takes no pod, where the policy wants that. Constant too.
    pub unknown_reason: Arc<str>,
}

/// A weight, ready to be added up.
#[derive(Debug, Clone, PartialEq)]
pub struct ResolvedWeight {
    /// The metric.
    pub metric: ResolvedMetric,
    /// Its part of all weights, 0 to 1.
    pub share: f64,
    /// Its part of the weights of its group, 0 to 1.
    pub share_of_group: f64,
    /// Metrics of one resource are a group: `cpu`, `mem`, `disk_sda`. Deviations are of their resource's.
    pub group: usize,
}

impl ResolvedPolicy {
    /// Resolves `policy`; its metrics get numbers in `table`.
    pub fn new(policy: LoadPolicy, table: &mut MetricTable) -> Self {
        let mut groups = Vec::new();
        let demand = &policy.demand;
        let common =
            ResolvedRules::new(&policy.limits, &policy.weights, demand, table, &mut groups);
        let pools = policy
            .pools
            .iter()
            .map(|pool| {
                let rules =
                    ResolvedRules::new(&pool.limits, &pool.weights, demand, table, &mut groups);
                (pool.selector.clone(), rules)
            })
            .collect();
        Self { policy, common, pools, groups }
    }

    /// How many groups of weights there are: [`ResolvedWeight::group`] is below this. Metrics of one resource are a
    /// group, the same in all pools.
    #[must_use]
    pub fn groups(&self) -> usize {
        self.groups.len()
    }

    /// The limits and weights for a node with these labels: those of the first pool that it is of.
    pub fn rules(&self, labels: &Labels) -> &ResolvedRules {
        self.rules_of(self.rules_number(labels))
    }

    /// The number of the rules for a node with these labels: see [`ResolvedPolicy::rules_of`].
    pub(super) fn rules_number(&self, labels: &Labels) -> usize {
        let pool = self.pools.iter().position(|(selector, _)| selector.matches(labels));
        pool.map_or(0, |pool| pool + 1)
    }

    /// The rules of that number: 0 for those of no pool.
    pub(super) fn rules_of(&self, number: usize) -> &ResolvedRules {
        let pool = number.checked_sub(1).and_then(|pool| self.pools.get(pool));
        pool.map_or(&self.common, |(_, rules)| rules)
    }

    /// Whether limits do not apply to the pod.
    #[must_use]
    pub fn exempts(&self, pod: &PodToPlace<'_>) -> bool {
        let classes = &self.policy.overload.exempt_priority_classes;
        pod.kind == PodKind::Daemon || classes.iter().any(|class| **class == *pod.priority_class)
    }

    /// Whether pods of the namespace go to some nodes alone.
    #[must_use]
    pub fn confines(&self, namespace: &str) -> bool {
        let rules = &self.policy.namespaces;
        rules.iter().flat_map(|rule| &rule.namespaces).any(|name| **name == *namespace)
    }

    /// The limits and weights of all nodes: those of no pool first.
    pub fn all_rules(&self) -> impl Iterator<Item = &ResolvedRules> {
        std::iter::once(&self.common).chain(self.pools.iter().map(|(_, rules)| rules))
    }

    /// The rule of `namespace` that a node with these labels breaks.
    pub fn broken_namespace_rule(
        &self,
        namespace: &str,
        labels: &Labels,
    ) -> Option<&NamespaceRule> {
        let names = |rule: &NamespaceRule| rule.namespaces.iter().any(|name| **name == *namespace);
        self.policy.namespaces.iter().find(|rule| names(rule) && !rule.nodes.matches(labels))
    }

    /// How recent bindings count.
    pub fn hot(&self) -> &[HotRule] {
        &self.policy.hot
    }
}

impl ResolvedRules {
    /// The rules of a pool, and of the demands, which are the same for all nodes.
    fn new(
        limits: &[Limit],
        weights: &[Weight],
        demand: &DemandRules,
        table: &mut MetricTable,
        groups: &mut Vec<String>,
    ) -> Self {
        let mut all_limits: Vec<_> =
            limits.iter().map(|limit| ResolvedLimit::new(limit, None, table)).collect();
        for (which, limit) in demand.limits() {
            let resolved = ResolvedDemand::new(which, demand, table);
            all_limits.push(ResolvedLimit::new(&limit, Some(resolved), table));
        }
        let mut demands = vec![None; weights.len()];
        let mut all_weights = weights.to_vec();
        for (which, weight) in demand.weights() {
            demands.push(Some(ResolvedDemand::new(which, demand, table)));
            all_weights.push(weight);
        }
        let scaled = scaled(&all_weights);
        let total: f64 = scaled.iter().sum();
        let mut numbers: Vec<usize> = Vec::with_capacity(scaled.len());
        // In the models with groups a deviation is no load, and takes no part of its group's weight.
        let mut sums_of_groups = vec![0.0; groups.len() + scaled.len()];
        for (weight, scaled) in all_weights.iter().zip(&scaled) {
            let name = group(&weight.metric);
            let known = groups.iter().position(|other| other == name);
            let number = known.unwrap_or(groups.len());
            if known.is_none() {
                groups.push(name.to_owned());
            }
            numbers.push(number);
            if MetricMeaning::of(&weight.metric).statistic != WindowStatistic::Deviation {
                sums_of_groups[number] += scaled;
            }
        }
        let mut resolved = Vec::with_capacity(numbers.len());
        for (at, weight) in all_weights.into_iter().enumerate() {
            resolved.push(ResolvedWeight {
                metric: ResolvedMetric {
                    id: table.of_policy(&weight.metric),
                    max_age: weight.max_age,
                    meaning: MetricMeaning::of(&weight.metric),
                    when_stale: weight.when_stale,
                    when_missing: weight.when_missing,
                    demand: demands[at],
                    name: weight.metric,
                },
                share: part_of(scaled[at], total),
                share_of_group: part_of(scaled[at], sums_of_groups[numbers[at]]),
                group: numbers[at],
            });
        }
        Self { limits: all_limits, weights: resolved }
    }
}

/// A part of a sum; 0 of no sum.
fn part_of(part: f64, sum: f64) -> f64 {
    if sum > 0.0 { part / sum } else { 0.0 }
}

/// The weights in proportion, with a finite sum: that of weights that are finite each need not be.
fn scaled(weights: &[Weight]) -> Vec<f64> {
    let plain: Vec<f64> = weights.iter().map(|weight| weight.weight).collect();
    let is_finite = plain.iter().sum::<f64>().is_finite();
    let unit = if is_finite { 1.0 } else { plain.iter().copied().fold(1.0, f64::max) };
    plain.iter().map(|weight| weight / unit).collect()
}

impl ResolvedDemand {
    fn new(demand: Demand, rules: &DemandRules, table: &mut MetricTable) -> Self {
        let measured = rules.rules.get(demand).as_ref().and_then(|rule| {
            let FetchedMetric { metric, max_age } = rule.measured.as_ref()?;
            let visible_after = shows_demand_after(demand, metric)?;
            Some(MeasuredDemand { id: table.of_policy(metric), max_age: *max_age, visible_after })
        });
        let link_speed = rules.link_speed.as_ref().filter(|_| demand.is_of_network());
        let speed = link_speed.map(|speed| (table.of_policy(&speed.metric), speed.max_age));
        Self { demand, speed, measured }
    }

    /// The readings that it is judged by, and how long each counts.
    pub(super) fn readings(&self) -> impl Iterator<Item = (MetricId, SignedDuration)> + use<> {
        let measured = self.measured.map(|measured| (measured.id, measured.max_age));
        self.speed.into_iter().chain(measured)
    }
}

impl ResolvedMetric {
    /// The demand that it is the load of; `None` for a metric that is measured.
    pub(super) fn of_demand(&self) -> Option<Demand> {
        self.demand.map(|demand| demand.demand)
    }

    /// How long a reading of `metric` counts, if this is the load of a demand that is judged by it.
    pub fn of_demand_reading(&self, metric: MetricId) -> Option<SignedDuration> {
        self.demand?.readings().find(|(id, _)| *id == metric).map(|(_, max_age)| max_age)
    }
}

impl ResolvedLimit {
    fn new(limit: &Limit, demand: Option<ResolvedDemand>, table: &mut MetricTable) -> Self {
        let name = &limit.metric;
        Self {
            reason: format!(reason!("Load[{}] is too high, over {}"), name, limit.max).into(),
            unknown_reason: format!(reason!("Load[{}] is unknown"), name).into(),
            max: limit.max,
            metric: ResolvedMetric {
                name: name.clone(),
                id: table.of_policy(name),
                max_age: limit.max_age,
                meaning: MetricMeaning::of(name),
                when_stale: limit.when_stale,
                when_missing: limit.when_missing,
                demand,
            },
        }
    }
}

/// The resource or device that a metric measures: `cpu`, `mem`, `disk_sda`.
fn group(metric: &MetricName) -> &str {
    let name = metric.as_str();
    split(name).map_or(name, |(resource, _)| resource)
}

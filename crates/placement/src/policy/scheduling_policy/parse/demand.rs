//! How what pods declare of network and disk counts.

use serde_saphyr::Spanned;

use super::super::super::fields::{Checked, Text, fault, metric_name};
use super::super::document::{DemandFields, DemandRuleFields};
use super::metrics::{MetricRules, limit, weight};
use super::quoted;
use crate::demand::{Demand, PerDemand};
use crate::policy::demand::shows_demand_after;
use crate::policy::{DemandRule, DemandRules, FetchedMetric, LINK_SPEED};

pub(super) fn demand(fields: &DemandFields, metrics: &[MetricRules]) -> Checked<DemandRules> {
    let rule = |demand, given: &Option<Spanned<DemandRuleFields>>| {
        given.as_ref().map(|given| rule(demand, given, metrics)).transpose()
    };
    let rules = PerDemand {
        ingress: rule(Demand::Ingress, &fields.ingress)?,
        egress: rule(Demand::Egress, &fields.egress)?,
        disk_read: rule(Demand::DiskRead, &fields.disk_read)?,
        disk_write: rule(Demand::DiskWrite, &fields.disk_write)?,
    };
    let is_of_network = rules.ingress.is_some() || rules.egress.is_some();
    let link_speed =
        metrics.iter().find(|rules| is_of_network && rules.name.as_str() == LINK_SPEED);
    Ok(DemandRules { rules, link_speed: link_speed.and_then(fetched) })
}

fn rule(
    demand: Demand,
    given: &Spanned<DemandRuleFields>,
    metrics: &[MetricRules],
) -> Checked<DemandRule> {
    let path = format!("spec.demand.{}", demand.name());
    let fields = &given.value;
    let rule = DemandRule {
        limit: limit(&path, &fields.limit)?.flatten(),
        weight: weight(&path, &fields.weight)?.unwrap_or(0.0),
        measured: measured(demand, &format!("{path}.measured"), &fields.measured, metrics)?,
    };
    if rule.limit.is_none() && rule.weight == 0.0 {
        let problem = "expected a `limit`, or a `weight` above 0, found neither: add one, or remove the field";
        return Err(fault(given, &path, problem.to_owned()));
    }
    Ok(rule)
}

fn measured(
    demand: Demand,
    field: &str,
    given: &Text,
    metrics: &[MetricRules],
) -> Checked<Option<FetchedMetric>> {
    let Some(given) = given else { return Ok(None) };
    let name = metric_name(field, given)?;
    if shows_demand_after(demand, &name).is_none() {
        let signal = demand.signal();
        let problem = format!(
            "expected a metric of the signal `{signal}` that shows what is used, such as `{signal}_avg_5m`, found {}",
            quoted(name.as_str())
        );
        return Err(fault(given, field, problem));
    }
    let known = metrics.iter().find(|rules| rules.name == name).and_then(fetched);
    let missing = || {
        let problem = format!("spec.metrics has no `{name}` with a period: add it there");
        fault(given, field, problem)
    };
    known.ok_or_else(missing).map(Some)
}

fn fetched(rules: &MetricRules) -> Option<FetchedMetric> {
    Some(FetchedMetric { metric: rules.name.clone(), max_age: rules.max_age? })
}

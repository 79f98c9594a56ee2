//! Metrics, and what node pools change of them.

use std::sync::Arc;

use jiff::SignedDuration;
use serde_saphyr::Spanned;

use super::super::super::fields::{Checked, Text, duration, each, fault, metric, positive};
use super::super::document::{Metric, Pool, PoolMetric};
use super::super::scalar::{EnumValue, Scalar, number};
use super::{at_least_0, at_most, listed_once, quoted, selector};
use crate::demand::Demand;
use crate::policy::{GRACE, Limit, MAX_METRICS, NodePool, SyncRule, Unknown, Weight};
use crate::units::MetricName;

/// A metric as it counts on some nodes.
#[derive(Clone)]
pub(super) struct MetricRules {
    pub(super) name: MetricName,
    /// `None` where another program writes it.
    period: Option<SignedDuration>,
    pub(super) max_age: Option<SignedDuration>,
    limit: Option<f64>,
    /// 0 is none.
    weight: f64,
    when_stale: Unknown,
    when_missing: Unknown,
}

impl MetricRules {
    pub(super) fn sync(&self) -> Option<SyncRule> {
        self.period.map(|period| SyncRule { metric: self.name.clone(), period })
    }

    pub(super) fn limit(&self) -> Option<Limit> {
        let Self { max_age, when_stale, when_missing, .. } = *self;
        let metric = self.name.clone();
        self.limit.map(|max| Limit { metric, max, max_age, when_stale, when_missing })
    }

    pub(super) fn weight(&self) -> Option<Weight> {
        let Self { max_age, weight, when_stale, when_missing, .. } = *self;
        let metric = self.name.clone();
        (weight > 0.0).then_some(Weight { metric, weight, max_age, when_stale, when_missing })
    }
}

pub(super) fn metric_rules(path: &str, entry: &Spanned<Metric>) -> Checked<MetricRules> {
    let fields = &entry.value;
    let name = metric(path, entry, fields.name.as_ref())?;
    if let Some(demand) = Demand::of_metric(&name) {
        let field = demand.name();
        let problem = format!("`{name}` is not fetched: remove it, and set `spec.demand.{field}`");
        return Err(fault(entry, &format!("{path}.name"), problem));
    }
    let period = match &fields.period {
        Some(given) if given.value == "never" => None,
        given => Some(positive(path, "period", entry, given.as_ref())?),
    };
    let max_age = fields
        .max_age
        .as_ref()
        .map(|given| duration(&format!("{path}.maxAge"), given))
        .transpose()?;
    let if_missing = Unknown::default_of_missing(&name);
    let stale_field = format!("{path}.whenStale");
    let missing_field = format!("{path}.whenMissing");
    Ok(MetricRules {
        name,
        period,
        max_age: max_age.or_else(|| period.map(|period| period.saturating_add(GRACE))),
        limit: limit(path, &fields.limit)?.flatten(),
        weight: weight(path, &fields.weight)?.unwrap_or(0.0),
        when_stale: EnumValue::or(&stale_field, &fields.when_stale, Unknown::Penalise)?,
        when_missing: EnumValue::or(&missing_field, &fields.when_missing, if_missing)?,
    })
}

pub(super) fn node_pool(
    path: &str,
    pool: &Spanned<Pool>,
    common: &[MetricRules],
) -> Checked<NodePool> {
    let Pool { name, selector: selects, metrics } = &pool.value;
    let name = pool_name(path, pool, name)?;
    let selector = selector(&format!("{path}.selector"), pool, selects)?;
    let list = format!("{path}.metrics");
    at_most(&list, metrics.iter().flatten(), MAX_METRICS)?;
    let changed = each(&list, metrics, |path, entry| pool_metric(path, entry, common))?;
    listed_once(&list, metrics, |at| changed.get(at).map(|rules| rules.name.as_str()))?;
    let rules: Vec<MetricRules> = common
        .iter()
        .map(|rules| {
            let own = changed.iter().find(|own| own.name == rules.name);
            own.unwrap_or(rules).clone()
        })
        .collect();
    Ok(NodePool {
        name,
        selector,
        limits: rules.iter().filter_map(MetricRules::limit).collect(),
        weights: rules.iter().filter_map(MetricRules::weight).collect(),
    })
}

fn pool_name(path: &str, pool: &Spanned<Pool>, given: &Text) -> Checked<Arc<str>> {
    let field = format!("{path}.name");
    let wanted =
        "expected 1 to 63 letters, digits, `_`, `-` or `.`, the first and last a letter or digit";
    let Some(given) = given else {
        return Err(fault(pool, &field, format!("{wanted}, found none")));
    };
    let fits = MetricName::parse(&given.value).is_some();
    if !fits {
        return Err(fault(given, &field, format!("{wanted}, found {}", quoted(&given.value))));
    }
    Ok(given.value.as_str().into())
}

fn pool_metric(
    path: &str,
    entry: &Spanned<PoolMetric>,
    common: &[MetricRules],
) -> Checked<MetricRules> {
    let fields = &entry.value;
    let name = metric(path, entry, fields.name.as_ref())?;
    let Some(rules) = common.iter().find(|rules| rules.name == name) else {
        let problem = format!("spec.metrics has no `{name}`: add it there with its period");
        return Err(fault(entry, &format!("{path}.name"), problem));
    };
    let stale_field = format!("{path}.whenStale");
    let missing_field = format!("{path}.whenMissing");
    Ok(MetricRules {
        limit: limit(path, &fields.limit)?.unwrap_or(rules.limit),
        weight: weight(path, &fields.weight)?.unwrap_or(rules.weight),
        when_stale: EnumValue::or(&stale_field, &fields.when_stale, rules.when_stale)?,
        when_missing: EnumValue::or(&missing_field, &fields.when_missing, rules.when_missing)?,
        ..rules.clone()
    })
}

/// `Some(None)` for `none`.
pub(super) fn limit(path: &str, given: &Option<Spanned<Scalar>>) -> Checked<Option<Option<f64>>> {
    let Some(given) = given else { return Ok(None) };
    if matches!(&given.value, Scalar::Text(text) if text == "none") {
        return Ok(Some(None));
    }
    let wanted = "a fraction above 0 such as 0.8, or `none`";
    number(&format!("{path}.limit"), given, wanted, |max| max > 0.0).map(|max| Some(Some(max)))
}

pub(super) fn weight(path: &str, given: &Option<Spanned<Scalar>>) -> Checked<Option<f64>> {
    given.as_ref().map(|given| at_least_0(&format!("{path}.weight"), given)).transpose()
}

//! crane's kind: the YAML as written, checked field by field into a [`LoadPolicy`].

use jiff::SignedDuration;
use serde::Deserialize;
use serde_saphyr::Spanned;

use super::fields::{
    Checked, Entries, Hot, Number, Text, each, expect, fault, hot_rule, metric, positive, syntax,
};
use super::{
    DemandRules, GRACE, GpuRules, Limit, LoadPolicy, Overload, Scoring, SyncRule, Unknown, Weight,
};
use crate::estimate::EstimateRules;
use crate::units::MetricName;

pub(super) const API_VERSION: &str = "scheduler.policy.crane.io/v1alpha1";
pub(super) const KIND: &str = "DynamicSchedulerPolicy";

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Document {
    api_version: Spanned<String>,
    kind: Spanned<String>,
    #[serde(default)]
    #[allow(
        dead_code,
        reason = "accepted as in every Kubernetes object, and without meaning here"
    )]
    metadata: Option<serde_json::Value>,
    // crane reads a missing or empty object or list as one without entries, as Go does.
    #[serde(default)]
    spec: Option<CraneSpec>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CraneSpec {
    #[serde(default)]
    sync_policy: Entries<Sync>,
    #[serde(default)]
    predicate: Entries<Predicate>,
    #[serde(default)]
    priority: Entries<Priority>,
    #[serde(default)]
    hot_value: Entries<Hot>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Sync {
    #[serde(default)]
    name: Text,
    #[serde(default)]
    period: Text,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Predicate {
    #[serde(default)]
    name: Text,
    // crane's own spelling: existing policies must parse unchanged.
    #[serde(default, rename = "maxLimitPecent")]
    max: Option<Spanned<Number>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Priority {
    #[serde(default)]
    name: Text,
    #[serde(default)]
    weight: Option<Spanned<Number>>,
}

pub(super) fn parse(text: &str) -> Checked<LoadPolicy> {
    let options = serde_saphyr::options! { legacy_octal_numbers: true };
    let document: Document =
        serde_saphyr::from_str_with_options(text, options).map_err(|e| syntax(&e))?;
    check_type(&document)?;
    let spec = document.spec.unwrap_or_default();
    let sync = each("spec.syncPolicy", &spec.sync_policy, sync_rule)?;
    let hot = each("spec.hotValue", &spec.hot_value, hot_rule)?;
    let mut limits =
        each("spec.predicate", &spec.predicate, |path, rule| limit(path, rule, &sync))?;
    // In crane a limit of 0 does not apply.
    limits.retain(|limit| limit.max > 0.0);
    let weights = each("spec.priority", &spec.priority, |path, rule| weight(path, rule, &sync))?;
    // Without crane's hot value, new pods count by their estimated use.
    let estimates = hot.is_empty().then(EstimateRules::default);
    Ok(LoadPolicy {
        sync,
        limits,
        weights,
        hot,
        scoring: Scoring::crane(),
        overload: Overload::crane(),
        estimates,
        demand: DemandRules::default(),
        pools: Vec::new(),
        namespaces: Vec::new(),
        gpu: GpuRules::default(),
    })
}

/// The maximum age by the first sync rule of that name, as in crane.
fn max_age(sync: &[SyncRule], metric: &MetricName) -> Option<SignedDuration> {
    let rule = sync.iter().find(|rule| rule.metric == *metric);
    rule.map(|rule| rule.period.saturating_add(GRACE))
}

fn check_type(document: &Document) -> Checked<()> {
    expect("apiVersion", &document.api_version, API_VERSION)?;
    expect("kind", &document.kind, KIND)
}

fn sync_rule(path: &str, rule: &Spanned<Sync>) -> Checked<SyncRule> {
    let period = positive(path, "period", rule, rule.value.period.as_ref())?;
    Ok(SyncRule { metric: metric(path, rule, rule.value.name.as_ref())?, period })
}

fn limit(path: &str, rule: &Spanned<Predicate>, sync: &[SyncRule]) -> Checked<Limit> {
    let max = at_least_0(path, "maxLimitPecent", rule.value.max.as_ref())?;
    let metric = metric(path, rule, rule.value.name.as_ref())?;
    let when_stale = Unknown::Ignore;
    let when_missing = Unknown::Ignore;
    Ok(Limit { max_age: max_age(sync, &metric), metric, max, when_stale, when_missing })
}

fn weight(path: &str, rule: &Spanned<Priority>, sync: &[SyncRule]) -> Checked<Weight> {
    let weight = at_least_0(path, "weight", rule.value.weight.as_ref())?;
    let metric = metric(path, rule, rule.value.name.as_ref())?;
    let when_stale = Unknown::Penalise;
    let when_missing = Unknown::Penalise;
    Ok(Weight { max_age: max_age(sync, &metric), metric, weight, when_stale, when_missing })
}

/// A finite number that is not negative; 0 if it is missing, as in crane.
fn at_least_0(path: &str, name: &str, given: Option<&Spanned<Number>>) -> Checked<f64> {
    let Some(given) = given else { return Ok(0.0) };
    let number = given.value.0;
    if number.is_finite() && number >= 0.0 {
        return Ok(number);
    }
    let problem = format!("expected a number of at least 0, found {number}");
    Err(fault(given, &format!("{path}.{name}"), problem))
}

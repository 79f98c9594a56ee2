//! The YAML as written, checked field by field into a [`LoadPolicy`].

use jiff::SignedDuration;
use jiff::fmt::friendly::SpanParser;
use serde::Deserialize;
use serde_saphyr::Spanned;

use super::{GRACE, HotRule, Limit, LoadPolicy, PolicyError, SyncRule, Weight};
use crate::units::MetricName;

const API_VERSION: &str = "scheduler.policy.crane.io/v1alpha1";
const KIND: &str = "DynamicSchedulerPolicy";

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
    spec: Spec,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Spec {
    #[serde(default)]
    sync_policy: Vec<Sync>,
    #[serde(default)]
    predicate: Vec<Predicate>,
    #[serde(default)]
    priority: Vec<Priority>,
    #[serde(default)]
    hot_value: Vec<Hot>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Sync {
    name: Spanned<String>,
    period: Spanned<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Predicate {
    name: Spanned<String>,
    // crane's own spelling: existing policies must parse unchanged.
    #[serde(rename = "maxLimitPecent")]
    max: Spanned<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Priority {
    name: Spanned<String>,
    weight: Spanned<f64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Hot {
    time_range: Spanned<String>,
    count: Spanned<i64>,
}

type Checked<T> = Result<T, PolicyError>;

pub(super) fn parse(text: &str) -> Checked<LoadPolicy> {
    let document: Document = serde_saphyr::from_str(text).map_err(|e| syntax(&e))?;
    check_type(&document)?;
    let spec = document.spec;
    let sync = each("syncPolicy", &spec.sync_policy, sync_rule)?;
    let hot = each("hotValue", &spec.hot_value, hot_rule)?;
    let mut table = Table { sync: &sync, metrics: Vec::new() };
    let mut limits =
        each("predicate", &spec.predicate, |path, rule| limit(path, rule, &mut table))?;
    // crane: a limit of 0 is switched off.
    limits.retain(|limit| limit.max > 0.0);
    let weights = each("priority", &spec.priority, |path, rule| weight(path, rule, &mut table))?;
    let metrics = table.metrics;
    Ok(LoadPolicy { metrics, sync, limits, weights, hot })
}

/// Gives each metric its slot, and knows how long its readings count.
struct Table<'a> {
    sync: &'a [SyncRule],
    metrics: Vec<MetricName>,
}

impl Table<'_> {
    fn slot(&mut self, metric: MetricName) -> usize {
        let known = self.metrics.iter().position(|other| *other == metric);
        known.unwrap_or_else(|| {
            self.metrics.push(metric);
            self.metrics.len() - 1
        })
    }

    /// crane takes the first sync rule of that name.
    fn max_age(&self, metric: &MetricName) -> Option<SignedDuration> {
        self.sync.iter().find(|rule| rule.metric == *metric).map(|rule| rule.period + GRACE)
    }
}

fn check_type(document: &Document) -> Checked<()> {
    let expect = |field: &str, found: &Spanned<String>, wanted: &str| {
        if found.value == wanted {
            return Ok(());
        }
        Err(fault(found, field, format!("expected `{wanted}`, found `{}`", found.value)))
    };
    expect("apiVersion", &document.api_version, API_VERSION)?;
    expect("kind", &document.kind, KIND)
}

/// Applies `check` to each element of `spec.<list>`, telling it the element's path.
fn each<S, T>(
    list: &str,
    items: &[S],
    mut check: impl FnMut(&str, &S) -> Checked<T>,
) -> Checked<Vec<T>> {
    items
        .iter()
        .enumerate()
        .map(|(index, item)| check(&format!("spec.{list}[{index}]"), item))
        .collect()
}

fn sync_rule(path: &str, rule: &Sync) -> Checked<SyncRule> {
    let period = positive(&format!("{path}.period"), &rule.period)?;
    Ok(SyncRule { metric: metric(path, &rule.name)?, period })
}

fn limit(path: &str, rule: &Predicate, table: &mut Table<'_>) -> Checked<Limit> {
    let max = rule.max.value;
    if !max.is_finite() || !(0.0..=1.0).contains(&max) {
        let hint = "expected a fraction from 0 (off) to 1";
        let more =
            if max > 1.0 { format!(", e.g. {} for {max}%", max / 100.0) } else { String::new() };
        return Err(fault(
            &rule.max,
            &format!("{path}.maxLimitPecent"),
            format!("{hint}{more}, found {max}"),
        ));
    }
    let metric = metric(path, &rule.name)?;
    Ok(Limit { max_age: table.max_age(&metric), slot: table.slot(metric), max })
}

fn weight(path: &str, rule: &Priority, table: &mut Table<'_>) -> Checked<Weight> {
    let weight = rule.weight.value;
    if !weight.is_finite() || weight < 0.0 {
        let problem = format!("expected a number of at least 0, found {weight}");
        return Err(fault(&rule.weight, &format!("{path}.weight"), problem));
    }
    let metric = metric(path, &rule.name)?;
    Ok(Weight { max_age: table.max_age(&metric), slot: table.slot(metric), weight })
}

fn hot_rule(path: &str, rule: &Hot) -> Checked<HotRule> {
    let count = u32::try_from(rule.count.value).ok().filter(|count| *count > 0);
    let count = count.ok_or_else(|| {
        let problem = format!("expected a whole number of at least 1, found {}", rule.count.value);
        fault(&rule.count, &format!("{path}.count"), problem)
    })?;
    Ok(HotRule { range: positive(&format!("{path}.timeRange"), &rule.time_range)?, count })
}

fn positive(field: &str, text: &Spanned<String>) -> Checked<SignedDuration> {
    let parsed = SpanParser::new().parse_duration(&text.value).ok();
    parsed.filter(SignedDuration::is_positive).ok_or_else(|| {
        let problem =
            format!("expected a duration above 0 such as `3m` or `1h30m`, found `{}`", text.value);
        fault(text, field, problem)
    })
}

fn metric(path: &str, name: &Spanned<String>) -> Checked<MetricName> {
    let text = name.value.as_str();
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    // The name becomes an annotation key, so the API server's own rule for keys applies.
    if text.is_empty() || text.len() > 63 || !text.chars().all(legal) {
        let problem =
            "expected 1 to 63 letters, digits, `_`, `-` or `.`: the name becomes an annotation key";
        return Err(fault(name, &format!("{path}.name"), format!("{problem}, found `{text}`")));
    }
    Ok(MetricName::from(text))
}

fn fault<T>(at: &Spanned<T>, field: &str, problem: String) -> PolicyError {
    PolicyError { line: at.referenced.line(), field: field.to_owned(), problem }
}

fn syntax(error: &serde_saphyr::Error) -> PolicyError {
    let line = error.location().map_or(0, |at| at.line());
    PolicyError { line, field: "policy".to_owned(), problem: error.to_string() }
}

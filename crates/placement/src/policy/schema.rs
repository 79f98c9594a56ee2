//! The YAML as written, checked field by field into a [`LoadPolicy`].

use std::fmt;

use jiff::SignedDuration;
use jiff::fmt::friendly::SpanParser;
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer};
use serde_saphyr::Spanned;

use super::{
    GRACE, HotRule, Limit, LoadPolicy, Overload, PolicyError, Scoring, SyncRule, Unknown, Weight,
};
use crate::estimate::EstimateRules;
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
    // crane reads a missing or empty object or list as one without entries, as Go does.
    #[serde(default)]
    spec: Option<Spec>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Spec {
    #[serde(default)]
    sync_policy: Entries<Sync>,
    #[serde(default)]
    predicate: Entries<Predicate>,
    #[serde(default)]
    priority: Entries<Priority>,
    #[serde(default)]
    hot_value: Entries<Hot>,
}

type Entries<T> = Option<Vec<Spanned<T>>>;
type Text = Option<Spanned<String>>;

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

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Hot {
    #[serde(default)]
    time_range: Text,
    #[serde(default)]
    count: Option<Spanned<Number>>,
}

/// A number as crane's parser reads it, in the forms of YAML 1.1: `010` is 8, `0x1f` is 31. Quoted
/// digits are a text, and refused.
#[derive(Clone, Copy)]
struct Number(f64);

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NumberVisitor)
    }
}

struct NumberVisitor;

impl Visitor<'_> for NumberVisitor {
    type Value = Number;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number without quotes, such as 0.65")
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<Number, E> {
        Ok(Number(number))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Number, E> {
        Ok(Number(number as f64))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Number, E> {
        Ok(Number(number as f64))
    }
}

type Checked<T> = Result<T, PolicyError>;

pub(super) fn parse(text: &str) -> Checked<LoadPolicy> {
    let options = serde_saphyr::options! { legacy_octal_numbers: true };
    let document: Document =
        serde_saphyr::from_str_with_options(text, options).map_err(|e| syntax(&e))?;
    check_type(&document)?;
    let spec = document.spec.unwrap_or_default();
    let sync = each("syncPolicy", spec.sync_policy, sync_rule)?;
    let hot = each("hotValue", spec.hot_value, hot_rule)?;
    let mut limits = each("predicate", spec.predicate, |path, rule| limit(path, rule, &sync))?;
    // crane: a limit of 0 is switched off.
    limits.retain(|limit| limit.max > 0.0);
    let weights = each("priority", spec.priority, |path, rule| weight(path, rule, &sync))?;
    // Where crane's own count of new pods is left out, their estimated use takes its place.
    let estimates = hot.is_empty().then(EstimateRules::default);
    Ok(LoadPolicy {
        sync,
        limits,
        weights,
        hot,
        scoring: Scoring::crane(),
        overload: Overload::crane(),
        estimates,
        pools: Vec::new(),
        namespaces: Vec::new(),
    })
}

/// crane takes the first sync rule of that name.
fn max_age(sync: &[SyncRule], metric: &MetricName) -> Option<SignedDuration> {
    let rule = sync.iter().find(|rule| rule.metric == *metric);
    rule.map(|rule| rule.period.saturating_add(GRACE))
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

/// Applies `check` to each element of `spec.<list>`, and gives it the element's path.
fn each<S, T>(
    list: &str,
    items: Entries<S>,
    check: impl Fn(&str, &Spanned<S>) -> Checked<T>,
) -> Checked<Vec<T>> {
    let items = items.unwrap_or_default();
    items
        .iter()
        .enumerate()
        .map(|(index, item)| check(&format!("spec.{list}[{index}]"), item))
        .collect()
}

fn sync_rule(path: &str, rule: &Spanned<Sync>) -> Checked<SyncRule> {
    let period = positive(path, "period", rule, rule.value.period.as_ref())?;
    Ok(SyncRule { metric: metric(path, rule, rule.value.name.as_ref())?, period })
}

fn limit(path: &str, rule: &Spanned<Predicate>, sync: &[SyncRule]) -> Checked<Limit> {
    let max = at_least_0(path, "maxLimitPecent", rule.value.max.as_ref())?;
    let metric = metric(path, rule, rule.value.name.as_ref())?;
    let (when_stale, when_missing) = (Unknown::Ignore, Unknown::Ignore);
    Ok(Limit { max_age: max_age(sync, &metric), metric, max, when_stale, when_missing })
}

fn weight(path: &str, rule: &Spanned<Priority>, sync: &[SyncRule]) -> Checked<Weight> {
    let weight = at_least_0(path, "weight", rule.value.weight.as_ref())?;
    let metric = metric(path, rule, rule.value.name.as_ref())?;
    let (when_stale, when_missing) = (Unknown::Penalise, Unknown::Penalise);
    Ok(Weight { max_age: max_age(sync, &metric), metric, weight, when_stale, when_missing })
}

fn hot_rule(path: &str, rule: &Spanned<Hot>) -> Checked<HotRule> {
    let range = positive(path, "timeRange", rule, rule.value.time_range.as_ref())?;
    let field = format!("{path}.count");
    let wanted = "expected a whole number of at least 1";
    let Some(given) = rule.value.count.as_ref() else {
        return Err(fault(rule, &field, format!("{wanted}, found none")));
    };
    let number = given.value.0;
    let whole = number.fract() == 0.0 && (1.0..=f64::from(u32::MAX)).contains(&number);
    if !whole {
        return Err(fault(given, &field, format!("{wanted}, found {number}")));
    }
    Ok(HotRule { range, count: number as u32 })
}

/// A finite number that is not negative; a missing one is 0, as crane reads it.
fn at_least_0(path: &str, name: &str, given: Option<&Spanned<Number>>) -> Checked<f64> {
    let Some(given) = given else { return Ok(0.0) };
    let number = given.value.0;
    if number.is_finite() && number >= 0.0 {
        return Ok(number);
    }
    let problem = format!("expected a number of at least 0, found {number}");
    Err(fault(given, &format!("{path}.{name}"), problem))
}

fn positive<S>(
    path: &str,
    name: &str,
    rule: &Spanned<S>,
    given: Option<&Spanned<String>>,
) -> Checked<SignedDuration> {
    let field = format!("{path}.{name}");
    let wanted = "expected a duration above 0 such as `3m` or `1h30m`";
    let Some(given) = given else {
        return Err(fault(rule, &field, format!("{wanted}, found none")));
    };
    let parsed = SpanParser::new().parse_duration(&given.value).ok();
    let parsed = parsed.filter(SignedDuration::is_positive);
    parsed.ok_or_else(|| fault(given, &field, format!("{wanted}, found `{}`", given.value)))
}

fn metric<S>(
    path: &str,
    rule: &Spanned<S>,
    given: Option<&Spanned<String>>,
) -> Checked<MetricName> {
    let field = format!("{path}.name");
    let wanted = "expected 1 to 63 letters, digits, `_`, `-` or `.`, the first and last a letter or digit: \
                  the name becomes an annotation key";
    let Some(given) = given else {
        return Err(fault(rule, &field, format!("{wanted}, found none")));
    };
    let parsed = MetricName::parse(&given.value);
    parsed.ok_or_else(|| fault(given, &field, format!("{wanted}, found `{}`", given.value)))
}

fn fault<T>(at: &Spanned<T>, field: &str, problem: String) -> PolicyError {
    PolicyError { line: at.referenced.line(), field: field.to_owned(), problem }
}

/// The parser's message on one line; it names the line a second time, which is cut off.
fn syntax(error: &serde_saphyr::Error) -> PolicyError {
    let line = error.location().map_or(0, |at| at.line());
    let mut options = serde_saphyr::RenderOptions::default();
    options.snippets = serde_saphyr::SnippetMode::Off;
    let text = error.render_with_options(options);
    let problem = text.rsplit_once(" at line ").map_or(&*text, |(message, _)| message).to_owned();
    PolicyError { line, field: "policy".to_owned(), problem }
}

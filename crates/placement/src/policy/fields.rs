//! Shared by the parsers of both kinds: fields with their line in the text, and errors that name field and line.

use std::fmt;

use jiff::SignedDuration;
use jiff::fmt::friendly::SpanParser;
use schemars::JsonSchema;
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer};
use serde_saphyr::Spanned;

use super::{HotRule, PolicyError};
use crate::units::MetricName;

pub(super) type Checked<T> = Result<T, PolicyError>;
pub(super) type Entries<T> = Option<Vec<Spanned<T>>>;
pub(super) type Text = Option<Spanned<String>>;

/// A number as crane's parser reads it, in the forms of YAML 1.1: `010` is 8, `0x1f` is 31. Quoted
/// digits are a text and refused.
#[derive(Clone, Copy)]
pub(super) struct Number(pub(super) f64);

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

/// crane's hot value: recent bindings cost points.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("required" = ["timeRange", "count"]))]
pub(super) struct Hot {
    /// How far back bindings count, such as `5m`.
    #[serde(default)]
    #[schemars(with = "String")]
    time_range: Text,
    /// Every `count` bindings within `timeRange` cost a node 10 of 100 points.
    #[serde(default)]
    #[schemars(with = "u32", range(min = 1))]
    count: Option<Spanned<Number>>,
}

pub(super) fn hot_rule(path: &str, rule: &Spanned<Hot>) -> Checked<HotRule> {
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

/// Calls `check` with each element of `list` and its path.
pub(super) fn each<S, T>(
    list: &str,
    items: &Entries<S>,
    check: impl Fn(&str, &Spanned<S>) -> Checked<T>,
) -> Checked<Vec<T>> {
    let checked = |(index, item): (usize, &Spanned<S>)| check(&format!("{list}[{index}]"), item);
    items.iter().flatten().enumerate().map(checked).collect()
}

/// Checks that a field has the value `wanted`.
pub(super) fn expect(field: &str, found: &Spanned<String>, wanted: &str) -> Checked<()> {
    if found.value == wanted {
        return Ok(());
    }
    Err(fault(found, field, format!("expected `{wanted}`, found `{}`", found.value)))
}

pub(super) fn metric<S>(
    path: &str,
    rule: &Spanned<S>,
    given: Option<&Spanned<String>>,
) -> Checked<MetricName> {
    let field = format!("{path}.name");
    let Some(given) = given else {
        return Err(fault(rule, &field, format!("{METRIC_NAME}, found none")));
    };
    metric_name(&field, given)
}

const METRIC_NAME: &str = "expected 1 to 63 letters, digits, `_`, `-` or `.`, the first and last a letter or digit: \
                           the name becomes an annotation key";

pub(super) fn metric_name(field: &str, given: &Spanned<String>) -> Checked<MetricName> {
    let parsed = MetricName::parse(&given.value);
    parsed.ok_or_else(|| fault(given, field, format!("{METRIC_NAME}, found `{}`", given.value)))
}

pub(super) fn positive<S>(
    path: &str,
    name: &str,
    rule: &Spanned<S>,
    given: Option<&Spanned<String>>,
) -> Checked<SignedDuration> {
    let field = format!("{path}.{name}");
    let Some(given) = given else {
        return Err(fault(rule, &field, format!("{DURATION}, found none")));
    };
    duration(&field, given)
}

const DURATION: &str = "expected a duration above 0 such as `3m` or `1h30m`";

pub(super) fn duration(field: &str, given: &Spanned<String>) -> Checked<SignedDuration> {
    match SpanParser::new().parse_duration(&given.value) {
        Ok(duration) if duration.is_positive() => Ok(duration),
        _ => Err(fault(given, field, format!("{DURATION}, found `{}`", given.value))),
    }
}

pub(super) fn fault<T>(at: &Spanned<T>, field: &str, problem: String) -> PolicyError {
    PolicyError { line: at.referenced.line(), field: field.to_owned(), problem }
}

/// The parser's message on one line, without the line number, which the error names already.
pub(super) fn syntax(error: &serde_saphyr::Error) -> PolicyError {
    let line = error.location().map_or(0, |at| at.line());
    let mut options = serde_saphyr::RenderOptions::default();
    options.snippets = serde_saphyr::SnippetMode::Off;
    let text = error.render_with_options(options);
    let problem = text.rsplit_once(" at line ").map_or(&*text, |(message, _)| message).to_owned();
    PolicyError { line, field: "policy".to_owned(), problem }
}

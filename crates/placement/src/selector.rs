//! Label selectors, in the text form of `kubectl --selector` and in the form that objects have, and whether labels
//! match.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::Deserialize;

/// An object's labels.
pub type Labels = BTreeMap<String, String>;

/// A label selector, such as `kubernetes.io/os=linux,type!=virtual-kubelet`. The empty one selects everything.
///
/// # Examples
///
/// ```
/// use placement::selector::{LabelSelector, Labels};
///
/// let selector: LabelSelector = "pool in (a, b),!spot".parse()?;
/// let labels = Labels::from([("pool".to_owned(), "a".to_owned())]);
/// assert!(selector.matches(&labels));
/// assert!("pool=a b".parse::<LabelSelector>().is_err());
/// # Ok::<(), placement::selector::SelectorError>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LabelSelector {
    text: String,
    requirements: Vec<Requirement>,
}

/// What is required of one label, or of one field.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(from = "WrittenRequirement")]
pub struct Requirement {
    key: String,
    operator: Operator,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Operator {
    Present,
    Absent,
    In(Vec<String>),
    /// A label that is absent matches too, as in Kubernetes.
    NotIn(Vec<String>),
    Above(i64),
    Below(i64),
    /// Another, or one with values that it does not take. It matches nothing.
    Unknown,
}

/// A requirement as objects have it.
#[derive(Deserialize)]
struct WrittenRequirement {
    key: Option<String>,
    operator: Option<String>,
    values: Option<Vec<String>>,
}

impl From<WrittenRequirement> for Requirement {
    fn from(it: WrittenRequirement) -> Self {
        let (key, values) = (it.key.unwrap_or_default(), it.values.unwrap_or_default());
        Self::new(key, it.operator.as_deref().unwrap_or_default(), values)
    }
}

/// A label selector as objects have it: the requirements of which all have to be met.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "WrittenSelector")]
pub struct Requirements(pub Vec<Requirement>);

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WrittenSelector {
    match_labels: Option<Labels>,
    match_expressions: Option<Vec<Requirement>>,
}

impl From<WrittenSelector> for Requirements {
    fn from(it: WrittenSelector) -> Self {
        let mut all = it.match_expressions.unwrap_or_default();
        for (key, value) in it.match_labels.into_iter().flatten() {
            all.push(Requirement::is(key, value));
        }
        Self(all)
    }
}

impl Requirements {
    /// Whether each can be checked.
    pub fn are_known(&self) -> bool {
        self.0.iter().all(Requirement::is_known)
    }

    /// Whether an object with these labels meets all of them.
    pub fn match_labels(&self, labels: &Labels) -> bool {
        self.0.iter().all(|requirement| requirement.matches(labels))
    }

    /// How many there are, and values of them.
    pub fn size(&self) -> usize {
        self.0.iter().map(|requirement| 1 + requirement.values()).sum()
    }
}

/// Why a text is no label selector.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected requirements such as `key`, `!key`, `key=value`, `key!=value` or `key in (a,b)`, separated by commas, found \
     `{0}`"
)]
pub struct SelectorError(String);

impl LabelSelector {
    /// The text, as the API server reads it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether an object with these labels is selected.
    #[must_use]
    pub fn matches(&self, labels: &Labels) -> bool {
        self.requirements.iter().all(|requirement| requirement.matches(labels))
    }
}

impl Requirement {
    /// A requirement as objects have it.
    #[must_use]
    pub fn new(key: String, operator: &str, values: Vec<String>) -> Self {
        let bound = match values.as_slice() {
            [value] => value.parse().ok(),
            _ => None,
        };
        let operator = match (operator, bound) {
            ("Exists", _) => Operator::Present,
            ("DoesNotExist", _) => Operator::Absent,
            ("In", _) if !values.is_empty() => Operator::In(values),
            ("NotIn", _) if !values.is_empty() => Operator::NotIn(values),
            ("Gt", Some(bound)) => Operator::Above(bound),
            ("Lt", Some(bound)) => Operator::Below(bound),
            _ => Operator::Unknown,
        };
        Self { key, operator }
    }

    /// That a label has this value.
    #[must_use]
    pub fn is(key: String, value: String) -> Self {
        Self { key, operator: Operator::In(vec![value]) }
    }

    /// The key of the label or field.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Whether it can be checked.
    pub fn is_known(&self) -> bool {
        self.operator != Operator::Unknown
    }

    /// How many values it names.
    pub(crate) fn values(&self) -> usize {
        match &self.operator {
            Operator::In(values) | Operator::NotIn(values) => values.len(),
            _ => 0,
        }
    }

    /// Whether it is about a value that must be one of several.
    pub(crate) fn is_in(&self) -> bool {
        matches!(self.operator, Operator::In(_))
    }

    /// Whether labels meet it.
    pub fn matches(&self, labels: &Labels) -> bool {
        self.is_met_by(labels.get(&self.key).map(String::as_str))
    }

    /// Whether a value meets it; `None` where the label is absent.
    pub(crate) fn is_met_by(&self, value: Option<&str>) -> bool {
        let is_one_of = |values: &[String]| values.iter().any(|it| Some(it.as_str()) == value);
        let number = || value?.parse::<i64>().ok();
        match &self.operator {
            Operator::Present => value.is_some(),
            Operator::Absent => value.is_none(),
            Operator::In(values) => is_one_of(values),
            Operator::NotIn(values) => !is_one_of(values),
            Operator::Above(bound) => number().is_some_and(|number| number > *bound),
            Operator::Below(bound) => number().is_some_and(|number| number < *bound),
            Operator::Unknown => false,
        }
    }
}

impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for LabelSelector {
    type Err = SelectorError;

    fn from_str(given: &str) -> Result<Self, SelectorError> {
        let text = given.trim();
        if text.is_empty() {
            return Ok(Self::default());
        }
        let mut requirements = Vec::new();
        for part in parts(text).map(str::trim) {
            let error = || SelectorError(part.chars().take(64).collect());
            requirements.push(requirement(part).ok_or_else(error)?);
        }
        Ok(Self { text: text.to_owned(), requirements })
    }
}

/// The parts between commas that are not in parentheses.
fn parts(text: &str) -> impl Iterator<Item = &str> {
    let mut in_set = false;
    text.split(move |c| {
        in_set = (in_set || c == '(') && c != ')';
        c == ',' && !in_set
    })
}

fn requirement(text: &str) -> Option<Requirement> {
    if let Some(key) = text.strip_prefix('!') {
        return with_key(key, Operator::Absent);
    }
    if let Some((key, value)) = text.split_once("!=") {
        return with_key(key, Operator::NotIn(vec![checked_value(value)?]));
    }
    if let Some((key, value)) = text.split_once("==").or_else(|| text.split_once('=')) {
        return with_key(key, Operator::In(vec![checked_value(value)?]));
    }
    match text.split_once(char::is_whitespace) {
        Some((key, set)) => with_key(key, wanted_set(set.trim())?),
        None => with_key(text, Operator::Present),
    }
}

fn with_key(text: &str, operator: Operator) -> Option<Requirement> {
    let key = text.trim();
    is_key(key).then(|| Requirement { key: key.to_owned(), operator })
}

/// `in (a,b)` or `notin (a,b)`.
fn wanted_set(text: &str) -> Option<Operator> {
    match text.strip_prefix("notin") {
        Some(rest) => values_in_parentheses(rest).map(Operator::NotIn),
        None => values_in_parentheses(text.strip_prefix("in")?).map(Operator::In),
    }
}

fn values_in_parentheses(text: &str) -> Option<Vec<String>> {
    let list = text.trim().strip_prefix('(')?.strip_suffix(')')?;
    list.split(',').map(checked_value).collect()
}

/// The value without spaces around it, if it is one of a label.
fn checked_value(text: &str) -> Option<String> {
    let value = text.trim();
    is_value(value).then(|| value.to_owned())
}

/// Whether `text` is a key of labels and taints: `name` or `prefix/name`, where the prefix is a DNS name.
#[must_use]
pub fn is_key(text: &str) -> bool {
    let (prefix, name) = text.rsplit_once('/').map_or((None, text), |(p, name)| (Some(p), name));
    let prefix_fits = prefix.is_none_or(|prefix| {
        prefix.len() <= 253
            && prefix.split('.').all(|label| is_word(label, |c| c.is_ascii_lowercase() || c == '-'))
    });
    prefix_fits
        && name.len() <= 63
        && is_word(name, |c| c.is_ascii_alphabetic() || "-_.".contains(c))
}

fn is_value(text: &str) -> bool {
    text.is_empty()
        || text.len() <= 63 && is_word(text, |c: char| c.is_ascii_alphabetic() || "-_.".contains(c))
}

/// Whether `text` is not empty, consists of digits and `legal` characters, and begins and ends with a letter or digit.
fn is_word(text: &str, legal: impl Fn(char) -> bool) -> bool {
    let ends = [text.chars().next(), text.chars().next_back()];
    ends.iter().all(|end| end.is_some_and(|c| c.is_ascii_alphanumeric()))
        && text.chars().all(|c| c.is_ascii_digit() || legal(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_that_kubectl_takes_are_valid() {
        for text in [
            "",
            "pool",
            "!pool",
            "! pool",
            "pool=",
            "pool=a",
            "pool == a",
            "pool!=a",
            "kubernetes.io/os=linux,type!=virtual-kubelet",
            "pool in (a,b), !spot",
            "pool notin (a, b)",
            "eks.amazonaws.com/compute-type notin (fargate)",
        ] {
            assert_eq!(text.parse::<LabelSelector>().unwrap().as_str(), text);
        }
    }

    #[test]
    fn anything_else_is_an_error_that_names_the_requirement() {
        for text in [
            ",",
            "a,,b",
            "a b",
            "a=b c",
            "=a",
            "!",
            "a/b/c",
            "A.b/c",
            "-a",
            "a-",
            "a=-",
            "a in b",
            "a in (b",
            "a in b)",
            "a within (b)",
            "a>1",
            "a=b=c",
            "/a",
            "a/",
        ] {
            let error = text.parse::<LabelSelector>();
            assert!(error.is_err(), "{text}");
        }
        let error = "pool=a,type!=a b".parse::<LabelSelector>().unwrap_err().to_string();
        assert!(error.ends_with("found `type!=a b`"), "{error}");
    }

    #[test]
    fn a_selector_matches_as_the_api_servers_does() {
        let labels = [("pool", "a"), ("zone", "z1")].map(|(k, v)| (k.to_owned(), v.to_owned()));
        let labels = Labels::from(labels);
        for (text, matches) in [
            ("", true),
            ("pool", true),
            ("!pool", false),
            ("pool=a", true),
            ("pool==b", false),
            ("pool!=b", true),
            ("spot!=true", true),
            ("pool in (b, a),zone", true),
            ("pool notin (a)", false),
            ("spot notin (true)", true),
            ("spot in (true)", false),
            ("pool=a,zone=z2", false),
        ] {
            assert_eq!(text.parse::<LabelSelector>().unwrap().matches(&labels), matches, "{text}");
        }
    }
}

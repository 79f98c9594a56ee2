//! Label selectors in the text form of `kubectl --selector`, and whether labels match.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

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

#[derive(Debug, Clone, PartialEq, Eq)]
struct Requirement {
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
    fn matches(&self, labels: &Labels) -> bool {
        let value = labels.get(&self.key);
        match &self.operator {
            Operator::Present => value.is_some(),
            Operator::Absent => value.is_none(),
            Operator::In(values) => value.is_some_and(|value| values.contains(value)),
            Operator::NotIn(values) => value.is_none_or(|value| !values.contains(value)),
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

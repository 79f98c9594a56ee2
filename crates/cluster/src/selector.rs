//! Label selectors in the text form of `kubectl --selector`.

use std::fmt;
use std::str::FromStr;

/// A label selector with valid syntax, such as `kubernetes.io/os=linux,type!=virtual-kubelet`. The empty one selects
/// everything.
///
/// # Examples
///
/// ```
/// use cluster::LabelSelector;
///
/// assert!("pool in (a, b),!spot".parse::<LabelSelector>().is_ok());
/// assert!("pool=a b".parse::<LabelSelector>().is_err());
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LabelSelector(String);

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
        &self.0
    }
}

impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for LabelSelector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, SelectorError> {
        let text = text.trim();
        let wrong = requirements(text).find(|requirement| !is_requirement(requirement.trim()));
        match wrong.filter(|_| !text.is_empty()) {
            Some(wrong) => Err(SelectorError(wrong.trim().chars().take(64).collect())),
            None => Ok(Self(text.to_owned())),
        }
    }
}

/// The parts between commas that are not in parentheses.
fn requirements(text: &str) -> impl Iterator<Item = &str> {
    let mut in_set = false;
    text.split(move |c| {
        in_set = (in_set || c == '(') && c != ')';
        c == ',' && !in_set
    })
}

fn is_requirement(text: &str) -> bool {
    if let Some(key) = text.strip_prefix('!') {
        return is_key(key.trim());
    }
    for operator in ["!=", "==", "="] {
        if let Some((key, value)) = text.split_once(operator) {
            return is_key(key.trim()) && is_value(value.trim());
        }
    }
    match text.split_once(char::is_whitespace) {
        Some((key, set)) => is_key(key) && is_set(set.trim()),
        None => is_key(text),
    }
}

/// `in (a,b)` or `notin (a,b)`.
fn is_set(text: &str) -> bool {
    let values = text.strip_prefix("notin").or_else(|| text.strip_prefix("in"));
    let values = values.and_then(|values| values.trim().strip_prefix('(')?.strip_suffix(')'));
    values.is_some_and(|values| values.split(',').all(|value| is_value(value.trim())))
}

/// `name` or `prefix/name`, where the prefix is a DNS name.
fn is_key(text: &str) -> bool {
    let (prefix, name) = text.rsplit_once('/').map_or((None, text), |(p, name)| (Some(p), name));
    let is_label = |label: &str| is_word(label, |c| c.is_ascii_lowercase() || c == '-');
    let prefix_fits =
        prefix.is_none_or(|prefix| prefix.len() <= 253 && prefix.split('.').all(is_label));
    prefix_fits
        && name.len() <= 63
        && is_word(name, |c| c.is_ascii_alphabetic() || "-_.".contains(c))
}

fn is_value(text: &str) -> bool {
    let legal = |c: char| c.is_ascii_alphabetic() || "-_.".contains(c);
    text.is_empty() || text.len() <= 63 && is_word(text, legal)
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
}

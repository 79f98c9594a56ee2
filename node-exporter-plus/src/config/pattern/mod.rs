//! Names of signals with `*`, which stands for any characters.

use std::fmt;

use wildmatch::WildMatchPattern;

use crate::series::{Kind, Signal};

/// A signal's name, or a pattern of names: `cpu_usage`, `psi_*`, `disk_device_usage`.
///
/// `*` is the only wildcard: no name has a NUL, which takes the place of the crate's `?`. Matching takes at most the
/// product of both lengths.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Pattern(WildMatchPattern<'*', '\0'>);

impl Pattern {
    pub(super) fn new(text: &str) -> Self {
        Self(WildMatchPattern::new(text))
    }

    /// Whether the signal has such a name, or its kind.
    pub(super) fn matches(&self, signal: &Signal) -> bool {
        signal.names().iter().any(|name| self.0.matches(name))
    }

    /// Whether a signal of this kind can match on any node.
    pub(super) fn can_match(&self, kind: &Kind) -> bool {
        let ends = kind.label.and_then(|label| kind.name.split_once(&format!("_{label}_")));
        self.0.matches(kind.name)
            || ends.is_some_and(|(start, end)| can_match_device(&self.0.pattern(), start, end))
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Whether `pattern` can match `start`, `_`, any word of letters, digits and `_`, `_`, and `end`.
fn can_match_device(pattern: &str, start: &str, end: &str) -> bool {
    let legal = pattern.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '*');
    let start = format!("{start}_");
    let end = format!("_{end}");
    let Some((before, rest)) = pattern.split_once('*') else {
        let word = pattern.strip_prefix(&start).and_then(|rest| rest.strip_suffix(&end));
        return legal && word.is_some_and(|word| !word.is_empty());
    };
    // The text between the first and the last star can be a part of the device's name.
    let after = rest.rsplit('*').next().unwrap_or(rest);
    let begins = before.starts_with(&start) || start.starts_with(before);
    legal && begins && (after.ends_with(&end) || end.ends_with(after))
}

#[cfg(test)]
mod tests;

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

    /// Whether a signal of this kind can match, on whatever node.
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
    let (start, end) = (format!("{start}_"), format!("_{end}"));
    let Some((before, rest)) = pattern.split_once('*') else {
        let word = pattern.strip_prefix(&start).and_then(|rest| rest.strip_suffix(&end));
        return legal && word.is_some_and(|word| !word.is_empty());
    };
    // What stands between the first and the last star can be a part of the device's word.
    let after = rest.rsplit('*').next().unwrap_or(rest);
    let begins = before.starts_with(&start) || start.starts_with(before);
    legal && begins && (after.ends_with(&end) || end.ends_with(after))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collectors::KINDS;
    use crate::collectors::disk::DEVICE_USAGE;
    use proptest::prelude::*;

    fn matches(pattern: &str, name: &str) -> bool {
        Pattern::new(pattern).0.matches(name)
    }

    #[test]
    fn stars_match_any_characters_and_nothing_else_is_special() {
        for pattern in ["*", "cpu*", "*usage", "c*_*e", "cpu_usage", "cpu_usage*", "**c**"] {
            assert!(matches(pattern, "cpu_usage"), "{pattern}");
        }
        for pattern in ["", "cpu", "*x*", "usage*", "cpu?usage", "cpu[_]usage"] {
            assert!(!matches(pattern, "cpu_usage"), "{pattern}");
        }
    }

    #[test]
    fn many_stars_cost_no_more_than_the_product_of_both_lengths() {
        let name = "a".repeat(200);
        assert!(!matches(&format!("{}x", "*".repeat(20)), &name));
        assert!(!matches(&format!("{}x", "*a".repeat(30)), &name));
        assert!(matches(&"*a".repeat(30), &name));
    }

    #[test]
    fn a_pattern_that_no_node_can_match_is_known_as_such() {
        let possible = |pattern: &str| {
            let pattern = Pattern::new(pattern);
            KINDS.iter().any(|kind| pattern.can_match(kind))
        };
        for pattern in [
            "*",
            "cpu_usage",
            "cpu_*",
            "psi_*_some",
            "disk_usage",
            "disk_device_usage",
            "disk_sda_usage",
            "disk_sd*",
            "*_sda_*",
            "*0_usage",
            "fs_var_lib_usage",
            "gpu_0_*",
            "network_*_bytes",
            "d*k_nvme*e",
        ] {
            assert!(possible(pattern), "{pattern}");
        }
        for pattern in [
            "",
            "cpu_usge",
            "dsk_usage",
            "dsk_*",
            "*_usge",
            "disk__usage",
            "disk_s-a_usage",
            "disk_ä*",
            "load2",
            "gpu_0_speed",
            "/var/lib",
        ] {
            assert!(!possible(pattern), "{pattern}");
        }
    }

    proptest! {
        #[test]
        fn a_pattern_that_matches_some_disk_is_possible(pattern in "[dsik_a*ug]{0,16}", word in "[a-z0-9_]{1,5}") {
            let name = format!("disk_{word}_usage");
            let pattern = if matches(&pattern, &name) { pattern } else { name.replace(&word, "*") };
            prop_assert!(!matches(&pattern, &name) || Pattern::new(&pattern).can_match(&DEVICE_USAGE));
        }
    }
}

//! The policy file that extender and annotator follow.

use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::model::policy::Policy;

/// The policy that a user installs.
const SHIPPED: &str = include_str!("../../../../deploy/chart/policies/shipped.yaml");
/// A policy of crane's kind.
const CRANE: &str = include_str!("crane-policy.yaml");
/// What the demo replaces in the shipped policy: its windows, since a minute must be enough to see a mean of five
/// minutes move. A killed exporter's readings are too old after half a minute.
const WINDOWS: [(&str, &str); 4] = [
    ("cpu_shared_busy_avg_5m", "cpu_shared_busy_active"),
    ("mem_usage_avg_5m", "mem_usage_active"),
    ("period: 1m", "period: 2s"),
    ("maxAge: 8m", "maxAge: 30s"),
];

/// The policy file of a demo whose files lie below `root`.
pub(super) fn path(root: &Path) -> PathBuf {
    root.join("policy.yaml")
}

/// Writes the policy file in one step, so that no program reads half of it.
///
/// # Errors
/// When it cannot be written.
pub(super) fn write(root: &Path, policy: Policy) -> io::Result<()> {
    let fresh = root.join(".policy.yaml");
    fs::write(&fresh, text(policy))?;
    fs::rename(fresh, path(root))
}

fn text(policy: Policy) -> String {
    match policy {
        Policy::Shipped => {
            WINDOWS.iter().fold(SHIPPED.to_owned(), |text, (from, to)| text.replace(from, to))
        }
        Policy::Crane => CRANE.to_owned(),
    }
}
